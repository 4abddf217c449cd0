// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * 200 times: moves 16 written pages to another table and back, and writes them after
 * each move. Other pages keep both tables.
 *
 * Nested: 0.
 * Shadow, per move: INVLPG of the 16 old addresses (move_ptes flushes them), and 2
 * hidden faults at the new ones, as entries keep A and D and the block of 8 is
 * prefetched. 200 * 2 * 18.
 */
#include "suite.h"

enum { PAGES = 16 };

static void move(char *from, char *to)
{
    check(mremap(from, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    write_pages(to, PAGES);
}

static void run(int n)
{
    char *p = reserve(2 * TABLE), *a = p + 64 * PAGE, *b = p + TABLE + 128 * PAGE;

    write_pages(p, 1);
    write_pages(p + TABLE, 1);
    write_pages(a, PAGES);
    move(a, b);
    move(b, a);
    begin();
    for (int i = 0; i < n; i++) {
        move(a, b);
        move(b, a);
    }
    end();
    printf("%d pages moved to another table and back %d times\n", PAGES, n);
}

PROGRAM(mremap_move, "mremap-move", 12, run, 200, "16 pages moved between two tables and written, 200 times");
