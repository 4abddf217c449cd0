// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * 64 pages of one table, 300 times made read-only and writable again, then written.
 *
 * Nested: 0.
 * Shadow: a change of more than 33 pages is flushed by loading CR3, which without PCID
 * is a read and a write of it: 2 exits; that syncs the table, so that the first store
 * to it in the next mprotect is an exit (unsync). 2 * 300 * 3. The sync follows the
 * permissions, so the writes take none.
 */
#include "suite.h"

enum { PAGES = 64 };

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

PROGRAM(mprotect_full, "mprotect-full", 8, run, 300, "64 pages read-only and back, 300 times: full flush");
