// SPDX-License-Identifier: Apache-2.0 OR MIT
// A graph with few nodes of many edges and many of few (edges fall by a recursive
// choice of quadrants), in rows of compressed adjacency: breadth-first searches from
// several roots, then rounds of page rank.
//
//   graph SCALE EDGES_PER_NODE SEARCHES ROUNDS      2^SCALE nodes
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 0x2545f4914f6cdd1d;
static uint32_t draw(void)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state >> 32;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return fprintf(stderr, "usage: graph SCALE EDGES_PER_NODE SEARCHES ROUNDS\n"), 2;
    int scale = atoi(argv[1]), searches = atoi(argv[3]), rounds = atoi(argv[4]);
    uint32_t nodes = 1u << scale;
    uint64_t edges = (uint64_t)nodes * strtoull(argv[2], 0, 0);
    uint32_t(*edge)[2] = malloc(edges * sizeof *edge), *to = malloc(edges * 2 * sizeof *to);
    uint32_t *queue = malloc(nodes * sizeof *queue), *level = malloc(nodes * sizeof *level);
    uint64_t *row = calloc(nodes + 2ul, sizeof *row);
    float *rank = malloc(nodes * sizeof *rank), *new = malloc(nodes * sizeof *new);
    if (!edge || !to || !queue || !level || !row || !rank || !new)
        return perror("graph"), 1;
    for (uint64_t i = 0; i < edges; i++) {
        uint32_t u = 0, v = 0;
        for (int bit = 0; bit < scale; bit += 4) {
            uint32_t r = draw();
            for (int k = 0; k < 4 && bit + k < scale; k++, r >>= 8) {
                uint32_t p = r & 255; // 57, 19, 19 and 5 percent
                u = u << 1 | (p >= 194), v = v << 1 | ((p >= 146 && p < 194) || p >= 243);
            }
        }
        u = u * 2654435761u >> (32 - scale), v = v * 2654435761u >> (32 - scale);
        edge[i][0] = u, edge[i][1] = v, row[u + 2]++, row[v + 2]++;
    }
    for (uint32_t i = 0; i < nodes; i++)
        row[i + 2] += row[i + 1];
    for (uint64_t i = 0; i < edges; i++)
        to[row[edge[i][0] + 1]++] = edge[i][1], to[row[edge[i][1] + 1]++] = edge[i][0];
    free(edge);
    uint64_t reached = 0, depth = 0;
    for (int s = 0; s < searches; s++) {
        memset(level, 255, nodes * sizeof *level);
        uint32_t head = 0, tail = 0, root = draw() >> (32 - scale);
        while (row[root] == row[root + 1])
            root = (root + 1) % nodes;
        queue[tail++] = root, level[root] = 0;
        while (head < tail) {
            uint32_t u = queue[head++];
            for (uint64_t k = row[u]; k < row[u + 1]; k++)
                if (level[to[k]] == UINT32_MAX)
                    level[to[k]] = level[u] + 1, queue[tail++] = to[k];
        }
        reached += tail, depth += level[queue[tail - 1]];
    }
    for (uint32_t i = 0; i < nodes; i++)
        rank[i] = 1.0f / nodes;
    double sum = 0;
    for (int r = 0; r < rounds; r++) {
        for (uint32_t i = 0; i < nodes; i++)
            level[i] = 0, new[i] = rank[i] / (row[i + 1] - row[i] + (row[i + 1] == row[i]));
        for (uint32_t i = 0; i < nodes; i++) {
            float in = 0;
            for (uint64_t k = row[i]; k < row[i + 1]; k++)
                in += new[to[k]];
            rank[i] = 0.15f / nodes + 0.85f * in;
        }
    }
    for (uint32_t i = 0; i < nodes; i++)
        sum += rank[i];
    printf("reached %llu, depths %llu, ranks %.4f\n", (unsigned long long)reached, (unsigned long long)depth, sum);
    return 0;
}
