/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * MG: four V cycles of a multigrid solver for a periodic Poisson problem whose right side is 1 at ten points and -1 at
 * ten others. The norm of the residual is published. A rank has some planes of each grid; grids with less than two
 * planes for each rank are computed by all ranks, whole.
 */

#include "nas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHARGES = 10, LEVELS = 16, TAG = 1 };

static const struct problem {
    int size, times;
    double norm;
} PROBLEMS[] = {
    {32, 4, 0.5307707005734e-4},
    {128, 4, 0.6467329375339e-5},
    {256, 4, 0.2433365309069e-5},
};

/* Weights of a point, and of its neighbours across faces, edges and corners: operator, smoother of these classes,
 * restriction. */
static const double OPERATOR[4] = {-8.0 / 3, 0, 1.0 / 6, 1.0 / 12};
static const double SMOOTHER[4] = {-3.0 / 8, 1.0 / 32, -1.0 / 64, 0};
static const double RESTRICTION[4] = {1.0 / 2, 1.0 / 4, 1.0 / 8, 1.0 / 16};

/* A grid: `planes` planes of size x size points from plane `first` on, each with a border of copies. */
struct grid {
    int size, planes, first;
    bool split;
    double *at;
};

static struct run *run;

static long row(const struct grid *grid, int plane, int line) {
    long wide = grid->size + 2;
    return (plane * wide + line) * wide;
}

static struct grid make_grid(int size) {
    struct grid grid = {.size = size, .split = size >= 2 * run->ranks};
    grid.planes = grid.split ? size / run->ranks : size;
    grid.first = grid.split ? grid.planes * run->rank : 0;
    grid.at = room((size_t)row(&grid, grid.planes + 2, 0), sizeof(double));
    return grid;
}

static void clear(struct grid *grid) { memset(grid->at, 0, (size_t)row(grid, grid->planes + 2, 0) * sizeof(double)); }

