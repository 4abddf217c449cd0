// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Writes 2048 pages below the stack's end, downwards: the kernel grows the stack at each
 * fault. Frames were used before.
 *
 * Nested: near 0.
 * Shadow, per page: the guest's fault and a hidden fault: 2 * 2048, and a few for each
 * of the 8 tables. Downwards, the aligned block of 8 begins with absent entries, so
 * prefetching ends at once.
 */
#include "suite.h"
#include <sys/resource.h>

enum { PAGES = 2048 };

static void grow(void)
{
    uintptr_t at = (uintptr_t)__builtin_frame_address(0) - 8 * PAGE;

    for (int i = 0; i < PAGES; i++, at -= PAGE)
        *(volatile char *)at = 1;
}

static void run(int n)
{
    struct rlimit limit;

    (void)n;
    check(!getrlimit(RLIMIT_STACK, &limit));
    limit.rlim_cur = 2 * PAGES * PAGE;
    check(!setrlimit(RLIMIT_STACK, &limit));
    warm_frames(2 * PAGES);
    rehearse(grow);
    begin();
    grow();
    end();
    printf("%d pages\n", PAGES);
}

PROGRAM(stack_grow, "stack-grow", 28, run, 0, "2048 pages of stack, downwards");
