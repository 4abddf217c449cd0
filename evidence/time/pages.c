/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Dependent loads of one cache line in each page, in one random cycle through all pages: a linked list of objects
 * that lie far apart. The lines fit a large cache, what translates them does not fit the TLB. Arguments: pages,
 * loads. */
#include "bench.h"

int main(int argc, char **argv)
{
    uint64_t pages = argument(argc, argv, 1, 512 << 10, 1024), loads = argument(argc, argv, 2, 40000000, 1000), seed = 19, at = 0;
    char *p = memory(pages * 4096);
    uint32_t *order = memory(pages * 4);

    for (uint64_t i = 0; i < pages; i++)
        order[i] = (uint32_t)i;
    for (uint64_t i = pages - 1; i > 0; i--) { /* Sattolo: one cycle */
        uint64_t j = below(&seed, i);
        uint32_t swap = order[i];

        order[i] = order[j];
        order[j] = swap;
    }
    for (uint64_t i = 0; i < pages; i++) /* each in a line of its own set */
        *(uint64_t *)(p + i * 4096 + i % 64 * 64) = order[i] * 4096 + order[i] % 64 * 64;
    begin();
    for (uint64_t i = 0; i < loads; i++)
        at = *(uint64_t *)(p + at);
    finish(at);
    return 0;
}
