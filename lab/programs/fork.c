// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * fork, fork-touch: 60 children of a process with 256 written pages.
 *
 * fork: children exit at once; the parent then writes 32 of its pages.
 * fork-touch: each child writes 64 of the pages (copies) before it exits.
 *
 * As many children come and go before the window, so that what the kernel allocates for
 * them is in frames that were used before.
 *
 * Nested: near 0.
 * Shadow, per child: fork write-protects the parent's entries and flushes (a read and a
 * write of CR3), and processes are switched (3 CR3 writes more); some 8 stores to upper tables (emulated) and 5 unprotected tables for an
 * address space that is built and torn down; 6 tables that become unsync. A page that
 * the parent writes when the child is gone is the guest's fault and a hidden fault, with
 * no flush, as the page is its own again: 2 * 32. A page that a child copies is the
 * guest's fault, INVLPG of the old entry and a hidden fault: 3 * 64. Besides, some 8
 * pages of stack and data are copied per child. About 123 and 254 exits per child, linear in their number.
 */
#include "suite.h"

enum { PAGES = 256, WRITTEN_AFTER = 32 };

static char *pages;

static void child(int touched)
{
    pid_t pid = fork();

    if (pid == 0) {
        write_pages(pages, (size_t)touched);
        _exit(0);
    }
    reap(pid);
    if (!touched)
        write_pages(pages, WRITTEN_AFTER);
}

static void children(int touched)
{
    enum { CHILDREN = 60 };

    strictly_in_order();
    warm_frames(2048);
    pages = reserve(PAGES * PAGE);
    write_pages(pages, PAGES);
    for (int i = 0; i < CHILDREN; i++)
        child(touched);
    begin();
    for (int i = 0; i < CHILDREN; i++)
        child(touched);
    end();
    printf("%d children, each wrote %d of %d pages\n", CHILDREN, touched, PAGES);
}

PROGRAM(fork, "fork", 13, children, 0, "60 children that exit at once; the parent writes again");
PROGRAM(fork_touch, "fork-touch", 14, children, 64, "60 children that copy 64 pages");
