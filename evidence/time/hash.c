/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A hash table with open addressing and linear probing, half full at the end: inserts, then lookups of which half
 * find something. Arguments: slots of 16 bytes (a power of two), lookups. */
#include "bench.h"

struct slot {
    uint64_t key, value;
};

int main(int argc, char **argv)
{
    uint64_t slots = argument(argc, argv, 1, 16 << 20, 1024), lookups = argument(argc, argv, 2, 30000000, 1000), sum = 0, seed = 9;
    struct slot *table = memory(slots * sizeof *table);

    if (slots & (slots - 1)) {
        fprintf(stderr, "hash: the number of slots must be a power of two\n");
        return 2;
    }
    begin();
    for (uint64_t i = 0; i < slots / 2; i++) {
        uint64_t key = next(&seed) | 1, at = key >> 20 & (slots - 1);

        while (table[at].key && table[at].key != key)
            at = (at + 1) & (slots - 1);
        table[at] = (struct slot){key, i};
    }
    seed = 9;
    for (uint64_t i = 0; i < lookups; i++) {
        uint64_t key, at;

        if (i % slots == 0)
            seed = 9; /* the keys that were inserted, then as many others */
        key = next(&seed) | 1;
        at = key >> 20 & (slots - 1);
        while (table[at].key && table[at].key != key)
            at = (at + 1) & (slots - 1);
        sum += table[at].value;
    }
    finish(sum);
    return 0;
}
