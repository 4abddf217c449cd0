// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * 250 times: maps 8 pages, writes them, unmaps them. A page beside them keeps the leaf
 * table, so its entries are rewritten again and again.
 *
 * Nested: near 0.
 * Shadow: per page the guest's fault, a hidden fault and the INVLPG of unmapping:
 * 250 * 8 * 3. The table became unsync at the first store and stays so.
 */
#include "suite.h"

enum { PAGES = 8 };

static void remap(char *p)
{
    check(mmap(p, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
    write_pages(p, PAGES);
    check(!munmap(p, PAGES * PAGE));
}

static void run(int n)
{
    char *p = reserve(TABLE);

    warm_frames(512);
    write_pages(p, 1);
    write_pages(p + TABLE - PAGE, 1);
    for (int i = 0; i < 8; i++)
        remap(p + 64 * PAGE);
    begin();
    for (int i = 0; i < n; i++)
        remap(p + 64 * PAGE);
    end();
    printf("%d pages mapped, written and unmapped %d times\n", PAGES, n);
}

PROGRAM(remap_same_table, "remap-same-table", 11, run, 250, "8 pages of one table mapped, written, unmapped 250 times");
