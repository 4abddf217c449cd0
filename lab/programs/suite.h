// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Functions that all programs use: the markers of a window, checks, memory.
 *
 * A program sets up what it needs, calls begin(), does the one thing under test,
 * calls end() and prints a line. The markers are CPUID instructions, which any
 * process may execute and every hypervisor sees.
 */
#ifndef SUITE_H
#define SUITE_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define TABLE (512 * PAGE) /* what one leaf table maps */

struct program {
    const char *name;
    int window;         /* 1 to 255, never reused */
    void (*run)(int n); /* `n` is the program's own parameter */
    int n;
    const char *what;
};

/* Puts a program on the driver's list. */
#define PROGRAM(id, name, window, run, n, what)                                   \
    static const struct program program_##id = {name, window, run, n, what};      \
    static const struct program *const listed_##id                                \
        __attribute__((section("programs"), used)) = &program_##id

void begin(void);
void end(void);
/* Marks a part of the window, 0 to 255. */
void mark(int part);
/* The file named by --file. */
const char *file_path(void);

/* Ends the process, and the window if it is open, unless `ok`. */
#define check(ok) ((ok) ? (void)0 : fail(#ok))
void fail(const char *what) __attribute__((noreturn));

/* Private anonymous memory with nothing in it, at the beginning of a leaf table. */
char *reserve(size_t bytes);
/* Has `pages` frames used and freed, so that the host backs what is allocated next. */
void warm_frames(size_t pages);
/*
 * The same order of processes on any machine: a process that is woken runs when the one
 * that woke it blocks, no sooner (SCHED_BATCH). A real-time policy would do that too, but
 * starves the kernel's threads, and with them what RCU has to free.
 */
void in_order(void);
/*
 * The same, and no tick preempts (SCHED_FIFO): for short windows in which much depends on
 * who is first to write a table after a flush. Kernel threads have to wait, so what RCU
 * frees comes back late.
 */
void strictly_in_order(void);
/* How many CPUs the guest has, and the calling thread's only CPU from now on. */
int cpu_count(void);
void on_cpu(int cpu);
/* Runs `fn` in a child until it is done: primes code and frames, leaves no state. */
void rehearse(void (*fn)(void));
/* Waits for a child and expects it to have exited with 0. */
void reap(pid_t pid);
/* A file in memory with `pages` pages of data. */
int memory_file(size_t pages);
/* The path of this binary. */
const char *self(void);

/* Writes, or reads, one byte in each of `pages` pages. */
static inline void write_pages(char *p, size_t pages)
{
    for (size_t i = 0; i < pages; i++)
        *(volatile char *)(p + i * PAGE) = (char)i;
}

static inline void read_pages(const char *p, size_t pages)
{
    for (size_t i = 0; i < pages; i++)
        (void)*(const volatile char *)(p + i * PAGE);
}

#endif
