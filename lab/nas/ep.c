/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * EP, "embarrassingly parallel": 2^m pairs of uniform numbers become normal deviates by the polar method. The sums of
 * the deviates and their counts in square rings are published. Ranks communicate at the end only.
 */

#include "nas.h"

#include <math.h>

enum { RINGS = 10 };

static const struct problem {
    int log_pairs;
    double sum_x, sum_y;
    long deviates;
} PROBLEMS[] = {
    {24, -3.247834652034740e+3, -6.958407078382297e+3, 13176389},
    {25, -2.863319731645753e+3, -6.320053679109499e+3, 26354769},
    {28, -4.295875165629892e+3, -1.580732573678431e+4, 210832767},
};

/* Counts by ring, published for class A, and those of class S. */
static const long RINGS_OF_A[RINGS] = {98257395, 93827014, 17611549, 1110028, 26536, 245};
static const long RINGS_OF_S[RINGS] = {6140517, 5865300, 1100361, 68546, 1648, 17};

struct sums {
    double x, y;
    long ring[RINGS];
};

static void pair(struct sums *sums, uint64_t *state) {
    double x = 2 * random_next(state) - 1;
    double y = 2 * random_next(state) - 1;
    double t = x * x + y * y;
    if (t > 1) return;
    double scale = sqrt(-2 * log(t) / t);
    x *= scale;
    y *= scale;
    sums->x += x;
    sums->y += y;
    sums->ring[(int)fmax(fabs(x), fabs(y))]++;
}

void ep(struct run *run) {
    int class = class_of(run, "SWA");
    const struct problem *problem = &PROBLEMS[class];
    long pairs = 1l << problem->log_pairs;
    must_divide(run, pairs, "the number of pairs");
    long mine = pairs / run->ranks;
    uint64_t state = random_skip(SEED_EP, 2ull * (uint64_t)(mine * run->rank));
    struct sums sums = {0};
    region_begin(run);
    for (long i = 0; i < mine; i++) pair(&sums, &state);
    long ring[RINGS], all = 0;
    MPI_Allreduce(sums.ring, ring, RINGS, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < RINGS; i++) all += ring[i];
    double x = sum_all(sums.x), y = sum_all(sums.y);
    region_end(run);
    check(run, "sum of x", x, problem->sum_x, 1e-8);
    check(run, "sum of y", y, problem->sum_y, 1e-8);
    check_count(run, "deviates", all, problem->deviates);
    const long *published = class == 0 ? RINGS_OF_S : class == 2 ? RINGS_OF_A : NULL;
    for (int i = 0; published != NULL && i < RINGS; i++) check_count(run, "in a ring", ring[i], published[i]);
}
