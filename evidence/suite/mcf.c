// SPDX-License-Identifier: Apache-2.0 OR MIT
// Minimum-cost flow by the primal network simplex method: the nodes hang in a
// spanning tree of pointers, a step walks up and down in it, and prices are read
// through the arcs' two node pointers, so that nearly every arc looked at is two
// loads somewhere in memory. Prints the optimal cost and checks the solution.
//
//   mcf NODES ARCS SEED
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct arc;
struct node {
    int64_t price;
    struct node *up, *child, *next, *before; // parent, first child, siblings
    struct arc *by;                          // the tree arc to the parent
    int64_t supply;
    int32_t depth;
    int32_t spare;
};
struct arc {
    struct node *from, *to;
    int64_t cost, flow, room; // room: capacity
    int64_t state;            // 1 at zero, -1 at capacity, 0 in the tree
};

static uint64_t seed;
static uint64_t draw(uint64_t below)
{
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (seed >> 16) % below;
}

static int64_t reduced(const struct arc *a) { return a->cost + a->from->price - a->to->price; }

static void hang(struct node *n, struct node *up, struct arc *by)
{
    n->up = up, n->by = by, n->before = NULL, n->next = up->child;
    if (n->next)
        n->next->before = n;
    up->child = n;
}

static void cut(struct node *n)
{
    if (n->before)
        n->before->next = n->next;
    else
        n->up->child = n->next;
    if (n->next)
        n->next->before = n->before;
}

// Prices and depths of everything below `top`, by a walk without a stack.
static void refresh(struct node *top)
{
    struct node *n = top;
    for (;;) {
        n->depth = n->up->depth + 1;
        n->price = n->by->to == n ? n->up->price + n->by->cost : n->up->price - n->by->cost;
        if (n->child) {
            n = n->child;
            continue;
        }
        while (n != top && !n->next)
            n = n->up;
        if (n == top)
            return;
        n = n->next;
    }
}

// How much more may flow over tree arc `a`, in its own direction or against it.
static int64_t slack(const struct arc *a, int forward) { return forward ? a->room - a->flow : a->flow; }

static void pivot(struct arc *in)
{
    // Flow goes round the cycle from -> to -> ... -> from, or the other way.
    int ahead = in->state == 1;
    struct node *head = ahead ? in->to : in->from, *tail = ahead ? in->from : in->to;
    int64_t delta = slack(in, ahead);
    struct node *leave = NULL;
    int on_head = 0;
    struct node *h = head, *t = tail;
    while (h != t) {
        if (h->depth > t->depth) { // from head upwards: flow towards the root
            int64_t s = slack(h->by, h->by->from == h);
            if (s <= delta)
                delta = s, leave = h, on_head = 1;
            h = h->up;
        } else { // on the tail's side flow comes down from the root
            int64_t s = slack(t->by, t->by->to == t);
            if (s < delta)
                delta = s, leave = t, on_head = 0;
            t = t->up;
        }
    }
    in->flow += ahead ? delta : -delta;
    for (struct node *n = head; n != h; n = n->up)
        n->by->flow += n->by->from == n ? delta : -delta;
    for (struct node *n = tail; n != h; n = n->up)
        n->by->flow += n->by->to == n ? delta : -delta;
    if (!leave) { // the entering arc itself went to its other bound
        in->state = -in->state;
        return;
    }
    struct arc *out = leave->by;
    out->state = out->flow ? -1 : 1;
    in->state = 0;
    // The part under `leave` is attached again at the end of `in` that lies in it.
    struct node *n = on_head ? head : tail, *up = on_head ? tail : head;
    struct node *first = n;
    struct arc *by = in;
    for (;;) {
        struct node *old_up = n->up;
        struct arc *old_by = n->by;
        cut(n);
        hang(n, up, by);
        if (n == leave)
            break;
        up = n, by = old_by, n = old_up;
    }
    refresh(first);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return fprintf(stderr, "usage: mcf NODES ARCS SEED\n"), 2;
    long nodes = atol(argv[1]), arcs = atol(argv[2]);
    seed = strtoull(argv[3], 0, 0) * 2654435761u + 88172645463325252u;
    struct node *node = calloc(nodes + 1, sizeof *node);
    struct arc *arc = calloc(arcs + nodes, sizeof *arc);
    if (!node || !arc)
        return perror("mcf"), 1;
    struct node *root = &node[nodes];
    int64_t most = 10000, sum = 0;
    for (long i = 0; i + 1 < nodes; i++)
        node[i].supply = i % 8 ? 0 : (int64_t)draw(2001) - 1000, sum += node[i].supply;
    node[nodes - 1].supply = -sum;
    for (long i = 0; i < arcs; i++) {
        struct arc *a = &arc[i];
        a->from = &node[draw(nodes)];
        // A ring at first, so that there is a solution; then at random.
        if (i < nodes)
            a->from = &node[i], a->to = &node[(i + 1) % nodes], a->room = 1ll << 40, a->cost = most;
        else {
            do
                a->to = &node[draw(nodes)];
            while (a->to == a->from);
            a->room = 1 + (int64_t)draw(50000), a->cost = 1 + (int64_t)draw(most);
        }
        a->state = 1;
    }
    // First tree: every node by an arc of its own at the root, too costly to stay.
    int64_t dear = most * (nodes + 1);
    for (long i = 0; i < nodes; i++) {
        struct arc *a = &arc[arcs + i];
        int gives = node[i].supply >= 0;
        a->from = gives ? &node[i] : root, a->to = gives ? root : &node[i];
        a->flow = gives ? node[i].supply : -node[i].supply;
        a->room = 1ll << 50, a->cost = dear;
        hang(&node[i], root, a);
        refresh(&node[i]);
    }
    // Pricing: the worst arc of a block, the next block where this one has none.
    long block = 64, all = arcs + nodes, at = 0, seen = 0, pivots = 0;
    while (block * block * 4 < all)
        block++;
    while (seen < all) {
        struct arc *best = NULL;
        int64_t worst = 0;
        for (long k = 0; k < block; k++) {
            struct arc *a = &arc[at];
            at = at + 1 == all ? 0 : at + 1;
            int64_t r = a->state * reduced(a);
            if (r < worst)
                worst = r, best = a;
        }
        seen += block;
        if (best)
            pivot(best), seen = 0, pivots++;
    }
    // Optimal if no arc's reduced cost says otherwise, and feasible if nodes balance.
    int64_t cost = 0, left = 0;
    for (long i = 0; i < all; i++) {
        struct arc *a = &arc[i];
        cost += i < arcs ? a->flow * a->cost : 0;
        left += i < arcs ? 0 : a->flow;
        a->from->supply -= a->flow, a->to->supply += a->flow;
        if (a->flow < 0 || a->flow > a->room || a->state * reduced(a) < 0)
            return fprintf(stderr, "mcf: arc %ld is wrong\n", i), 1;
    }
    for (long i = 0; i <= nodes; i++)
        if (node[i].supply)
            return fprintf(stderr, "mcf: node %ld does not balance\n", i), 1;
    printf("cost %lld, not routed %lld, %ld pivots\n", (long long)cost, (long long)left, pivots);
    return left != 0;
}
