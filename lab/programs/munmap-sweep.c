// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * 256 regions of 2 MB: 8 pages written in each, then each unmapped by itself, which
 * frees its leaf table; 4 rounds, and all upper tables stay but those of the last GB.
 *
 * Nested: near 0.
 * Shadow, per region: 8 guest faults and 8 hidden faults, the store that puts the leaf
 * table into the upper one (emulated), the first store to the leaf table once it is
 * shadowed (unsync), and INVLPG of the 8 pages unmapped: 2 * 256 * 26. The stores that
 * take leaf tables out come in a row without a walk between: the third floods the upper
 * table, whose shadow goes, and the others are free.
 */
#include "suite.h"

enum { PAGES = 8, ROUNDS = 2 };

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

PROGRAM(munmap_sweep, "munmap-sweep", 10, run, 256, "256 regions with a table each, written and unmapped 2 times");
