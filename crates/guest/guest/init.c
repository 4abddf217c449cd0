// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * PID 1 of the guest: loads modules, builds the command's root, runs the command
 * between the start and stop markers, and reports to the host over virtio-serial.
 *
 * /config in the initramfs is a sequence of NUL-terminated KEY=VALUE strings
 * (src/initramfs.rs). The command's output goes to files in memory while the
 * recording runs, so that no device disturbs it, and to the host afterwards.
 *
 * With "stop" in /config, /config has only what the boot needs. Init then stops the
 * machine before it looks at anything of the command, and reads the rest from the host when
 * the machine goes on (resume.h).
 *
 * Lines to the host: "booted", "start", "end", "time NS IDLE", "written FILES BYTES", "full",
 * "exit N", "signal N", "oom N", "error TEXT", "done". A byte from the host asks to
 * end the command now.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "port.h"
#include "resume.h"
#include "where.h"
#include "written.h"

#define MAX_STRINGS 65536
/* The marker instruction; the number is BF_MARKER_MAGIC of events.h plus the
 * code, low byte first. CPUID follows it, with BF_CPUID_LEAF: a hypervisor that
 * runs this guest sees that one. */
#define MARKER(code)                                                                              \
    do {                                                                                          \
        unsigned a_ = 0x4249464f, b_, c_ = code, d_;                                              \
        __asm__ volatile(".byte 0x0f,0x1f,0x84,0x00," #code ",0x0d,0x1f,0x2b\n\tcpuid"            \
                         : "+a"(a_), "=b"(b_), "+c"(c_), "=d"(d_)                                 \
                         :                                                                        \
                         : "memory");                                                             \
    } while (0)
/* The process that runs is the guest's own (BF_MARKER_OWN): the NOP alone, which no hypervisor sees. */
#define OWN() __asm__ volatile(".byte 0x0f,0x1f,0x84,0x00,7,0x0d,0x1f,0x2b" : : : "memory")

static int control = -1;
static char *config;
static size_t config_len;
static char *args[MAX_STRINGS], *envs[MAX_STRINGS];

static void say(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    send_line(control >= 0 ? control : 2, fmt, ap);
    va_end(ap);
}

static void power_off(void)
{
    reboot(RB_POWER_OFF);
    for (;;)
        pause();
}

static void fail(const char *what)
{
    say("error %s: %s", what, strerror(errno));
    say("done");
    power_off();
}

static const char *value(const char *key, const char *after)
{
    size_t n = strlen(key);
    char *p = after ? (char *)after + strlen(after) + 1 : config;

    for (; p < config + config_len; p += strlen(p) + 1)
        if (!strncmp(p, key, n) && p[n] == '=')
            return p + n + 1;
    return NULL;
}

static void strings(const char *key, char **list)
{
    int n = 0;

    for (const char *v = value(key, NULL); v; v = value(key, v)) {
        if (n == MAX_STRINGS - 1) {
            errno = E2BIG;
            fail(key);
        }
        list[n++] = (char *)v;
    }
}

static void read_config(void)
{
    int fd = open("/config", O_RDONLY | O_CLOEXEC);
    struct stat st;

    if (fd < 0 || fstat(fd, &st))
        fail("/config");
    config_len = (size_t)st.st_size;
    config = calloc(1, config_len + 1);
    if (read(fd, config, config_len) != (ssize_t)config_len)
        fail("/config");
    close(fd);
}

static void load_modules(void)
{
    for (const char *m = value("module", NULL); m; m = value("module", m)) {
        int fd = open(m, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST))
            fail(m);
        close(fd);
    }
}

static void mount_at(const char *type, const char *at, unsigned long flags, const char *data)
{
    char what[256];

    mkdir(at, 0755);
    if (mount(type, at, type, flags, data)) {
        snprintf(what, sizeof what, "mounting %s at %s", type, at);
        fail(what);
    }
}

