// SPDX-License-Identifier: Apache-2.0 OR MIT
// Splits huge pages by changing a part of them, collapses them again, and checks them.

#include "storm.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define REGIONS 3
#define PER (HUGE_PAGE / PAGE)

static void must(int result, const char *what)
{
    if (result)
        give_up(what);
}

void run_huge(struct worker *w)
{
    unsigned char *raw = map_at(NULL, (2 * REGIONS + 1) * HUGE_PAGE, PROT_NONE, 0);
    unsigned char *at = (unsigned char *)(((uintptr_t)raw + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
    unsigned char *away = at + REGIONS * HUGE_PAGE;
    struct book b = book_new(w, at, REGIONS * PER);

    map_at(at, REGIONS * HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_FIXED);
    madvise(at, REGIONS * HUGE_PAGE, MADV_HUGEPAGE);
    for (size_t i = 0; i < b.pages; i++)
        book_write(&b, i);
    ready();
    while (!stopped()) {
        size_t region = below(w, REGIONS), first = region * PER;
        size_t n = 1 + below(w, 64), i = first + below(w, PER - n);
        unsigned char *huge = at + region * HUGE_PAGE, *part = at + i * PAGE;

        for (int k = 0; k < 8; k++)
            book_check(&b, first + below(w, PER));
        switch (below(w, 9)) {
        case 0: /* split by protection, and read while it is */
            must(mprotect(part, n * PAGE, PROT_READ), "mprotect");
            for (int k = 0; k < 4; k++)
                page_check(w, at + (i + (size_t)k % n) * PAGE, b.stamp[i + (size_t)k % n], 0);
            must(mprotect(part, n * PAGE, PROT_READ | PROT_WRITE), "mprotect");
            break;
        case 1: /* a hole, filled again */
            must(munmap(part, n * PAGE), "munmap");
            map_at(part, n * PAGE, PROT_READ | PROT_WRITE, MAP_FIXED);
            madvise(part, n * PAGE, MADV_HUGEPAGE);
            memset(b.stamp + i, 0, n * sizeof *b.stamp);
            break;
        case 2:
            must(madvise(part, n * PAGE, MADV_DONTNEED), "madvise");
            memset(b.stamp + i, 0, n * sizeof *b.stamp);
            break;
        case 3: /* there may be no huge page free, or a kernel that cannot: no matter */
        case 4:
            madvise(huge, HUGE_PAGE, MADV_COLLAPSE);
            break;
        case 5: /* all of it again, most likely as one huge page */
            must(madvise(huge, HUGE_PAGE, MADV_DONTNEED), "madvise");
            memset(b.stamp + first, 0, PER * sizeof *b.stamp);
            for (size_t k = 0; k < PER; k += 1 + below(w, 8))
                book_write(&b, first + k);
            break;
        case 6: /* there and back */
            move_pages_to(huge, away, HUGE_PAGE);
            page_check(w, away + (i - first) * PAGE, b.stamp[i], 1);
            move_pages_to(away, huge, HUGE_PAGE);
            break;
        default:
            for (size_t k = 0; k < n; k++)
                book_write(&b, i + k);
        }
        for (int k = 0; k < 8; k++)
            book_check(&b, first + below(w, PER));
        worked(w);
    }
    book_check_all(&b);
}
