// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Protection keys: a process gives its pages keys by pkey_mprotect(), gives itself rights by WRPKRU, and accesses the pages.
 * The process knows which accesses have to succeed. In the kernel's words the fault of a key is SEGV_PKUERR.
 */

#include "storm.h"

#include <cpuid.h>

#define PAGES 64
#define KEYS_WANTED 12

static sigjmp_buf caught;
static volatile int expecting, code;

int has_keys(void)
{
    unsigned a = 7, b, c = 0, d;

    /* OSPKE: the kernel has turned them on. */
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & 16);
}

static void on_fault(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (!expecting || sig != SIGSEGV) {
        tell("died keys: signal %d at %p", sig, info->si_addr);
        atomic_fetch_add(&shared->died, 1);
        _exit(4);
    }
    code = info->si_code;
    siglongjmp(caught, 1);
}

static void set_rights(unsigned rights)
{
    __asm__ volatile("wrpkru" : : "a"(rights), "c"(0), "d"(0) : "memory");
}

/* 0, or the si_code of the fault. The signal's handler runs with rights of its own, so they are set again. */
static int access_word(volatile uint64_t *at, int write, uint64_t *value, unsigned rights)
{
    if (sigsetjmp(caught, 0)) {
        expecting = 0;
        set_rights(rights);
        return code;
    }
    expecting = 1;
    if (write)
        *at = *value;
    else
        *value = *at;
    expecting = 0;
    return 0;
}

void run_keys(struct worker *w)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    unsigned char *at = map_at(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, 0);
    int keys[KEYS_WANTED], key_of[PAGES] = {0}, prot_of[PAGES];
    uint64_t word[PAGES] = {0};
    volatile unsigned rights = 0;

    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    for (int i = 0; i < KEYS_WANTED; i++)
        if ((keys[i] = pkey_alloc(0, 0)) < 0)
            give_up("pkey_alloc");
    for (int i = 0; i < PAGES; i++)
        prot_of[i] = PROT_READ | PROT_WRITE;
    set_rights(0);
    ready();
    while (!stopped()) {
        /* Some pages get another key, and perhaps other rights of the usual kind. */
        size_t n = 1 + below(w, 8), first = below(w, PAGES - n);
        int key = below(w, 8) ? keys[below(w, KEYS_WANTED)] : 0;
        int prot = below(w, 4) ? PROT_READ | PROT_WRITE : PROT_READ;

        if (pkey_mprotect(at + first * PAGE, n * PAGE, prot, key))
            give_up("pkey_mprotect");
        for (size_t i = first; i < first + n; i++) {
            key_of[i] = key;
            prot_of[i] = prot;
        }
        for (int turn = 0; turn < 16; turn++) {
            if (turn % 4 == 0) {
                /* Of all keys but 0, which the stack has. */
                rights = (unsigned)draw(w) & ~3u;
                set_rights(rights);
            }
            size_t page = below(w, 4) ? first + below(w, n) : below(w, PAGES);
            int write = (int)below(w, 2), mine = (int)(rights >> (2 * key_of[page])) & 3;
            int by_key = (mine & 1) || (write && (mine & 2));
            int allowed = !by_key && !(write && !(prot_of[page] & PROT_WRITE));
            uint64_t value = draw(w), offset = w->number * 8 % PAGE;
            int fault = access_word((volatile uint64_t *)(at + page * PAGE + offset), write, &value, rights);

            if ((fault == 0) != allowed) {
                atomic_fetch_add(&shared->stale[KEYS], 1);
                tell("stale keys-%u: %s of page %lu with key %d and rights %x was %s", w->number,
                     write ? "a store" : "a load", page, key_of[page], rights,
                     fault ? "refused" : "allowed");
            } else if (fault && by_key != (fault == SEGV_PKUERR)) {
                /* The kernel asks the key of the mapping, so it is wrong only by the error code of the fault. */
                atomic_fetch_add(&shared->stale[KEYS], 1);
                tell("stale keys-%u: fault %d of page %lu, key %d, rights %x", w->number, fault, page,
                     key_of[page], rights);
            }
            if (fault)
                atomic_fetch_add(&shared->faults, 1);
            else if (write)
                word[page] = value;
            else if (value != word[page]) {
                atomic_fetch_add(&shared->corrupted[KEYS], 8);
                tell("corrupt keys-%u page %lu: expected %lx found %lx", w->number, page, word[page], value);
                word[page] = value;
            }
        }
        set_rights(0);
        worked(w);
    }
}
