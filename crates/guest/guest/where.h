// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Init's part in attribution. Before the command, init opens one perf event per
 * vCPU. The event counts nothing and records every fork, exec, mapping and context
 * switch in a buffer that QEMU's plugin reads (qemu-plugin/log.c). After the
 * command, init sends the kernel's symbols and the perf maps of run-time compilers
 * over a port.
 */
#ifndef BIFOLD_WHERE_H
#define BIFOLD_WHERE_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "port.h"

/* Pages of one vCPU's buffer. The plugin empties the buffer at every record. */
#define WHERE_PAGES 16
/* As crates/trace/src/event/ numbers them. */
#define WHERE_SYMBOLS 2
#define WHERE_PERF_MAP 3
/* Most bytes of one map: a JIT of 100,000 functions writes 8 MB. */
#define WHERE_MOST_MAP (32 << 20)

/* Opens the events of this many vCPUs and names their buffers to the plugin. False with errno set
 * if the kernel has none. */
static int where_open(int vcpus)
{
    struct perf_event_attr attr = {
        .type = PERF_TYPE_SOFTWARE,
        .size = sizeof attr,
        .config = PERF_COUNT_SW_DUMMY,
        .sample_type = PERF_SAMPLE_TID,
        .mmap = 1,
        .mmap2 = 1,
        .mmap_data = 1,
        .comm = 1,
        .comm_exec = 1,
        .task = 1,
        .context_switch = 1,
        .sample_id_all = 1,
        .build_id = 1,
        .watermark = 1,
        .wakeup_watermark = WHERE_PAGES << 12,
    };
    size_t bytes = (1 + WHERE_PAGES) << 12;

    for (int cpu = 0; cpu < vcpus; cpu++) {
        int fd = (int)syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);
        volatile char *at;
        unsigned long a = 0x4249464f, b, c_ = 0x10, d = bytes;

        if (fd < 0)
            return 0;
        /* Writable, so that the kernel heeds the mark of what was read. */
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED)
            return 0;
        for (size_t i = 0; i < bytes; i += 4096)
            (void)at[i];
        b = (unsigned long)at;
        __asm__ volatile("cpuid" : "+a"(a), "+b"(b), "+c"(c_), "+d"(d) : : "memory");
    }
    return 1;
}

static char where_buffer[1 << 16];
static size_t where_held;

/* Sends what is held: three words say what it is, which and how long, then come the bytes. */
static void where_flush(int to, uint64_t stream, uint64_t number)
{
    uint64_t head[3] = {stream, number, where_held};
    ssize_t n = where_held ? write(to, head, sizeof head) : 0;

    for (size_t at = 0; n > 0 && at < where_held; at += (size_t)n)
        n = write(to, where_buffer + at, where_held - at);
    where_held = 0;
}

static void where_put(int to, uint64_t stream, uint64_t number, const char *bytes, size_t n)
{
    if (where_held + n > sizeof where_buffer)
        where_flush(to, stream, number);
    memcpy(where_buffer + where_held, bytes, n);
    where_held += n;
}

/* The lines of /proc/kallsyms that are code: "ADDRESS TYPE NAME[\t[MODULE]]". */
static void where_symbols(int to)
{
    static char block[1 << 16];
    int fd = open("/proc/kallsyms", O_RDONLY | O_CLOEXEC);
    size_t held = 0;
    ssize_t n;

    while (fd >= 0 && (n = read(fd, block + held, sizeof block - held)) > 0) {
        char *line = block, *end = block + held + n, *next;

        for (; (next = memchr(line, '\n', (size_t)(end - line))); line = next + 1)
            if (next - line > 19 && strchr("tTwW", line[17]))
                where_put(to, WHERE_SYMBOLS, 0, line, (size_t)(next + 1 - line));
        held = (size_t)(end - line);
        if (held == sizeof block)
            break; /* no line is that long */
        memmove(block, line, held);
    }
    where_flush(to, WHERE_SYMBOLS, 0);
    if (fd >= 0)
        close(fd);
}

/* What run-time compilers left in /tmp, as perf wants it from them. */
static void where_maps(int to)
{
    DIR *d = opendir("/tmp");
    struct dirent *e;

    while (d && (e = readdir(d))) {
        static char block[1 << 14];
        unsigned pid;
        int fd, end = 0;
        ssize_t n;

        if (sscanf(e->d_name, "perf-%u.map%n", &pid, &end) != 1 || !end || e->d_name[end])
            continue;
        /* Not what waits for a writer, and nothing behind a link. */
        fd = openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
        for (size_t all = 0; fd >= 0 && all < WHERE_MOST_MAP; all += (size_t)n) {
            n = read(fd, block, sizeof block);
            if (n <= 0)
                break;
            where_put(to, WHERE_PERF_MAP, pid, block, (size_t)n);
        }
        where_flush(to, WHERE_PERF_MAP, pid);
        if (fd >= 0)
            close(fd);
    }
    if (d)
        closedir(d);
}

/* Tells the host what addresses were called. */
static void where_tell(void)
{
    int to = port("bifold.where", O_WRONLY);

    if (to < 0)
        return;
    where_symbols(to);
    where_maps(to);
    close(to);
}

#endif
