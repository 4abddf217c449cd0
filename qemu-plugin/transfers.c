// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Records what the host's files move from and to the guest's memory. The processor does not make a device's
 * accesses, so no callback sees them.
 *
 * files.c keeps the guest stopped until its requests are answered. Then each answer is an element of the used
 * ring with the chain of descriptors that the guest wrote and the number of bytes that the device has written
 * into them (virtio 1.2, 2.7.5 and 2.7.8). The chain is still as it was, because the guest has not run.
 */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "plugin.h"

/* A split queue's parts (virtio 1.2, 2.7.5 to 2.7.8). */
struct descriptor {
    uint64_t gpa;
    uint32_t bytes;
    uint16_t flags, next;
};
enum { NEXT = 1, WRITE = 2, INDIRECT = 4 };
struct answer {
    uint32_t id, written;
};
#define USED_IDX 2
#define USED_RING 4
/* What a chain may have at most: the largest queue (virtio 1.2, 2.7). */
#define MOST_DESCRIPTORS 32768

static uint64_t (*desc_addr)(void *device, int queue);
static uint64_t (*used_addr)(void *device, int queue);
static int (*queue_size)(void *device, int queue);
static uint16_t passed_on; /* answers */

void transfers_open(void)
{
    desc_addr = (uint64_t (*)(void *, int))dlsym(RTLD_DEFAULT, "virtio_queue_get_desc_addr");
    used_addr = (uint64_t (*)(void *, int))dlsym(RTLD_DEFAULT, "virtio_queue_get_used_addr");
    queue_size = (int (*)(void *, int))dlsym(RTLD_DEFAULT, "virtio_queue_get_num");
}

static void transfer(const struct descriptor *d, uint32_t bytes)
{
    uint64_t *w;

    if (!bytes)
        return;
    w = ring_room(2);
    w[0] = bf_head(BF_KIND_TRANSFER, d->gpa);
    w[1] = (uint64_t)!!(d->flags & WRITE) << 32 | bytes;
}

/* The chain of descriptors from the `at`th of a table on: the device has read all of those that are not for writing, and
 * written `written` bytes into the others. */
static void chain(uint64_t table, unsigned size, unsigned at, uint32_t written, bool indirect)
{
    for (unsigned n = 0; n < size && n < MOST_DESCRIPTORS && at < size; n++) {
        const struct descriptor *d = (const void *)ram_at(table + at * sizeof *d);
        uint32_t bytes;

        if (!d || !ram_at(table + at * sizeof *d + sizeof *d - 1))
            return;
        if (d->flags & INDIRECT) {
            /* A table of descriptors may not name another one. */
            if (!indirect)
                chain(d->gpa, (unsigned)(d->bytes / sizeof *d), 0, written, true);
            return;
        }
        bytes = d->bytes;
        if (d->flags & WRITE) {
            bytes = bytes < written ? bytes : written;
            written -= bytes;
        }
        transfer(d, bytes);
        if (!(d->flags & NEXT))
            return;
        at = d->next;
    }
}

static const char *used_ring(void *device)
{
    uint64_t at = used_addr(device, 0);

    return at ? (const char *)ram_at(at) : NULL; /* the guest has not set the queue up */
}

/* Called after a store to a device, when all requests are answered: passes on the answers since the last call. */
COLD void transfers_done(void *device)
{
    const char *ring = desc_addr && used_addr && queue_size ? used_ring(device) : NULL;
    uint16_t answered;
    unsigned size;

    if (!ring) {
        passed_on = 0; /* a queue that is set up again begins at 0 */
        return;
    }
    answered = *(const volatile uint16_t *)(ring + USED_IDX);
    size = (unsigned)queue_size(device, 0);
    for (; recording && (uint16_t)(answered - passed_on) <= size && passed_on != answered; passed_on++) {
        const struct answer *a = (const void *)(ring + USED_RING + passed_on % size * sizeof *a);

        chain(desc_addr(device, 0), size, a->id, a->written, false);
    }
    passed_on = answered;
}
