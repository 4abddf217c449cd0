/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Random updates, as GUPS of the HPC Challenge makes them: each address follows from arithmetic alone, so the
 * updates are independent. Arguments: bytes of the table, number of updates. */
#include "bench.h"

int main(int argc, char **argv)
{
    uint64_t entries = argument(argc, argv, 1, 512 << 20, 1024) / 8, updates = argument(argc, argv, 2, 100000000, 1000);
    uint64_t *table = memory(entries * 8), ran = 1, sum = 0;

    if (entries & (entries - 1)) {
        fprintf(stderr, "gups: the table's size must be a power of two\n");
        return 2;
    }
    begin();
    for (uint64_t i = 0; i < updates; i++) {
        /* Multiplied, so that the low bits of the address are as random as the high ones. */
        ran = ran * 6364136223846793005 + 1442695040888963407;
        table[ran >> 32 & (entries - 1)] ^= ran;
    }
    finish(updates);
    for (uint64_t i = 0; i < entries; i += 997)
        sum ^= table[i];
    fprintf(stderr, "%" PRIu64 "\n", sum);
    return 0;
}
