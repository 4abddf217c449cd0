// SPDX-License-Identifier: Apache-2.0 OR MIT
// The four loops of a memory-bandwidth test over three arrays: copy, scale, add and
// triad, in order, so that neighbours in memory are neighbours in time.
//
//   triad MIB_PER_ARRAY ROUNDS
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    if (argc != 3)
        return fprintf(stderr, "usage: triad MIB_PER_ARRAY ROUNDS\n"), 2;
    size_t n = strtoull(argv[1], 0, 0) << 17;
    double *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b), *c = malloc(n * sizeof *c), sum = 0;
    if (!a || !b || !c)
        return perror("triad"), 1;
    for (size_t i = 0; i < n; i++)
        a[i] = 1, b[i] = 2, c[i] = 0;
    for (long round = atol(argv[2]); round > 0; round--) {
        for (size_t i = 0; i < n; i++)
            c[i] = a[i];
        for (size_t i = 0; i < n; i++)
            b[i] = 0.25 * c[i];
        for (size_t i = 0; i < n; i++)
            c[i] = a[i] + b[i];
        for (size_t i = 0; i < n; i++)
            a[i] = b[i] + 0.5 * c[i];
    }
    for (size_t i = 0; i < n; i++)
        sum += a[i] + b[i] + c[i];
    printf("sum %.9g\n", sum);
    return 0;
}
