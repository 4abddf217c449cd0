// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * 16 pages of one table, 250 times made read-only and writable again, then written.
 *
 * Nested: 0.
 * Shadow: a change of up to 33 pages (tlb_single_page_flush_ceiling) is flushed by an
 * INVLPG per page; a change of the write permission is flushed in both directions
 * (pte_flags_need_flush): 2 * 16 * 250. The table stays unsync and INVLPG makes the
 * entry again at once, so the writes take no exit.
 */
#include "suite.h"

enum { PAGES = 16 };

static void toggle(char *p)
{
    check(!mprotect(p, PAGES * PAGE, PROT_READ));
    check(!mprotect(p, PAGES * PAGE, PROT_READ | PROT_WRITE));
    write_pages(p, PAGES);
}

static void run(int n)
{
    char *p = reserve(TABLE) + 64 * PAGE;

    write_pages(p, PAGES);
    toggle(p);
    begin();
    for (int i = 0; i < n; i++)
        toggle(p);
    end();
    printf("%d pages made read-only and writable %d times\n", PAGES, n);
}

PROGRAM(mprotect_few, "mprotect-invlpg", 7, run, 250, "16 pages read-only and back, 250 times: INVLPG");
