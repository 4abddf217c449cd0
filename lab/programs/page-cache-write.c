// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Writes a file in memory of 8 MB, twice, 64 KB at a time: the first pass allocates its
 * pages, the second finds them.
 *
 * Nested: a violation for each frame new to the host, at most 2048.
 * Shadow: the kernel writes through its direct map: a hidden fault for each frame new to
 * the host, for others one for a block of 8 that is not shadowed yet; 0 in the second
 * pass. With KPTI 256 system calls cost four CR3 exits each.
 */
#include "suite.h"

enum { CHUNK = 1 << 16 };

static void run(int n)
{
    static char chunk[CHUNK];
    int fd = memory_file(16);

    memset(chunk, 1, sizeof chunk);
    begin();
    for (int pass = 0; pass < 2; pass++) {
        check(lseek(fd, 0, SEEK_SET) == 0);
        for (int i = 0; i < n; i++)
            check(write(fd, chunk, CHUNK) == CHUNK);
    }
    end();
    printf("%d KB written twice\n", n * CHUNK / 1024);
}

PROGRAM(page_cache_write, "page-cache-write", 29, run, 128, "a file of 8 MB in memory, written twice");
