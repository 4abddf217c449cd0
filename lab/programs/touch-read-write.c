// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Reads each of 2048 new pages, which maps the guest's zero page, then writes each.
 * The frames that the writes take were used before (warm_frames).
 *
 * Nested: near 0; one violation for each frame that is new to the host after all.
 * Shadow, per page: the read is the guest's fault and a hidden fault; the write is the
 * guest's fault, INVLPG of the old entry (ptep_clear_flush) and a hidden fault, unless
 * INVLPG found the new entry in place already: it comes before. 5 times 2048.
 */
#include "suite.h"

static void run(int n)
{
    char *q = reserve(64 * PAGE), *p = reserve((size_t)n * PAGE);

    warm_frames(2 * (size_t)n);
    read_pages(q, 64);
    write_pages(q, 64);
    begin();
    read_pages(p, (size_t)n);
    write_pages(p, (size_t)n);
    end();
    printf("%d new pages read, then written\n", n);
}

PROGRAM(touch_read_write, "touch-read-write", 4, run, 2048, "2048 new pages, read and then written");
