// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * 4000 system calls that do nothing.
 * Nested: 0. Shadow: 0 without KPTI; with it, entering and leaving the kernel each read
 * and write CR3: 4 * 4000.
 */
#include "suite.h"
#include <sys/syscall.h>

static void run(int n)
{
    pid_t pid = getpid();

    begin();
    for (int i = 0; i < n; i++)
        check(syscall(SYS_getpid) == pid);
    end();
    printf("%d system calls\n", n);
}

PROGRAM(getpid, "getpid", 25, run, 4000, "4000 system calls");
