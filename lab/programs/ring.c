// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * switch-N: a token goes 600 times round N processes, over a pipe between each two. A
 * pass is a write, and a read that blocks: 600 * N switches of address space, as no
 * process preempts the one that wakes it.
 *
 * Nested: 0.
 * Shadow: one CR3 write per switch. Up to 4 address spaces are in the current and the
 * three cached roots (KVM_MMU_NUM_PREV_ROOTS); with more, each switch looks its root up
 * under the lock, which costs time, no exit. Under KPTI four CR3 exits more per system
 * call, of which each turn makes two; one address space has two roots then.
 */
#include "ring.h"

enum { MOST = 16, WARM_UP = 8 };

static void pass(int fd)
{
    char token = 1;
    check(write(fd, &token, 1) == 1);
}

static void await(int fd)
{
    char token;
    check(read(fd, &token, 1) == 1);
}

static void on_child(int signal)
{
    (void)signal;
    fail("a process of the ring is gone");
}

void ring(int processes, int rounds, void (*turn)(int process, int round))
{
    int in[MOST], out[MOST]; /* of process i */
    pid_t pids[MOST];

    check(processes <= MOST);
    in_order();
    for (int i = 0; i < processes; i++) {
        int fds[2];
        check(!pipe(fds));
        out[i] = fds[1];
        in[(i + 1) % processes] = fds[0];
    }
    check(signal(SIGCHLD, on_child) != SIG_ERR);
    for (int i = 1; i < processes; i++) {
        pids[i] = fork();
        if (pids[i])
            continue;
        for (int r = -WARM_UP; r < rounds; r++) {
            await(in[i]);
            if (r >= 0)
                turn(i, r);
            pass(out[i]);
        }
        await(in[i]); /* the window is closed */
        pass(out[i]);
        _exit(0);
    }
    for (int r = -WARM_UP; r < rounds; r++) {
        if (r == 0)
            begin();
        if (r >= 0)
            turn(0, r);
        pass(out[0]);
        await(in[0]);
    }
    end();
    check(signal(SIGCHLD, SIG_DFL) != SIG_ERR);
    pass(out[0]);
    await(in[0]);
    for (int i = 1; i < processes; i++)
        reap(pids[i]);
}

static void nothing(int process, int round)
{
    (void)process;
    (void)round;
}

static void run(int n)
{
    enum { ROUNDS = 600 };

    ring(n, ROUNDS, nothing);
    printf("a token %d times round %d processes\n", ROUNDS, n);
}

PROGRAM(switch_2, "switch-2", 16, run, 2, "a token 600 times round 2 processes");
PROGRAM(switch_4, "switch-4", 17, run, 4, "a token 600 times round 4 processes: 4 roots");
PROGRAM(switch_8, "switch-8", 18, run, 8, "a token 600 times round 8 processes: more than 4 roots");
