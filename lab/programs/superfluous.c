// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Programs whose memory a host swaps for nothing (`lab superfluous`).
 *
 * `swaps-file` reads a file of 48 MB again and again: into pages of its cache, then from there, and then the kernel
 * drops these pages, and allocates others for the next pass. A host that holds less writes pages to swap that the disk has.
 *
 * `swaps-direct` reads 40 MB of the file past the cache into memory of its own, again and again, as a database does, in blocks of 128 KB
 * by orders that differ. Pages of that memory come back from swap for the device to overwrite. (The cache's do not where the kernel clears what it
 * allocates, as Debian's do.)
 *
 * `swaps-allocate` takes 40 MB, writes a word of each page, reads each, and gives all back. The kernel clears frames that
 * such a host has in swap.
 *
 * All mark each turn. Those that read the file print which frames had it in each turn, where the kernel says so (to root).
 */
#include "suite.h"

enum { FILE_PAGES = 12288, BLOCK = 32, TURNS = 3, OWN_PAGES = 10240, OWN_BLOCKS = OWN_PAGES / BLOCK };

static uint64_t frames[TURNS][FILE_PAGES];

static void read_all(int fd)
{
    static char block[BLOCK * PAGE];

    for (size_t page = 0; page < FILE_PAGES; page += BLOCK) {
        check(pread(fd, block, sizeof block, (off_t)(page * PAGE)) == sizeof block);
        for (size_t i = 0; i < BLOCK; i++)
            check(*(uint64_t *)(block + i * PAGE) == page + i + 1);
    }
}

/* The frames of mapped pages (Linux Documentation/admin-guide/mm/pagemap.rst). */
static void find_frames(const char *p, size_t pages, int turn)
{
    const size_t bytes = pages * sizeof **frames;
    int map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

    check(map >= 0);
    check(pread(map, frames[turn], bytes, (off_t)((uintptr_t)p / PAGE * sizeof **frames)) == (ssize_t)bytes);
    close(map);
}

/* The frames of the file's pages in the cache. */
static void find_cached(int fd, int turn)
{
    char *p = mmap(NULL, FILE_PAGES * PAGE, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);

    check(p != MAP_FAILED);
    find_frames(p, FILE_PAGES, turn);
    check(!munmap(p, FILE_PAGES * PAGE));
}

static void print_frames(size_t pages, int turn)
{
    const uint64_t frame = (1ull << 55) - 1;

    printf("\nframes %d:", turn);
    for (size_t i = 0, next; i < pages; i = next) {
        uint64_t first = frames[turn][i] & frame;
        for (next = i + 1; next < pages && (frames[turn][next] & frame) == first + (next - i); next++)
            ;
        printf(" %llx+%zx", (unsigned long long)first, next - i);
    }
}

static void read_file(int turns)
{
    int fd = open(file_path(), O_RDONLY | O_CLOEXEC);

    check(fd >= 0);
    memset(frames, 1, sizeof frames);
    begin();
    for (int turn = 0; turn < turns; turn++) {
        mark(turn);
        check(!posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
        read_all(fd);
        find_cached(fd, turn);
        read_all(fd);
    }
    end();
    printf("a file of 48 MB read %d times from the disk and from memory", turns);
    for (int turn = 0; turn < turns; turn++)
        print_frames(FILE_PAGES, turn);
    printf("\n");
}

/* The first page of a turn's `n`th block, in an order of its own: no factor has a common divisor with the number of blocks. */
static size_t block_at(size_t n, int order)
{
    static const size_t factors[2 * TURNS] = {103, 137, 171, 213, 247, 281};

    return n * factors[order] % OWN_BLOCKS * BLOCK;
}

static void read_directly(int turns)
{
    int fd = open(file_path(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    char *p = reserve(OWN_PAGES * PAGE);

    check(fd >= 0);
    memset(frames, 1, sizeof frames);
    begin();
    for (int turn = 0; turn < turns; turn++) {
        mark(turn);
        for (size_t n = 0; n < OWN_BLOCKS; n++) {
            size_t page = block_at(n, 2 * turn);
            check(pread(fd, p + page * PAGE, BLOCK * PAGE, (off_t)(page * PAGE)) == BLOCK * PAGE);
        }
        find_frames(p, OWN_PAGES, turn);
        for (size_t n = 0; n < OWN_PAGES; n++) {
            size_t page = block_at(n / BLOCK, 2 * turn + 1) + n % BLOCK;
            check(*(volatile uint64_t *)(p + page * PAGE) == page + 1);
        }
    }
    end();
    printf("40 MB of a file read %d times past the cache", turns);
    for (int turn = 0; turn < turns; turn++)
        print_frames(OWN_PAGES, turn);
    printf("\n");
}

static void allocate(int turns)
{
    begin();
    for (int turn = 0; turn < turns; turn++) {
        mark(turn);
        char *p = mmap(NULL, OWN_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        check(p != MAP_FAILED);
        for (size_t page = 0; page < OWN_PAGES; page++)
            *(volatile uint64_t *)(p + page * PAGE) = page + 1;
        for (size_t page = 0; page < OWN_PAGES; page++)
            check(*(volatile uint64_t *)(p + page * PAGE) == page + 1);
        check(!munmap(p, OWN_PAGES * PAGE));
    }
    end();
    printf("40 MB allocated, used and freed %d times\n", turns);
}

PROGRAM(read_file, "swaps-file", 42, read_file, TURNS, "the --file's 48 MB read from the disk and from memory, 3 times");
PROGRAM(read_directly, "swaps-direct", 44, read_directly, TURNS, "40 MB of the --file read past the cache, 3 times");
PROGRAM(allocate, "swaps-allocate", 43, allocate, 4, "40 MB allocated, written, read and freed, 4 times");
