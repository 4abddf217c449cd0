/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Four measurements of LMbench (McVoy and Staelin, USENIX 1996), as loops of a given length:
 *
 *     null         getppid()
 *     fault        a page of a file that is in the page cache is touched: 16 MB mapped shared, the pages in random
 *                  order, unmapped after each pass
 *     fault-in-order    the same, the pages in ascending order
 *     protection   a store to a read-only page, whose SIGSEGV handler is called and returns, so that the store
 *                  faults again
 *     fork         a child that exits at once is forked and waited for, on one CPU
 *     catch        kill() of itself by a signal whose handler is called and returns: LMbench subtracts this from
 *                  the protection fault
 *
 * Arguments: which, how often.
 */
#define _GNU_SOURCE /* for sched_setaffinity */
#include "bench.h"
#include <fcntl.h>
#include <setjmp.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 4096 };

static volatile uint64_t caught;
static uint64_t wanted;
static sigjmp_buf after;

static void on_store(int signal)
{
    (void)signal;
    if (++caught == wanted)
        siglongjmp(after, 1);
}

static void on_signal(int signal)
{
    (void)signal;
    caught++;
}

static void handle(int signal, void (*by)(int))
{
    struct sigaction action = {0};

    action.sa_handler = by;
    sigaction(signal, &action, NULL);
}

static void fault(uint64_t n, int in_order)
{
    static uint32_t order[PAGES];
    char name[] = "/tmp/bench-time-XXXXXX", block[4096];
    int fd = mkstemp(name);
    uint64_t seed = 23, sum = 0;

    if (fd < 0) {
        perror(name);
        exit(1);
    }
    unlink(name);
    memset(block, 1, sizeof block);
    begin(); /* the writes are in the region: a page that only reads are seen of would be the host's zero page */
    for (int i = 0; i < PAGES; i++)
        if (write(fd, block, sizeof block) != sizeof block) {
            perror(name);
            exit(1);
        }
    for (uint32_t i = 0; i < PAGES; i++) {
        uint64_t j = in_order ? i : below(&seed, i + 1);

        order[i] = order[j];
        order[j] = i;
    }
    for (uint64_t i = 0; i < n; i += PAGES) {
        char *p;

        p = mmap(NULL, PAGES * 4096, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            perror("mmap");
            exit(1);
        }
        for (int k = 0; k < PAGES; k++)
            sum += (uint64_t)p[(size_t)order[k] * 4096];
        munmap(p, PAGES * 4096);
    }
    finish(sum);
}

static void fork_and_wait(uint64_t n)
{
    uint64_t sum = 0;
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(0, &set);
    sched_setaffinity(0, sizeof set, &set);
    begin();
    for (uint64_t i = 0; i < n; i++) {
        int status = 0;
        pid_t child = fork();

        if (child == 0)
            _exit(0);
        if (child < 0 || waitpid(child, &status, 0) != child) {
            perror("fork");
            exit(1);
        }
        sum += status == 0;
    }
    finish(sum);
}

int main(int argc, char **argv)
{
    uint64_t n = argument(argc, argv, 2, 100000, 1000);

    if (argc < 2 || (strcmp(argv[1], "null") && strcmp(argv[1], "fault") && strcmp(argv[1], "fault-in-order") && strcmp(argv[1], "protection") && strcmp(argv[1], "catch") && strcmp(argv[1], "fork"))) {
        fprintf(stderr, "usage: syscalls null|fault|fault-in-order|protection|catch|fork N\n");
        return 2;
    }
    if (argv[1][0] == 'n') {
        uint64_t sum = 0;

        begin();
        for (uint64_t i = 0; i < n; i++)
            sum += (uint64_t)syscall(SYS_getppid) != 0;
        finish(sum);
    } else if (!strcmp(argv[1], "fork")) {
        fork_and_wait(n);
    } else if (argv[1][0] == 'f') {
        fault(n, strcmp(argv[1], "fault"));
    } else if (argv[1][0] == 'p') {
        char *p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        caught = *(volatile char *)p; /* mapped: the store is a protection fault from the first time on */
        wanted = n;
        handle(SIGSEGV, on_store);
        begin();
        if (!sigsetjmp(after, 1))
            *(volatile char *)p = 1;
        finish(caught);
    } else {
        pid_t self = getpid();

        handle(SIGUSR1, on_signal);
        begin();
        for (uint64_t i = 0; i < n; i++)
            kill(self, SIGUSR1);
        finish(caught);
    }
    return 0;
}
