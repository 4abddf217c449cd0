// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * 800 signals to itself, each handled: two system calls and a frame on the stack.
 * Nested: 0. Shadow: 0 without KPTI; with it, four CR3 exits per system call: 8 * 800.
 */
#include "suite.h"
#include <sys/syscall.h>

static volatile sig_atomic_t handled;

static void handler(int signal)
{
    (void)signal;
    handled = handled + 1;
}

static void run(int n)
{
    pid_t pid = getpid();

    check(signal(SIGUSR1, handler) != SIG_ERR);
    check(!syscall(SYS_tgkill, pid, pid, SIGUSR1));
    handled = 0;
    begin();
    for (int i = 0; i < n; i++)
        check(!syscall(SYS_tgkill, pid, pid, SIGUSR1));
    end();
    check(handled == n);
    printf("%d signals handled\n", n);
}

PROGRAM(signal, "signal", 26, run, 800, "800 signals to itself");
