// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The load of a guest under memory pressure, the only child of its init. It uses memory in phases and
 * writes lines to the virtio-serial port bifold.workload: "ready" when it waits for the host's line "go", then
 * each 200 ms "count" with eight numbers (see report()), "failed TEXT" when it cannot continue.
 * It never ends by itself.
 *
 *   load SEED SHIFT_MS SWAP FILES PHASE...
 *
 * SWAP and FILES are block devices, "-" for none. SWAP becomes the guest's swap; FILES is read through the page
 * cache. A PHASE is MS:MEMORY:TOUCHED:FILE:RATE with sizes in MiB: for so many milliseconds it holds MEMORY, and
 * in each operation uses a MiB of TOUCHED, or reads a MiB of FILE (each second operation, if FILE is not 0),
 * at most RATE operations a second. The phases repeat, and begin SHIFT_MS into them.
 *
 * The process is a reporter, locked in memory, and its child is the worker: a worker that the kernel kills for
 * lack of memory is counted and started again.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/swap.h>
#include <sys/wait.h>
#include <time.h>

#include "port.h"

#define PAGE 4096UL
#define MIB (1UL << 20)
#define MOST_PHASES 64
#define MOST_MIB 65536
#define REPORT_MS 200
/* A worker that is so late does not catch up. */
#define LATE_US 1000000ULL

struct phase {
    unsigned long long ms, memory, touched, file, rate;
};

/* What the worker counts and the reporter reads. */
struct counts {
    volatile unsigned long long operations, busy_us, phase;
};

static int host = -1;
static struct phase phases[MOST_PHASES];
static int n_phases;
static unsigned long long cycle_ms, shift_ms, begun_us;
static struct counts *counts;

static void say(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    send_line(host, fmt, ap);
    va_end(ap);
}

static void fail(const char *what)
{
    say("failed %s: %s", what, strerror(errno));
    for (;;)
        pause();
}

static unsigned long long now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (unsigned long long)t.tv_sec * 1000000 + (unsigned long long)t.tv_nsec / 1000;
}

/* xorshift64*: only has to spread the uses, the same way in every run of a guest. */
static uint64_t random_next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dULL;
}

/* Writes the header of a swap area of 4 KB pages, version 1, and uses the device for swap. */
static void use_swap(const char *device)
{
    static char header[PAGE];
    int fd = open(device, O_RDWR | O_CLOEXEC);
    off_t bytes = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    uint32_t first[3] = {1, (uint32_t)(bytes / (off_t)PAGE - 1), 0};

    if (bytes < 0)
        fail(device);
    memcpy(header + 1024, first, sizeof first);
    memcpy(header + PAGE - 10, "SWAPSPACE2", 10);
    if (pwrite(fd, header, PAGE, 0) != (ssize_t)PAGE || fsync(fd) || swapon(device, 0))
        fail("swapon");
    close(fd);
}

static int phase_now(void)
{
    unsigned long long at = ((now_us() - begun_us) / 1000 + shift_ms) % cycle_ms;
    int n = 0;

    while (at >= phases[n].ms)
        at -= phases[n++].ms;
    return n;
}

/* Of this guest, so that pages of guests differ. */
static uint64_t own;

/* Uses each page of a MiB: reads and writes a word. */
static void use(volatile uint64_t *at, unsigned long long n)
{
    for (unsigned long i = 0; i < MIB / sizeof *at; i += PAGE / sizeof *at)
        at[i] += own + n + i;
}

static void read_file(int fd, unsigned long long mib)
{
    static uint64_t buffer[65536 / sizeof(uint64_t)];

    for (unsigned long i = 0; i < MIB; i += sizeof buffer)
        if (pread(fd, buffer, sizeof buffer, (off_t)(mib * MIB + i)) != (ssize_t)sizeof buffer)
            fail("reading the files");
}

