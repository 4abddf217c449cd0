// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Writes the ring to the consumer: a memfd with one header page and a number of
 * chunks of 64-bit words. The producer fills a chunk with whole events, stores the
 * chunk's length and advances `head`; the consumer advances `tail`. Each side waits on
 * a futex in the other side's counter. crates/guest/src/capture/ring.rs is the
 * consumer's side.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "plugin.h"

struct header {
    uint64_t magic, chunks, chunk_words;
    _Atomic uint64_t cpu_ns; /* of this thread, while recording */
    _Atomic uint64_t in_step; /* 1 if the guest waits for the host's files (files.c) */
    _Alignas(64) _Atomic uint64_t head;
    _Alignas(64) _Atomic uint64_t tail;
    _Alignas(64) uint64_t length[];
};

static struct header *header;
static uint64_t *base, *end; /* of the chunk being written */
static uint64_t began_ns;
static uint64_t published;   /* words in chunks before it */
static uint64_t other_words; /* words of events other than accesses */
uint64_t *next_check;        /* word at which the next self-check is due */

static void futex_wait(_Atomic uint64_t *counter, uint32_t seen)
{
    struct timespec timeout = {0, 100 * 1000 * 1000};
    syscall(SYS_futex, (void *)counter, FUTEX_WAIT, seen, &timeout, NULL, 0);
}

static void futex_wake(_Atomic uint64_t *counter)
{
    syscall(SYS_futex, (void *)counter, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Waits until at most `pending` chunks are unread. A dead consumer needs no check
 * here, because its death ends QEMU (PR_SET_PDEATHSIG). */
static void wait_pending(uint64_t pending)
{
    uint64_t head = atomic_load(&header->head), tail;

    while (head - (tail = atomic_load(&header->tail)) > pending)
        futex_wait(&header->tail, (uint32_t)tail);
}

static uint64_t thread_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void take_chunk(void)
{
    uint64_t head = atomic_load(&header->head);

    wait_pending(header->chunks - 1);
    base = (uint64_t *)((char *)header + BF_RING_HEADER_BYTES) +
           head % header->chunks * header->chunk_words;
    end = base + header->chunk_words;
    hot.p = base;
}

void ring_set_limit(void)
{
    hot.limit = end - SLACK_WORDS;
    if (next_check && next_check < hot.limit)
        hot.limit = next_check;
}

static struct header *map_header(int protection)
{
    struct header *h = mmap(NULL, BF_RING_HEADER_BYTES, protection, MAP_SHARED, opt.ring_fd, 0);

    if (h == MAP_FAILED || h->magic != BF_RING_MAGIC)
        die("descriptor %d is no ring", opt.ring_fd);
    return h;
}

void ring_say_in_step(void)
{
    struct header *h = map_header(PROT_READ | PROT_WRITE);

    atomic_store(&h->in_step, 1);
    munmap(h, BF_RING_HEADER_BYTES);
}

void ring_open(void)
{
    struct header *h = map_header(PROT_READ);
    size_t bytes;

    bytes = BF_RING_HEADER_BYTES + h->chunks * h->chunk_words * 8;
    munmap(h, BF_RING_HEADER_BYTES);
    header = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, opt.ring_fd, 0);
    if (header == MAP_FAILED)
        die("cannot map the ring: %s", strerror(errno));
    take_chunk();
    ring_set_limit();
    began_ns = thread_ns();
}

/* Publishes the words written so far and takes the next chunk. */
void ring_publish(void)
{
    uint64_t head = atomic_load(&header->head);
    uint64_t words = (uint64_t)(hot.p - base);
    ptrdiff_t check = next_check ? next_check - hot.p : 0;

    if (!words)
        return;
    header->length[head % header->chunks] = words;
    published += words;
    atomic_store(&header->head, head + 1);
    futex_wake(&header->head);
    take_chunk();
    if (next_check)
        next_check = hot.p + (check > 0 ? check : 0);
    ring_set_limit();
}

void ring_drain(void)
{
    atomic_store(&header->cpu_ns, thread_ns() - began_ns);
    ring_publish();
    wait_pending(0);
}

/* Makes room for the words of one event other than an access. */
uint64_t *ring_room(unsigned words)
{
    uint64_t *w;

    if (hot.p + words + SLACK_WORDS > end)
        ring_publish();
    w = hot.p;
    hot.p += words;
    other_words += words;
    return w;
}

uint64_t ring_accesses(void)
{
    return published + (uint64_t)(hot.p - base) - other_words;
}
