// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * 2048 pages in 8 tables: all access taken away, 8 pages at a time, then given back,
 * then each page written; twice.
 *
 * Nested: 0.
 * Shadow: taking access away is an INVLPG per page; giving it back flushes nothing, as
 * the entries were not present. The entries kept A and D, so the write of the first
 * page of 8 is a hidden fault that prefetches the other seven. Per round 2048 INVLPG and
 * 256 hidden faults: 2 * 2304.
 */
#include "suite.h"

enum { PIECE = 8, ROUNDS = 2 };

static void sweep(char *p, int n)
{
    for (int i = 0; i < n; i += PIECE)
        check(!mprotect(p + (size_t)i * PAGE, PIECE * PAGE, PROT_NONE));
    for (int i = 0; i < n; i += PIECE)
        check(!mprotect(p + (size_t)i * PAGE, PIECE * PAGE, PROT_READ | PROT_WRITE));
    write_pages(p, (size_t)n);
}

static void run(int n)
{
    char *p = reserve((size_t)n * PAGE);

    write_pages(p, (size_t)n);
    sweep(p, n);
    begin();
    for (int i = 0; i < ROUNDS; i++)
        sweep(p, n);
    end();
    printf("%d pages closed, opened and written, by %d, %d times\n", n, PIECE, ROUNDS);
}

PROGRAM(mprotect_sweep, "mprotect-sweep", 9, run, 2048, "2048 pages closed, opened and written, 8 at a time");
