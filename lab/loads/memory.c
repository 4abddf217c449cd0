// SPDX-License-Identifier: Apache-2.0 OR MIT
// Writes pages, copies them over each other, drops them, and checks them all the time.

#include "storm.h"

#define PAGES 512

void run_memory(struct worker *w)
{
    struct book b = book_new(w, map_at(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, 0), PAGES);

    for (size_t i = 0; i < PAGES; i++)
        book_write(&b, i);
    ready();
    while (!stopped()) {
        size_t i = below(w, PAGES), j = below(w, PAGES);
        uint64_t what = below(w, 64);

        book_check(&b, i);
        if (what < 24) {
            book_write(&b, i);
        } else if (what < 44) {
            memcpy(b.at + j * PAGE, b.at + i * PAGE, PAGE);
            b.stamp[j] = b.stamp[i];
        } else if (what < 48) {
            size_t n = 1 + below(w, 16);
            n = n < PAGES - i ? n : PAGES - i;
            if (madvise(b.at + i * PAGE, n * PAGE, MADV_DONTNEED))
                give_up("madvise");
            memset(b.stamp + i, 0, n * sizeof *b.stamp);
        } else if (what == 48) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(below(w, w->threads), &one);
            sched_setaffinity(0, sizeof one, &one);
        } else {
            book_check(&b, j);
        }
        worked(w);
    }
    book_check_all(&b);
}
