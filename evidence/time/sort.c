/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Sorting of random 64-bit numbers: `quick` (in place) or `radix` (32 bits in four passes between two arrays).
 * Arguments: kind, numbers. */
#include "bench.h"

static void quick(uint64_t *a, int64_t low, int64_t high)
{
    while (high - low > 24) {
        int64_t i = low, j = high;
        uint64_t x = a[low], y = a[low + (high - low) / 2], z = a[high];
        uint64_t pivot = x < y ? (y < z ? y : x < z ? z : x) : (x < z ? x : y < z ? z : y);

        while (i <= j) {
            while (a[i] < pivot)
                i++;
            while (a[j] > pivot)
                j--;
            if (i <= j) {
                uint64_t swap = a[i];

                a[i++] = a[j];
                a[j--] = swap;
            }
        }
        /* Recursion into the smaller part: the stack stays short. */
        if (j - low < high - i) {
            quick(a, low, j);
            low = i;
        } else {
            quick(a, i, high);
            high = j;
        }
    }
    for (int64_t i = low + 1; i <= high; i++) {
        uint64_t x = a[i];
        int64_t j = i;

        for (; j > low && a[j - 1] > x; j--)
            a[j] = a[j - 1];
        a[j] = x;
    }
}

static void radix(uint64_t *a, uint64_t *b, uint64_t n)
{
    static uint64_t at[256];

    for (int pass = 0; pass < 4; pass++) {
        uint64_t *from = pass & 1 ? b : a, *to = pass & 1 ? a : b, sum = 0;

        memset(at, 0, sizeof at);
        for (uint64_t i = 0; i < n; i++)
            at[from[i] >> 8 * pass & 255]++;
        for (int i = 0; i < 256; i++) {
            uint64_t count = at[i];

            at[i] = sum;
            sum += count;
        }
        for (uint64_t i = 0; i < n; i++)
            to[at[from[i] >> 8 * pass & 255]++] = from[i];
    }
}

int main(int argc, char **argv)
{
    uint64_t n = argument(argc, argv, 2, 8 << 20, 1024), seed = 5, sum = 0;
    uint64_t *a, *b;
    int by_radix;

    if (argc < 2 || (strcmp(argv[1], "quick") && strcmp(argv[1], "radix"))) {
        fprintf(stderr, "usage: sort quick|radix NUMBERS\n");
        return 2;
    }
    by_radix = argv[1][0] == 'r';
    a = memory(n * 8);
    b = by_radix ? memory(n * 8) : NULL;
    for (uint64_t i = 0; i < n; i++)
        a[i] = by_radix ? next(&seed) >> 32 : next(&seed);
    begin();
    if (by_radix)
        radix(a, b, n);
    else
        quick(a, 0, (int64_t)n - 1);
    for (uint64_t i = 1; i < n; i += 4096)
        sum += (a[i - 1] <= a[i]) + a[i];
    finish(sum);
    return 0;
}
