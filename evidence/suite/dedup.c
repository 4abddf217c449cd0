// SPDX-License-Identifier: Apache-2.0 OR MIT
// Deduplicating compression of files: pieces are cut where a rolling sum of the bytes
// says, pieces seen before become a reference, new ones are compressed (matches by a
// hash of four bytes) and unpacked again as a check. Every piece has memory of its own
// that is mapped when it is read and given back when it is written.
//
//   dedup FILE...
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SLOTS = 1 << 16, MASK = (1 << 15) - 1, LEAST = 4096, MOST = 1 << 17, HASH = 1 << 14 };
static uint64_t known[SLOTS], table[256];
static uint64_t pieces, repeated, in, out, check;

static void *map(size_t size)
{
    void *p = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        perror("dedup"), exit(1);
    return p;
}

// Tokens: a byte 0..127 and that many plus one bytes as they are; or a byte 128..255,
// a length of its low bits plus four, and a distance of two bytes.
static size_t pack(const uint8_t *from, size_t n, uint8_t *to)
{
    uint32_t *last = map(HASH * sizeof *last);
    size_t o = 0, plain = 0, i = 0;
    while (i <= n) {
        size_t length = 0, distance = 0;
        if (i + 4 <= n) {
            uint32_t four;
            memcpy(&four, from + i, 4);
            uint32_t h = four * 2654435761u >> 18, at = last[h];
            last[h] = i + 1;
            if (at && i - (at - 1) < 65536) {
                distance = i - (at - 1);
                while (length < 131 && i + length < n && from[at - 1 + length] == from[i + length])
                    length++;
            }
        }
        if (length >= 4 || i == n || i - plain == 128) {
            if (i > plain) {
                to[o++] = i - plain - 1;
                memcpy(to + o, from + plain, i - plain), o += i - plain;
            }
            plain = i;
            if (i == n)
                break;
        }
        if (length >= 4) {
            to[o++] = 128 + length - 4, to[o++] = distance & 255, to[o++] = distance >> 8;
            i += length, plain = i;
        } else {
            i++;
        }
    }
    munmap(last, HASH * sizeof *last);
    return o;
}

static size_t unpack(const uint8_t *from, size_t n, uint8_t *to)
{
    size_t o = 0;
    for (size_t i = 0; i < n;) {
        uint8_t t = from[i++];
        if (t < 128) {
            memcpy(to + o, from + i, t + 1u), i += t + 1u, o += t + 1u;
        } else {
            size_t distance = from[i] | from[i + 1] << 8;
            for (size_t k = t - 128u + 4; k; k--, o++)
                to[o] = to[o - distance];
            i += 2;
        }
    }
    return o;
}

static void piece(const uint8_t *data, size_t n)
{
    uint64_t h = 0xcbf29ce484222325;
    for (size_t i = 0; i < n; i++)
        h = (h ^ data[i]) * 0x100000001b3;
    uint64_t at = h % SLOTS;
    while (known[at] && known[at] != h)
        at = (at + 1) % SLOTS;
    pieces++, in += n;
    if (known[at]) {
        repeated++, out += 8;
        return;
    }
    known[at] = h;
    uint8_t *copy = map(n), *packed = map(n + n / 64 + 64), *again = map(n);
    memcpy(copy, data, n);
    size_t size = pack(copy, n, packed);
    if (unpack(packed, size, again) != n || memcmp(copy, again, n))
        fprintf(stderr, "dedup: a piece came back different\n"), exit(1);
    out += size, check = check * 31 + h + size;
    munmap(copy, n), munmap(packed, n + n / 64 + 64), munmap(again, n);
}

int main(int argc, char **argv)
{
    uint64_t x = 88172645463325252u;
    for (int i = 0; i < 256; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        table[i] = x;
    }
    for (int f = 1; f < argc; f++) {
        FILE *file = fopen(argv[f], "rb");
        if (!file)
            return perror(argv[f]), 1;
        fseek(file, 0, SEEK_END);
        size_t n = ftell(file), from = 0;
        rewind(file);
        uint8_t *data = map(n + 1);
        if (fread(data, 1, n, file) != n)
            return perror(argv[f]), 1;
        fclose(file);
        uint64_t roll = 0;
        for (size_t i = 0; i < n; i++) {
            roll = (roll << 1) + table[data[i]];
            size_t length = i + 1 - from;
            if ((length >= LEAST && !(roll >> 40 & MASK)) || length == MOST || i + 1 == n)
                piece(data + from, length), from = i + 1;
        }
        munmap(data, n + 1);
    }
    printf("%llu pieces, %llu repeated, %llu to %llu bytes, check %016llx\n", (unsigned long long)pieces,
           (unsigned long long)repeated, (unsigned long long)in, (unsigned long long)out, (unsigned long long)check);
    return 0;
}
