// SPDX-License-Identifier: Apache-2.0 OR MIT
// The baseline of `make bench`: geometry G as a plain C loop, one configuration, true
// LRU by time stamps, no walks. Reads trace T's addresses from its own generator,
// prepared in blocks so that only the look-ups are timed. Prints misses and rate.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { L1_SETS = 16, L1_WAYS = 4, L2_SETS = 128, L2_WAYS = 12, BLOCK = 1 << 14 };

struct way { uint64_t page, used; };
static struct way l1[L1_SETS][L1_WAYS], l2[L2_SETS][L2_WAYS];
static uint64_t now, state = 42;

static uint64_t next(void)
{
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// 1 on a hit; files the page in place of the least recently used on a miss.
static int look_up(struct way *set, int ways, uint64_t page)
{
    int oldest = 0;
    for (int i = 0; i < ways; i++) {
        if (set[i].page == page) {
            set[i].used = ++now;
            return 1;
        }
        if (set[i].used < set[oldest].used)
            oldest = i;
    }
    set[oldest] = (struct way){ page, ++now };
    return 0;
}

static double cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    uint64_t n = argc > 1 ? strtoull(argv[1], 0, 0) : 20000000, misses1 = 0, misses2 = 0;
    static uint64_t block[BLOCK];
    double spent = 0;
    for (uint64_t i = 0; i < n;) {
        int k = 0;
        for (; k < BLOCK && i < n; k++, i++)
            block[k] = i & 1 ? 0x200000000u + (((i >> 1) * 8) & 0x3fffffff)
                             : 0x100000000u + ((next() >> 34) & ~7ull);
        double begun = cpu();
        for (int j = 0; j < k; j++) {
            uint64_t page = block[j] >> 12;
            if (look_up(l1[page % L1_SETS], L1_WAYS, page))
                continue;
            misses1++;
            misses2 += !look_up(l2[page % L2_SETS], L2_WAYS, page);
        }
        spent += cpu() - begun;
    }
    printf("{\"accesses\": %llu, \"l1_misses\": %llu, \"l2_misses\": %llu, \"million_per_cpu_second\": %.2f}\n",
           (unsigned long long)n, (unsigned long long)misses1, (unsigned long long)misses2, n / 1e6 / spent);
}
