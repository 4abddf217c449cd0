// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Starts the workers, reports every second what they did, and ends on request. As a guest's first
 * process it takes its settings from the environment, which the kernel makes of its command line, and
 * talks over a virtio-serial port; otherwise it uses stdin and stdout.
 */

#include "storm.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include <time.h>

#define PORT "bifold.storm"
#define WORKERS 64
#define TOLD 100

struct shared *shared;
int shared_fd = -1;
const char *const kind_names[KINDS] = {"memory", "fork", "protect", "huge", "tables", "compute", "keys"};
static void (*const run[KINDS])(struct worker *) = {run_memory, run_fork,   run_protect,
                                                   run_huge,   run_tables, run_compute, run_keys};
static int line_fd = 1;
static int is_init;

static void say(const char *fmt, va_list ap)
{
    char text[512];
    int n = vsnprintf(text, sizeof text - 1, fmt, ap);

    n = n > (int)sizeof text - 2 ? (int)sizeof text - 2 : n;
    text[n++] = '\n';
    if (write(line_fd, text, (size_t)n) < 0)
        return;
}

__attribute__((format(printf, 1, 2))) static void line(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
}

void tell(const char *fmt, ...)
{
    va_list ap;

    if (atomic_fetch_add(&shared->told, 1) >= TOLD)
        return;
    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
}

void give_up(const char *what)
{
    line("failed %s: %s", what, strerror(errno));
    if (is_init && getpid() == 1) {
        sleep(1);
        reboot(RB_POWER_OFF);
    }
    _exit(5);
}

static void put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    if (fd >= 0 && write(fd, text, strlen(text)) < 0)
        line("note %s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
}

static int open_port(void)
{
    for (int tries = 0; tries < 1000; tries++) {
        DIR *d = opendir("/sys/class/virtio-ports");
        struct dirent *e;

        while (d && (e = readdir(d))) {
            char path[512], name[64] = "";
            snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", e->d_name);
            int fd = open(path, O_RDONLY | O_CLOEXEC);
            if (fd < 0 || read(fd, name, sizeof name - 1) < 0)
                continue;
            close(fd);
            name[strcspn(name, "\n")] = 0;
            snprintf(path, sizeof path, "/dev/%s", e->d_name);
            if (!strcmp(name, PORT) && (fd = open(path, O_RDWR)) >= 0) {
                closedir(d);
                return fd;
            }
        }
        if (d)
            closedir(d);
        usleep(2000);
    }
    return -1;
}

