// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Finds dependent loads: loads whose address comes from what the iteration before has loaded.
 * An out-of-order core overlaps the misses of a[i] and of a[b[c[i]]] with those of the next
 * iteration, whose addresses need none of them. It cannot overlap p = p->next.
 *
 * Whenever a block is translated for the first time, the loop that it
 * closes is looked for among the blocks known so far, along direct jumps, branches and calls (so recursion is
 * a loop too), and depths (depend.c) are followed around that loop until they no longer change. At first all
 * registers have depth 0, so that what is invariant in the loop keeps it, however it was loaded before. What an iteration hands to
 * the next through a load grows to the largest depth, and nothing else does, unless DEEPEST loads in a row make one address.
 *
 * Blocks in no loop start with depth 0. The loop may be one that is not found, so the third load in a row counts as dependent there.
 *
 * A block's loads are decided by the first loop that it lies in, which is the innermost, since
 * inner loops run first; a larger loop with the same lowest address (a loop found piece by piece) decides anew.
 *
 * The kind of a load is a word that its callback reads, because a loop may be found after some of its blocks
 * were translated.
 */
#include "depend.h"

#include <stdlib.h>
#include <string.h>

#include "events.h"

/* Blocks of a loop, at most. */
#define LOOP_BLOCKS 24

struct code {
    struct code *next; /* in its hash chain */
    uint64_t start, loop; /* lowest address of the loop that decided; 0 if none did */
    /* Start of the blocks that follow, 0 if none, and the registers that survive on the way. */
    uint64_t follow[2];
    uint16_t survive[2];
    size_t n;
    struct flow *flows;
    uint64_t heads[]; /* of each instruction's loads */
};

static struct code **chain_of(uint64_t start)
{
    static struct code *chains[1 << 16];

    return &chains[(start ^ start >> 16) & 0xffff];
}

/* The block that starts there; of several, the last that was translated first. */
static struct code *code_at(uint64_t start)
{
    struct code *c = start ? *chain_of(start) : NULL;

    while (c && c->start != start)
        c = c->next;
    return c;
}

static depths through(const struct code *c, depths d)
{
    for (size_t i = 0; i < c->n; i++)
        d = after(&c->flows[i], d);
    return d;
}

/* Depth of a dependent load's address in a block of no known loop. */
#define NO_LOOP 2

static void set_heads(struct code *c, depths d, unsigned dependent)
{
    for (size_t i = 0; i < c->n; i++) {
        c->heads[i] = bf_head(waits(&c->flows[i], d, dependent) ? BF_KIND_LOAD_DEPENDENT : BF_KIND_LOAD, 0);
        d = after(&c->flows[i], d);
    }
}

/* Looks for the loop that `first` closes, and decides the loads of its blocks. */
static void close_loop(struct code *first)
{
    struct code *blocks[LOOP_BLOCKS] = {first};
    int follow[LOOP_BLOCKS][2];
    bool inside[LOOP_BLOCKS] = {0}, changed = true;
    depths in[LOOP_BLOCKS] = {0};
    uint64_t lowest = UINT64_MAX;
    int n = 1;

    /* The blocks that can be reached from it. */
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < 2; k++) {
            struct code *c = code_at(blocks[i]->follow[k]);
            int j = 0;

            while (j < n && blocks[j] != c)
                j++;
            if (c && j == n && n < LOOP_BLOCKS)
                blocks[n++] = c;
            follow[i][k] = c && j < n ? j : -1;
        }
    }
    /* Those of them from which it can be reached. */
    while (changed) {
        changed = false;
        for (int i = 0; i < n; i++)
            for (int k = 0; k < 2; k++)
                if (!inside[i] && follow[i][k] >= 0 && (!follow[i][k] || inside[follow[i][k]]))
                    inside[i] = changed = true;
    }
    if (!inside[0])
        return;
    do {
        changed = false;
        for (int i = 0; i < n; i++) {
            depths out;

            if (!inside[i])
                continue;
            out = through(blocks[i], in[i]);
            for (int k = 0; k < 2; k++) {
                int j = follow[i][k];
                depths next;

                if (j < 0 || !inside[j])
                    continue;
                next = deepest(in[j], out, blocks[i]->survive[k]);
                changed |= next != in[j];
                in[j] = next;
            }
        }
    } while (changed);
    for (int i = 0; i < n; i++)
        if (inside[i] && blocks[i]->start < lowest)
            lowest = blocks[i]->start;
    for (int i = 0; i < n; i++) {
        if (inside[i] && (!blocks[i]->loop || blocks[i]->loop == lowest)) {
            blocks[i]->loop = lowest;
            set_heads(blocks[i], in[i], DEEPEST);
        }
    }
}

/* The heads of the loads of the block from `start` to `end`, which may change later. */
const uint64_t *heads_of(uint64_t start, uint64_t end, const struct flow *flows, size_t n)
{
    struct code **chain = chain_of(start), *c;
    const struct flow *last = &flows[n - 1];

    for (c = *chain; c; c = c->next)
        if (c->start == start && c->n == n && !memcmp(c->flows, flows, n * sizeof *flows))
            return c->heads;
    c = calloc(1, sizeof *c + n * sizeof c->heads[0]);
    if (!c || !(c->flows = malloc(n * sizeof *flows)))
        return NULL;
    memcpy(c->flows, flows, n * sizeof *flows);
    c->n = n;
    c->start = start;
    if (last->ends != ENDS_JUMP && last->ends != ENDS_RETURN && last->ends != ENDS_NOWHERE)
        c->follow[0] = end;
    if (last->direct)
        c->follow[1] = end + (uint64_t)(int64_t)last->offset;
    c->survive[0] = last->ends == ENDS_CALL ? PRESERVED : 0xffff;
    c->survive[1] = 0xffff;
    c->next = *chain;
    *chain = c;
    set_heads(c, 0, NO_LOOP);
    close_loop(c);
    return c->heads;
}
