/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * FT: a diffusion equation in three dimensions by Fourier transforms. A random state is transformed once; at each time
 * its waves are damped and transformed back, and a sum over 1024 points is compared with the published one. A rank has
 * some planes of the space, and some lines of every plane of the waves: in between, all ranks exchange with all.
 */

#include "nas.h"

#include <complex.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TIMES = 6, SUMMED = 1024 };

typedef double complex number;

static const double ALPHA = 1e-6;

static const struct problem {
    int x, y, z;
    double sum[TIMES][2];
} PROBLEMS[] = {
    {64, 64, 64,
     {{5.546087004964e+2, 4.845363331978e+2}, {5.546385409189e+2, 4.865304269511e+2},
      {5.546148406171e+2, 4.883910722336e+2}, {5.545423607415e+2, 4.901273169046e+2},
      {5.544255039624e+2, 4.917475857993e+2}, {5.542683411902e+2, 4.932597244941e+2}}},
    {128, 128, 32,
     {{5.673612178944e+2, 5.293246849175e+2}, {5.631436885271e+2, 5.282149986629e+2},
      {5.594024089970e+2, 5.270996558037e+2}, {5.560698047020e+2, 5.260027904925e+2},
      {5.530898991250e+2, 5.249400845633e+2}, {5.504159734538e+2, 5.239212247086e+2}}},
    {256, 256, 128,
     {{5.046735008193e+2, 5.114047905510e+2}, {5.059412319734e+2, 5.098809666433e+2},
      {5.069376896287e+2, 5.098144042213e+2}, {5.077892868474e+2, 5.101336130759e+2},
      {5.085233095391e+2, 5.104914655194e+2}, {5.091487099959e+2, 5.107917842803e+2}}},
};

/* The cut of the problem: this rank has `planes` planes (values of z) of the space, and `lines` lines (values of y) of
 * the waves. */
struct cut {
    int x, y, z, planes, lines, ranks, rank;
    /* Roots of unity of the longest transform, and room for two lines. */
    int longest;
    number *root, *line, *other;
};

/* Transforms the line in cut->line, of a power of two of numbers, by halving: `sign` is that of the exponent. */
static void transform(struct cut *cut, int length, int sign) {
    number *from = cut->line, *to = cut->other;
    for (int half = length / 2, stride = 1; half >= 1; half /= 2, stride *= 2) {
        for (int k = 0; k < half; k++) {
            number root = cut->root[k * (cut->longest / (2 * half))];
            if (sign < 0) root = conj(root);
            for (int i = 0; i < stride; i++) {
                number a = from[i + stride * k], b = from[i + stride * (k + half)];
                to[i + stride * 2 * k] = a + b;
                to[i + stride * (2 * k + 1)] = (a - b) * root;
            }
        }
        number *swap = from;
        from = to;
        to = swap;
    }
    cut->line = from;
    cut->other = to;
}

/* Transforms `length` numbers that lie `stride` apart. */
static void transform_at(struct cut *cut, number *at, int length, long stride, int sign) {
    for (int i = 0; i < length; i++) cut->line[i] = at[i * stride];
    transform(cut, length, sign);
    for (int i = 0; i < length; i++) at[i * stride] = cut->line[i];
}

/* Transforms the space [plane][y][x] along x and y. */
static void transform_planes(struct cut *cut, number *space, int sign) {
    for (int k = 0; k < cut->planes; k++) {
        number *plane = space + (long)k * cut->y * cut->x;
        for (int j = 0; j < cut->y; j++) transform_at(cut, plane + (long)j * cut->x, cut->x, 1, sign);
        for (int i = 0; i < cut->x; i++) transform_at(cut, plane + i, cut->y, cut->x, sign);
    }
}

/* Transforms the waves [line][x][z] along z. */
static void transform_lines(struct cut *cut, number *waves, int sign) {
    for (long i = 0; i < (long)cut->lines * cut->x; i++) transform_at(cut, waves + i * cut->z, cut->z, 1, sign);
}

/* Moves numbers between the space and a buffer with a block for each rank, [line][x][plane] in each. */
static void pack(const struct cut *cut, number *space, number *blocks, bool out) {
    for (int y = 0; y < cut->y; y++) {
        for (int k = 0; k < cut->planes; k++) {
            number *from = space + ((long)k * cut->y + y) * cut->x;
            number *to = blocks + (long)y * cut->x * cut->planes + k;
            for (int x = 0; x < cut->x; x++) {
                if (out) to[(long)x * cut->planes] = from[x];
                else from[x] = to[(long)x * cut->planes];
            }
        }
    }
}

/* Moves numbers between the waves and a buffer with a block of each rank's planes. */
static void spread(const struct cut *cut, number *waves, number *blocks, bool in) {
    long lines = (long)cut->lines * cut->x;
    for (int r = 0; r < cut->ranks; r++) {
        for (long i = 0; i < lines; i++) {
            number *block = blocks + (r * lines + i) * cut->planes, *line = waves + i * cut->z + (long)r * cut->planes;
            for (int k = 0; k < cut->planes; k++) {
                if (in) line[k] = block[k];
                else block[k] = line[k];
            }
        }
    }
}

