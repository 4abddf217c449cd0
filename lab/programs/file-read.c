// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Maps 4096 pages of a file in memory privately and reads each; twice, with the
 * mapping gone in between. The file's pages exist before.
 *
 * Nested: 0.
 * Shadow: fault-around maps 16 pages at each guest fault, prefetching fills 8 entries at
 * each hidden fault: 2 * (256 + 512), and what it takes to make and free 16 tables.
 */
#include "suite.h"

static void pass(int fd, char *p, size_t pages)
{
    check(mmap(p, pages * PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) == p);
    read_pages(p, pages);
    check(mmap(p, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0) == p);
}

static void run(int n)
{
    int fd = memory_file((size_t)n);
    char *p = reserve((size_t)n * PAGE);

    pass(fd, p, (size_t)n);
    begin();
    pass(fd, p, (size_t)n);
    pass(fd, p, (size_t)n);
    end();
    printf("%d pages of a file mapped and read twice\n", n);
}

PROGRAM(file_read, "file-read", 20, run, 4096, "4096 private pages of a file, read twice");