static void work(uint64_t random, const char *files)
{
    static volatile uint64_t *parts[MOST_MIB];
    unsigned long long held = 0, due = now_us();
    int fd = strcmp(files, "-") ? open(files, O_RDONLY | O_CLOEXEC) : -1;

    if (strcmp(files, "-") && fd < 0)
        fail(files);
    own = random;
    for (unsigned long long n = 1;; n++) {
        int at = phase_now();
        const struct phase *p = &phases[at];
        unsigned long long start, end;

        counts->phase = (unsigned long long)at;
        for (; held > p->memory; parts[held] = NULL)
            munmap((void *)parts[--held], MIB);
        start = now_us();
        if (held < p->memory) {
            void *part = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

            if (part == MAP_FAILED)
                fail("getting memory");
            parts[held++] = part;
            use(part, n);
        } else if (p->rate && p->file && (n % 2 || !p->touched)) {
            read_file(fd, random_next(&random) % p->file);
        } else if (p->rate && p->touched) {
            use(parts[random_next(&random) % p->touched], n);
        }
        end = now_us();
        if (p->rate) {
            counts->operations++;
            counts->busy_us += end - start;
        }
        due += p->rate ? 1000000 / p->rate : 100000;
        if (end > due + LATE_US)
            due = end;
        if (due > end)
            usleep((useconds_t)(due - end));
    }
}

/* The number behind a name in a file of the kernel's. */
static unsigned long long figure(const char *path, const char *name)
{
    static char text[32768];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    char *at;

    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = 0;
    at = strstr(text, name);
    return at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

/* Operations, microseconds in them, phase, workers killed, then the kernel's: major faults, pages read from swap,
 * refaults of pages (all kinds), microseconds in which tasks waited for memory. */
static void report(unsigned long long killed)
{
    const char *vm = "/proc/vmstat";
    unsigned long long refaults =
        figure(vm, "\nworkingset_refault_anon ") + figure(vm, "\nworkingset_refault_file ");

    say("count %llu %llu %llu %llu %llu %llu %llu %llu", counts->operations, counts->busy_us, counts->phase, killed,
        figure(vm, "\npgmajfault "), figure(vm, "\npswpin "), refaults, figure("/proc/pressure/memory", "total="));
}

static pid_t start_worker(uint64_t seed, const char *files)
{
    pid_t child = fork();

    if (child < 0)
        fail("fork");
    if (child == 0) {
        int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

        if (fd < 0 || write(fd, "1000", 4) != 4)
            fail("oom_score_adj");
        close(fd);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        work(seed, files);
    }
    return child;
}

static void read_phases(char **arg, int n)
{
    for (int i = 0; i < n && i < MOST_PHASES; i++) {
        struct phase *p = &phases[i];

        if (sscanf(arg[i], "%llu:%llu:%llu:%llu:%llu", &p->ms, &p->memory, &p->touched, &p->file, &p->rate) != 5 ||
            !p->ms || p->memory > MOST_MIB || p->touched > p->memory) {
            errno = EINVAL;
            fail(arg[i]);
        }
        cycle_ms += p->ms;
        n_phases++;
    }
}

static void wait_for_go(void)
{
    char text[64];
    struct pollfd p = {.fd = host, .events = POLLIN};

    say("ready");
    for (;;) {
        ssize_t n = poll(&p, 1, 1000) > 0 ? read(host, text, sizeof text - 1) : 0;

        if (n > 0 && (text[n] = 0, strstr(text, "go")))
            return;
        /* The host's end may not be open yet: a read returns 0 at once. */
        if (n <= 0)
            usleep(20000);
    }
}

int main(int argc, char **argv)
{
    unsigned long long killed = 0;
    uint64_t seed;
    pid_t worker;
    int fd;

    host = port("bifold.workload", O_RDWR);
    if (host < 0)
        return 1;
    if (argc < 6) {
        errno = EINVAL;
        fail("arguments");
    }
    seed = strtoull(argv[1], NULL, 10) * 2 + 1;
    shift_ms = strtoull(argv[2], NULL, 10);
    read_phases(argv + 5, argc - 5);
    fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "-1000", 5) != 5)
        fail("oom_score_adj");
    close(fd);
    counts = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counts == MAP_FAILED)
        fail("memory");
    if (strcmp(argv[3], "-"))
        use_swap(argv[3]);
    if (mlockall(MCL_CURRENT | MCL_FUTURE))
        fail("mlockall");
    wait_for_go();
    begun_us = now_us();
    worker = start_worker(seed, argv[4]);
    for (;;) {
        int status;

        usleep(REPORT_MS * 1000);
        if (waitpid(worker, &status, WNOHANG) == worker) {
            if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
                say("failed the worker: ended with status %d", status);
                for (;;)
                    pause();
            }
            killed++;
            worker = start_worker(seed, argv[4]);
        }
        report(killed);
    }
}
