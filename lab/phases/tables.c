// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The phase `tables`: work on page tables. A step maps pages, writes them, makes half of them read-only
 * and writable again, reads them and unmaps them, `rounds` times; then a child is forked that reads what
 * it inherits, writes a quarter of it and ends.
 *
 * In shadow paging nearly all of this exits: a guest fault and a hidden fault for each new page, CR3 for
 * flushes, INVLPG for small ones, emulated writes and zapped shadow pages as page tables come and go. In
 * nested paging nothing of it exits once the host backs the frames.
 */
#define _GNU_SOURCE
#include "phases.h"

#define FIELD 64    /* pages that a child inherits */
#define OF_CHILD 16 /* pages that it writes */
#define TABLE (2ul << 20)
#define WORDS (PAGE / sizeof(uint64_t))

static uint64_t content(const struct worker *w, uint64_t stamp, uint64_t page, uint64_t word)
{
    return mix(stamp << 20 ^ (uint64_t)w->number << 56 ^ page << 9 ^ word);
}

static volatile uint64_t *place(char *pages, uint64_t page, uint64_t word)
{
    return (volatile uint64_t *)(pages + page * PAGE) + word;
}

static void fill(struct worker *w, char *pages, uint64_t page, uint64_t stamp)
{
    for (uint64_t i = 0; i < WORDS; i++)
        *place(pages, page, i) = content(w, stamp, page, i);
}

static void check(struct worker *w, const char *what, char *pages, uint64_t page, uint64_t stamp)
{
    for (uint64_t i = 0; i < WORDS; i++) {
        uint64_t found = *place(pages, page, i), expected = content(w, stamp, page, i);

        if (found != expected)
            wrong(w, what, page, found, expected);
        fold(w, found);
    }
}

void tables_begin(struct worker *w)
{
    w->field = mmap(NULL, FIELD * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (w->field == MAP_FAILED)
        failed("mmap");
    for (uint64_t i = 0; i < FIELD; i++)
        fill(w, w->field, i, 0);
    /* A range with a page table of its own, which is freed when the range is unmapped. The hole is made last, because
       the kernel would put other mappings there. */
    char *p = mmap(NULL, 3 * TABLE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        failed("mmap");
    w->hole = p + (-(uintptr_t)p & (TABLE - 1));
    if (munmap(w->hole, TABLE))
        failed("munmap");
}

static void map_and_unmap(struct worker *w)
{
    uint64_t pages = w->set->table_pages, bytes = pages * PAGE, stamp = ++w->mapped;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    char *p = mmap(w->hole, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);

    if (p != w->hole)
        failed("mmap");
    for (uint64_t i = 0; i < pages; i++)
        if (*place(p, i, 0))
            wrong(w, "a new page", i, *place(p, i, 0), 0);
        else
            fill(w, p, i, stamp);
    if (mprotect(p, pages / 2 * PAGE, PROT_READ))
        failed("mprotect");
    for (uint64_t r = 0; r < w->set->reads; r++)
        for (uint64_t i = 0; i < pages; i++)
            check(w, "page", p, i, stamp);
    if (mprotect(p, pages / 2 * PAGE, PROT_READ | PROT_WRITE))
        failed("mprotect");
    for (uint64_t i = 0; i < pages / 2; i++)
        fill(w, p, i, stamp + 1);
    for (uint64_t i = 0; i < pages / 2; i++)
        check(w, "page", p, i, stamp + 1);
    if (munmap(p, bytes))
        failed("munmap");
}

static _Noreturn void child(struct worker *w, uint64_t stamp)
{
    w->sum = 0;
    for (uint64_t i = 0; i < FIELD; i++)
        check(w, "an inherited page", w->field, i, i < OF_CHILD ? stamp : 0);
    for (uint64_t i = 0; i < OF_CHILD; i++)
        fill(w, w->field, i, ~stamp);
    for (uint64_t i = 0; i < OF_CHILD; i++)
        check(w, "a page of a child", w->field, i, ~stamp);
    shared->of_child[w->number] = w->sum;
    _exit(0);
}

static void fork_once(struct worker *w)
{
    uint64_t stamp = w->forks++;
    pid_t pid = fork();
    int status;

    if (pid == 0)
        child(w, stamp);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        failed("fork");
    if (WIFEXITED(status) && WEXITSTATUS(status))
        _exit(WEXITSTATUS(status));
    if (status)
        wrong(w, "the end of child", w->forks, (uint64_t)status, 0);
    fold(w, shared->of_child[w->number]);
    /* The child's writes are not here. */
    for (uint64_t i = 0; i < OF_CHILD; i++) {
        check(w, "a page of the parent", w->field, i, stamp);
        fill(w, w->field, i, stamp + 1);
    }
}

void tables_step(struct worker *w)
{
    for (uint64_t r = 0; r < w->set->rounds; r++)
        map_and_unmap(w);
    fork_once(w);
}
