// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Records the guest's processes and mappings, for attribution. The guest's init
 * opens one perf event per vCPU. The event counts nothing and reports forks, execs,
 * mappings and context switches; the kernel writes the records into a buffer that
 * init has mapped and never reads. The plugin reads the buffer after every store to
 * the page with the kernel's write mark (data_head), so the records are at the place
 * in the stream where the kernel wrote them. The plugin also advances the read mark
 * (data_tail), so the buffer never fills.
 *
 * Layout: struct perf_event_mmap_page of linux/perf_event.h, then the data, a
 * power of two of pages.
 */
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

#define DATA_HEAD 1024
#define DATA_TAIL 1032
#define MOST_PAGES 1024
#define LOG_BYTES (8 * BF_LOG_WORDS)

static struct buffer {
    uint64_t frame;    /* of the page with the marks */
    uint64_t size;     /* of the data */
    uint64_t *control; /* that page, as the plugin sees it */
    char *page[MOST_PAGES];
} *buffers[BF_MOST_VCPUS];
static unsigned n_buffers;

/* The place in RAM of an address of init. */
static char *memory_of(uint64_t va)
{
    uint64_t gpa;

    if (!translate(vcpu_of(current_cpu)->cr3, va, &gpa) || !ram_at(gpa))
        die("the guest's perf buffer at %#llx is not in memory", (unsigned long long)va);
    return (char *)ram_at(gpa & ~PAGE_MASK);
}

/* Takes the next vCPU's buffer, at this address of the running process, which keeps it mapped. */
void log_open(uint64_t va, uint64_t bytes)
{
    uint64_t pages = (bytes >> PAGE_SHIFT) - 1, gpa;
    struct buffer *b;

    if (va & PAGE_MASK || bytes & PAGE_MASK || !pages || pages > MOST_PAGES || pages & (pages - 1))
        die("a perf buffer of %llu bytes", (unsigned long long)bytes);
    if (n_buffers == BF_MOST_VCPUS || !(b = calloc(1, sizeof *b)))
        die("no room for another perf buffer");
    b->size = pages << PAGE_SHIFT;
    b->control = (uint64_t *)memory_of(va);
    translate(vcpu_of(current_cpu)->cr3, va, &gpa);
    b->frame = gpa >> PAGE_SHIFT;
    for (uint64_t i = 0; i < pages; i++)
        b->page[i] = memory_of(va + ((i + 1) << PAGE_SHIFT));
    buffers[n_buffers++] = b;
}

/* Passes on the records that the kernel has written since the last call. */
static void pass_on(unsigned number)
{
    struct buffer *b = buffers[number];
    uint64_t head = b->control[DATA_HEAD / 8], tail = b->control[DATA_TAIL / 8];

    if (head - tail > b->size)
        die("the guest's perf buffer has lost records");
    while (tail != head) {
        uint64_t n = head - tail < LOG_BYTES ? head - tail : LOG_BYTES;
        uint64_t *w = ring_room(1 + BF_LOG_WORDS);
        char *to = (char *)(w + 1);

        w[0] = bf_head(BF_KIND_LOG, (uint64_t)number << 32 | BF_LOG_PERF << 16 | n);
        memset(to, 0, LOG_BYTES);
        while (n) {
            uint64_t at = tail & (b->size - 1), room = 4096 - (at & PAGE_MASK);
            uint64_t part = n < room ? n : room;

            memcpy(to, b->page[at >> PAGE_SHIFT] + (at & PAGE_MASK), part);
            to += part;
            tail += part;
            n -= part;
        }
    }
    b->control[DATA_TAIL / 8] = tail;
}

/* Passes on the records between init's opening of the events and the start marker. */
void log_start(void)
{
    for (unsigned i = 0; i < n_buffers; i++)
        pass_on(i);
}

/* Whether a frame that was stored to holds a buffer's marks. */
bool log_store(uint64_t frame)
{
    for (unsigned i = 0; i < n_buffers; i++) {
        if (buffers[i]->frame == frame) {
            pass_on(i);
            return true;
        }
    }
    return false;
}
