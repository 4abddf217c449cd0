// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * One page in each of 3072 leaf tables, written, then three times again in the same
 * order: more tables than KVM has shadow pages for (2 % of the guest's pages: 2621 with
 * 512 MB). Guest memory used: 24 MB.
 *
 * Nested: near 0.
 * Shadow: making a table and its page is 5 exits or so (the upper table's store is
 * emulated, the guest's fault, hidden faults). KVM zaps the oldest shadow page first, so
 * going round in order finds every table zapped: 3 * 3072 hidden faults for the passes
 * after. Had the guest more than 600 MB, they would be 0.
 */
#include "suite.h"

static void walk(char *p, int tables)
{
    for (int i = 0; i < tables; i++)
        *(volatile char *)(p + (size_t)i * TABLE) = 1;
}

static void run(int n)
{
    enum { AGAIN = 3 };
    char *p = reserve((size_t)n * TABLE);

    warm_frames(3 * (size_t)n);
    begin();
    for (int i = 0; i < 1 + AGAIN; i++)
        walk(p, n);
    end();
    printf("%d tables with a page each, walked %d times\n", n, 1 + AGAIN);
}

PROGRAM(many_tables, "many-tables", 23, run, 3072, "a page in each of 3072 tables, 4 times: beyond the budget");
