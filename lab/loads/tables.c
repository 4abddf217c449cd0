// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Maps and unmaps pages far apart, each with its own page tables, so that frames of tables become
 * data and tables of other pages.
 */

#include "storm.h"

#define SLOTS 256
/* 256 GiB of addresses: more than one entry of the third level. */
#define SPAN (256ul << 30)

void run_tables(struct worker *w)
{
    /* Not kept reserved: a table goes only if there is no neighbour in its 2 MB. */
    unsigned char *base = map_at(NULL, SPAN, PROT_NONE, 0);
    static unsigned char *where[SLOTS];
    static uint64_t stamp[SLOTS];

    if (munmap(base, SPAN))
        give_up("munmap");
    ready();
    while (!stopped()) {
        size_t s = below(w, SLOTS);

        if (where[s]) {
            page_check(w, where[s], stamp[s], 1);
            if (below(w, 2)) {
                page_fill(where[s], stamp[s] = stamp_new(w));
            } else {
                if (munmap(where[s], PAGE))
                    give_up("munmap");
                where[s] = NULL;
            }
        } else {
            /* Every slot has its own 2 MB at any time; often its own 1 GB. */
            size_t n = below(w, SPAN / HUGE_PAGE / SLOTS) * SLOTS + s;
            where[s] = base + n * HUGE_PAGE + below(w, WORDS) * PAGE;
            map_at(where[s], PAGE, PROT_READ | PROT_WRITE, MAP_FIXED_NOREPLACE);
            page_check(w, where[s], 0, 1);
            page_fill(where[s], stamp[s] = stamp_new(w));
        }
        worked(w);
    }
    for (size_t s = 0; s < SLOTS; s++)
        if (where[s])
            page_check(w, where[s], stamp[s], 1);
}
