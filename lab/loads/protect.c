// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Threads of one address space: one removes rights and pages, the others use them all the time. An
 * access that succeeds although its page was closed before it began and until it ended went through
 * a stale translation. So did a store that changes a word after its page was closed.
 */

#include "storm.h"

#include <pthread.h>

#define PAGES 64
#define TOUCHERS 15

/* What the closing thread says of a page: a count that never repeats, times 4, plus one of these.
 * It says so after the system call that closed it and before the one that opens it. */
enum { OPEN, NO_WRITE, NO_ACCESS };

static unsigned char *at, *away;
static _Atomic uint64_t state[PAGES];
/* Counts before and after a page's content was dropped. */
static _Atomic uint64_t drops[PAGES];
static struct worker *closer;
static _Atomic int over;

static _Thread_local sigjmp_buf caught;
static _Thread_local volatile int expecting;

static void on_fault(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (!expecting) {
        tell("died protect: signal %d at %p", sig, info->si_addr);
        atomic_fetch_add(&shared->died, 1);
        _exit(4);
    }
    siglongjmp(caught, 1);
}

static uint64_t *word(size_t page, unsigned toucher)
{
    /* Cache lines apart, and never the same one of each page. */
    return (uint64_t *)(at + page * PAGE) + (toucher * 8 + page * 24) % WORDS;
}

static void stale(const char *what, size_t page, uint64_t state_was)
{
    atomic_fetch_add(&shared->stale[PROTECT], 1);
    tell("stale protect-%u: %s on page %lu, closed as %lx", closer->number, what, page, state_was);
}

struct toucher {
    pthread_t thread;
    unsigned number;
    uint64_t random;
};

static void *touch(void *argument)
{
    struct toucher *t = argument;
    struct worker me = {.kind = PROTECT, .number = t->number, .random = t->random};
    uint64_t last[PAGES] = {0}, dropped[PAGES] = {0};
    volatile uint64_t faults = 0, sequence = 0; /* a fault jumps over their changes */

    while (!atomic_load(&over)) {
        size_t page = below(&me, PAGES);
        volatile uint64_t *p = word(page, t->number);
        int write = below(&me, 4) != 0;
        uint64_t before = atomic_load(&state[page]), drop = atomic_load(&drops[page]), value = 0;

        atomic_thread_fence(memory_order_seq_cst);
        if (sigsetjmp(caught, 0)) {
            expecting = 0;
            faults = faults + 1;
            if (faults % 64 == 0)
                sched_yield();
            continue;
        }
        expecting = 1;
        value = *p;
        if (write) {
            sequence = sequence + 1;
            *p = sequence;
        }
        expecting = 0;
        atomic_thread_fence(memory_order_seq_cst);
        uint64_t after = atomic_load(&state[page]);
        if (before == after && (after & 3) == NO_ACCESS)
            stale("an access", page, after);
        if (write && before == after && (after & 3) == NO_WRITE)
            stale("a store", page, after);
        /* No other thread writes this word; it is 0 if the page was dropped since. */
        if (value != last[page] && !(value == 0 && atomic_load(&drops[page]) != dropped[page])) {
            atomic_fetch_add(&shared->corrupted[PROTECT], 8);
            tell("corrupt protect-%u thread %u page %lu: expected %lx found %lx", closer->number,
                 t->number, page, last[page], value);
        }
        last[page] = write ? sequence : value;
        /* As it was before the access: a drop meanwhile may or may not have come after it. */
        dropped[page] = drop & ~1ul;
    }
    atomic_fetch_add(&shared->faults, faults);
    return NULL;
}

static void say(size_t first, size_t n, unsigned mode)
{
    static uint64_t count;

    count++;
    for (size_t i = first; i < first + n; i++)
        atomic_store(&state[i], count << 2 | mode);
}

