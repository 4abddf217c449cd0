// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Programs that use 40 MB again and again, for hosts that hold less of the guest (`lab reclaim`). Each writes all
 * pages, uses them once as in the window, and uses them in the window in an order of its own. Each page holds its
 * number, and each use checks it.
 *
 * With room for all, the windows of one process have no exits in either mode, but for `reclaim-file`, `reclaim-free`
 * and what the guest's kernel does besides.
 *
 * `reclaim-limit` has no work: the host applies its limit while this program sleeps.
 */
#include "suite.h"
#include <time.h>

enum { PAGES = 10240, HOT = 2048, CHUNK = 64, CHUNKS = PAGES / CHUNK, KEY = 256 / 8 };

static uint64_t state = 88172645463325252ull;

/* Marsaglia's xorshift. */
static uint64_t draw(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static char *memory;

static volatile uint64_t *at(size_t page)
{
    return (volatile uint64_t *)(memory + page * PAGE);
}

static void use(size_t page, int write)
{
    check(at(page)[0] == page);
    if (write)
        at(page)[1]++;
}

/* A page's number among PAGES, of which neighbours are far apart: 7919 and PAGES have no common divisor. */
static size_t spread(size_t n)
{
    return n * 7919 % PAGES;
}

/* Small numbers are as likely as in Zipf's law: each doubling has the same share. */
static size_t skewed(void)
{
    uint64_t first = 1ull << draw(13);
    size_t rank = first + draw(first) - 1;

    return spread(rank % PAGES);
}

static void cycle(int n)
{
    for (size_t i = 0; i < (size_t)n * PAGES; i++)
        use(i % PAGES, 0);
}

static void to_and_fro(int n)
{
    for (int pass = 0; pass < n; pass++)
        for (size_t i = 0; i < PAGES; i++)
            use(pass % 2 ? PAGES - 1 - i : i, 0);
}

static void uniform_read(int n)
{
    for (int i = 0; i < n * 1000; i++)
        use(draw(PAGES), draw(20) == 0);
}

static void uniform_write(int n)
{
    for (int i = 0; i < n * 1000; i++)
        use(draw(PAGES), draw(20) != 0);
}

static void zipf(int n)
{
    for (int i = 0; i < n * 1000; i++)
        use(skewed(), 0);
}

static void hot(int n)
{
    for (size_t i = 0; i < (size_t)n * (PAGES - HOT); i++) {
        use(draw(HOT), 0);
        use(HOT + i % (PAGES - HOT), 0);
    }
}

static void file(int n)
{
    static char block[CHUNK * PAGE];
    static int fd = -1;

    if (fd < 0) {
        check(!munmap(memory, PAGES * PAGE));
        fd = memory_file(PAGES);
    }
    for (int i = 0; i < n * CHUNKS; i++)
        check(pread(fd, block, sizeof block, (off_t)(draw(CHUNKS) * sizeof block)) == sizeof block);
}

/* The guest frees memory and takes other: a frame that it frees is soon used again. */
static void freeing(int n)
{
    for (int i = 0; i < n * 100; i++) {
        size_t first = draw(CHUNKS) * CHUNK, other = draw(CHUNKS) * CHUNK;
        char *chunk = memory + first * PAGE;

        check(!madvise(chunk, CHUNK * PAGE, MADV_DONTNEED));
        for (size_t page = first; page < first + CHUNK; page++)
            at(page)[0] = page;
        for (size_t page = other; page < other + CHUNK; page++)
            use(page, 0);
    }
}

/* Records of 256 bytes, by an in-place quicksort of Hoare's kind. */
static void quicksort(uint64_t (*a)[KEY], size_t n)
{
    while (n > 1) {
        uint64_t pivot = a[(n - 1) / 2][0];
        size_t i = 0, j = n - 1;

        for (;; i++, j--) {
            while (a[i][0] < pivot)
                i++;
            while (a[j][0] > pivot)
                j--;
            if (i >= j)
                break;
            uint64_t record[KEY];
            memcpy(record, a[i], sizeof record);
            memcpy(a[i], a[j], sizeof record);
            memcpy(a[j], record, sizeof record);
        }
        quicksort(a, j + 1);
        a += j + 1;
        n -= j + 1;
    }
}

static void sort(int n)
{
    uint64_t (*records)[KEY] = (void *)memory;
    size_t count = PAGES * PAGE / sizeof *records;

    for (int pass = 0; pass < n; pass++) {
        for (size_t i = 0; i < count; i++)
            records[i][0] = draw(1ull << 40);
        quicksort(records, count);
        for (size_t i = 1; i < count; i++)
            check(records[i - 1][0] <= records[i][0]);
    }
}

/* Reads keys in order and counts them in a table four times as large. */
static void hash(int n)
{
    uint64_t *keys = (uint64_t *)memory, *table = (uint64_t *)(memory + PAGES / 5 * PAGE);
    const size_t slots = PAGES / 5 * 4 * PAGE / sizeof *table, step = PAGE / sizeof *keys / 16;

    for (size_t i = 0; i < (size_t)n * 1000; i++) {
        uint64_t key = keys[i * step % (PAGES / 5 * PAGE / sizeof *keys)] + i;
        table[key * 0x9e3779b97f4a7c15ull % slots]++;
    }
}

static const struct order {
    void (*use)(int n);
    int n;
} orders[] = {
    {cycle, 2}, {to_and_fro, 4}, {uniform_read, 20}, {uniform_write, 20}, {zipf, 80},
    {hot, 2},   {file, 2},       {freeing, 2},       {sort, 1},           {hash, 20},
};

static void run(int n)
{
    const struct order *order = &orders[n];

    memory = reserve(PAGES * PAGE);
    for (size_t page = 0; page < PAGES; page++)
        at(page)[0] = page;
    order->use(1 + order->n / 4);
    begin();
    order->use(order->n);
    end();
    printf("40 MB used again\n");
}

static void limit(int n)
{
    struct timespec t = {.tv_sec = n};

    begin();
    check(!nanosleep(&t, NULL));
    end();
    printf("the host's limit\n");
}

PROGRAM(limit, "reclaim-limit", 31, limit, 4, "four seconds asleep: the host's limit begins");
PROGRAM(cycle, "reclaim-cycle", 32, run, 0, "40 MB read in a cycle, 2 times");
PROGRAM(to_and_fro, "reclaim-turns", 33, run, 1, "40 MB read forwards and backwards by turns, 4 times");
PROGRAM(uniform_read, "reclaim-read", 34, run, 2, "20,000 random pages of 40 MB read, each 20th written");
PROGRAM(uniform_write, "reclaim-write", 35, run, 3, "20,000 random pages of 40 MB, all but each 20th written");
PROGRAM(zipf, "reclaim-zipf", 36, run, 4, "80,000 pages of 40 MB read, by Zipf's law");
PROGRAM(hot, "reclaim-hot", 37, run, 5, "32 MB read in a cycle, 2 times, beside 8 MB read at random");
PROGRAM(file, "reclaim-file", 38, run, 6, "a file of 40 MB in memory, 320 random blocks of 256 KB read");
PROGRAM(freeing, "reclaim-free", 39, run, 7, "200 times 256 KB of 40 MB given back and written, and others read");
PROGRAM(sort, "reclaim-sort", 40, run, 8, "40 MB of records filled and sorted");
PROGRAM(hash, "reclaim-hash", 41, run, 9, "20,000 keys of 8 MB counted in a table of 32 MB");
