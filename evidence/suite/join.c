// SPDX-License-Identifier: Apache-2.0 OR MIT
// A database's join by hashing, with a group-by over the result: orders are put into
// chains of a hash table, items look their order up, and revenue is added up per
// customer. Then the same over a sorted tree (a B-tree in memory), by range.
//
//   join ORDERS ITEMS RANGES
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CUSTOMERS = 1 << 18, WIDTH = 31 };
struct order {
    struct order *next;
    uint64_t key;
    uint32_t customer, day;
    char text[40];
};
struct page { // of the tree: leaves hold orders, others hold pages
    int count, leaf;
    uint64_t key[WIDTH];
    void *below[WIDTH + 1];
};

static uint64_t state = 88172645463325252u;
static uint64_t draw(void)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state >> 11;
}
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * 0x7fb5d329728ea185;
    return x ^ x >> 27;
}
static void *get(size_t size)
{
    void *p = calloc(1, size);
    if (!p)
        perror("join"), exit(1);
    return p;
}

static void split(struct page *up, int at)
{
    struct page *left = up->below[at], *right = get(sizeof *right);
    int half = left->count / 2, moved = left->count - half - !left->leaf;
    uint64_t middle = left->key[half];
    right->leaf = left->leaf, right->count = moved;
    memcpy(right->key, left->key + left->count - moved, moved * sizeof *right->key);
    memcpy(right->below, left->below + left->count - moved, (moved + !left->leaf) * sizeof *right->below);
    left->count = half;
    memmove(up->key + at + 1, up->key + at, (up->count - at) * sizeof *up->key);
    memmove(up->below + at + 2, up->below + at + 1, (up->count - at) * sizeof *up->below);
    up->key[at] = middle, up->below[at + 1] = right, up->count++;
}

// Where in `p` a key belongs: the first entry not below it, or past an equal one above leaves.
static int place(const struct page *p, uint64_t key)
{
    int i = 0;
    while (i < p->count && (p->leaf ? p->key[i] < key : p->key[i] <= key))
        i++;
    return i;
}

static void insert(struct page **root, uint64_t key, void *value)
{
    if ((*root)->count == WIDTH) {
        struct page *up = get(sizeof *up);
        up->below[0] = *root, *root = up;
        split(up, 0);
    }
    struct page *p = *root;
    while (!p->leaf) {
        int i = place(p, key);
        struct page *q = p->below[i];
        if (q->count == WIDTH) {
            split(p, i);
            q = p->below[i + (key >= p->key[i])];
        }
        p = q;
    }
    int i = place(p, key);
    memmove(p->key + i + 1, p->key + i, (p->count - i) * sizeof *p->key);
    memmove(p->below + i + 1, p->below + i, (p->count - i) * sizeof *p->below);
    p->key[i] = key, p->below[i] = value, p->count++;
}

static uint64_t range(const struct page *p, uint64_t from, uint64_t to)
{
    uint64_t sum = 0;
    int i = place(p, from);
    if (p->leaf) {
        for (; i < p->count && p->key[i] < to; i++)
            sum += ((struct order *)p->below[i])->day;
        return sum;
    }
    for (; i <= p->count && (i == 0 || p->key[i - 1] < to); i++)
        sum += range(p->below[i], from, to);
    return sum;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return fprintf(stderr, "usage: join ORDERS ITEMS RANGES\n"), 2;
    uint64_t orders = strtoull(argv[1], 0, 0), items = strtoull(argv[2], 0, 0), ranges = strtoull(argv[3], 0, 0), buckets = 1;
    while (buckets < orders)
        buckets *= 2;
    struct order **table = get(buckets * sizeof *table);
    uint64_t *revenue = get(CUSTOMERS * sizeof *revenue), found = 0, check = 0;
    struct page *tree = get(sizeof *tree);
    tree->leaf = 1;
    for (uint64_t i = 0; i < orders; i++) {
        struct order *o = get(sizeof *o);
        uint64_t h = mix(o->key = i * 4) & (buckets - 1);
        o->customer = draw() % CUSTOMERS, o->day = draw() % 2557;
        snprintf(o->text, sizeof o->text, "order %llu of %u", (unsigned long long)i, o->customer);
        o->next = table[h], table[h] = o;
    }
    for (uint64_t i = 0; i < items; i++) {
        uint64_t key = draw() % (orders * 5), price = draw() % 10000;
        for (struct order *o = table[mix(key) & (buckets - 1)]; o; o = o->next)
            if (o->key == key) {
                revenue[o->customer] += price, found++;
                break;
            }
    }
    for (uint64_t i = 0; i < buckets; i++)
        for (struct order *o = table[i]; o; o = o->next)
            insert(&tree, mix(o->key) >> 8, o);
    for (uint64_t i = 0; i < ranges; i++) {
        uint64_t from = draw() & ((1ull << 56) - 1);
        check = check * 31 + range(tree, from, from + (1ull << 40));
    }
    for (uint64_t i = 0; i < CUSTOMERS; i++)
        check = check * 31 + revenue[i];
    uint64_t days = 0;
    for (uint64_t i = 0; i < buckets; i++)
        for (struct order *o = table[i]; o; o = o->next)
            days += o->day;
    if (range(tree, 0, ~0ull) != days)
        return fprintf(stderr, "join: the tree lost something\n"), 1;
    printf("%llu items found, check %016llx\n", (unsigned long long)found, (unsigned long long)check);
    return 0;
}
