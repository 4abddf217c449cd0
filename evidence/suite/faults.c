// SPDX-License-Identifier: Apache-2.0 OR MIT
// What an allocator without a memory does to an address space: maps a region of
// changing size, writes and reads it, changes its protection and gives it back, over
// and over, with a number of older regions alive.
//
//   faults ROUNDS PAGES
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { ALIVE = 24 };

int main(int argc, char **argv)
{
    if (argc != 3)
        return fprintf(stderr, "usage: faults ROUNDS PAGES\n"), 2;
    long rounds = atol(argv[1]), most = atol(argv[2]);
    unsigned char *region[ALIVE] = {0};
    size_t size[ALIVE] = {0};
    uint64_t x = 88172645463325252u, check = 0;
    for (long r = 0; r < rounds; r++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        int i = (x >> 33) % ALIVE;
        if (region[i]) {
            for (size_t at = 0; at < size[i]; at += 512)
                check = check * 31 + region[i][at];
            if (munmap(region[i], size[i]))
                return perror("munmap"), 1;
        }
        size[i] = (1 + (x >> 17) % most) * 4096;
        region[i] = mmap(0, size[i], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (region[i] == MAP_FAILED)
            return perror("mmap"), 1;
        for (size_t at = 0; at < size[i]; at += 64)
            region[i][at] = (unsigned char)(at + r);
        if (r % 4 == 0 && mprotect(region[i], size[i] / 8192 * 4096, PROT_READ))
            return perror("mprotect"), 1;
    }
    printf("check %016llx\n", (unsigned long long)check);
    return 0;
}
