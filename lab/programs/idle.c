// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Sleeps two seconds, to show the background work of the guest's kernel. It is the
 * only program whose counts depend on time.
 * Nested: 0 exits for paging. Shadow: a few CR3 loads and hidden faults; under KPTI
 * no more, as interrupts then come from the kernel.
 */
#include "suite.h"
#include <time.h>

static void run(int n)
{
    struct timespec t = {.tv_sec = n};

    begin();
    check(!nanosleep(&t, NULL));
    end();
    printf("%d s asleep\n", n);
}

PROGRAM(idle, "idle", 2, run, 2, "two seconds asleep: the background");
