// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * 40 times: starts this binary (suite --true) with posix_spawn, which shares the
 * address space until exec, and waits for it; as often before the window.
 *
 * Nested: near 0.
 * Shadow, per process: an address space is made and freed: some 28 guest faults, three
 * times as many hidden faults, 9 emulated stores, 5 unprotected tables, 4 CR3 writes:
 * about 140 exits, without closed form. The C library's start executes CPUID some dozen
 * times per process, in every mode. Under KPTI some 170 ways into the kernel
 * (posix_spawn asks for every signal's handler), each four CR3 exits.
 */
#include "suite.h"
#include <spawn.h>

static void start(void)
{
    char *args[] = {"suite", "--true", NULL}, *env[] = {NULL};
    pid_t pid;

    errno = posix_spawn(&pid, self(), NULL, NULL, args, env);
    check(errno == 0);
    reap(pid);
}

static void run(int n)
{
    strictly_in_order();
    warm_frames(2048);
    for (int i = 0; i < n; i++)
        start();
    begin();
    for (int i = 0; i < n; i++)
        start();
    end();
    printf("%d processes started\n", n);
}

PROGRAM(exec, "exec", 15, run, 40, "this binary started 40 times");
