// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * 256 regions of 2 MB: 8 pages written in each, then each unmapped by itself, which
 * frees its leaf table; 4 rounds, and all upper tables stay but those of the last GB.
 *
 * Nested: near 0.
 * Shadow, per region: 8 guest faults and 8 hidden faults, a store to the upper table to
 * put the leaf table in and one to take it out (2 emulated), the flush of what was
 * unmapped (8 INVLPG, or CR3 twice), and what it costs to shadow a new table in a frame
 * that was another's: 4 * 256 * 26 and more.
 */
#include "suite.h"

enum { PAGES = 8, ROUNDS = 4 };

static void sweep(int n)
{
    char *p = reserve((size_t)n * TABLE);

    for (int i = 0; i < n; i++)
        write_pages(p + (size_t)i * TABLE, PAGES);
    for (int i = 0; i < n; i++)
        check(!munmap(p + (size_t)i * TABLE, TABLE));
}

static void run(int n)
{
    warm_frames(2 * (size_t)n * (PAGES + 1));
    sweep(n);
    begin();
    for (int i = 0; i < ROUNDS; i++)
        sweep(n);
    end();
    printf("%d regions of %d pages mapped, written and unmapped, %d times\n", n, PAGES, ROUNDS);
}

PROGRAM(munmap_sweep, "munmap-sweep", 10, run, 256, "256 regions with a table each, written and unmapped 4 times");
