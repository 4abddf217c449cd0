// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Pages of one table, again and again made read-only and writable again, then written.
 *
 * Nested: 0.
 * Shadow, mprotect-full, 64 pages, 300 times: a change of more than 33 pages
 * (tlb_single_page_flush_ceiling) is flushed by loading CR3, which without PCID is a read
 * and a write of it: 2 exits; that syncs the table, so that the first store to it in the
 * next mprotect is an exit (unsync). 2 * 300 * 3. The sync follows the permissions, so the
 * writes take none.
 * Shadow, mprotect-invlpg, 16 pages, 250 times: a change of up to 33 pages is flushed by an
 * INVLPG per page; a change of the write permission is flushed in both directions
 * (pte_flags_need_flush): 2 * 16 * 250. The table stays unsync and INVLPG makes the
 * entry again at once, so the writes take no exit.
 */
#include "suite.h"

static void toggle(char *p, size_t pages)
{
    check(!mprotect(p, pages * PAGE, PROT_READ));
    check(!mprotect(p, pages * PAGE, PROT_READ | PROT_WRITE));
    write_pages(p, pages);
}

static void toggles(size_t pages, int n)
{
    char *p = reserve(TABLE) + 64 * PAGE;

    write_pages(p, pages);
    toggle(p, pages);
    begin();
    for (int i = 0; i < n; i++)
        toggle(p, pages);
    end();
    printf("%zu pages made read-only and writable %d times\n", pages, n);
}

static void run_full(int n)
{
    toggles(64, n);
}

static void run_few(int n)
{
    toggles(16, n);
}

PROGRAM(mprotect_full, "mprotect-full", 8, run_full, 300, "64 pages read-only and back, 300 times: full flush");
PROGRAM(mprotect_few, "mprotect-invlpg", 7, run_few, 250, "16 pages read-only and back, 250 times: INVLPG");
