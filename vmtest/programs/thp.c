// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * thp-touch: a region of 64 MB that asks for huge pages; each 4 KB is written.
 * thp-split: in such a region, written before, one 4 KB page of each huge page is given
 * back, which splits its mapping into a table, and all pages are written again.
 *
 * Nested: violations for frames new to the host, with 4 KB host pages up to 16384.
 * Shadow, touch: a guest fault per huge page (32); without leaf tables of the guest the
 * shadow has direct pages, filled by 8: 2048 hidden faults with 4 KB host pages, 32 with
 * 2 MB, and as many again where the kernel clears frames that its direct map has not
 * shadowed. Stores to the upper table are emulated (32).
 * Shadow, split: per huge page the store of the table (emulated, with the invalidation
 * before it), INVLPG, the given-back page's guest fault, and a hidden fault for each block
 * of 8: 32 * 64 and a little.
 */
#include "suite.h"

enum { HUGE = 32 };

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

PROGRAM(thp_touch, "thp-touch", 21, touch, 0, "64 MB of huge pages, each 4 KB written");
PROGRAM(thp_split, "thp-split", 22, split, 0, "32 huge pages split, each 4 KB written again");