static void exchange(const struct cut *cut, number *from, number *to) {
    int doubles = 2 * cut->planes * cut->lines * cut->x;
    MPI_Alltoall(from, doubles, MPI_DOUBLE, to, doubles, MPI_DOUBLE, MPI_COMM_WORLD);
}

/* The number of waves that index i of n stands for. */
static int wave(int i, int n) { return i < n / 2 ? i : i - n; }

/* Damps the waves for one more unit of time. Each dimension has factors of its own. */
static void damp(const struct cut *cut, number *waves, const double *fx, const double *fy, const double *fz) {
    for (int j = 0; j < cut->lines; j++) {
        for (int i = 0; i < cut->x; i++) {
            double factor = fy[cut->rank * cut->lines + j] * fx[i];
            number *line = waves + ((long)j * cut->x + i) * cut->z;
            for (int k = 0; k < cut->z; k++) line[k] *= factor * fz[k];
        }
    }
}

static double *factors(int n) {
    double *all = room((size_t)n, sizeof(double));
    for (int i = 0; i < n; i++) all[i] = exp(-4 * ALPHA * M_PI * M_PI * wave(i, n) * wave(i, n));
    return all;
}

/* The sum over 1024 points of the space, of all ranks. */
static number sum_points(const struct cut *cut, const number *space) {
    double sum[2] = {0, 0}, all = (double)cut->x * cut->y * cut->z;
    for (int i = 1; i <= SUMMED; i++) {
        int x = i % cut->x, y = 3 * i % cut->y, z = 5 * i % cut->z - cut->rank * cut->planes;
        if (z < 0 || z >= cut->planes) continue;
        number value = space[((long)z * cut->y + y) * cut->x + x];
        sum[0] += creal(value) / all;
        sum[1] += cimag(value) / all;
    }
    double real = sum_all(sum[0]);
    return real + sum_all(sum[1]) * I;
}

static void check_sum(struct run *run, number sum, int time, const double *published) {
    double parts[2] = {creal(sum), cimag(sum)};
    for (int part = 0; part < 2; part++) {
        char what[40];
        snprintf(what, sizeof what, "sum at time %d, %s part", time, part == 0 ? "real" : "imaginary");
        check(run, what, parts[part], published[part], 1e-12);
    }
}

static struct cut make_cut(const struct run *run, const struct problem *problem) {
    struct cut cut = {.x = problem->x, .y = problem->y, .z = problem->z, .ranks = run->ranks, .rank = run->rank};
    must_divide(run, cut.z, "the number of planes");
    must_divide(run, cut.y, "the number of lines");
    cut.planes = cut.z / run->ranks;
    cut.lines = cut.y / run->ranks;
    cut.longest = cut.x > cut.y ? cut.x : cut.y;
    if (cut.z > cut.longest) cut.longest = cut.z;
    cut.root = room((size_t)cut.longest, sizeof(number));
    cut.line = room((size_t)cut.longest, sizeof(number));
    cut.other = room((size_t)cut.longest, sizeof(number));
    for (int i = 0; i < cut.longest; i++) {
        double angle = 2 * M_PI * i / cut.longest;
        cut.root[i] = cos(angle) + sin(angle) * I;
    }
    return cut;
}

/* Makes the random state in `space`, and its waves; `there` is room for both. */
static void begin_state(struct cut *cut, number *space, number *waves, number *there) {
    size_t numbers = (size_t)cut->planes * (size_t)cut->y * (size_t)cut->x;
    uint64_t state = random_skip(SEED, 2 * (uint64_t)numbers * (uint64_t)cut->rank);
    for (size_t i = 0; i < numbers; i++) {
        double real = random_next(&state);
        space[i] = real + random_next(&state) * I;
    }
    transform_planes(cut, space, -1);
    pack(cut, space, there, true);
    exchange(cut, there, space);
    spread(cut, waves, space, true);
    transform_lines(cut, waves, -1);
}

void ft(struct run *run) {
    const struct problem *problem = &PROBLEMS[class_of(run, "SWA")];
    struct cut cut = make_cut(run, problem);
    size_t numbers = (size_t)cut.planes * (size_t)cut.y * (size_t)cut.x;
    number *waves = room(numbers, sizeof *waves), *space = room(numbers, sizeof *space);
    number *there = room(numbers, sizeof *there), sum[TIMES];
    /* Once untimed, so that all memory is touched. Unlike other kernels', the state is made within the region. */
    begin_state(&cut, space, waves, there);
    region_begin(run);
    begin_state(&cut, space, waves, there);
    double *fx = factors(cut.x), *fy = factors(cut.y), *fz = factors(cut.z);
    for (int time = 0; time < TIMES; time++) {
        damp(&cut, waves, fx, fy, fz);
        for (size_t i = 0; i < numbers; i++) there[i] = waves[i];
        transform_lines(&cut, there, 1);
        spread(&cut, there, space, false);
        exchange(&cut, space, there);
        pack(&cut, space, there, false);
        transform_planes(&cut, space, 1);
        sum[time] = sum_points(&cut, space);
    }
    region_end(run);
    for (int time = 0; time < TIMES; time++) check_sum(run, sum[time], time + 1, problem->sum[time]);
    void *all[] = {waves, space, there, fx, fy, fz, cut.root, cut.line, cut.other};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}
