// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Four times: gives 1024 pages back (MADV_DONTNEED) and writes them again. Tables stay,
 * frames are those that were just freed.
 *
 * Nested: near 0.
 * Shadow, per page and round: the guest's fault and a hidden fault: 4 * 2 * 1024. Per
 * round the flush after MADV_DONTNEED is of more than 33 pages, hence of everything: a
 * read and a write of CR3, after which each of the 4 tables is synced, so that the
 * first store to it is an exit (unsync).
 */
#include "suite.h"

static void round_of(char *p, size_t pages)
{
    check(!madvise(p, pages * PAGE, MADV_DONTNEED));
    write_pages(p, pages);
}

static void run(int n)
{
    enum { ROUNDS = 4 };
    char *p = reserve((size_t)n * PAGE);

    warm_frames(2 * (size_t)n);
    write_pages(p, (size_t)n);
    round_of(p, (size_t)n);
    begin();
    for (int i = 0; i < ROUNDS; i++)
        round_of(p, (size_t)n);
    end();
    printf("%d pages given back and written again, %d times\n", n, ROUNDS);
}

PROGRAM(dontneed_refill, "dontneed-refill", 6, run, 1024, "1024 pages, given back and written again 4 times");
