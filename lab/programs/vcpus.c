// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Programs for guests of several vCPUs. In the first four, each further vCPU runs a thread of the process that reads
 * memory without a pause, so that a flush interrupts it: the vCPU that flushes sends IPIs and waits.
 *
 * Nested: near 0, but the IPIs.
 * Shadow, with n vCPUs:
 *  - vcpus-invlpg, 16 pages made read-only and writable again, 40 times: an INVLPG per page, change and vCPU,
 *    2 * 16 * 40 * n (pte_flags_need_flush, flush_tlb_func).
 *  - vcpus-full, 64 pages likewise, 40 times: each change is flushed by a read and a write of CR3 on each vCPU, which
 *    sync the table: 2 * 2 * 40 * n; and the first store of the next change is an exit (unsync).
 *  - vcpus-munmap, 16 pages mapped, written and unmapped 40 times: an INVLPG per page and vCPU; per page the guest's
 *    fault and a hidden fault.
 *  - vcpus-touch, 1024 new pages written by each vCPU: the guest's fault and a hidden fault per page.
 *  - vcpus-fork: on each vCPU a process with 64 written pages has 20 children, which write 16 of them.
 *  - vcpus-switch: a token 200 times round a process on each vCPU. A vCPU that waits is idle and keeps its CR3.
 */
#include "suite.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { MOST = 8 };

static pthread_barrier_t barrier;
static atomic_int done;
static char *shared;
static size_t pages;

static void wait_for_all(void)
{
    int r = pthread_barrier_wait(&barrier);

    check(r == 0 || r == PTHREAD_BARRIER_SERIAL_THREAD);
}

static void *reader(void *cpu)
{
    on_cpu((int)(intptr_t)cpu);
    wait_for_all();
    while (!atomic_load_explicit(&done, memory_order_relaxed))
        read_pages(shared, pages);
    return NULL;
}

/* Runs `fn` `n` times here while all other vCPUs read `shared`, which has `count` pages. */
static void beside_readers(void (*fn)(void), size_t count, int n)
{
    pthread_t threads[MOST];
    int cpus = cpu_count();

    check(cpus <= MOST);
    pages = count;
    shared = reserve(TABLE) + 64 * PAGE;
    write_pages(shared, count);
    check(!pthread_barrier_init(&barrier, NULL, (unsigned)cpus));
    for (int i = 1; i < cpus; i++)
        check(!pthread_create(&threads[i], NULL, reader, (void *)(intptr_t)i));
    wait_for_all();
    fn();
    begin();
    for (int i = 0; i < n; i++)
        fn();
    end();
    atomic_store(&done, 1);
    for (int i = 1; i < cpus; i++)
        check(!pthread_join(threads[i], NULL));
    printf("%zu pages changed %d times on %d vCPUs\n", count, n, cpus);
}

static void toggle(void)
{
    check(!mprotect(shared, pages * PAGE, PROT_READ));
    check(!mprotect(shared, pages * PAGE, PROT_READ | PROT_WRITE));
    write_pages(shared, pages);
}

