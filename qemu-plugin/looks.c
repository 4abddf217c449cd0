// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Looks at the guest's memory, for `bifold reclaim`.
 *
 * A look is an event at whose place the guest stands still: it ends a chunk, and this file waits until the
 * consumer has released all chunks. Before the release, the consumer reads the guest's memory, finds what the
 * guest's kernel uses each page for, and fills in the event's words (crates/guest/src/looks). So a look sees
 * the memory as it was at its place in the stream, in every run. The guest's clock counts instructions and does
 * not see the wait.
 */
#include <string.h>

#include "plugin.h"

/* After so many looks the interval doubles, at most so often: a program of any length has some hundred looks. */
#define LOOKS_PER_INTERVAL 16
#define MOST_DOUBLINGS 30

void look(void)
{
    uint64_t *w;

    flush_insns();
    w = ring_room(1 + BF_LOOK_WORDS);
    w[0] = bf_head(BF_KIND_LOOK, 0);
    memset(w + 1, 0, BF_LOOK_WORDS * sizeof *w);
    ring_drain();
}

/* The recorded instructions at which the next look is due. */
uint64_t next_look(uint64_t now)
{
    static uint64_t looks;
    uint64_t doublings = looks++ / LOOKS_PER_INTERVAL;

    return now + (opt.looks << (doublings < MOST_DOUBLINGS ? doublings : MOST_DOUBLINGS));
}