static void kernel_mounts(const char *root)
{
    char at[64];

    snprintf(at, sizeof at, "%s/proc", root);
    mount_at("proc", at, MS_NOSUID | MS_NOEXEC | MS_NODEV, NULL);
    snprintf(at, sizeof at, "%s/sys", root);
    mount_at("sysfs", at, MS_NOSUID | MS_NOEXEC | MS_NODEV, NULL);
    snprintf(at, sizeof at, "%s/dev", root);
    mount_at("devtmpfs", at, MS_NOSUID, NULL);
}

static void device_mounts(const char *root)
{
    char at[64];

    snprintf(at, sizeof at, "%s/dev/shm", root);
    mount_at("tmpfs", at, MS_NOSUID | MS_NODEV, "mode=1777");
    snprintf(at, sizeof at, "%s/dev/pts", root);
    mount_at("devpts", at, MS_NOSUID | MS_NOEXEC, "ptmxmode=0666");
    snprintf(at, sizeof at, "%s/dev/fd", root);
    if (symlink("/proc/self/fd", at) && errno != EEXIST)
        fail(at);
}

static void link_std(const char *root)
{
    static const char *const names[] = {"stdin", "stdout", "stderr"};

    for (int i = 0; i < 3; i++) {
        char at[64], to[32];
        snprintf(at, sizeof at, "%s/dev/%s", root, names[i]);
        snprintf(to, sizeof to, "/proc/self/fd/%d", i);
        if (symlink(to, at) && errno != EEXIST)
            fail(at);
    }
}

/* The host's root, read-only over 9p, under a writable layer in memory. */
static void host_root(void)
{
    mkdir("/lower", 0755);
    mkdir("/root", 0755);
    if (mount("root", "/lower", "9p", MS_RDONLY,
              "trans=virtio,version=9p2000.L,cache=loose,msize=262144"))
        fail("mounting the host's root over 9p");
    mount_at("tmpfs", "/layer", 0, "mode=755,size=90%");
    mkdir("/layer/upper", 0755);
    mkdir("/layer/work", 0755);
    if (mount("overlay", "/root", "overlay", 0,
              "lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work"))
        fail("mounting the overlay");
}

static void loopback_up(void)
{
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq r = {.ifr_name = "lo"};

    if (s < 0)
        return;
    r.ifr_flags = IFF_UP;
    ioctl(s, SIOCSIFFLAGS, &r);
    close(s);
}

static void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    if (fd >= 0 && write(fd, text, strlen(text)) < 0)
        say("note %s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
}

static long oom_kills(void)
{
    static char text[16384];
    int fd = open("/proc/vmstat", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    char *p;

    close(fd);
    text[n > 0 ? n : 0] = 0;
    p = strstr(text, "\noom_kill ");
    return p ? atol(p + 10) : 0;
}

static int memory_file(const char *name)
{
    int fd = (int)syscall(SYS_memfd_create, name, 0);

    if (fd < 0)
        fail("a file in memory");
    return fd;
}

static void become_user(void)
{
    gid_t groups[256];
    size_t n = 0;
    const char *g = value("group", NULL);

    for (; g && n < 256; g = value("group", g))
        groups[n++] = (gid_t)atol(g);
    if (setgroups(n, groups) || setgid((gid_t)atol(value("gid", NULL))) ||
        setuid((uid_t)atol(value("uid", NULL))))
        _exit(127);
}

/* Why the command could not be run. */
struct failure {
    int error;
    bool directory; /* its working directory is missing */
};

/* In the child: becomes the command, or tells `report` why not. */
static void run(int in, int out, int err, int report)
{
    struct failure f = {0};
    sigset_t none;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    dup2(in, 0);
    dup2(out, 1);
    dup2(err, 2);
    for (int fd = 3; fd < 32; fd++)
        if (fd != report)
            close(fd);
    become_user();
    f.directory = chdir(value("cwd", NULL)) != 0;
    if (!f.directory) {
        OWN();
        execve(value("program", NULL), args, envs);
    }
    f.error = errno;
    if (write(report, &f, sizeof f) < 0)
        _exit(126);
    _exit(127);
}

/*
 * In the command's parent, which sleeps from the command's start to its end, so that the capture sees both by its
 * address space (qemu-plugin/start.c). Everything else is init's work: processes that the command leaves behind are
 * init's children. The parent's priority keeps a lone vCPU from running the command before the parent sleeps.
 */
static void parent(int in, int out, int err, int report, int ended)
{
    struct sched_param lowest = {.sched_priority = 1};
    pid_t child;
    int status;

    signal(SIGCHLD, SIG_DFL);
    if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &lowest))
        fail("the priority of the command's parent");
    MARKER(1);
    child = fork();
    if (child == 0) {
        write_file("/proc/self/oom_score_adj", "0");
        run(in, out, err, report);
    }
    if (child < 0)
        fail("fork");
    while (waitpid(child, &status, 0) < 0)
        continue;
    MARKER(2);
    _exit(write(ended, &status, sizeof status) != sizeof status);
}

