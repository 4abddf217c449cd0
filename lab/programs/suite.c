// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * suite PROGRAM...              runs programs in order, each in a process of its own
 * suite PROGRAM... run -- CMD   the last one may be a command; run-K gives it window K
 * suite --file PATH PROGRAM...  the same, with a file for those that read one
 * suite --list                  name, window number and a line about each
 *
 * Around its window a program executes CPUID with EAX = "BIFO" and ECX = 0x100 | k
 * before, 0x200 | k after, and 0x300 | n for a part of the window. The driver ends a window that a program left open.
 * Exit status: 0, 1 if a program failed, 2 for wrong usage.
 */
#include "suite.h"
#include <sched.h>
#include <sys/auxv.h>
#include <time.h>

#define MAGIC 0x4249464fu
#define WINDOWS 256

extern const struct program *const __start_programs[], *const __stop_programs[];
static const struct program *by_window[WINDOWS];

static int window;
static const char *path; /* of --file */
static pid_t owner;
static volatile int *open_window; /* shared with the driver */

static void marker(unsigned code)
{
    unsigned a = MAGIC, b, c = code, d;

    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d) : : "memory");
}

void begin(void)
{
    *open_window = window;
    marker(0x100u | (unsigned)window);
}

void mark(int part)
{
    marker(0x300u | (unsigned)part);
}

const char *file_path(void)
{
    check(path);
    return path;
}

void end(void)
{
    marker(0x200u | (unsigned)window);
    *open_window = 0;
}

void fail(const char *what)
{
    int error = errno;

    if (getpid() == owner && *open_window)
        end();
    fprintf(stderr, "suite: window %d: %s: %s\n", window, what, strerror(error));
    _exit(1);
}

char *reserve(size_t bytes)
{
    size_t size = (bytes + TABLE - 1) / TABLE * TABLE;
    char *p = mmap(NULL, size + TABLE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    check(p != MAP_FAILED);
    size_t before = -(uintptr_t)p % TABLE;
    if (before)
        check(!munmap(p, before));
    check(!munmap(p + before + size, TABLE - before));
    return p + before;
}

/* What was freed under RCU, page tables among it, is back before anything else begins. */
static void settle(void)
{
    struct timespec t = {.tv_nsec = 100 * 1000 * 1000};

    check(!nanosleep(&t, NULL));
}

void warm_frames(size_t pages)
{
    char *p = reserve(pages * PAGE);

    write_pages(p, pages);
    check(!munmap(p, (pages * PAGE + TABLE - 1) / TABLE * TABLE));
    settle();
}

void in_order(void)
{
    struct sched_param param = {0};

    check(!sched_setscheduler(0, SCHED_BATCH, &param));
}

void strictly_in_order(void)
{
    struct sched_param param = {.sched_priority = 1};

    check(!sched_setscheduler(0, SCHED_FIFO, &param));
}

static int cpus;

int cpu_count(void)
{
    return cpus;
}

void on_cpu(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    check(!sched_setaffinity(0, sizeof set, &set));
}

/* On several CPUs, programs stay on the first unless they say otherwise, so that they run alike everywhere. */
static void settle_on_a_cpu(void)
{
    cpu_set_t set;

    check(!sched_getaffinity(0, sizeof set, &set));
    cpus = CPU_COUNT(&set);
    if (cpus > 1)
        on_cpu(0);
}

void reap(pid_t pid)
{
    int status;

    check(pid > 0);
    check(waitpid(pid, &status, 0) == pid);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

void rehearse(void (*fn)(void))
{
    pid_t pid = fork();

    if (pid == 0) {
        fn();
        _exit(0);
    }
    reap(pid);
    settle();
}

int memory_file(size_t pages)
{
    static char page[PAGE];
    int fd = memfd_create("suite", MFD_CLOEXEC);

    check(fd >= 0);
    memset(page, 1, sizeof page);
    for (size_t i = 0; i < pages; i++)
        check(write(fd, page, PAGE) == (ssize_t)PAGE);
    return fd;
}

const char *self(void)
{
    return (const char *)getauxval(AT_EXECFN);
}

static char **command;

static void run(int n)
{
    (void)n;
    begin();
    pid_t pid = fork();
    if (pid == 0) {
        execvp(command[0], command);
        _exit(127);
    }
    int status;
    check(pid > 0 && waitpid(pid, &status, 0) == pid);
    end();
    printf("%s: wait status %#x\n", command[0], (unsigned)status);
    check(status == 0);
}

PROGRAM(run, "run", 64, run, 0, "the command after --, forked, executed and waited for");

static struct program other_run = {"run-K", 0, run, 0, NULL};

static const struct program *find(const char *name)
{
    for (int k = 1; k < WINDOWS; k++)
        if (by_window[k] && !strcmp(by_window[k]->name, name))
            return by_window[k];
    int k = strncmp(name, "run-", 4) ? 0 : atoi(name + 4);
    if (k <= 0 || k >= WINDOWS || by_window[k])
        return NULL;
    other_run.window = k;
    return &other_run;
}

static int run_one(const struct program *p)
{
    int status;

    window = p->window;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        owner = getpid();
        printf("%s (%d): ", p->name, p->window);
        p->run(p->n);
        fflush(stdout);
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) {
        perror("suite");
        return 1;
    }
    if (*open_window)
        end();
    if (status)
        fprintf(stderr, "suite: %s: wait status %#x\n", p->name, (unsigned)status);
    return status != 0;
}

int main(int argc, char **argv)
{
    int failed = 0, programs = 1;

    if (argc == 2 && !strcmp(argv[1], "--true"))
        return 0;
    for (const struct program *const *p = __start_programs; p < __stop_programs; p++) {
        if ((*p)->window <= 0 || (*p)->window >= WINDOWS || by_window[(*p)->window]) {
            fprintf(stderr, "suite: %s: window %d is taken\n", (*p)->name, (*p)->window);
            return 1;
        }
        by_window[(*p)->window] = *p;
    }
    if (argc == 2 && !strcmp(argv[1], "--list")) {
        for (int k = 1; k < WINDOWS; k++)
            if (by_window[k])
                printf("%-18s %3d  %s\n", by_window[k]->name, k, by_window[k]->what);
        return 0;
    }
    if (argc > 2 && !strcmp(argv[1], "--file")) {
        path = argv[2];
        argc -= 2;
        argv += 2;
    }
    while (programs < argc && strcmp(argv[programs], "--"))
        programs++;
    if (programs < argc)
        command = argv + programs + 1;
    for (int i = 1; i < programs; i++) {
        const struct program *p = find(argv[i]);
        if (!p || (p->run == run && (!command || !command[0]))) {
            fprintf(stderr, "suite: %s: %s\n", argv[i], p ? "needs -- CMD" : "no such program");
            return 2;
        }
    }
    if (programs == 1) {
        fprintf(stderr, "usage: suite [--file PATH] PROGRAM... [-- CMD...] | --list\n");
        return 2;
    }
    open_window = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (open_window == MAP_FAILED) {
        perror("suite");
        return 1;
    }
    settle_on_a_cpu();
    for (int i = 1; i < programs; i++)
        failed |= run_one(find(argv[i]));
    return failed;
}
