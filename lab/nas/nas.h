/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the five kernels share: the generator of random numbers, memory, the division of work among ranks, the
 * comparison with published values. Problems, generator and values are those of "The NAS Parallel Benchmarks"
 * (Bailey and others, RNR-94-007, and NAS-95-020 for class W); all code is written here.
 */
#ifndef NAS_H
#define NAS_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The run: class of the problem, and this process among all. */
struct run {
    char class;
    int rank, ranks;
    /* Comparisons that failed, on rank 0. */
    int failed;
    /* When the region began, and its time. */
    double begun, seconds;
};

/* Seeds of the generator. */
#define SEED_EP 271828183u
#define SEED 314159265u

/* The next number of x <- 5^13 x mod 2^46, between 0 and 1. */
double random_next(uint64_t *x);
/* The generator's state after `steps` numbers. */
uint64_t random_skip(uint64_t x, uint64_t steps);

/* Zeroed memory; ends the program if there is none. */
void *room(size_t number, size_t size);

/* Index of the class among `classes`, such as "SWA"; ends the program if the kernel does not have that class. */
int class_of(const struct run *run, const char *classes);
/* Ends the program unless the ranks divide the size of the problem. */
void must_divide(const struct run *run, long size, const char *what);

/* Compare with a published value, relatively or exactly; rank 0 prints and counts. */
void check(struct run *run, const char *what, double got, double published, double tolerance);
void check_count(struct run *run, const char *what, long got, long published);

/* The region that is timed, and that `bifold compare --from-marker` records: behind a kernel's set-up, before its final
 * verification. All ranks call both, once. Under --regions 1 the program ends with the region. */
void region_begin(struct run *run);
void region_end(struct run *run);

/* Sums over all ranks. */
double sum_all(double mine);

void ep(struct run *run);
void is(struct run *run);
void cg(struct run *run);
void mg(struct run *run);
void ft(struct run *run);

#endif