static void map_and_unmap(void)
{
    static char *at;

    if (!at) {
        at = reserve(TABLE);
        write_pages(at, 1); /* keeps the table */
    }
    char *p = mmap(at + 32 * PAGE, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    check(p != MAP_FAILED);
    write_pages(p, 16);
    check(!munmap(p, 16 * PAGE));
}

static void run_toggles(int n)
{
    beside_readers(toggle, (size_t)n, 40);
}

static void run_munmap(int n)
{
    warm_frames(256);
    beside_readers(map_and_unmap, 16, n);
}

static void *writer(void *cpu)
{
    int i = (int)(intptr_t)cpu;

    on_cpu(i);
    wait_for_all();
    write_pages(shared + (size_t)i * pages * PAGE, pages);
    wait_for_all();
    return NULL;
}

static void run_touch(int n)
{
    pthread_t threads[MOST];
    int cpus = cpu_count();

    check(cpus <= MOST);
    warm_frames((size_t)n * (size_t)cpus + 512);
    pages = (size_t)n;
    shared = reserve((size_t)cpus * pages * PAGE);
    check(!pthread_barrier_init(&barrier, NULL, (unsigned)cpus));
    for (int i = 1; i < cpus; i++)
        check(!pthread_create(&threads[i], NULL, writer, (void *)(intptr_t)i));
    begin();
    writer(0);
    end();
    for (int i = 1; i < cpus; i++)
        check(!pthread_join(threads[i], NULL));
    printf("%d new pages written on each of %d vCPUs\n", n, cpus);
}

static void token(int fd, bool write_it)
{
    char c = 1;

    check((write_it ? write(fd, &c, 1) : read(fd, &c, 1)) == 1);
}

/* Runs `fn(i)` in a process on each vCPU i, that of vCPU 0 here, after all are ready; the window ends when all are done. */
static void on_each(void (*fn)(int cpu))
{
    int cpus = cpu_count(), go[2], ready[2], end_of[2];
    pid_t pids[MOST];

    check(cpus <= MOST && !pipe(go) && !pipe(ready) && !pipe(end_of));
    for (int i = 1; i < cpus; i++) {
        pids[i] = fork();
        if (pids[i])
            continue;
        on_cpu(i);
        token(ready[1], true);
        token(go[0], false);
        fn(i);
        token(end_of[1], true);
        token(go[0], false);
        _exit(0);
    }
    for (int i = 1; i < cpus; i++)
        token(ready[0], false);
    begin();
    for (int i = 1; i < cpus; i++)
        token(go[1], true);
    fn(0);
    for (int i = 1; i < cpus; i++)
        token(end_of[0], false);
    end();
    for (int i = 1; i < cpus; i++)
        token(go[1], true);
    for (int i = 1; i < cpus; i++)
        reap(pids[i]);
}

static void fork_some(int cpu)
{
    (void)cpu;
    write_pages(shared, pages);
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            write_pages(shared, 16);
            _exit(0);
        }
        reap(pid);
    }
}

static void run_fork(int n)
{
    warm_frames(2048);
    pages = (size_t)n;
    shared = reserve(pages * PAGE);
    write_pages(shared, pages);
    fork_some(0);
    on_each(fork_some);
    printf("20 children of a process with %d pages on each of %d vCPUs\n", n, cpu_count());
}

static int ring[MOST][2], rounds;

static void turns(int cpu)
{
    for (int i = 0; i < rounds; i++) {
        if (cpu == 0)
            token(ring[0][1], true);
        token(ring[(cpu + cpu_count() - 1) % cpu_count()][0], false);
        if (cpu != 0)
            token(ring[cpu][1], true);
    }
}

static void run_switch(int n)
{
    rounds = n;
    for (int i = 0; i < cpu_count(); i++)
        check(!pipe(ring[i]));
    on_each(turns);
    printf("a token %d times round %d vCPUs\n", n, cpu_count());
}

PROGRAM(vcpus_invlpg, "vcpus-invlpg", 45, run_toggles, 16, "16 pages read-only and back, 40 times, beside readers on the other vCPUs: INVLPG");
PROGRAM(vcpus_full, "vcpus-full", 46, run_toggles, 64, "64 pages read-only and back, 40 times, beside readers: full flush");
PROGRAM(vcpus_munmap, "vcpus-munmap", 47, run_munmap, 40, "16 pages mapped, written and unmapped 40 times beside readers");
PROGRAM(vcpus_touch, "vcpus-touch", 48, run_touch, 1024, "1024 new pages written on each vCPU at once");
PROGRAM(vcpus_fork, "vcpus-fork", 49, run_fork, 64, "20 children that copy 16 pages, of a process on each vCPU at once");
PROGRAM(vcpus_switch, "vcpus-switch", 50, run_switch, 200, "a token 200 times round a process on each vCPU");
