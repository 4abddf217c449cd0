/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Dense arithmetic. `matmul`: a product of matrices in blocks. `stencil`: sweeps of five points over a grid of
 * doubles. `columns`: sums of columns, one after the other, of a matrix that lies in rows. Arguments: kind, rows (of
 * as many columns), columns of the result, sweeps, or columns to sum. */
#include "bench.h"

enum { BLOCK = 64 };

static void multiply(const double *a, const double *b, double *c, uint64_t n, uint64_t m)
{
    for (uint64_t ii = 0; ii < n; ii += BLOCK)
        for (uint64_t kk = 0; kk < n; kk += BLOCK)
            for (uint64_t jj = 0; jj < m; jj += BLOCK)
                for (uint64_t i = ii; i < ii + BLOCK; i++)
                    for (uint64_t k = kk; k < kk + BLOCK; k++) {
                        double x = a[i * n + k];

                        for (uint64_t j = jj; j < jj + BLOCK; j++)
                            c[i * m + j] += x * b[k * m + j];
                    }
}

static void sweep(const double *from, double *to, uint64_t n)
{
    for (uint64_t i = 1; i + 1 < n; i++)
        for (uint64_t j = 1; j + 1 < n; j++)
            to[i * n + j] = 0.2 * (from[i * n + j] + from[i * n + j - 1] + from[i * n + j + 1] + from[(i - 1) * n + j] +
                                   from[(i + 1) * n + j]);
}

/* Rows are a cache line longer than n: at a power of two all lines of a column would share a few sets. */
static double columns(const double *a, uint64_t n, uint64_t m)
{
    uint64_t pitch = n + 8;
    double all = 0;

    for (uint64_t j = 0; j < m; j++) {
        double sum = 0;

        for (uint64_t i = 0; i < n; i++)
            sum += a[i * pitch + j];
        all += sum * (double)(j + 1);
    }
    return all;
}

int main(int argc, char **argv)
{
    uint64_t n = argument(argc, argv, 2, 4096, 1024), m = argument(argc, argv, 3, 64, 1024), seed = 17;
    double sum = 0;

    if (argc < 2 || (strcmp(argv[1], "matmul") && strcmp(argv[1], "stencil") && strcmp(argv[1], "columns")) || n % BLOCK ||
        (argv[1][0] == 'm' && m % BLOCK)) {
        fprintf(stderr, "usage: dense matmul ROWS COLUMNS | dense stencil ROWS SWEEPS | dense columns ROWS COLUMNS (multiples of 64)\n");
        return 2;
    }
    double *a = memory(n * (n + 8) * 8);

    for (uint64_t i = 0; i < n * (n + 8); i++)
        a[i] = (double)(next(&seed) >> 48);
    if (argv[1][0] == 'm') {
        double *b = memory(n * m * 8), *c = memory(n * m * 8);

        for (uint64_t i = 0; i < n * m; i++)
            b[i] = (double)(next(&seed) >> 48);
        begin();
        multiply(a, b, c, n, m);
        for (uint64_t i = 0; i < n * m; i += 61)
            sum += c[i];
    } else if (argv[1][0] == 'c') {
        begin();
        sum = columns(a, n, m);
    } else {
        double *b = memory(n * n * 8);

        begin();
        for (uint64_t i = 0; i < m; i++)
            sweep(i & 1 ? b : a, i & 1 ? a : b, n);
        for (uint64_t i = 0; i < n * n; i += 4093)
            sum += a[i];
    }
    finish((uint64_t)sum);
    return 0;
}
