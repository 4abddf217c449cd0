// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Writes one byte in each of 4096 pages that were never mapped. Run it first after
 * boot: then most of their frames are new to the host as well.
 *
 * Nested: one violation per frame new to the host (about 4096), none for others.
 * Shadow, per page: the guest's fault (1), the kernel's store through the direct map
 * that clears the frame, if it is new to the host (1 hidden fault), and the user's
 * entry (1 hidden fault): 2 or 3 times 4096. Prefetching finds nothing: the entries
 * after this one are absent. Per leaf table (16): a few more for the table.
 */
#include "suite.h"

static void run(int n)
{
    write_pages(reserve(64 * PAGE), 64);
    char *p = reserve((size_t)n * PAGE);

    begin();
    write_pages(p, (size_t)n);
    end();
    printf("%d new pages written\n", n);
}

PROGRAM(touch_cold, "touch-cold", 3, run, 4096, "4096 new pages, written");
