// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A token goes 128 times round 8 processes; each writes one new page of its own per turn.
 *
 * Nested: near 0.
 * Shadow, per turn: a CR3 write, which syncs the table that the last turn left unsync;
 * the guest's fault; the first store to the table (unsync); a hidden fault. 4 * 8 * 128.
 * Under KPTI each entry to the kernel syncs, and costs four CR3 exits.
 */
#include "ring.h"

enum { PROCESSES = 8 };

static char *pages;

static void turn(int process, int round)
{
    (void)process;
    write_pages(pages + (size_t)(round + 1) * PAGE, 1);
}

static void run(int n)
{
    warm_frames(2048);
    pages = reserve((size_t)(n + 1) * PAGE);
    write_pages(pages, 1);
    ring(PROCESSES, n, turn);
    printf("%d processes wrote %d new pages each, by turns\n", PROCESSES, n);
}

PROGRAM(many_processes, "many-processes", 24, run, 128, "8 processes by turns, a new page per turn");
