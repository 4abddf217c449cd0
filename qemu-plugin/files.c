/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Keeps the host's files in step with the guest's clock.
 *
 * The host's root is a virtio-9p device. QEMU takes a request off the queue on
 * this thread, when the guest kicks the queue, but serves it on other threads.
 * With -icount sleep=off, the clock of a guest that waits jumps to the next timer,
 * however far away that is: reading 100 small files took minutes of guest time.
 * The instruction at which the answer arrives depends on the host's load.
 *
 * Therefore the guest is stopped until its requests are answered: after a store to
 * a device, this file waits until every request is in the used ring and its
 * interrupt is raised. For the guest the answer takes no time, and the interrupt
 * comes at the same instruction in every run.
 *
 * QEMU's plugin interface has no access to devices. This file looks up QEMU's
 * functions by name among the symbols that QEMU exports for its own modules
 * (--enable-modules, as in Debian's build). If a symbol is missing, the guest does
 * not wait, and the ring's header says so.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <time.h>

#include "plugin.h"

/* The device's name on QEMU's command line (crates/guest/src/capture/command.rs). */
#define DEVICE "/machine/peripheral/files/virtio-backend"
/* Offset of `idx` in a split queue's used ring (virtio 1.2, 2.7.8). */
#define USED_IDX 2
/* Number of checks before sleeping, and length of a sleep. */
#define SPINS 200
#define SLEEP_NS 5000

static void *(*resolve_path)(const char *path, bool *ambiguous);
static unsigned (*last_avail_idx)(void *device, int queue);
static uint64_t (*used_addr)(void *device, int queue);
static void (*lock)(const char *file, int line);
static void (*unlock)(void);
static bool (*locked)(void);

static void *device;

static void *symbol(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}

/* Whether waiting is requested and possible. */
bool files_open(void)
{
    if (!opt.files)
        return false;
    resolve_path = (void *(*)(const char *, bool *))symbol("object_resolve_path");
    last_avail_idx = (unsigned (*)(void *, int))symbol("virtio_queue_get_last_avail_idx");
    used_addr = (uint64_t (*)(void *, int))symbol("virtio_queue_get_used_addr");
    lock = (void (*)(const char *, int))symbol("bql_lock_impl");
    unlock = (void (*)(void))symbol("bql_unlock");
    locked = (bool (*)(void))symbol("bql_locked");
    if (!resolve_path || !last_avail_idx || !used_addr || !lock || !unlock || !locked)
        opt.files = false;
    else if (opt.looks)
        transfers_open();
    return opt.files;
}

/* Number of requests that QEMU has taken off the queue and not answered. */
static bool pending(void)
{
    uint64_t used = used_addr(device, 0);
    const char *ring = used ? (const char *)ram_at(used) : NULL;

    if (!ring)
        return false; /* the guest has not set the queue up */
    atomic_thread_fence(memory_order_acquire);
    return *(const volatile uint16_t *)(ring + USED_IDX) != (uint16_t)last_avail_idx(device, 0);
}

static void wait_for_answers(void)
{
    unsigned spins = 0;

    if (!pending())
        return;
    if (locked())
        die("a device store that holds QEMU's lock");
    while (pending()) {
        static const struct timespec nap = {0, SLEEP_NS};
        if (++spins < SPINS)
            sched_yield();
        else
            nanosleep(&nap, NULL);
    }
    /* The thread that answers holds QEMU's lock until the interrupt is raised. */
    lock(__FILE__, __LINE__);
    unlock();
}

/* Called after a store to a device. */
COLD void files_wait(void)
{
    if (!opt.files)
        return;
    if (!device) {
        device = resolve_path(DEVICE, NULL);
        if (!device)
            die("this QEMU has no device at %s", DEVICE);
        /* Without this, a sleep of some microseconds takes 50 more. */
        prctl(PR_SET_TIMERSLACK, 1);
    }
    wait_for_answers();
    if (opt.looks)
        transfers_done(device);
}
