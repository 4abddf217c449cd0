// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Runs the analysis of loads for a test (crates/guest/tests/it/dependent.rs). Input: one instruction a line, its
 * address and its bytes in hexadecimal; an empty line after each block, in the order of translation; "-"
 * after each program. Output: per program the numbers of its dependent loads, and with a `c` those before a chain.
 */
#include <stdio.h>

#include "../depend.h"
#include "../events.h"

int main(void)
{
    static struct flow flows[256];
    static const uint64_t *heads[256];
    char line[80];
    unsigned long address, start = 0, end = 0;
    size_t n = 0, first = 0;
    int at;

    while (fgets(line, sizeof line, stdin)) {
        uint8_t bytes[16];
        unsigned length = 0, byte;

        if (n < 256 && sscanf(line, "%lx %n", &address, &at) == 1) {
            while (length < sizeof bytes && sscanf(line + at + 2 * length, "%2x", &byte) == 1)
                bytes[length++] = (uint8_t)byte;
            flow_of(bytes, length, &flows[n++]);
            start = n - 1 == first ? address : start;
            end = address + length;
        } else if (line[0] != '-') {
            const uint64_t *h = heads_of(start, end, flows + first, n - first);
            if (n - first > 1 && heads_of(start, end, flows + first, n - first - 1) != h)
                return 1; /* a part of a block has the block's heads */
            for (size_t i = first; i < n; i++)
                heads[i] = h + (i - first);
            first = n;
        } else {
            for (size_t i = 0; i < n; i++)
                if (*heads[i] != bf_head(BF_KIND_LOAD, 0))
                    printf("%zu%s ", i, *heads[i] == bf_head(BF_KIND_LOAD_DEPENDENT, 0) ? "" : "c");
            printf("\n");
            n = first = 0;
        }
    }
    return 0;
}
