/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Binary search in a sorted array. Arguments: numbers in the array (a power of two), searches. */
#include "bench.h"

int main(int argc, char **argv)
{
    uint64_t n = argument(argc, argv, 1, 64 << 20, 1024), searches = argument(argc, argv, 2, 6000000, 1000), seed = 13, sum = 0;
    uint64_t *a = memory(n * 8);

    if (n & (n - 1)) {
        fprintf(stderr, "search: the array's length must be a power of two\n");
        return 2;
    }
    for (uint64_t i = 0; i < n; i++)
        a[i] = i * 1000 + i % 1000;
    begin();
    for (uint64_t i = 0; i < searches; i++) {
        uint64_t key = below(&seed, n * 1000), low = 0;

        for (uint64_t half = n / 2; half; half /= 2)
            if (a[low + half] <= key)
                low += half;
        sum += low;
    }
    finish(sum);
    return 0;
}
