// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * fork, fork-touch: 200 children of a process with 256 written pages.
 *
 * fork: children exit at once; the parent then writes 32 of its pages.
 * fork-touch: each child writes 64 of the pages (copies) before it exits.
 *
 * Nested: near 0, frames are used again.
 * Shadow: fork write-protects the parent's entries and flushes (CR3 read and write); a
 * new address space is built and torn down (emulated, unprotect, hidden faults for each
 * table walked); each page written afterwards is the guest's fault, an INVLPG (of the
 * old entry, ptep_clear_flush; or of the changed one, flush_tlb_fix_spurious_fault does
 * none on x86) and a hidden fault: 200 * 32 * 3 and 200 * 64 * 3 for these alone. CR3
 * loads: two per child and those of the flushes.
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
    enum { CHILDREN = 200 };

    in_order();
    warm_frames(2048);
    pages = reserve(PAGES * PAGE);
    write_pages(pages, PAGES);
    for (int i = 0; i < 8; i++)
        child(touched);
    begin();
    for (int i = 0; i < CHILDREN; i++)
        child(touched);
    end();
    printf("%d children, each wrote %d of %d pages\n", CHILDREN, touched, PAGES);
}

PROGRAM(fork, "fork", 13, children, 0, "200 children that exit at once; the parent writes again");
PROGRAM(fork_touch, "fork-touch", 14, children, 64, "200 children that copy 64 pages");
