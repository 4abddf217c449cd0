// SPDX-License-Identifier: Apache-2.0 OR MIT
// Programs whose best paging mode changes while they run.
//
//   phases chase MIB STEPS                   one phase only: visits in random order all over MIB
//   phases bursts MIB CALMS SWEEPS PAGES     long calm sweeps and searches over a register,
//                                            between two of them it is moved to a larger one
//   phases alternate MIB TIMES STEPS FORKS   STEPS of a chase, then FORKS processes, by turns
//   phases drift MIB TURNS STEPS PAGES       turn by turn the chase covers more of MIB, and
//                                            fewer of PAGES are mapped, touched and given back
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t state = 88172645463325252u, check;
static uint64_t draw(uint64_t below)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state >> 16) % below;
}
static void fold(uint64_t x) { check = (check ^ x) * 0x100000001b3; }

static void *need(void *p)
{
    if (!p || p == MAP_FAILED)
        perror("phases"), exit(1);
    return p;
}

struct cell {
    struct cell *next;
    uint64_t value[7];
};

// One ring through all cells in random order (Sattolo's shuffle).
static struct cell *ring(uint64_t cells)
{
    struct cell *c = need(aligned_alloc(4096, cells * sizeof *c));
    for (uint64_t i = 0; i < cells; i++)
        c[i].next = &c[i], c[i].value[0] = i;
    for (uint64_t i = cells - 1; i > 0; i--) {
        uint64_t j = draw(i);
        struct cell *t = c[i].next;
        c[i].next = c[j].next, c[j].next = t;
    }
    return c;
}

// What is done at a cell: some dozens of instructions on one cache line.
static uint64_t visit(struct cell *c, uint64_t sum)
{
    for (int i = 0; i < 7; i++) {
        sum = (sum ^ c->value[i]) * 0x9e3779b97f4a7c15;
        c->value[i] += sum >> 40;
    }
    return sum;
}

static struct cell *chase(struct cell *at, uint64_t steps)
{
    uint64_t sum = 0;
    while (steps--) {
        sum = visit(at, sum);
        at = at->next;
    }
    fold(sum);
    return at;
}

static void touch(uint64_t pages)
{
    unsigned char *p = need(mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (uint64_t i = 0; i < pages; i++)
        p[i * 4096] = (unsigned char)i;
    fold(p[(pages - 1) * 4096]);
    munmap(p, pages * 4096);
}

static void forks(uint64_t count)
{
    while (count--) {
        pid_t child = fork();
        if (child < 0)
            perror("fork"), exit(1);
        if (child == 0) {
            touch(32);
            _exit(count & 63);
        }
        int status;
        waitpid(child, &status, 0);
        fold(WEXITSTATUS(status));
    }
}

static void bursts(uint64_t mib, uint64_t calms, uint64_t sweeps, uint64_t pages)
{
    uint64_t words = mib << 17;
    uint64_t *reg = need(malloc(words * 8));
    for (uint64_t i = 0; i < words; i++)
        reg[i] = i * 0x9e3779b97f4a7c15;
    for (uint64_t c = 0; c < calms; c++) {
        for (uint64_t s = 0; s < sweeps; s++) {
            uint64_t control = 1ull << draw(60), flip = 1ull << draw(60), sum = 0;
            for (uint64_t i = 0; i < words; i++)
                if (reg[i] & control)
                    reg[i] ^= flip;
            for (uint64_t i = 0; i < words / 8; i++)
                sum += reg[(reg[i] ^ i * 0x9e3779b97f4a7c15) % words];
            fold(sum);
        }
        uint64_t *more = need(malloc((words + pages * 512) * 8));
        memcpy(more, reg, words * 8);
        free(reg);
        reg = more;
        for (uint64_t i = words; i < words + pages * 512; i++)
            reg[i] = reg[i - words] * 5 + 1;
        words += pages * 512;
    }
}

int main(int argc, char **argv)
{
    uint64_t a[4] = {0};
    for (int i = 0; i < 4 && i + 2 < argc; i++)
        a[i] = strtoull(argv[i + 2], 0, 0);
    if (argc == 4 && !strcmp(argv[1], "chase")) {
        chase(ring(a[0] << 14), a[1]);
    } else if (argc == 6 && !strcmp(argv[1], "bursts")) {
        bursts(a[0], a[1], a[2], a[3]);
    } else if (argc == 6 && !strcmp(argv[1], "alternate")) {
        struct cell *at = ring(a[0] << 14);
        // Children do without the ring, or a fork would be all copying of its tables.
        if (madvise(at, a[0] << 20, MADV_DONTFORK))
            return perror("madvise"), 1;
        for (uint64_t i = 0; i < a[1]; i++) {
            at = chase(at, a[2]);
            forks(a[3]);
        }
    } else if (argc == 6 && !strcmp(argv[1], "drift")) {
        uint64_t cells = a[0] << 14;
        struct cell *c = ring(cells);
        for (uint64_t t = 1; t <= a[1]; t++) {
            uint64_t part = cells * t / a[1], sum = 0;
            for (uint64_t i = 0; i < a[2]; i++)
                sum = visit(&c[draw(part)], sum);
            fold(sum);
            for (uint64_t left = a[3] * (a[1] - t) / a[1]; left >= 64; left -= 64)
                touch(64);
        }
    } else {
        return fprintf(stderr, "usage: see the first lines of phases.c\n"), 2;
    }
    printf("check %016llx\n", (unsigned long long)check);
    return 0;
}