/* What the closed pages hold must stay so; `zero` if they were dropped. */
static void watch(const unsigned char *from, size_t first, size_t n, unsigned touchers, int zero)
{
    uint64_t seen[PAGES][TOUCHERS];

    for (int turn = 0; turn < 4; turn++) {
        for (size_t i = 0; i < n; i++)
            for (unsigned t = 0; t < touchers; t++) {
                size_t offset = (size_t)((unsigned char *)word(first + i, t) - at) - first * PAGE;
                uint64_t is = *(const volatile uint64_t *)(from + offset);
                if (turn ? is != seen[i][t] : zero && is)
                    stale(turn ? "a word changed" : "a dropped page holds", first + i, is);
                seen[i][t] = is;
            }
        for (int k = 0; k < 200; k++)
            __builtin_ia32_pause();
    }
}

static void protect(size_t first, size_t n, int prot)
{
    if (mprotect(at + first * PAGE, n * PAGE, prot))
        give_up("mprotect");
}

static void dropping(size_t first, size_t n)
{
    for (size_t i = first; i < first + n; i++)
        atomic_fetch_add(&drops[i], 1);
}

static void change(struct worker *w, unsigned touchers)
{
    size_t n = 1 + below(w, below(w, 4) ? 8 : PAGES / 2), first = below(w, PAGES - n);
    unsigned char *from = at + first * PAGE, *to = away + first * PAGE;
    uint64_t what = below(w, 8);

    switch (what) {
    case 0: /* not even reads are allowed */
        protect(first, n, PROT_NONE);
        say(first, n, NO_ACCESS);
        usleep((useconds_t)below(w, 200));
        break;
    case 1: /* other addresses for the same pages, and back */
        move_pages_to(from, to, n * PAGE);
        say(first, n, NO_ACCESS);
        watch(to, first, n, touchers, 0);
        say(first, n, OPEN);
        move_pages_to(to, from, n * PAGE);
        return;
    case 2: /* other pages for the same addresses */
        dropping(first, n);
        if (munmap(from, n * PAGE))
            give_up("munmap");
        say(first, n, NO_ACCESS);
        usleep((useconds_t)below(w, 100));
        map_at(from, n * PAGE, PROT_NONE, MAP_FIXED);
        say(first, n, OPEN);
        protect(first, n, PROT_READ);
        say(first, n, NO_WRITE);
        watch(from, first, n, touchers, 1);
        dropping(first, n);
        break;
    case 3:
    case 4: /* the same, without the addresses going */
        protect(first, n, PROT_READ);
        say(first, n, NO_WRITE);
        dropping(first, n);
        if (madvise(from, n * PAGE, MADV_DONTNEED))
            give_up("madvise");
        watch(from, first, n, touchers, 1);
        dropping(first, n);
        break;
    default:
        protect(first, n, PROT_READ);
        say(first, n, NO_WRITE);
        watch(from, first, n, touchers, 0);
    }
    say(first, n, OPEN);
    protect(first, n, PROT_READ | PROT_WRITE);
}

void run_protect(struct worker *w)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    static struct toucher touchers[TOUCHERS];
    unsigned n = w->threads < 2 ? 1 : w->threads - 1;

    n = n < TOUCHERS ? n : TOUCHERS;
    closer = w;
    at = map_at(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, 0);
    /* Where pages are moved to. Kept, so that nothing else comes to lie there. */
    away = map_at(NULL, PAGES * PAGE, PROT_NONE, 0);
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    for (unsigned i = 0; i < n; i++) {
        touchers[i].number = i;
        touchers[i].random = draw(w);
        if (pthread_create(&touchers[i].thread, NULL, touch, &touchers[i]))
            give_up("pthread_create");
    }
    ready();
    while (!stopped()) {
        change(w, n);
        worked(w);
        if (below(w, 4) == 0)
            usleep((useconds_t)below(w, 300));
    }
    atomic_store(&over, 1);
    for (unsigned i = 0; i < n; i++)
        pthread_join(touchers[i].thread, NULL);
}
