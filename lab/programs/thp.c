// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * thp-touch: a region of 32 MB that asks for huge pages; each 4 KB is written.
 * thp-again: 16 times, such a region is given back (MADV_DONTNEED) and written again.
 * thp-split: in such a region, written before, one 4 KB page of each huge page is given
 * back, which splits its mapping into a table, and all pages are written again.
 *
 * Nested: violations for frames new to the host: thp-touch up to 8192 with 4 KB host
 * pages and 16 with 2 MB; the others near 0.
 * Shadow, touch: a guest fault per huge page and an emulated store to the upper table
 * (32 each); the guest has no leaf tables, so the shadow has direct pages, filled by 8:
 * 1024 hidden faults with 4 KB host pages, 16 with 2 MB. Besides, a hidden fault for each
 * frame new to the host (8192), when the kernel clears it.
 * Shadow, again: the direct page of the frame is still in the hash, full, so one hidden
 * fault finds it: per huge page and round a guest fault, a hidden fault, an emulated
 * store to the upper table and INVLPG: 16 * 32 * 4.
 * Shadow, split: per huge page a read and a write of CR3, INVLPG, the guest's fault for
 * the page given back, and 64 hidden faults that fill the new table by 8. Where the split
 * leaves D out of the new entries (Linux 6.1: it goes to the page), they are
 * shadowed read-only, and each of the other 447 pages is one exit more at its write:
 * 16 * 511 then, 16 * 64 where D is kept.
 */
#include "suite.h"

enum { HUGE = 16 };

static unsigned long anon_huge(void)
{
    char line[256];
    unsigned long kb, sum = 0;
    FILE *f = fopen("/proc/self/smaps", "r");

    if (!f)
        return 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "AnonHugePages: %lu", &kb) == 1)
            sum += kb;
    fclose(f);
    return sum;
}

static char *huge_region(void)
{
    char *p = reserve(HUGE * TABLE);

    check(!madvise(p, HUGE * TABLE, MADV_HUGEPAGE));
    return p;
}

static void touch(int n)
{
    (void)n;
    char *p = huge_region();

    check(access("/proc/self/smaps", R_OK) == 0);
    begin();
    write_pages(p, HUGE * 512);
    end();
    check(anon_huge() == HUGE * TABLE / 1024);
    printf("%d pages written in %d huge pages\n", HUGE * 512, HUGE);
}

static void again(int n)
{
    char *p = huge_region();

    write_pages(p, HUGE * 512);
    check(anon_huge() == HUGE * TABLE / 1024);
    check(!madvise(p, HUGE * TABLE, MADV_DONTNEED));
    write_pages(p, HUGE * 512);
    begin();
    for (int i = 0; i < n; i++) {
        check(!madvise(p, HUGE * TABLE, MADV_DONTNEED));
        write_pages(p, HUGE * 512);
    }
    end();
    printf("%d huge pages given back and written again %d times\n", HUGE, n);
}

static void split(int n)
{
    (void)n;
    char *p = huge_region();

    write_pages(p, HUGE * 512);
    check(anon_huge() == HUGE * TABLE / 1024);
    begin();
    for (int i = 0; i < HUGE; i++)
        check(!madvise(p + (size_t)i * TABLE + 100 * PAGE, PAGE, MADV_DONTNEED));
    write_pages(p, HUGE * 512);
    end();
    check(anon_huge() == 0);
    printf("%d huge pages split, %d pages written\n", HUGE, HUGE * 512);
}

PROGRAM(thp_touch, "thp-touch", 21, touch, 0, "32 MB of huge pages, each 4 KB written");
PROGRAM(thp_again, "thp-again", 30, again, 16, "16 huge pages given back and written again 16 times");
PROGRAM(thp_split, "thp-split", 22, split, 0, "16 huge pages split, each 4 KB written again");
