/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * IS, "integer sort": ranks of integer keys, ten times, with two keys changed before each. Every rank of the machine
 * holds a part of the sequence. Keys go to the rank that has their range, which counts them. The published places of
 * five keys are compared each time: 50 comparisons. The last order is checked as a whole.
 */

#include "nas.h"

#include <stdlib.h>
#include <string.h>

enum { TIMES = 10, PROBES = 5, LOG_RANGES = 9, RANGES = 1 << LOG_RANGES };

/* Logarithms of the numbers of keys and of their values; indices of the probes; their places at time 0, and by how much
 * these change each time. */
static const struct problem {
    int log_keys, log_values;
    long index[PROBES], place[PROBES];
    int change[PROBES];
} PROBLEMS[] = {
    {16, 11, {48427, 17148, 23627, 62548, 4431}, {0, 18, 346, 64917, 65463}, {1, 1, 1, -1, -1}},
    {20, 16, {357773, 934767, 875723, 898999, 404505}, {1247, 11696, 1039987, 1043896, 1048018}, {1, 1, -1, -1, -1}},
    {23, 19, {2112377, 662041, 5336171, 3642833, 4250760}, {103, 17522, 123927, 8288933, 8388265}, {1, 1, 1, -1, -1}},
};

/* One process's part. `range_of` says which ranges of values are whose: rank r has those from first[r] to first[r + 1]. */
struct part {
    const struct problem *problem;
    long keys;
    int *key;
    int *sent, *got, *send_at, *got_at, *first;
    int *sorted_out, *received;
    long number;
    /* Keys of the own ranges below each value, and all keys of lower ranks. */
    int *below;
    long before;
};

static int range_of(const struct part *part, int key) { return key >> (part->problem->log_values - LOG_RANGES); }

static void make_keys(struct part *part, int rank) {
    uint64_t state = random_skip(SEED, 4ull * (uint64_t)(part->keys * rank));
    double quarter = (double)(1l << part->problem->log_values) / 4;
    for (long i = 0; i < part->keys; i++) {
        double sum = 0;
        for (int j = 0; j < 4; j++) sum += random_next(&state);
        part->key[i] = (int)(quarter * sum);
    }
}

/* Gives every rank consecutive ranges with about the same number of keys. */
static void share_ranges(struct part *part, const int *number, int ranks) {
    long all = part->keys * ranks, seen = 0;
    int rank = 0;
    part->first[0] = 0;
    for (int range = 0; range < RANGES; range++) {
        while (rank + 1 < ranks && seen >= all / ranks * (rank + 1)) part->first[++rank] = range;
        seen += number[range];
    }
    while (rank < ranks) part->first[++rank] = RANGES;
}

