// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Grows the heap by a page and writes it, 2048 times, in frames that were used before.
 *
 * Nested: near 0.
 * Shadow, per page: the guest's fault and a hidden fault: 2 * 2048, and a few for each
 * of the 8 tables. Under KPTI also four CR3 exits per system call and per fault, and
 * the first store to the table after each sync.
 */
#include "suite.h"

enum { PAGES = 2048 };

static void grow(void)
{
    for (int i = 0; i < PAGES; i++) {
        char *p = sbrk((intptr_t)PAGE);
        check(p != (void *)-1);
        *(volatile char *)p = 1;
    }
}

static void run(int n)
{
    (void)n;
    warm_frames(2 * PAGES);
    rehearse(grow);
    begin();
    grow();
    end();
    printf("%d pages\n", PAGES);
}

PROGRAM(brk_grow, "brk-grow", 27, run, 0, "2048 pages of heap, one at a time");
