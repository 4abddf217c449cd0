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
 * inner loops run first; a larger loop with the same lowest address (a loop found piece by piece) decides again.
 *
 * A chain may restart each time that its loop is entered: each probe of a hash table follows a list of its own. A core
 * overlaps such chains with each other. Where a larger loop enters the chain's loop with pointers that are
 * no part of a chain, the last load before says so (BF_KIND_LOAD_BEFORE_CHAIN). Without such a load it is not seen.
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
    depths in;            /* around that loop, at the start */
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
    c->in = d;
    for (size_t i = 0; i < c->n; i++) {
        c->heads[i] = bf_head(waits(&c->flows[i], d, dependent) ? BF_KIND_LOAD_DEPENDENT : BF_KIND_LOAD, 0);
        d = after(&c->flows[i], d);
    }
}

/* Blocks that are looked at together: the places of those that follow each, -1 if none. */
struct region {
    struct code *blocks[LOOP_BLOCKS];
    int follow[LOOP_BLOCKS][2], n;
    bool inside[LOOP_BLOCKS]; /* part of the loop */
};

/* Whether an inner loop decided the block's loads. */
static bool is_inner(const struct region *r, int i, uint64_t lowest)
{
    return r->blocks[i]->loop && r->blocks[i]->loop != lowest;
}

/* Marks the last independent load of block i, or else of the blocks of the same loop that lead to it. */
static void mark_before_chain(struct region *r, int i, uint64_t lowest, bool *seen)
{
    struct code *c = r->blocks[i];

    seen[i] = true;
    for (size_t k = c->n; k-- > 0;) {
        if (c->flows[k].load && c->heads[k] != bf_head(BF_KIND_LOAD_DEPENDENT, 0)) {
            c->heads[k] = bf_head(BF_KIND_LOAD_BEFORE_CHAIN, 0);
            return;
        }
    }
    for (int j = 0; j < r->n; j++)
        if (r->inside[j] && !seen[j] && !is_inner(r, j, lowest) && (r->follow[j][0] == i || r->follow[j][1] == i))
            mark_before_chain(r, j, lowest, seen);
}

/* The registers before the block from which its dependent loads' addresses, or `regs` behind the block, are made. */
static uint16_t made_from(const struct code *c, uint16_t regs)
{
    for (size_t k = c->n; k-- > 0;) {
        const struct flow *f = &c->flows[k];
        bool wanted = f->written & regs;

        regs &= ~(f->written | f->zeroed);
        if (wanted)
            regs |= f->read | f->address;
        if (c->heads[k] == bf_head(BF_KIND_LOAD_DEPENDENT, 0))
            regs |= f->address;
    }
    return regs;
}

/* Registers that carry chains into block j of an inner loop. */
static uint16_t carriers(const struct region *r, int j)
{
    uint16_t regs[LOOP_BLOCKS] = {0};
    bool changed = true;

    while (changed) {
        changed = false;
        for (int i = 0; i < r->n; i++) {
            uint16_t behind = 0, before;

            if (r->blocks[i]->loop != r->blocks[j]->loop)
                continue;
            for (int k = 0; k < 2; k++)
                if (r->follow[i][k] >= 0)
                    behind |= regs[r->follow[i][k]] & r->blocks[i]->survive[k];
            before = made_from(r->blocks[i], behind);
            changed |= before != regs[i];
            regs[i] = before;
        }
    }
    return regs[j] & chained(r->blocks[j]->in);
}

/* Looks for the inner loops whose chains restart. */
static void find_chains(struct region *r, const depths *in, uint64_t lowest)
{
    for (int i = 0; i < r->n; i++) {
        depths out;

        if (!r->inside[i] || is_inner(r, i, lowest))
            continue;
        out = through(r->blocks[i], in[i]);
        for (int k = 0; k < 2; k++) {
            int j = r->follow[i][k];
            uint16_t regs;
            bool seen[LOOP_BLOCKS] = {0};

            if (j < 0 || !r->inside[j] || !is_inner(r, j, lowest))
                continue;
            regs = carriers(r, j);
            if (regs && !(regs & chained(out)))
                mark_before_chain(r, i, lowest, seen);
        }
    }
}

/* Looks for the loop that `first` closes, and decides the loads of its blocks. */
static void close_loop(struct code *first)
{
    struct region r = {.blocks = {first}, .n = 1};
    bool changed = true;
    depths in[LOOP_BLOCKS] = {0};
    uint64_t lowest = UINT64_MAX;

    /* The blocks that can be reached from it. */
    for (int i = 0; i < r.n; i++) {
        for (int k = 0; k < 2; k++) {
            struct code *c = code_at(r.blocks[i]->follow[k]);
            int j = 0;

            while (j < r.n && r.blocks[j] != c)
                j++;
            if (c && j == r.n && r.n < LOOP_BLOCKS)
                r.blocks[r.n++] = c;
            r.follow[i][k] = c && j < r.n ? j : -1;
        }
    }
    /* Those of them from which it can be reached. */
    while (changed) {
        changed = false;
        for (int i = 0; i < r.n; i++)
            for (int k = 0; k < 2; k++)
                if (!r.inside[i] && r.follow[i][k] >= 0 && (!r.follow[i][k] || r.inside[r.follow[i][k]]))
                    r.inside[i] = changed = true;
    }
    if (!r.inside[0])
        return;
    do {
        changed = false;
        for (int i = 0; i < r.n; i++) {
            depths out;

            if (!r.inside[i])
                continue;
            out = through(r.blocks[i], in[i]);
            for (int k = 0; k < 2; k++) {
                int j = r.follow[i][k];
                depths next;

                if (j < 0 || !r.inside[j])
                    continue;
                next = deepest(in[j], out, r.blocks[i]->survive[k]);
                changed |= next != in[j];
                in[j] = next;
            }
        }
    } while (changed);
    for (int i = 0; i < r.n; i++)
        if (r.inside[i] && r.blocks[i]->start < lowest)
            lowest = r.blocks[i]->start;
    for (int i = 0; i < r.n; i++) {
        if (r.inside[i] && (!r.blocks[i]->loop || r.blocks[i]->loop == lowest)) {
            r.blocks[i]->loop = lowest;
            set_heads(r.blocks[i], in[i], DEEPEST);
        }
    }
    find_chains(&r, in, lowest);
}

/* The heads of the loads of the block from `start` to `end`, which may change later. */
const uint64_t *heads_of(uint64_t start, uint64_t end, const struct flow *flows, size_t n)
{
    struct code **chain = chain_of(start), *c;
    const struct flow *last = &flows[n - 1];

    /* QEMU also translates the beginning of a block alone, where its budget of instructions ends within. */
    for (c = *chain; c; c = c->next)
        if (c->start == start && c->n >= n && !memcmp(c->flows, flows, n * sizeof *flows))
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
