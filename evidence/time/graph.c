/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Kernels on a random graph whose in-degrees follow a power law, as rows of edges (CSR). `bfs`: breadth-first
 * search from vertex 0. `pagerank`: iterations that pull the ranks of neighbours. Arguments: kernel, vertices,
 * edges per vertex, iterations. */
#include "bench.h"

static uint64_t bfs(const uint32_t *row, const uint32_t *edge, uint64_t n, uint32_t *parent, uint32_t *queue)
{
    uint64_t head = 0, tail = 0;

    memset(parent, 0xff, n * sizeof *parent);
    parent[0] = 0;
    queue[tail++] = 0;
    while (head < tail) {
        uint32_t v = queue[head++];

        for (uint32_t i = row[v]; i < row[v + 1]; i++) {
            uint32_t to = edge[i];

            if (parent[to] == UINT32_MAX) {
                parent[to] = v;
                queue[tail++] = to;
            }
        }
    }
    return tail;
}

static uint64_t pagerank(const uint32_t *row, const uint32_t *edge, uint64_t n, double *rank, double *new, uint64_t rounds)
{
    double total = 0;

    for (uint64_t v = 0; v < n; v++)
        rank[v] = 1;
    for (uint64_t round = 0; round < rounds; round++) {
        double *swap = rank;

        for (uint64_t v = 0; v < n; v++) {
            double sum = 0;

            for (uint32_t i = row[v]; i < row[v + 1]; i++)
                sum += rank[edge[i]];
            new[v] = 0.15 + 0.85 * sum / (row[v + 1] - row[v] + 1);
        }
        rank = new;
        new = swap;
    }
    for (uint64_t v = 0; v < n; v++)
        total += rank[v];
    return (uint64_t)total;
}

int main(int argc, char **argv)
{
    uint64_t n = argument(argc, argv, 2, 1 << 23, 1024), degree = argument(argc, argv, 3, 8, 1000);
    uint64_t rounds = argument(argc, argv, 4, 2, 1000), seed = 3, result, edges;
    uint32_t *row = memory((n + 1) * 4), *edge;

    if (argc < 2 || (strcmp(argv[1], "bfs") && strcmp(argv[1], "pagerank"))) {
        fprintf(stderr, "usage: graph bfs|pagerank VERTICES DEGREE [ITERATIONS]\n");
        return 2;
    }
    edges = n * degree;
    edge = memory(edges * 4);
    for (uint64_t v = 0; v <= n; v++)
        row[v] = (uint32_t)(v * degree);
    for (uint64_t i = 0; i < edges; i++) {
        /* The product of two uniform numbers: few vertices take many edges. Odd multiplication spreads them. */
        uint64_t a = below(&seed, n), b = next(&seed) >> 32;

        edge[i] = (uint32_t)(i % degree ? ((a * b >> 32) * 0x9e3779b1) % n : a);
    }
    if (argv[1][0] == 'b') {
        uint32_t *parent = memory(n * 4), *queue = memory(n * 4);

        begin();
        result = bfs(row, edge, n, parent, queue);
    } else {
        double *rank = memory(n * 8), *new = memory(n * 8);

        begin();
        result = pagerank(row, edge, n, rank, new, rounds);
    }
    finish(result);
    return 0;
}
