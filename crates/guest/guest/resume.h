// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Init's part in kept boots. Init stops the machine at one instruction; the host keeps the
 * machine's state. A machine that goes on from there has what init reads next: QEMU's
 * fw_cfg device gives files that the host names (QEMU, docs/specs/fw_cfg.rst). Reads of its
 * ports are answered at once, so they take the same instructions in every run.
 */
#ifndef BIFOLD_RESUME_H
#define BIFOLD_RESUME_H

#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>

/* Port of the pvpanic device, and the event at which QEMU stops the machine. */
#define PVPANIC_PORT 0x505
#define PVPANIC_PANICKED 1
/* The selector's port; the data port follows. */
#define FW_CFG_PORT 0x510
#define FW_CFG_DATA 0x511
#define FW_CFG_DIRECTORY 0x19
#define FW_CFG_NAME 56

/* Reads from the data port. The C library's insb does not say that it writes to memory. */
static void read_data(void *to, size_t n)
{
    __asm__ volatile("rep insb" : "+D"(to), "+c"(n) : "d"(FW_CFG_DATA) : "memory");
}

/* Stops the machine, with the time stamp counter in R12 for the host (src/capture/boot.rs). Returns in a
 * machine that goes on from here; false with errno set if the kernel gives no ports to processes. */
static int stop_here(void)
{
#ifdef __x86_64__
    if (ioperm(PVPANIC_PORT, 1, 1) || ioperm(FW_CFG_PORT, 2, 1))
        return 0;
    __asm__ volatile("rdtsc\n\t"
                     "shl $32, %%rdx\n\t"
                     "lea (%%rax,%%rdx), %%r12\n\t"
                     "mov %0, %%edx\n\t"
                     "mov %1, %%eax\n\t"
                     "outb %%al, %%dx"
                     :
                     : "i"(PVPANIC_PORT), "i"(PVPANIC_PANICKED)
                     : "rax", "rdx", "r12", "memory");
    return 1;
#else
    errno = ENOSYS; /* 32-bit guests boot with their command */
    return 0;
#endif
}

/* The command inherits what init may do with ports. */
static void no_ports(void)
{
    ioperm(PVPANIC_PORT, 1, 0);
    ioperm(FW_CFG_PORT, 2, 0);
}

/* A file of the host's, followed by a zero byte; NULL if there is none or no memory. */
static char *host_file(const char *name, size_t *bytes)
{
    struct entry {
        uint32_t bytes;
        uint16_t select, reserved;
        char name[FW_CFG_NAME];
    } e;
    uint32_t n;

    errno = ENOENT;
    outw(FW_CFG_DIRECTORY, FW_CFG_PORT);
    read_data(&n, sizeof n);
    for (n = ntohl(n); n > 0; n--) {
        read_data(&e, sizeof e);
        if (!strncmp(e.name, name, sizeof e.name)) {
            char *data;

            *bytes = ntohl(e.bytes);
            data = calloc(1, *bytes + 1);
            if (!data)
                return NULL;
            outw(ntohs(e.select), FW_CFG_PORT);
            read_data(data, *bytes);
            return data;
        }
    }
    return NULL;
}

#endif