static void init(void)
{
    static const char *const mounts[][2] = {{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}};
    struct dirent **modules;
    int n;

    is_init = 1;
    for (size_t i = 0; i < 3; i++)
        if (mount(mounts[i][0], mounts[i][1], mounts[i][0], 0, NULL))
            give_up(mounts[i][1]);
    /* Named in the order of their needs. */
    n = scandir("/m", &modules, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char path[512];
        snprintf(path, sizeof path, "/m/%s", modules[i]->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (modules[i]->d_name[0] != '.' && syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST)
            give_up(path);
        close(fd);
    }
    line_fd = open_port();
    if (line_fd < 0)
        give_up("the port " PORT);
    put("/sys/kernel/mm/transparent_hugepage/enabled", "madvise");
    /* What the kernel says from here on is about the storm. */
    put("/dev/kmsg", "<4>storm: begins");
}

static const char *setting(const char *name, const char *otherwise)
{
    const char *v = getenv(name);

    return v && *v ? v : otherwise;
}

static pid_t start(enum kind kind, unsigned number, unsigned threads, uint64_t seed)
{
    struct worker w = {.kind = kind, .number = number, .threads = threads};
    pid_t pid;

    w.random = mix(seed + number * 1000003 + kind);
    pid = fork();
    if (pid < 0)
        give_up("fork");
    if (pid == 0) {
        run[kind](&w);
        _exit(0);
    }
    return pid;
}

static uint64_t sum(_Atomic uint64_t *of)
{
    uint64_t all = 0;

    for (int k = 0; k < KINDS; k++)
        all += atomic_load(&of[k]);
    return all;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void report(const char *what, double seconds)
{
    char text[320];
    int n = 0;

    for (int k = 0; k < KINDS; k++)
        n += snprintf(text + n, sizeof text - (size_t)n, "\"%s\":%lu,", kind_names[k],
                      atomic_load(&shared->work[k]));
    line("%s {%s\"seconds\":%.1f,\"faults\":%lu,\"corrupted\":%lu,\"stale\":%lu,\"died\":%lu}", what, text,
         seconds, atomic_load(&shared->faults), sum(shared->corrupted), sum(shared->stale),
         atomic_load(&shared->died));
}

/* Reaps ended processes, and reports those that ended in an unexpected way. */
static unsigned reap(pid_t *pids, unsigned n)
{
    int status;
    pid_t pid;
    unsigned left = 0;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (unsigned i = 0; i < n; i++)
            if (pids[i] == pid) {
                pids[i] = 0;
                if (status || !stopped()) {
                    atomic_fetch_add(&shared->died, 1);
                    tell("died worker %u with status %x", i, status);
                }
            }
    for (unsigned i = 0; i < n; i++)
        left += pids[i] != 0;
    return left;
}

int main(int argc, char **argv)
{
    if (getpid() == 1)
        init();
    if (argc == 4 && !strcmp(argv[1], "--after-exec")) {
        line_fd = atoi(setting("STORM_LINE", "1"));
        shared_fd = atoi(setting("STORM_SHARED", "-1"));
    } else {
        shared_fd = (int)syscall(SYS_memfd_create, "storm", 0);
        if (shared_fd < 0 || ftruncate(shared_fd, sizeof *shared))
            give_up("shared memory");
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, shared_fd, 0);
    if (shared == MAP_FAILED)
        give_up("shared memory");
    if (argc == 4)
        return after_exec(argv[2], argv[3]);

    const char *load = setting("STORM_LOAD", "all");
    uint64_t seed = strtoull(setting("STORM_SEED", "1"), NULL, 0);
    unsigned cpus = (unsigned)sysconf(_SC_NPROCESSORS_ONLN), workers = 0;
    unsigned threads = (unsigned)atoi(setting("STORM_THREADS", "0"));
    double limit = atof(setting("STORM_SECONDS", "0")), begun = now(), last = begun, asked = 0;
    pid_t pids[WORKERS] = {0};
    char text[16];

    threads = threads ? threads : cpus;
    snprintf(text, sizeof text, "%d", line_fd);
    setenv("STORM_LINE", text, 1);
    snprintf(text, sizeof text, "%d", shared_fd);
    setenv("STORM_SHARED", text, 1);
    for (int k = 0; k < KINDS; k++) {
        /* Two that compute for each CPU: in shadow paging the others are hardly ever in the guest. */
        unsigned each = k == COMPUTE                              ? 2 * threads
                        : k == MEMORY || k == FORK || k == KEYS ? (threads + 1) / 2
                                                                  : 1;
        const char *at = strstr(load, kind_names[k]);
        if (!at && (strcmp(load, "all") || (k == KEYS && !has_keys())))
            continue;
        for (unsigned i = 0; i < each && workers < WORKERS; i++)
            pids[workers++] = start((enum kind)k, i, threads, seed);
    }
    if (!workers) {
        errno = EINVAL;
        give_up(load);
    }
    /* Who waits for this line wants to see all of them at work. */
    while (atomic_load(&shared->ready) < workers && reap(pids, workers) == workers)
        usleep(20000);
    begun = last = now();
    line("begin {\"cpus\":%u,\"workers\":%u,\"load\":\"%s\"}", cpus, workers, load);
    for (;;) {
        struct pollfd p = {.fd = is_init ? line_fd : 0, .events = POLLIN};
        unsigned left = reap(pids, workers);

        if (!left)
            break;
        /* Workers come to a check of all they have; one that does not end is a find of its own. */
        if (asked && now() - asked > 300) {
            atomic_fetch_add(&shared->died, left);
            tell("died %u workers do not end", left);
            break;
        }
        if (now() - last >= 1) {
            last = now();
            report("work", last - begun);
        }
        if (asked) {
            usleep(20000);
            continue;
        }
        if (poll(&p, 1, 200) > 0 && (p.revents & POLLIN)) {
            char c;
            if (read(p.fd, &c, 1) == 1 && c == 'e')
                asked = now();
        }
        if (limit > 0 && now() - begun > limit)
            asked = now();
        if (asked)
            atomic_store(&shared->stop, 1);
    }
    report("end", now() - begun);
    if (is_init) {
        for (;;)
            pause(); /* the host ends the machine, once it has read all */
    }
    return sum(shared->corrupted) || sum(shared->stale) || atomic_load(&shared->died);
}
