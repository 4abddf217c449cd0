/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The command `nas KERNEL CLASS`, and what its kernels share. Exit status: 0 verified, 1 failed, 2 wrong usage, 3 not
 * verified.
 */

#include "nas.h"

#include "../../include/bifold.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAILED = 1, USAGE = 2, NOT_VERIFIED = 3 };

/* 5^13, and numbers of 46 bits. */
static const uint64_t FACTOR = 1220703125;
static const uint64_t MASK = (1ull << 46) - 1;

double random_next(uint64_t *x) {
    *x = *x * FACTOR & MASK;
    return ldexp((double)*x, -46);
}

uint64_t random_skip(uint64_t x, uint64_t steps) {
    for (uint64_t power = FACTOR; steps != 0; steps >>= 1) {
        if (steps & 1) x = x * power & MASK;
        power = power * power & MASK;
    }
    return x;
}

/* Ends all ranks, each of which came to the same conclusion. */
static void refuse(const struct run *run, const char *why) {
    if (run->rank == 0) fprintf(stderr, "nas: error: %s\n", why);
    MPI_Finalize();
    exit(USAGE);
}

void *room(size_t number, size_t size) {
    void *memory = calloc(number > 0 ? number : 1, size);
    if (memory == NULL) {
        fputs("nas: error: out of memory: take a smaller class or more memory\n", stderr);
        MPI_Abort(MPI_COMM_WORLD, FAILED);
    }
    return memory;
}

int class_of(const struct run *run, const char *classes) {
    const char *at = strchr(classes, run->class);
    char why[80];
    snprintf(why, sizeof why, "class %c: this kernel has the classes %s", run->class, classes);
    if (run->class == 0 || at == NULL) refuse(run, why);
    return (int)(at - classes);
}

void must_divide(const struct run *run, long size, const char *what) {
    char why[120];
    snprintf(why, sizeof why, "%d ranks do not divide %s, %ld: start fewer", run->ranks, what, size);
    if (size % run->ranks != 0) refuse(run, why);
}

static void verdict(struct run *run, bool good) {
    printf(": %s\n", good ? "ok" : "WRONG");
    run->failed += !good;
}

void check(struct run *run, const char *what, double got, double published, double tolerance) {
    if (run->rank != 0) return;
    printf("%s %.13e, published %.13e", what, got, published);
    verdict(run, fabs(got - published) <= tolerance * fabs(published));
}

void check_count(struct run *run, const char *what, long got, long published) {
    if (run->rank != 0) return;
    printf("%s %ld, published %ld", what, got, published);
    verdict(run, got == published);
}

double sum_all(double mine) {
    double all;
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

void region_begin(struct run *run) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (run->rank == 0) bifold_begin();
    run->begun = MPI_Wtime();
}

void region_end(struct run *run) {
    /* The slowest rank ends the region. */
    MPI_Barrier(MPI_COMM_WORLD);
    run->seconds = MPI_Wtime() - run->begun;
    if (run->rank == 0) bifold_end();
}

static const struct kernel {
    const char *name;
    void (*work)(struct run *);
} KERNELS[] = {{"ep", ep}, {"is", is}, {"cg", cg}, {"mg", mg}, {"ft", ft}};

static const struct kernel *find(const char *name) {
    for (size_t i = 0; i < sizeof KERNELS / sizeof *KERNELS; i++) {
        if (strcmp(KERNELS[i].name, name) == 0) return &KERNELS[i];
    }
    return NULL;
}

int main(int count, char **words) {
    const struct kernel *kernel = count == 3 && strlen(words[2]) == 1 ? find(words[1]) : NULL;
    if (kernel == NULL) {
        fputs("usage: mpirun -n RANKS nas ep|is|cg|mg|ft S|W|A (a power of two of ranks)\n", stderr);
        return USAGE;
    }
    MPI_Init(NULL, NULL);
    struct run run = {.class = words[2][0]};
    MPI_Comm_rank(MPI_COMM_WORLD, &run.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &run.ranks);
    if ((run.ranks & (run.ranks - 1)) != 0) refuse(&run, "the number of ranks is not a power of two");
    kernel->work(&run);
    if (run.rank == 0) {
        printf("%s class %c, ranks %d, seconds %.3f: %s\n", kernel->name, run.class, run.ranks, run.seconds,
               run.failed == 0 ? "verified" : "NOT VERIFIED");
    }
    MPI_Bcast(&run.failed, 1, MPI_INT, 0, MPI_COMM_WORLD);
    MPI_Finalize();
    return run.failed == 0 ? 0 : NOT_VERIFIED;
}
