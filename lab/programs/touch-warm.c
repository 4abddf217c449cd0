// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Writes 2048 pages again that were written twice before: TLB misses and nothing else.
 * Nested and shadow: about 0.
 */
#include "suite.h"

static void run(int n)
{
    char *p = reserve((size_t)n * PAGE);

    write_pages(p, (size_t)n);
    write_pages(p, (size_t)n);
    begin();
    for (int i = 0; i < 4; i++)
        write_pages(p, (size_t)n);
    end();
    printf("%d pages written 4 times more\n", n);
}

PROGRAM(touch_warm, "touch-warm", 5, run, 2048, "2048 pages written before, written again: no exits");
