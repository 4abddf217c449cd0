// SPDX-License-Identifier: Apache-2.0 OR MIT
// Pages with known contents, which are written, checked and repaired.

#include "storm.h"

static uint64_t step(uint64_t stamp)
{
    return mix(stamp) | 1;
}

uint64_t stamp_new(struct worker *w)
{
    return draw(w) | 1;
}

void page_fill(void *at, uint64_t stamp)
{
    volatile uint64_t *p = at;
    uint64_t v = stamp, s = stamp ? step(stamp) : 0;

    for (size_t i = 0; i < WORDS; i++, v += s)
        p[i] = v;
}

static unsigned wrong_bytes(uint64_t a, uint64_t b)
{
    unsigned n = 0;

    for (uint64_t x = a ^ b; x; x >>= 8)
        n += (x & 255) != 0;
    return n;
}

void page_check(struct worker *w, void *at, uint64_t stamp, int mend)
{
    volatile uint64_t *p = at;
    uint64_t v = stamp, s = stamp ? step(stamp) : 0, first = 0, found = 0;
    uint64_t bytes = 0;

    for (size_t i = 0; i < WORDS; i++, v += s) {
        uint64_t is = p[i];
        if (__builtin_expect(is != v, 0)) {
            if (!bytes) {
                first = i;
                found = is;
            }
            bytes += wrong_bytes(is, v);
        }
    }
    if (!bytes)
        return;
    atomic_fetch_add(&shared->corrupted[w->kind], bytes);
    tell("corrupt %s-%u at=%p word=%lu bytes=%lu stamp=%lx expected=%lx found=%lx now=%lx",
         kind_names[w->kind], w->number, at, first, bytes, stamp, stamp + first * s, found, p[first]);
    if (mend)
        page_fill(at, stamp);
}

struct book book_new(struct worker *w, unsigned char *at, size_t pages)
{
    struct book b = {.w = w, .at = at, .pages = pages, .stamp = calloc(pages, sizeof *b.stamp)};

    if (!b.stamp)
        give_up("calloc");
    return b;
}

void book_free(struct book *b)
{
    free(b->stamp);
}

void book_write(struct book *b, size_t page)
{
    b->stamp[page] = stamp_new(b->w);
    page_fill(b->at + page * PAGE, b->stamp[page]);
}

void book_check(struct book *b, size_t page)
{
    page_check(b->w, b->at + page * PAGE, b->stamp[page], 1);
}

void book_check_all(struct book *b)
{
    for (size_t i = 0; i < b->pages; i++)
        book_check(b, i);
}

void *map_at(void *at, size_t bytes, int prot, int more)
{
    void *p = mmap(at, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | more, -1, 0);

    if (p == MAP_FAILED)
        give_up("mmap");
    return p;
}

void move_pages_to(unsigned char *from, unsigned char *to, size_t bytes)
{
    const int how = MREMAP_FIXED | MREMAP_MAYMOVE;

    if (mremap(from, bytes, bytes, how, to) == to)
        return;
    if (errno != EFAULT)
        give_up("mremap");
    /* More than one mapping: neighbours that do not become one again. */
    for (size_t i = 0; i < bytes; i += PAGE)
        if (mremap(from + i, PAGE, PAGE, how, to + i) != to + i)
            give_up("mremap of a page");
}

void ready(void)
{
    atomic_fetch_add(&shared->ready, 1);
}
