// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The phase `chase`: dependent loads in random order over pages of 4 KB, a line of each, in a ring that a
 * worker builds at its start. A step is a number of hops. Nearly each hop misses the TLB, and nothing
 * exits: in nested paging the walks are longer.
 *
 * Each hop also counts the visit in the page. All pages of the ring have been visited equally often, so
 * a lost or repeated write shows.
 */
#define _GNU_SOURCE
#include "phases.h"

#define WORDS 2 /* of a node's content; a hop reads and checks them */

/* A cache line. */
struct node {
    struct node *next;
    uint64_t visits;
    uint64_t words[WORDS];
};

static uint64_t word_of(const struct worker *w, uint64_t page, uint64_t word)
{
    return mix(page << 16 ^ word << 8 ^ w->number);
}

/* Nodes lie in different lines of their pages, so that they spread over the sets of caches. */
static struct node *node_of(const struct worker *w, uint64_t page)
{
    return (struct node *)(w->ring + page * PAGE + mix(~page) % (PAGE / 64) * 64);
}

void chase_begin(struct worker *w)
{
    uint64_t bytes = w->set->chase_mib << 20;
    uint32_t *order;

    w->pages = bytes / PAGE;
    order = malloc(w->pages * sizeof *order);
    w->ring = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!order || w->ring == MAP_FAILED)
        failed("memory of the ring");
    /* A kernel without huge pages knows no such advice. */
    if (madvise(w->ring, bytes, MADV_NOHUGEPAGE) && errno != EINVAL)
        failed("madvise");
    /* Children of the other phase shall not copy these tables. */
    if (madvise(w->ring, bytes, MADV_DONTFORK))
        failed("madvise");
    for (uint64_t i = 0; i < w->pages; i++)
        order[i] = (uint32_t)i;
    for (uint64_t i = w->pages - 1; i > 0; i--) {
        uint64_t j = mix(i << 8 ^ w->number) % (i + 1);
        uint32_t other = order[j];

        order[j] = order[i];
        order[i] = other;
    }
    for (uint64_t i = 0; i < w->pages; i++) {
        struct node *n = node_of(w, order[i]);

        n->next = node_of(w, order[(i + 1) % w->pages]);
        for (uint64_t j = 0; j < WORDS; j++)
            n->words[j] = word_of(w, order[i], j);
    }
    w->at = node_of(w, order[0]);
    free(order);
}

void chase_step(struct worker *w)
{
    uint64_t left = w->pages - w->hopped % w->pages, lap = w->hopped / w->pages;
    volatile struct node *n = w->at;

    for (uint64_t i = 0; i < w->set->hops; i++) {
        uint64_t page = ((uint64_t)n - (uint64_t)w->ring) / PAGE, visits = n->visits;

        if (visits != lap)
            wrong(w, "the count of visits of page", page, visits, lap);
        fold(w, visits);
        for (uint64_t j = 0; j < WORDS; j++) {
            uint64_t found = n->words[j], expected = word_of(w, page, j);

            if (found != expected)
                wrong(w, "the chase's page", page, found, expected);
            fold(w, found);
        }
        n->visits = visits + 1;
        n = n->next;
        if (--left == 0) {
            left = w->pages;
            lap++;
        }
    }
    w->at = (struct node *)n;
    w->hopped += w->set->hops;
}
