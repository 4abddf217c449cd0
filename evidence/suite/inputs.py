#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Writes the suite's inputs into a directory. All come from seeds: every run on
every machine writes the same bytes.

    inputs.py DIRECTORY
"""
import os
import random
import sys


def words(rng, count):
    parts = "ba ce di fo gu la me ni po ru sa te vi zo ka lu mar tel son ver quin dra".split()
    found = {}
    while len(found) < count:
        found["".join(rng.choice(parts) for _ in range(rng.randint(1, 4)))] = None
    return list(found)


def text(path):
    """Prose of a kind: words by a law of the few and the many, in lines."""
    rng = random.Random(1)
    vocabulary = words(rng, 30000)
    with open(path, "w") as out:
        for number in range(300000):
            line = [vocabulary[int(30000 * rng.random() ** 4)] for _ in range(10)]
            if number % 7 == 0:
                line[3] = "%04d-%02d-%02d" % (1990 + rng.randrange(30), 1 + rng.randrange(12), 1 + rng.randrange(28))
            if number % 11 == 0:
                line[5] = "%s@%s.example" % (line[1], line[2])
            out.write(" ".join(line) + "\n")


def numbers(path):
    rng = random.Random(2)
    with open(path, "w") as out:
        for number in range(2000000):
            out.write("%d %x\n" % (rng.getrandbits(40), number))


def book(path):
    """A DocBook book: chapters, sections, tables, lists, cross references, index terms."""
    rng = random.Random(3)
    vocabulary = words(rng, 3000)

    def prose(count):
        return " ".join(rng.choice(vocabulary) for _ in range(count))

    with open(path, "w") as out:
        out.write('<?xml version="1.0"?>\n<book><bookinfo><title>%s</title></bookinfo>\n' % prose(4))
        for c in range(12):
            out.write('<chapter id="c%d"><title>%s</title>\n' % (c, prose(5)))
            for s in range(10):
                out.write('<section id="s%d.%d"><title>%s</title>\n' % (c, s, prose(4)))
                for _ in range(5):
                    out.write("<para>%s <emphasis>%s</emphasis> <indexterm><primary>%s</primary></indexterm>%s"
                              ' <xref linkend="s%d.%d"/>.</para>\n'
                              % (prose(30), prose(2), rng.choice(vocabulary), prose(30), rng.randrange(12), rng.randrange(10)))
                out.write("<itemizedlist>%s</itemizedlist>\n"
                          % "".join("<listitem><para>%s</para></listitem>" % prose(8) for _ in range(6)))
                out.write('<table><title>%s</title><tgroup cols="4"><tbody>%s</tbody></tgroup></table>\n'
                          % (prose(3), "".join("<row>%s</row>" % "".join("<entry>%s</entry>" % prose(2) for _ in range(4))
                                               for _ in range(8))))
                out.write("</section>\n")
            out.write("</chapter>\n")
        out.write("<index/></book>\n")


def proteins(alignment, database):
    """A family of related sequences, aligned, and a database that hides some of its kind."""
    rng = random.Random(4)
    acids = "ARNDCQEGHILKMFPSTWYV"
    family = "".join(rng.choice(acids) for _ in range(220))

    def relative():
        return "".join(a if rng.random() < 0.7 else rng.choice(acids) for a in family)

    with open(alignment, "w") as out:
        out.write("# STOCKHOLM 1.0\n#=GF ID family\n")
        for i in range(30):
            out.write("relative%-4d %s\n" % (i, relative()))
        out.write("//\n")
    with open(database, "w") as out:
        for i in range(40000):
            sequence = "".join(rng.choices(acids, k=rng.randint(100, 500)))
            if i % 50 == 0:
                sequence = sequence[:40] + relative() + sequence[40:]
            out.write(">protein%d\n%s\n" % (i, sequence))


def video(path):
    """Frames of 4:2:0 video: a moving gradient, moving blocks, some noise."""
    rng = random.Random(5)
    width, height, frames = 640, 360, 24
    noise = bytes(rng.getrandbits(3) for _ in range(width * 4))
    rows = [bytes((x * 3 // 4 + y // 2) & 255 for x in range(width * 2)) for y in range(height)]
    blocks = [(rng.randrange(width - 80), rng.randrange(height - 60), rng.randrange(-6, 7), rng.randrange(-4, 5), rng.getrandbits(8))
              for _ in range(12)]
    with open(path, "wb") as out:
        out.write(b"YUV4MPEG2 W%d H%d F25:1 Ip A1:1 C420jpeg\n" % (width, height))
        for f in range(frames):
            out.write(b"FRAME\n")
            picture = []
            for y in range(height):
                row = bytearray(rows[y][f * 5:f * 5 + width])
                start = rng.randrange(width * 3)
                row = bytearray(p ^ n for p, n in zip(row, noise[start:start + width]))
                picture.append(row)
            for x, y, dx, dy, shade in blocks:
                x, y = (x + f * dx) % (width - 80), (y + f * dy) % (height - 60)
                for k in range(60):
                    picture[y + k][x:x + 80] = bytes((shade + (i * k >> 4)) & 255 for i in range(80))
            out.write(b"".join(picture))
            for plane in range(2):
                for y in range(height // 2):
                    out.write(bytes((128 + (x >> 3) + (y >> 2) * (1 - 2 * plane) + f) & 255 for x in range(width // 2)))


def picture(path):
    rng = random.Random(6)
    width, height = 3000, 2250
    noise = bytes(rng.getrandbits(5) for _ in range(1 << 20))
    with open(path, "wb") as out:
        out.write(b"P6\n%d %d\n255\n" % (width, height))
        base = [bytes(((x >> 4) * (c + 1) + (x * x >> 14)) & 191 for x in range(width) for c in range(3))
                for _ in range(1)][0]
        for y in range(height):
            start = rng.randrange((1 << 20) - width * 3)
            shift = (y >> 3) * 9 % (width * 3)
            row = int.from_bytes(base[shift:] + base[:shift], "little") ^ int.from_bytes(noise[start:start + width * 3], "little")
            out.write(row.to_bytes(width * 3, "little"))


def history(path):
    """A stream for git fast-import: a tree of text files and a thousand commits to it."""
    rng = random.Random(8)
    vocabulary = words(rng, 4000)

    def line():
        return " ".join(rng.choice(vocabulary) for _ in range(rng.randint(3, 12)))

    files = {"dir%d/part%d/file%d.txt" % (i % 9, i % 31, i): [line() for _ in range(rng.randint(50, 500))] for i in range(300)}
    names = list(files)
    with open(path, "w") as out:
        for commit in range(1200):
            message = line()
            out.write("commit refs/heads/main\ncommitter A. Writer <writer@name.example> %d +0000\ndata %d\n%s\n"
                      % (1500000000 + commit * 3600, len(message), message))
            for name in names if commit == 0 else rng.sample(names, rng.randint(1, 5)):
                lines = files[name]
                for _ in range(rng.randint(1, 6)):
                    at = rng.randrange(len(lines))
                    lines[at:at + rng.randint(0, 2)] = [line() for _ in range(rng.randint(0, 3))]
                    lines.append(line())
                body = "\n".join(lines) + "\n"
                out.write("M 100644 inline %s\ndata %d\n%s\n" % (name, len(body), body))
            out.write("\n")


INPUTS = {
    ("text.txt",): text,
    ("numbers.txt",): numbers,
    ("book.xml",): book,
    ("family.sto", "proteins.fasta"): proteins,
    ("video.y4m",): video,
    ("picture.ppm",): picture,
    ("history.fi",): history,
}


def main():
    directory = sys.argv[1]
    os.makedirs(directory, exist_ok=True)
    for names, write in INPUTS.items():
        paths = [os.path.join(directory, name) for name in names]
        if all(os.path.exists(path) for path in paths):
            continue
        print("suite: writing %s" % " ".join(names), file=sys.stderr)
        write(*[path + ".new" for path in paths])
        for path in paths:
            os.rename(path + ".new", path)


main()
