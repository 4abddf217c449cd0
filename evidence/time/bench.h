/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the programs of evidence/time share: memory that may lie in 2 MB pages, random numbers, and the region
 * that is timed and captured. Memory is set up before the region, so that the region has hardly a page fault.
 *
 * A program prints one line: CPU and wall time of the region, the memory that really lay in 2 MB pages, and a
 * sum of its results, which has to be the same on every run.
 */
#ifndef BENCH_TIME_H
#define BENCH_TIME_H

#include "../../include/bifold.h"
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define UNUSED __attribute__((unused))

/* Zeroed memory at a multiple of 2 MB, in 2 MB pages where this process may have them (madvise(2)). */
static UNUSED void *memory(size_t bytes)
{
    size_t whole = (bytes + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    char *p = mmap(NULL, whole + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    p = (char *)(((uintptr_t)p + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
    madvise(p, whole, MADV_HUGEPAGE); /* fails where the kernel has no 2 MB pages: then they are 4 KB */
    for (size_t i = 0; i < whole; i += 4096)
        p[i] = 0; /* a store: a read would map the zero page */
    return p;
}

/* SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). */
static UNUSED uint64_t next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

/* A number below n. */
static UNUSED uint64_t below(uint64_t *state, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)next(state) * n) >> 64);
}

/* The first argument as a size: a number with k, m or g (binary if `unit` is 1024). */
static UNUSED uint64_t argument(int argc, char **argv, int at, uint64_t otherwise, uint64_t unit)
{
    char *end;
    uint64_t n;

    if (argc <= at)
        return otherwise;
    n = strtoull(argv[at], &end, 10);
    if (*end == 'k' || *end == 'm' || *end == 'g') {
        for (char u = *end++; u; u = u == 'g' ? 'm' : u == 'm' ? 'k' : 0)
            n *= unit;
    }
    if (*end || n == 0) {
        fprintf(stderr, "%s: argument %d, `%s`, is no number such as 64m\n", argv[0], at, argv[at]);
        exit(2);
    }
    return n;
}

static double bench_wall, bench_cpu;

static UNUSED double seconds(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* KiB of this process's memory that lie in 2 MB pages; -1 if the kernel does not say. */
static UNUSED long huge_kib(void)
{
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    long kib = -1;

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "AnonHugePages: %ld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib;
}

static UNUSED void begin(void)
{
    bench_wall = seconds(CLOCK_MONOTONIC);
    bench_cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    bifold_begin();
}

static UNUSED void finish(uint64_t result)
{
    bifold_end();
    bench_cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - bench_cpu;
    bench_wall = seconds(CLOCK_MONOTONIC) - bench_wall;
    printf("region cpu=%.6f wall=%.6f huge_kib=%ld result=%" PRIu64 "\n", bench_cpu, bench_wall, huge_kib(), result);
}

#endif
