// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * 2048 pages of a file in memory, mapped shared and writable: all read, then all
 * written. The file's pages exist before.
 *
 * Nested: 0.
 * Shadow: a read maps 16 pages (fault-around), clean: 128 guest faults and 256 hidden
 * faults (each prefetches its block of 8). A clean entry is shadowed read-only, so that
 * KVM sees the first write and sets D: 2048 exits more, none of them for the guest.
 */
#include "suite.h"

static void run(int n)
{
    size_t bytes = (size_t)n * PAGE;
    int fd = memory_file((size_t)n);
    char *p = reserve(bytes);

    check(mmap(p, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == p);
    begin();
    read_pages(p, (size_t)n);
    write_pages(p, (size_t)n);
    end();
    printf("%d pages of a file read, then written through a mapping\n", n);
}

PROGRAM(clean_dirty, "clean-dirty", 19, run, 2048, "2048 shared pages of a file, read and then written");