/* Waits for what the command's parent says of the command's end, or for the host's wish to end the command. */
static int await(int ended)
{
    struct pollfd p[] = {{.fd = control, .events = POLLIN}, {.fd = ended, .events = POLLIN}};
    int status;
    char c;

    for (;;) {
        if (poll(p, 2, -1) < 0)
            continue;
        if (p[1].revents) {
            if (read(ended, &status, sizeof status) == sizeof status)
                return status;
            /* The parent was killed too. */
            MARKER(2);
            return SIGKILL;
        }
        if ((p[0].revents & POLLIN) && read(control, &c, 1) == 1)
            kill(-1, SIGKILL);
    }
}

static long long now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Time in which CPUs had nothing to do, of all together: /proc/uptime has hundredths of a second. */
static long long idle(void)
{
    char text[64] = "";
    int fd = open("/proc/uptime", O_RDONLY | O_CLOEXEC);
    double seconds = 0;

    if (fd < 0 || read(fd, text, sizeof text - 1) < 0 || sscanf(text, "%*f %lf", &seconds) != 1)
        seconds = 0;
    close(fd);
    return (long long)(seconds * 100 + 0.5) * 10000000;
}

/* What the command reads, before the root changes. */
static int input(void)
{
    int fd = open("/stdin", O_RDONLY);

    return fd >= 0 ? fd : open("/dev/null", O_RDONLY);
}

/* The same where the host gives it after the boot. */
static int input_of_host(void)
{
    size_t bytes;
    char *data = host_file("opt/bifold/stdin", &bytes), at[32];
    int to = memory_file("stdin"), fd;

    if (!data)
        fail("the command's standard input");
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(to, data + done, bytes - done);
        if (n <= 0)
            fail("writing the command's standard input");
        done += (size_t)n;
    }
    free(data);
    fchmod(to, 0444);
    snprintf(at, sizeof at, "/proc/self/fd/%d", to);
    fd = open(at, O_RDONLY | O_CLOEXEC);
    close(to);
    return fd;
}

/* The guest's clock shows the date of the boot until here. */
static void set_date(const char *seconds)
{
    struct timespec t = {.tv_sec = atoll(seconds)};

    if (clock_settime(CLOCK_REALTIME, &t))
        fail("setting the date");
}

/* Stops the booted machine, and learns of the command where the machine goes on. */
static void stop_and_resume(void)
{
    say("booted");
    if (!stop_here())
        fail("access to the machine's ports");
    config = host_file("opt/bifold/config", &config_len);
    if (!config)
        fail("the command's configuration");
    set_date(value("date", NULL));
}

/*
 * Waits until the kernel has finished the work that booting left behind. Without the wait, the kernel flushes the whole
 * TLB once or twice in the program's first milliseconds. The cause is most likely do_free_init (kernel/module/main.c),
 * which unmaps init sections of modules after an RCU grace period, some ticks of 4 ms.
 */