/* Sorts the own keys by range and sends them to those that have the ranges. */
static void exchange(struct part *part, int ranks) {
    int mine[RANGES] = {0}, all[RANGES], at[RANGES];
    for (long i = 0; i < part->keys; i++) mine[range_of(part, part->key[i])]++;
    MPI_Allreduce(mine, all, RANGES, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    share_ranges(part, all, ranks);
    for (int range = 0, next = 0; range < RANGES; range++) {
        at[range] = next;
        next += mine[range];
    }
    for (int r = 0; r < ranks; r++) {
        part->sent[r] = 0;
        for (int range = part->first[r]; range < part->first[r + 1]; range++) part->sent[r] += mine[range];
        part->send_at[r] = r == 0 ? 0 : part->send_at[r - 1] + part->sent[r - 1];
    }
    for (long i = 0; i < part->keys; i++) part->sorted_out[at[range_of(part, part->key[i])]++] = part->key[i];
    MPI_Alltoall(part->sent, 1, MPI_INT, part->got, 1, MPI_INT, MPI_COMM_WORLD);
    part->number = 0;
    for (int r = 0; r < ranks; r++) {
        part->got_at[r] = (int)part->number;
        part->number += part->got[r];
    }
    free(part->received);
    part->received = room((size_t)part->number, sizeof(int));
    MPI_Alltoallv(part->sorted_out, part->sent, part->send_at, MPI_INT, part->received, part->got, part->got_at,
                  MPI_INT, MPI_COMM_WORLD);
}

/* Counts the keys that came. */
static void count(struct part *part) {
    long values = 1l << part->problem->log_values;
    memset(part->below, 0, (size_t)(values + 1) * sizeof(int));
    for (long i = 0; i < part->number; i++) part->below[part->received[i] + 1]++;
    for (long v = 0; v < values; v++) part->below[v + 1] += part->below[v];
    MPI_Scan(&part->number, &part->before, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    part->before -= part->number;
}

/* Compares the places of the probes; returns how many are right. */
static int probe(const struct part *part, const struct run *run, int time) {
    long key[PROBES], place[PROBES];
    const struct problem *problem = part->problem;
    for (int i = 0; i < PROBES; i++) {
        long index = problem->index[i];
        key[i] = index / part->keys == run->rank ? part->key[index % part->keys] : 0;
    }
    MPI_Allreduce(MPI_IN_PLACE, key, PROBES, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < PROBES; i++) {
        int range = range_of(part, (int)key[i]);
        bool mine = range >= part->first[run->rank] && range < part->first[run->rank + 1];
        place[i] = mine ? part->before + part->below[key[i]] : 0;
    }
    MPI_Allreduce(MPI_IN_PLACE, place, PROBES, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    int right = 0;
    for (int i = 0; i < PROBES; i++) right += place[i] == problem->place[i] + problem->change[i] * time;
    return right;
}

/* How many keys stand in ascending order at the end, over all ranks: each rank writes its keys in order, and takes over
 * from the largest key of the ranks below. */
static long in_order(const struct part *part, const struct run *run) {
    long values = 1l << part->problem->log_values;
    int *sorted = room((size_t)part->number, sizeof(int));
    int *next = room((size_t)values, sizeof(int));
    memcpy(next, part->below, (size_t)values * sizeof(int));
    for (long i = 0; i < part->number; i++) sorted[next[part->received[i]]++] = part->received[i];
    int largest = part->number > 0 ? sorted[part->number - 1] : 0, previous = 0;
    MPI_Exscan(&largest, &previous, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (run->rank == 0) previous = 0;
    long good = 0, all;
    for (long i = 0; i < part->number; i++) {
        good += sorted[i] >= previous;
        previous = sorted[i];
    }
    free(sorted);
    free(next);
    MPI_Allreduce(&good, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

/* Changes two keys for the time and ranks all keys. */
static void rank_keys(struct part *part, const struct run *run, int time) {
    if (run->rank == 0) {
        part->key[time] = time;
        part->key[time + TIMES] = (int)(1l << part->problem->log_values) - time;
    }
    exchange(part, run->ranks);
    count(part);
}

void is(struct run *run) {
    struct part part = {.problem = &PROBLEMS[class_of(run, "SWA")]};
    long keys = 1l << part.problem->log_keys, values = 1l << part.problem->log_values;
    must_divide(run, keys, "the number of keys");
    if (run->ranks > RANGES) must_divide(run, RANGES, "the number of ranges");
    part.keys = keys / run->ranks;
    part.key = room((size_t)part.keys, sizeof(int));
    part.sorted_out = room((size_t)part.keys, sizeof(int));
    part.below = room((size_t)values + 1, sizeof(int));
    int **by_rank[] = {&part.sent, &part.got, &part.send_at, &part.got_at, &part.first};
    for (size_t i = 0; i < sizeof by_rank / sizeof *by_rank; i++) {
        *by_rank[i] = room((size_t)run->ranks + 1, sizeof(int));
    }
    make_keys(&part, run->rank);
    /* Once untimed, so that all memory is touched. The first time changes the same two keys again. */
    rank_keys(&part, run, 1);
    region_begin(run);
    int right = 0;
    for (int time = 1; time <= TIMES; time++) {
        rank_keys(&part, run, time);
        right += probe(&part, run, time);
    }
    region_end(run);
    check_count(run, "places", right, TIMES * PROBES);
    check_count(run, "keys in order", in_order(&part, run), keys);
    free(part.key);
    free(part.sorted_out);
    free(part.received);
    free(part.below);
    for (size_t i = 0; i < sizeof by_rank / sizeof *by_rank; i++) free(*by_rank[i]);
}
