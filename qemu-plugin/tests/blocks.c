// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Runs depend() for a test (crates/guest/tests/it/dependent.rs). Input: one instruction in
 * hexadecimal a line, an empty line after each block. Output: per block the numbers of its dependent loads.
 * Each block starts with the depths at the end of the block before it, as if it had just run, but
 * after a line "-" with none.
 */
#include <stdio.h>

#include "../depend.h"

int main(void)
{
    static struct flow flows[1024];
    char line[80];
    size_t n = 0;
    depths d = 0;

    while (fgets(line, sizeof line, stdin)) {
        uint8_t bytes[16];
        unsigned length = 0, byte;

        while (length < sizeof bytes && sscanf(line + 2 * length, "%2x", &byte) == 1)
            bytes[length++] = (uint8_t)byte;
        if (length && n < 1024) {
            flow_of(bytes, length, &flows[n++]);
        } else if (line[0] == '-') {
            d = 0;
        } else {
            d = depend(flows, n, d);
            for (size_t i = 0; i < n; i++)
                if (flows[i].dependent)
                    printf("%zu ", i);
            printf("\n");
            n = 0;
        }
    }
    return 0;
}
