# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the tools of this folder share: places, options, runs that have to succeed, CPU times and pages."""

import argparse
import os
import pathlib
import resource
import subprocess
import sys
import time

# The figures do not depend on the machine that makes them.
os.environ["BIFOLD_PROFILE"] = "i5-7600"

TOOL = os.path.basename(sys.argv[0])
HERE = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE / "target")).resolve()
# The command to use if it is not the release build here.
BIFOLD = os.environ.get("BIFOLD", str(TARGET / "release" / "bifold"))


def parser(doc, file="FILE"):
    """A parser of options with the tool's text as its help, and -o FILE."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("-o", "--output", metavar=file, type=pathlib.Path, help="write the page there")
    return made


def say(text):
    print(f"{TOOL}: {text}", file=sys.stderr, flush=True)


def fail(text):
    sys.exit(f"{TOOL}: error: {text}")


def run(command, **more):
    """The standard output of a command that has to succeed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False, **more)
    if done.returncode:
        fail(f"{' '.join(words)}: status {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def cpu():
    """CPU seconds of all commands that have ended, and of all that these have started and awaited."""
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def timed(command, **more):
    """The standard output of a command that has to succeed, its wall seconds and its CPU seconds."""
    begun, before = time.monotonic(), cpu()
    out = run(command, **more)
    return out, time.monotonic() - begun, cpu() - before


def example(package, name):
    """An example of a crate, built for release."""
    run(["cargo", "build", "--release", "--locked", "-q", "-p", package, "--example", name], cwd=HERE)
    return str(TARGET / "release" / "examples" / name)


def demo_source():
    """The C file of `make demo`."""
    return subprocess.run([HERE / "tools" / "demo-source"], stdout=subprocess.PIPE, check=True, text=True).stdout.strip()


def programs(table, only):
    """Those of a table of programs that are named, or all."""
    if unknown := [name for name in only if name not in table]:
        fail(f"no program is called {unknown[0]}: use {', '.join(table)}")
    return {name: table[name] for name in only or table}


def deliver(text, path):
    """The page, into a file or to standard output."""
    if path:
        path.write_text(text)
    else:
        print(text, end="")
