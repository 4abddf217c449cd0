// SPDX-License-Identifier: Apache-2.0 OR MIT
// Updates of random words of a large table by exclusive or, as HPC Challenge's
// RandomAccess asks for. A second pass of the same updates must undo the first.
//
//   gups MIB UPDATES
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    if (argc != 3)
        return fprintf(stderr, "usage: gups MIB UPDATES\n"), 2;
    uint64_t words = strtoull(argv[1], 0, 0) << 17, updates = strtoull(argv[2], 0, 0);
    uint64_t *table = malloc(words * 8), check = 0;
    if (!table || (words & (words - 1)))
        return fprintf(stderr, "gups: MIB must be a power of two and fit\n"), 1;
    for (uint64_t i = 0; i < words; i++)
        table[i] = i;
    for (int pass = 0; pass < 2; pass++) {
        uint64_t x = 0x9e3779b97f4a7c15;
        for (uint64_t i = 0; i < updates; i++) {
            uint64_t place = x += 0x9e3779b97f4a7c15;
            for (int round = 0; round < 4; round++)
                place = (place ^ place >> 31) * 0x7fb5d329728ea185, place ^= place >> 27 ^ place << 9;
            table[place & (words - 1)] ^= x;
        }
        for (uint64_t i = 0; i < words; i += 4099)
            check = check * 31 + table[i];
        printf("after pass %d: %016llx\n", pass + 1, (unsigned long long)check);
    }
    for (uint64_t i = 0; i < words; i++)
        if (table[i] != i)
            return fprintf(stderr, "gups: word %llu is wrong\n", (unsigned long long)i), 1;
    return 0;
}
