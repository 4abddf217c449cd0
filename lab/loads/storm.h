/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The load of a switch storm: programs that know the right value of every byte of their memory.
 * See README.md beside this file.
 */
#ifndef STORM_H
#define STORM_H

#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define WORDS (PAGE / 8)
#define HUGE_PAGE (2ul << 20)

enum kind { MEMORY, FORK, PROTECT, HUGE, TABLES, COMPUTE, KEYS, KINDS };

/* What all processes share, in a memfd: it outlives exec. */
struct shared {
    _Atomic uint64_t work[KINDS];
    _Atomic uint64_t corrupted[KINDS]; /* bytes */
    _Atomic uint64_t stale[KINDS];     /* accesses that a change of protection should have stopped */
    _Atomic uint64_t died;             /* processes that ended otherwise than they should */
    _Atomic uint64_t faults;           /* expected ones, caught */
    _Atomic uint64_t told;
    _Atomic unsigned ready; /* workers that have their memory */
    _Atomic int stop;
};

extern struct shared *shared;
extern int shared_fd;
extern const char *const kind_names[KINDS];

struct worker {
    enum kind kind;
    unsigned number;
    unsigned threads; /* of the whole load: as many as there are CPUs */
    uint64_t random;
};

/* Says it on the line to the host; the first hundred of all processes. */
void tell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void give_up(const char *what);

static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

static inline uint64_t draw(struct worker *w)
{
    w->random += 0x9e3779b97f4a7c15;
    return mix(w->random);
}

static inline uint64_t below(struct worker *w, uint64_t n)
{
    return draw(w) % n;
}

static inline int stopped(void)
{
    return atomic_load_explicit(&shared->stop, memory_order_relaxed);
}

static inline void worked(struct worker *w)
{
    atomic_fetch_add_explicit(&shared->work[w->kind], 1, memory_order_relaxed);
}

/*
 * A book of pages: what each has to hold. A page is a function of its stamp. This distinguishes a
 * page with another page's content, or with its own older content, from a page with garbage.
 * Stamp 0 is a page of zeros.
 */
struct book {
    struct worker *w;
    uint64_t *stamp;
    size_t pages;
    unsigned char *at;
};

struct book book_new(struct worker *w, unsigned char *at, size_t pages);
void book_free(struct book *b);
/* A stamp that no page has had. */
uint64_t stamp_new(struct worker *w);
void page_fill(void *at, uint64_t stamp);
/* Counts what is wrong, tells of it, and mends it if it may write. */
void page_check(struct worker *w, void *at, uint64_t stamp, int mend);
void book_write(struct book *b, size_t page);
void book_check(struct book *b, size_t page);
void book_check_all(struct book *b);

/* Says that all memory of this worker is there and known. */
void ready(void);

/* Moves pages to other addresses, which need not be one mapping. */
void move_pages_to(unsigned char *from, unsigned char *to, size_t bytes);
void *map_at(void *at, size_t bytes, int prot, int more);

void run_memory(struct worker *w);
void run_fork(struct worker *w);
void run_protect(struct worker *w);
void run_huge(struct worker *w);
void run_tables(struct worker *w);
void run_compute(struct worker *w);
void run_keys(struct worker *w);
/* Whether the kernel offers protection keys. */
int has_keys(void);
/* What a process that run_fork executed does. */
int after_exec(const char *seed, const char *fd);

#endif
