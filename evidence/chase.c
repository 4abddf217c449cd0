// SPDX-License-Identifier: Apache-2.0 OR MIT
// A pointer chase over 1 GB: 16 Mi cache lines, each naming the next, in the order of
// a full-period linear congruential generator (Hull and Dobell: c odd, a = 1 mod 4),
// so that every load depends on the one before and nearly every one is on another page.
#include <stdio.h>
#include <stdlib.h>

enum { LINES = 1 << 24, STEP = 64 / sizeof(unsigned) };

int main(int argc, char **argv)
{
    unsigned long steps = argc > 1 ? strtoul(argv[1], 0, 0) : 20000000;
    unsigned *line = aligned_alloc(2 << 20, 64ul * LINES), at = 0;
    if (!line)
        return perror("aligned_alloc"), 1;
    for (unsigned i = 0; i < LINES; i++)
        line[(unsigned long)i * STEP] = (i * 1664525u + 1013904223u) % LINES;
    while (steps--)
        at = line[(unsigned long)at * STEP];
    printf("ended at line %u\n", at);
    return 0;
}
