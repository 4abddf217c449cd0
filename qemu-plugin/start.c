// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Finds where the command's own program begins and ends.
 *
 * The stream begins with the start marker of the command's parent. Fork, exec and the code of init in between are
 * the guest's own start. The program begins in user space, in an address space that none of init's processes had:
 * with the first block there, or with the page fault on its first instruction.
 *
 * The parent sleeps until the command has ended. On a guest of one vCPU the program therefore ends where the parent's
 * address space is loaded. On a guest of several vCPUs the parent's CPU may not have to load the address space, and the
 * program ends at the stop marker, with which the parent's wait returns.
 */
#include "plugin.h"

bool starting;

/* Address spaces of init, of the command's parent, and of the command's process before its exec. */
static uint64_t own[3];
static unsigned n_own;
static uint64_t parent;
static bool execs; /* the command's process is about to become the program */

/* The address space of a CR3: under KPTI its two roots are neighbours. */
static uint64_t space(uint64_t cr3)
{
    uint64_t root = root_at(cr3);

    return opt.kpti ? root & ~(UINT64_C(1) << PAGE_SHIFT) : root;
}

static bool is_own(uint64_t cr3)
{
    for (unsigned i = 0; i < n_own; i++)
        if (own[i] == space(cr3))
            return true;
    return false;
}

/* The process that runs is the guest's own. */
void start_own(void)
{
    if (n_own < sizeof own / sizeof own[0])
        own[n_own++] = space(vcpu_of(current_cpu)->cr3);
    execs = recording;
}

/* Recording begins, in the command's parent. */
void start_begins(void)
{
    parent = space(self->cr3);
    start_own();
    execs = false;
    starting = true;
}

/* Whether user code that runs now is the program's, while `starting`. */
bool start_is_over(void)
{
    return execs && !is_own(self->cr3);
}

/* The program begins. */
void start_ends(void)
{
    starting = false;
    flush_insns();
    emit1(BF_KIND_MARKER, BF_MARKER_PROGRAM);
    /* The marker ends a chunk, where the consumer finds it. */
    ring_publish();
    region_program();
}

/* Whether loading this CR3 ends the program. */
bool start_ended_by(uint64_t cr3)
{
    return n_vcpus == 1 && parent && !starting && space(cr3) == parent;
}
