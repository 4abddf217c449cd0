/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Lookups in a B-tree of 15 keys a node, with nodes of 256 bytes in random places, as a tree that grew has them.
 * Arguments: nodes, lookups. */
#include "bench.h"

struct node {
    uint64_t key[15];
    uint64_t inner;
    uint64_t child[16];
};

static struct node *nodes;
static uint64_t *place, taken;

/* A subtree of all odd multiples of `step` between `low` and low + 16^height * 2 * step; its node's number. */
static uint64_t build(uint64_t low, uint64_t span, int height)
{
    uint64_t at = place[taken++];
    uint64_t part = span / 16;

    for (int i = 0; i < 15; i++)
        nodes[at].key[i] = low + part * (uint64_t)(i + 1);
    nodes[at].inner = height > 1;
    for (int i = 0; i < 16; i++)
        nodes[at].child[i] = height > 1 ? build(low + part * (uint64_t)i, part, height - 1) : low + part * (uint64_t)i;
    return at;
}

int main(int argc, char **argv)
{
    uint64_t height = argument(argc, argv, 1, 6, 1000), lookups = argument(argc, argv, 2, 4000000, 1000);
    uint64_t count = 0, seed = 11, sum = 0, root;

    if (height > 7) {
        fprintf(stderr, "btree: a tree of more than 7 levels does not fit\n");
        return 2;
    }
    for (uint64_t i = 0, n = 1; i < height; i++, n *= 16)
        count += n;
    nodes = memory(count * sizeof *nodes);
    place = memory(count * sizeof *place);
    for (uint64_t i = 0; i < count; i++) { /* inside-out shuffle (Knuth, algorithm P) */
        uint64_t j = below(&seed, i + 1);

        place[i] = place[j];
        place[j] = i;
    }
    root = build(0, UINT64_MAX - 15, (int)height);
    begin();
    for (uint64_t i = 0; i < lookups; i++) {
        uint64_t key = next(&seed), at = root;

        for (;;) {
            const struct node *n = &nodes[at];
            int k = 0;

            while (k < 15 && key >= n->key[k])
                k++;
            at = n->child[k];
            if (!n->inner)
                break;
        }
        sum += at;
    }
    finish(sum);
    return 0;
}
