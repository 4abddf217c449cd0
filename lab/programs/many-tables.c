// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * One page in each of 1600 leaf tables, written, then three times again in the same
 * order: more tables than KVM has shadow pages for (2 % of the guest's pages: 1310 with
 * 256 MB). Guest memory used: 13 MB.
 *
 * Nested: near 0, as a child did the same before.
 * Shadow: a table and its page are the guest's fault, the store to the upper table
 * (emulated) and a hidden fault: 3 * 1600. KVM zaps the oldest shadow page first, so
 * going round in order finds every table zapped: 3 * 1600 hidden faults for the passes
 * after. With 1 GB of memory those would be 0.
 */
#include "suite.h"

static void walk(char *p, int tables)
{
    for (int i = 0; i < tables; i++)
        *(volatile char *)(p + (size_t)i * TABLE) = 1;
}

enum { TABLES = 1600, AGAIN = 3 };

static void once(void)
{
    walk(reserve(TABLES * TABLE), TABLES);
}

static void run(int n)
{
    char *p = reserve((size_t)n * TABLE);

    rehearse(once);
    begin();
    for (int i = 0; i < 1 + AGAIN; i++)
        walk(p, n);
    end();
    printf("%d tables with a page each, walked %d times\n", n, 1 + AGAIN);
}

PROGRAM(many_tables, "many-tables", 23, run, TABLES, "a page in each of 1600 tables, 4 times: beyond the budget");