/* Copies the points at each side to the border behind the opposite side. */
static void wrap(struct grid *grid) {
    int n = grid->size, planes = grid->planes;
    long plane = row(grid, 1, 0);
    for (int k = 1; k <= planes; k++) {
        for (int j = 1; j <= n; j++) {
            double *at = grid->at + row(grid, k, j);
            at[0] = at[n];
            at[n + 1] = at[1];
        }
        size_t line = (size_t)(n + 2) * sizeof(double);
        memcpy(grid->at + row(grid, k, 0), grid->at + row(grid, k, n), line);
        memcpy(grid->at + row(grid, k, n + 1), grid->at + row(grid, k, 1), line);
    }
    double *low = grid->at, *bottom = low + plane, *top = low + planes * plane, *high = top + plane;
    if (!grid->split) {
        memcpy(low, top, (size_t)plane * sizeof(double));
        memcpy(high, bottom, (size_t)plane * sizeof(double));
        return;
    }
    int up = (run->rank + 1) % run->ranks, down = (run->rank + run->ranks - 1) % run->ranks;
    MPI_Sendrecv(top, (int)plane, MPI_DOUBLE, up, TAG, low, (int)plane, MPI_DOUBLE, down, TAG, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(bottom, (int)plane, MPI_DOUBLE, down, TAG, high, (int)plane, MPI_DOUBLE, up, TAG, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
}

/* Sums over the neighbours of a line of points that lie in other lines: next to it, and diagonally. */
static void beside(const struct grid *grid, int k, int j, double *next, double *diagonal) {
    const double *at = grid->at;
    const double *a = at + row(grid, k, j - 1), *b = at + row(grid, k, j + 1);
    const double *c = at + row(grid, k - 1, j), *d = at + row(grid, k + 1, j);
    const double *e = at + row(grid, k - 1, j - 1), *f = at + row(grid, k - 1, j + 1);
    const double *g = at + row(grid, k + 1, j - 1), *h = at + row(grid, k + 1, j + 1);
    for (int i = 0; i < grid->size + 2; i++) {
        next[i] = a[i] + b[i] + c[i] + d[i];
        diagonal[i] = e[i] + f[i] + g[i] + h[i];
    }
}

/* The weighted sum over a point and its 26 neighbours. */
static double around(const double w[4], const double *line, const double *next, const double *diagonal, int i) {
    return w[0] * line[i] + w[1] * (line[i - 1] + line[i + 1] + next[i]) +
           w[2] * (next[i - 1] + next[i + 1] + diagonal[i]) + w[3] * (diagonal[i - 1] + diagonal[i + 1]);
}

/* Room for the sums beside a line. */
static double *next_to, *diagonal_to;

/* r = v - A u; v and r may be the same grid. */
static void residual(struct grid *r, const struct grid *v, const struct grid *u) {
    for (int k = 1; k <= u->planes; k++) {
        for (int j = 1; j <= u->size; j++) {
            long at = row(u, k, j);
            beside(u, k, j, next_to, diagonal_to);
            for (int i = 1; i <= u->size; i++) {
                r->at[at + i] = v->at[at + i] - around(OPERATOR, u->at + at, next_to, diagonal_to, i);
            }
        }
    }
    wrap(r);
}

/* u = u + S r. */
static void smooth(struct grid *u, const struct grid *r) {
    for (int k = 1; k <= r->planes; k++) {
        for (int j = 1; j <= r->size; j++) {
            long at = row(r, k, j);
            beside(r, k, j, next_to, diagonal_to);
            for (int i = 1; i <= r->size; i++) {
                u->at[at + i] += around(SMOOTHER, r->at + at, next_to, diagonal_to, i);
            }
        }
    }
    wrap(u);
}

/* The coarse grid's values of a fine grid: point i of the coarse one lies on point 2i of the fine one, from 1 on. */
static void coarsen(struct grid *coarse, const struct grid *fine) {
    bool gather = fine->split && !coarse->split;
    int planes = fine->planes / 2;
    int offset = gather ? run->rank * planes : 0;
    for (int k = 1; k <= planes; k++) {
        for (int j = 1; j <= coarse->size; j++) {
            const double *line = fine->at + row(fine, 2 * k, 2 * j);
            double *to = coarse->at + row(coarse, offset + k, j);
            beside(fine, 2 * k, 2 * j, next_to, diagonal_to);
            for (int i = 1; i <= coarse->size; i++) to[i] = around(RESTRICTION, line, next_to, diagonal_to, 2 * i);
        }
    }
    if (gather) {
        MPI_Allgather(MPI_IN_PLACE, 0, MPI_DOUBLE, coarse->at + row(coarse, 1, 0), planes * (int)row(coarse, 1, 0),
                      MPI_DOUBLE, MPI_COMM_WORLD);
    }
    wrap(coarse);
}

/* Adds the coarse grid to the fine one, linearly in each direction: a point between two coarse ones gets their mean. */
static void refine(struct grid *fine, const struct grid *coarse) {
    int offset = fine->split && !coarse->split ? run->rank * fine->planes / 2 : 0;
    for (int k = 1; k <= fine->planes; k++) {
        for (int j = 1; j <= fine->size; j++) {
            const double *line[4];
            for (int side = 0; side < 4; side++) {
                int plane = offset + (k + (side & 1)) / 2, at = (j + (side >> 1)) / 2;
                line[side] = coarse->at + row(coarse, plane, at);
            }
            double *to = fine->at + row(fine, k, j);
            for (int i = 0; i < coarse->size + 2; i++) {
                next_to[i] = (line[0][i] + line[1][i] + line[2][i] + line[3][i]) / 4;
            }
            for (int i = 1; i <= fine->size; i++) to[i] += (next_to[i / 2] + next_to[(i + 1) / 2]) / 2;
        }
    }
    wrap(fine);
}

/* One V cycle over grids of level 1 (the coarsest) to `top`: u[top] is improved by what its residual r[top] gives. */
static void cycle(struct grid *u, struct grid *r, const struct grid *v, int top) {
    for (int level = top; level > 1; level--) coarsen(&r[level - 1], &r[level]);
    clear(&u[1]);
    smooth(&u[1], &r[1]);
    for (int level = 2; level <= top; level++) {
        if (level < top) clear(&u[level]);
        refine(&u[level], &u[level - 1]);
        residual(&r[level], level < top ? &r[level] : v, &u[level]);
        smooth(&u[level], &r[level]);
    }
}

/* A point of the sequence of random numbers. */
struct point {
    double value;
    long index;
};

static int by_value(const void *one, const void *other) {
    const struct point *a = one, *b = other;
    return (a->value > b->value) - (a->value < b->value);
}

/* Keeps the ten smallest of `best` and a new point; `best` is sorted. */
static void keep(struct point *best, struct point new) {
    if (new.value >= best[CHARGES - 1].value) return;
    int i = CHARGES - 1;
    for (; i > 0 && best[i - 1].value > new.value; i--) best[i] = best[i - 1];
    best[i] = new;
}

/* The ten smallest of all ranks' points. */
static void keep_all(struct point *best) {
    struct point *all = room((size_t)(CHARGES * run->ranks), sizeof *all);
    int bytes = CHARGES * (int)sizeof *best;
    MPI_Allgather(best, bytes, MPI_BYTE, all, bytes, MPI_BYTE, MPI_COMM_WORLD);
    qsort(all, (size_t)(CHARGES * run->ranks), sizeof *all, by_value);
    memcpy(best, all, (size_t)bytes);
    free(all);
}

static void charge(struct grid *v, const struct point *points, double value) {
    long n = v->size;
    for (int i = 0; i < CHARGES; i++) {
        long plane = points[i].index / (n * n) - v->first, line = points[i].index / n % n;
        if (plane < 0 || plane >= v->planes) continue;
        v->at[row(v, (int)plane + 1, (int)line + 1) + 1 + points[i].index % n] = value;
    }
}

/* The right side: 1 at the ten largest of random numbers on the grid, -1 at the ten smallest. */
static void charges(struct grid *v) {
    struct point smallest[CHARGES], largest[CHARGES];
    for (int i = 0; i < CHARGES; i++) smallest[i] = largest[i] = (struct point){2, 0};
    long plane = (long)v->size * v->size, first = plane * v->first;
    uint64_t state = random_skip(SEED, (uint64_t)first);
    for (long i = 0; i < plane * v->planes; i++) {
        double value = random_next(&state);
        keep(smallest, (struct point){value, first + i});
        keep(largest, (struct point){-value, first + i});
    }
    keep_all(smallest);
    keep_all(largest);
    charge(v, smallest, -1);
    charge(v, largest, 1);
    wrap(v);
}

static double norm(const struct grid *r) {
    double sum = 0, points = pow(r->size, 3);
    for (int k = 1; k <= r->planes; k++) {
        for (int j = 1; j <= r->size; j++) {
            const double *line = r->at + row(r, k, j);
            for (int i = 1; i <= r->size; i++) sum += line[i] * line[i];
        }
    }
    return sqrt(sum_all(sum) / points);
}

void mg(struct run *this_run) {
    run = this_run;
    const struct problem *problem = &PROBLEMS[class_of(run, "SWA")];
    must_divide(run, problem->size / 2, "half of the planes");
    struct grid u[LEVELS], r[LEVELS];
    int top = 0;
    for (int size = 2; size <= problem->size; size *= 2) {
        top++;
        u[top] = make_grid(size);
        r[top] = make_grid(size);
    }
    struct grid v = make_grid(problem->size);
    next_to = room((size_t)problem->size + 2, sizeof(double));
    diagonal_to = room((size_t)problem->size + 2, sizeof(double));
    charges(&v);
    /* Once untimed, so that all memory is touched. */
    residual(&r[top], &v, &u[top]);
    cycle(u, r, &v, top);
    clear(&u[top]);
    region_begin(run);
    residual(&r[top], &v, &u[top]);
    for (int time = 0; time < problem->times; time++) {
        cycle(u, r, &v, top);
        residual(&r[top], &v, &u[top]);
    }
    double left = norm(&r[top]);
    region_end(run);
    check(run, "norm of the residual", left, problem->norm, 1e-8);
    for (int level = 1; level <= top; level++) {
        free(u[level].at);
        free(r[level].at);
    }
    free(v.at);
    free(next_to);
    free(diagonal_to);
}
