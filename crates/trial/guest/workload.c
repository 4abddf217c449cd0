// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The workload of an experiment's guest, the only child of its init. It writes lines to the
 * virtio-serial port bifold.workload: "ready" when its memory is prepared, "cycle N" after each
 * cycle, "failed TEXT" when it cannot continue. It never ends by itself.
 *
 *   workload idle
 *   workload synthetic BYTES NUMERATOR DENOMINATOR SLEEP_MS
 *   workload serve READY_FILE SLEEP_MS SERVER... -- CLIENT...
 *
 * READY_FILE is a path (a socket) that exists once the server is ready; "-" if there is no server, and
 * then only the client runs repeatedly.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "port.h"

#define PAGE 4096UL
/* Time limit until the server is ready. Emulated guests are slow, above all many at once. */
#define PATIENCE_S 900

static int host = -1;

static void say(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    send_line(host, fmt, ap);
    va_end(ap);
}

static void stay(void)
{
    for (;;)
        pause();
}

static void fail(const char *what)
{
    say("failed %s: %s", what, strerror(errno));
    stay();
}

static void sleep_ms(unsigned long ms)
{
    struct timespec t = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};

    nanosleep(&t, NULL);
}

/* xorshift64*: only has to spread the writes, the same way in every run of a guest. */
static uint64_t random_next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dULL;
}

/* Guests start from one image: what is different is their name on the kernel's command line (FNV-1a). */
static uint64_t seed(void)
{
    char text[4096];
    int fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text);
    uint64_t hash = 0xcbf29ce484222325ULL;

    for (ssize_t i = 0; i < n; i++)
        hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3ULL;
    return hash | 1;
}

/*
 * A page-aligned buffer in which byte i holds i mod 256, so that every page equals every other. Each
 * cycle writes at NUMERATOR / DENOMINATOR * pages random positions the value that is there already,
 * then sleeps: contents never change, but a page that a host has merged is copied.
 */
static void synthetic(char **arg)
{
    size_t bytes = strtoull(arg[0], NULL, 10) & ~(PAGE - 1);
    uint64_t writes = bytes / PAGE * strtoull(arg[1], NULL, 10) / strtoull(arg[2], NULL, 10);
    unsigned long sleep = strtoul(arg[3], NULL, 10);
    uint64_t state = seed();
    volatile unsigned char *buffer;

    buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED)
        fail("the buffer");
    for (size_t i = 0; i < bytes; i++)
        buffer[i] = (unsigned char)i;
    say("ready");
    for (unsigned long cycle = 1;; cycle++) {
        for (uint64_t n = 0; n < writes; n++) {
            size_t i = random_next(&state) % bytes;
            buffer[i] = (unsigned char)i;
        }
        say("cycle %lu", cycle);
        sleep_ms(sleep);
    }
}

/* What the programs print; its end is the reason when one gives up. */
#define LOG "/tmp/workload.log"

static void gave_up(const char *program, const char *when, int status)
{
    char text[200];
    int fd = open(LOG, O_RDONLY | O_CLOEXEC);
    ssize_t n = 0;

    if (fd >= 0) {
        off_t end = lseek(fd, 0, SEEK_END);
        n = pread(fd, text, sizeof text - 1, end < (off_t)sizeof text ? 0 : end - (off_t)sizeof text + 1);
        close(fd);
    }
    text[n > 0 ? n : 0] = 0;
    for (char *p = text; *p; p++)
        if (*p == '\n')
            *p = ' ';
    say("failed %s: ended with %s %d %s: %s", program, WIFEXITED(status) ? "status" : "signal",
        WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), when, text);
    stay();
}

static pid_t start(char **command)
{
    pid_t child = fork();

    if (child == 0) {
        int log = open(LOG, O_WRONLY | O_CREAT | O_APPEND, 0600);
        dup2(log, 1);
        dup2(log, 2);
        execvp(command[0], command);
        say("failed %s: %s", command[0], strerror(errno));
        _exit(127);
    }
    if (child < 0)
        fail("fork");
    return child;
}

static void serve(char **arg)
{
    const char *ready = arg[0];
    unsigned long sleep = strtoul(arg[1], NULL, 10), failed = 0;
    char **server = arg + 2, **client = server;
    pid_t serving = 0;
    struct stat st;
    int status;

    while (*client && strcmp(*client, "--"))
        client++;
    if (!*client) {
        errno = EINVAL;
        fail("no client");
    }
    *client++ = NULL;
    if (strcmp(ready, "-")) {
        serving = start(server);
        for (long waited = 0; stat(ready, &st); waited++) {
            if (waitpid(serving, &status, WNOHANG) == serving)
                gave_up(server[0], "before it served", status);
            if (waited > PATIENCE_S * 10) {
                errno = ETIMEDOUT;
                fail(server[0]);
            }
            sleep_ms(100);
        }
    }
    say("ready");
    for (unsigned long cycle = 1;;) {
        pid_t child = start(client), done;

        while ((done = waitpid(-1, &status, 0)) != child) {
            if (done == serving)
                gave_up(server[0], "while it served", status);
            if (done < 0 && errno != EINTR)
                fail("waitpid");
        }
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            say("cycle %lu", cycle++);
        else if (++failed == 3)
            gave_up(client[0], "for the third time", status);
        sleep_ms(sleep);
    }
}

int main(int argc, char **argv)
{
    host = port("bifold.workload", O_WRONLY);
    if (host < 0)
        return 1;
    if (argc == 6 && !strcmp(argv[1], "synthetic"))
        synthetic(argv + 2);
    if (argc > 5 && !strcmp(argv[1], "serve"))
        serve(argv + 2);
    if (argc == 2 && !strcmp(argv[1], "idle")) {
        say("ready");
        stay();
    }
    errno = EINVAL;
    fail("arguments");
}