static void settle(void)
{
    usleep(100000);
}

/* The last thing done: the root is the overlay's layer afterwards. */
static void tell_written(int layer)
{
    int to = value("keep", NULL) ? port("bifold.files", O_WRONLY) : -1;

    if (fchdir(layer) || chroot("."))
        fail("the overlay's layer");
    if (walk_written(to))
        say("full");
    say("written %ld %lld", written_files, written_bytes);
    if (to >= 0)
        close(to);
}

static void send_file(int fd, const char *name)
{
    static char buffer[1 << 18];
    int to = port(name, O_WRONLY);
    ssize_t n;

    if (to < 0)
        fail(name);
    lseek(fd, 0, SEEK_SET);
    while ((n = read(fd, buffer, sizeof buffer)) > 0)
        for (ssize_t at = 0, w; at < n; at += w)
            if ((w = write(to, buffer + at, (size_t)(n - at))) <= 0)
                return;
    close(to);
}

int main(void)
{
    const char *root = "";
    int in = -1, out, err, layer = -1, report[2], ended[2], status;
    struct failure f = {0};
    bool stops;
    long long begun, idled;
    long oom;
    pid_t child;

    kernel_mounts("");
    read_config();
    stops = value("stop", NULL) != NULL;
    if (!stops)
        in = input();
    load_modules();
    control = port("bifold.control", O_RDWR);
    if (control < 0)
        fail("the control port");
    if (stops) {
        stop_and_resume();
        in = input_of_host();
        no_ports();
    }
    if (!strcmp(value("root", NULL), "host")) {
        root = "/root";
        host_root();
        layer = open("/layer/upper", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        kernel_mounts(root);
    }
    device_mounts(root);
    link_std(root);
    loopback_up();
    /* Below 512 MB the kernel ignores its own parameter. */
    write_file("/sys/kernel/mm/transparent_hugepage/enabled", value("thp", NULL));
    strings("arg", args);
    strings("env", envs);
    out = memory_file("stdout");
    err = memory_file("stderr");
    write_file("/proc/self/oom_score_adj", "-1000");
    /* The kernel reaps the children of init, and init sleeps on. */
    signal(SIGCHLD, SIG_IGN);
    if (pipe2(report, O_CLOEXEC) || pipe2(ended, O_CLOEXEC))
        fail("pipe");
    if (*root && (chroot(root) || chdir("/")))
        fail("chroot");
    umask(022);
    oom = oom_kills();
    if (value("where", NULL) && !where_open(atoi(value("where", NULL))))
        fail("opening the kernel's perf events, which --where needs");
    settle();
    say("start");
    idled = idle();
    begun = now();
    OWN();
    child = fork();
    if (child == 0)
        parent(in, out, err, report[1], ended[1]);
    if (child < 0)
        fail("fork");
    close(ended[1]);
    status = await(ended[0]);
    begun = now() - begun;
    idled = idle() - idled;
    say("end");
    say("time %lld %lld", begun, idled);
    close(report[1]);
    oom = oom_kills() - oom;
    if (value("where", NULL))
        where_tell();
    if (read(report[0], &f, sizeof f) == sizeof f && f.directory) {
        say("error the working directory %s: %s; /dev, /proc and /sys are the guest's own",
            value("cwd", NULL), strerror(f.error));
    } else if (f.error) {
        say("error running %s: %s", value("program", NULL), strerror(f.error));
    } else {
        /* A guest that keeps running has no ports for output and files. */
        if (!value("resident", NULL)) {
            send_file(out, "bifold.stdout");
            send_file(err, "bifold.stderr");
        }
        if (layer >= 0)
            tell_written(layer);
        if (oom > 0)
            say("oom %ld", oom);
        if (WIFSIGNALED(status))
            say("signal %d", WTERMSIG(status));
        else
            say("exit %d", WEXITSTATUS(status));
    }
    say("done");
    power_off();
}
