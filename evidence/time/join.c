/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* An equi-join of two tables of 16-byte rows. `hash`: a chained hash table over the smaller one, probed with each
 * row of the larger. `merge`: both sorted by radix, then merged. Arguments: kind, rows of the smaller table (a
 * power of two), rows of the larger. */
#include "bench.h"

struct row {
    uint64_t key, value;
};

static uint64_t hash_join(const struct row *small, uint64_t n, const struct row *large, uint64_t m, uint32_t *head, uint32_t *link)
{
    uint64_t sum = 0;

    for (uint64_t i = 0; i < n; i++) {
        uint64_t h = small[i].key * 0x9e3779b97f4a7c15 >> 32 & (n - 1);

        link[i] = head[h];
        head[h] = (uint32_t)i + 1;
    }
    for (uint64_t i = 0; i < m; i++) {
        uint64_t key = large[i].key;

        for (uint32_t at = head[key * 0x9e3779b97f4a7c15 >> 32 & (n - 1)]; at; at = link[at - 1])
            if (small[at - 1].key == key)
                sum += small[at - 1].value ^ large[i].value;
    }
    return sum;
}

/* By the low 33 bits of the key, in three passes of 11 bits; the result is in `b`. */
static void sort(struct row *a, struct row *b, uint64_t n)
{
    static uint64_t at[2048];

    for (int pass = 0; pass < 3; pass++) {
        struct row *from = pass & 1 ? b : a, *to = pass & 1 ? a : b;
        uint64_t sum = 0;

        memset(at, 0, sizeof at);
        for (uint64_t i = 0; i < n; i++)
            at[from[i].key >> 11 * pass & 2047]++;
        for (int i = 0; i < 2048; i++) {
            uint64_t count = at[i];

            at[i] = sum;
            sum += count;
        }
        for (uint64_t i = 0; i < n; i++)
            to[at[from[i].key >> 11 * pass & 2047]++] = from[i];
    }
}

static uint64_t merge(const struct row *a, uint64_t n, const struct row *b, uint64_t m)
{
    uint64_t sum = 0;

    for (uint64_t i = 0, j = 0; i < n && j < m;) {
        if (a[i].key < b[j].key) {
            i++;
        } else if (a[i].key > b[j].key) {
            j++;
        } else {
            for (uint64_t k = i; k < n && a[k].key == b[j].key; k++)
                sum += a[k].value ^ b[j].value;
            j++;
        }
    }
    return sum;
}

int main(int argc, char **argv)
{
    uint64_t n = argument(argc, argv, 2, 1 << 22, 1024), m = argument(argc, argv, 3, 1 << 24, 1024), seed = 7, sum;
    struct row *small = memory(n * sizeof *small), *large = memory(m * sizeof *large);

    if (argc < 2 || (strcmp(argv[1], "hash") && strcmp(argv[1], "merge")) || n & (n - 1)) {
        fprintf(stderr, "usage: join hash|merge ROWS ROWS (the first number is a power of two)\n");
        return 2;
    }
    for (uint64_t i = 0; i < n; i++)
        small[i] = (struct row){below(&seed, 2 * n), i};
    for (uint64_t i = 0; i < m; i++)
        large[i] = (struct row){below(&seed, 2 * n), i};
    if (argv[1][0] == 'h') {
        uint32_t *head = memory(n * 4), *link = memory(n * 4);

        begin();
        sum = hash_join(small, n, large, m, head, link);
    } else {
        struct row *a = memory(n * sizeof *a), *b = memory(m * sizeof *b);

        begin();
        sort(small, a, n);
        sort(large, b, m);
        sum = merge(a, n, b, m);
    }
    finish(sum);
    return 0;
}
