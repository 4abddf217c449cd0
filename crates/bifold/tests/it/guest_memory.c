// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The program of a guest whose memory a test takes: "full" when it has written 200 MiB, "freed" when it has
 * freed them some seconds later, then "cycle N" each second, while it uses 40 MiB. When it has had little memory for
 * 30 cycles, it takes more than there is, "grown", and frees that as soon as there is plenty. It never ends by itself.
 *
 *   program loaded SEED     takes and frees up to 160 MiB at random instead
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

#include "port.h"

#define MIB (1UL << 20)

static int host = -1;

static void say(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    send_line(host, fmt, ap);
    va_end(ap);
}

/* MemAvailable in MiB. */
static long available(void)
{
    char text[4096], *at;
    int fd = open("/proc/meminfo", O_RDONLY);
    long n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = 0;
    at = strstr(text, "MemAvailable:");
    return at ? atol(at + 13) / 1024 : -1;
}

static char *filled(unsigned long bytes)
{
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED) {
        say("failed to get memory: %s", strerror(errno));
        exit(1);
    }
    for (unsigned long i = 0; i < bytes; i += 4096)
        at[i] = (char)(i / 4096 + 1);
    return at;
}

/* Says "cycle N" each half second, with more or less memory. */
static void loaded(unsigned long long x)
{
    char *parts[16] = {0};

    for (unsigned long n = 1;; n++) {
        /* xorshift64 */
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        if (parts[x % 16]) {
            munmap(parts[x % 16], 10 * MIB);
            parts[x % 16] = NULL;
        } else {
            parts[x % 16] = filled(10 * MIB);
        }
        say("cycle %lu", n);
        usleep(500000);
    }
}

int main(int argc, char **argv)
{
    char *large, *own;
    int little = 0;

    /* Memory that is plugged later can be unplugged again. */
    {
        int fd = open("/sys/devices/system/memory/auto_online_blocks", O_WRONLY);

        if (fd < 0 || write(fd, "online_movable", 14) != 14)
            return 1;
        close(fd);
    }
    host = port("bifold.workload", O_RDWR);
    if (argc > 2 && !strcmp(argv[1], "loaded"))
        loaded(strtoull(argv[2], NULL, 10));
    own = filled(40 * MIB);
    large = filled(200 * MIB);
    say("full");
    sleep(5);
    munmap(large, 200 * MIB);
    say("freed");
    for (unsigned long n = 1;; n++) {
        for (unsigned long i = 0; i < 40 * MIB; i += 4096)
            own[i]++;
        say("cycle %lu", n);
        little = available() < 150 ? little + 1 : 0;
        if (little == 30) {
            large = filled(160 * MIB);
            say("grown");
            while (available() < 100)
                sleep(1);
            munmap(large, 160 * MIB);
        }
        sleep(1);
    }
}
