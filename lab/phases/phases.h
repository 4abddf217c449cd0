/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What the phases have in common: settings, workers, checks. */
#ifndef PHASES_H
#define PHASES_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define MOST_WORKERS 16
#define MOST_PHASES 8

/* Exit statuses. */
enum { CORRUPTED = 1, USAGE = 2, FAILED = 3 };

enum phase { TABLES, CHASE, PHASES };

struct settings {
    unsigned workers;
    uint64_t cycles; /* how often all phases */
    uint64_t steps;  /* of a phase without a number of its own */
    uint64_t rounds, table_pages, reads;
    uint64_t chase_mib, hops;
    enum phase order[MOST_PHASES];
    uint64_t of_phase[MOST_PHASES]; /* steps; 0 = `steps` */
    int phases;
    const char *progress;
};

/* What all processes share. */
struct shared {
    pthread_barrier_t barrier;
    pthread_mutex_t lock; /* of `done`, and of the progress file */
    uint64_t done[PHASES];
    uint64_t sums[MOST_WORKERS];
    uint64_t of_child[MOST_WORKERS]; /* what a worker's child has read */
};

struct worker {
    unsigned number;
    const struct settings *set;
    uint64_t sum; /* of all that was read, in order */
    /* tables */
    char *hole;       /* addresses of pages that come and go */
    char *field;      /* pages that children inherit */
    uint64_t forks;   /* so far */
    uint64_t mapped;  /* rounds so far */
    /* chase */
    char *ring;
    uint64_t pages, hopped;
    struct node *at;
};

extern struct shared *shared;
extern const char *const phase_names[PHASES];

/* Ends the process: content is not what was written. */
_Noreturn void wrong(const struct worker *w, const char *what, uint64_t place, uint64_t found, uint64_t expected);
/* Ends the process: a system call failed. */
_Noreturn void failed(const char *what);

void tables_begin(struct worker *w);
void tables_step(struct worker *w);
void chase_begin(struct worker *w);
void chase_step(struct worker *w);

static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

/* Adds a word that was read to the worker's checksum. */
static inline void fold(struct worker *w, uint64_t word)
{
    w->sum = (w->sum ^ word) * 0x100000001b3;
}

#endif
