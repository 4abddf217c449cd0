/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * CG: the smallest eigenvalue of a sparse symmetric matrix by inverse iteration, each step of which is 25 steps of
 * conjugate gradients. The matrix is a sum of weighted outer products of sparse random vectors. Every rank has the rows
 * of a part, and gathers the whole vector for each product.
 */

#include "nas.h"

#include <math.h>
#include <stdlib.h>

enum { STEPS = 25 };

static const struct problem {
    int order, nonzeros, times;
    double shift, zeta;
} PROBLEMS[] = {
    {1400, 7, 15, 10, 8.5971775078648},
    {7000, 8, 15, 12, 10.362595087124},
    {14000, 11, 15, 20, 17.130235054029},
};

/* The condition of the matrix: weights fall from 1 to this number in equal ratios. */
static const double CONDITION = 0.1;

/* A sparse vector: places from 0 on, and values. */
struct sparse {
    int number, *place;
    double *value;
};

/* The rows from `first` to `first + rows` of the matrix, the nonzeros of row i from start[i] on. */
struct matrix {
    int order, first, rows;
    int *start, *column;
    double *value;
    /* Rows of each rank, for gathering. */
    int *rows_of, *first_of;
};

static void set_place(struct sparse *v, int place, double value) {
    int i = 0;
    while (i < v->number && v->place[i] != place) i++;
    if (i == v->number) v->place[v->number++] = place;
    v->value[i] = value;
}

/* The next random vector: pairs of value and place; a place beyond the order or used already is skipped. */
static void random_vector(struct sparse *v, const struct problem *problem, uint64_t *state) {
    int places = 1;
    while (places < problem->order) places *= 2;
    v->number = 0;
    while (v->number < problem->nonzeros) {
        double value = random_next(state);
        int place = (int)(places * random_next(state)), i = 0;
        while (i < v->number && v->place[i] != place) i++;
        if (place < problem->order && i == v->number) set_place(v, place, value);
    }
}

/* The random vectors, in which vector i has 1/2 at place i. */
static struct sparse *vectors(const struct problem *problem) {
    uint64_t state = random_skip(SEED, 1);
    struct sparse *all = room((size_t)problem->order, sizeof *all);
    for (int i = 0; i < problem->order; i++) {
        all[i].place = room((size_t)problem->nonzeros + 1, sizeof(int));
        all[i].value = room((size_t)problem->nonzeros + 1, sizeof(double));
        random_vector(&all[i], problem, &state);
        set_place(&all[i], i, 0.5);
    }
    return all;
}

/* A term of a row, and the order in which terms of a place are added. */
struct term {
    int column, order;
    double value;
};

static int by_column(const void *one, const void *other) {
    const struct term *a = one, *b = other;
    return a->column != b->column ? (a->column > b->column) - (a->column < b->column)
                                  : (a->order > b->order) - (a->order < b->order);
}

/* Sorts the terms of a row and adds those of one place; returns the number of nonzeros that it appends at `to`. */
static int append_row(struct matrix *matrix, int to, struct term *terms, int number) {
    int next = to;
    qsort(terms, (size_t)number, sizeof *terms, by_column);
    for (int i = 0; i < number; i++) {
        if (i > 0 && terms[i].column == terms[i - 1].column) {
            matrix->value[next - 1] += terms[i].value;
        } else {
            matrix->column[next] = terms[i].column;
            matrix->value[next++] = terms[i].value;
        }
    }
    return next - to;
}

static bool has_row(const struct matrix *matrix, int row) {
    return row >= matrix->first && row < matrix->first + matrix->rows;
}

/* Adds the outer products, and on the diagonal the condition less the shift. */
static void fill(struct matrix *matrix, const struct problem *problem, struct sparse *vectors) {
    int *at = room((size_t)matrix->rows + 1, sizeof(int));
    for (int i = 0; i < matrix->rows; i++) at[i + 1] = 1;
    for (int v = 0; v < matrix->order; v++) {
        for (int i = 0; i < vectors[v].number; i++) {
            int row = vectors[v].place[i];
            if (has_row(matrix, row)) at[row - matrix->first + 1] += vectors[v].number;
        }
    }
    for (int i = 0; i < matrix->rows; i++) at[i + 1] += at[i];
    int all = at[matrix->rows];
    struct term *terms = room((size_t)all, sizeof *terms);
    int *next = room((size_t)matrix->rows, sizeof(int));
    double weight = 1, ratio = pow(CONDITION, 1.0 / matrix->order);
    for (int v = 0; v < matrix->order; v++, weight *= ratio) {
        const struct sparse *x = &vectors[v];
        for (int i = 0; i < x->number; i++) {
            if (!has_row(matrix, x->place[i])) continue;
            int row = x->place[i] - matrix->first;
            for (int j = 0; j < x->number; j++, next[row]++) {
                struct term term = {x->place[j], next[row], weight * x->value[i] * x->value[j]};
                terms[at[row] + next[row]] = term;
            }
        }
    }
    matrix->start = room((size_t)matrix->rows + 1, sizeof(int));
    matrix->column = room((size_t)all, sizeof(int));
    matrix->value = room((size_t)all, sizeof(double));
    for (int i = 0; i < matrix->rows; i++) {
        struct term diagonal = {matrix->first + i, next[i], CONDITION - problem->shift};
        terms[at[i] + next[i]] = diagonal;
        matrix->start[i + 1] = matrix->start[i] + append_row(matrix, matrix->start[i], terms + at[i], next[i] + 1);
    }
    free(terms);
    free(next);
    free(at);
}

static struct matrix make_matrix(const struct problem *problem, const struct run *run) {
    struct matrix matrix = {.order = problem->order};
    matrix.rows_of = room((size_t)run->ranks, sizeof(int));
    matrix.first_of = room((size_t)run->ranks, sizeof(int));
    for (int r = 0; r < run->ranks; r++) {
        matrix.first_of[r] = (int)((long)problem->order * r / run->ranks);
        matrix.rows_of[r] = (int)((long)problem->order * (r + 1) / run->ranks) - matrix.first_of[r];
    }
    matrix.first = matrix.first_of[run->rank];
    matrix.rows = matrix.rows_of[run->rank];
    struct sparse *all = vectors(problem);
    fill(&matrix, problem, all);
    for (int i = 0; i < problem->order; i++) {
        free(all[i].place);
        free(all[i].value);
    }
    free(all);
    return matrix;
}

static double dot(const double *x, const double *y, int number) {
    double sum = 0;
    for (int i = 0; i < number; i++) sum += x[i] * y[i];
    return sum_all(sum);
}

/* y = A x; `whole` is room for all of x. */
static void product(const struct matrix *matrix, double *y, const double *x, double *whole) {
    MPI_Allgatherv(x, matrix->rows, MPI_DOUBLE, whole, matrix->rows_of, matrix->first_of, MPI_DOUBLE, MPI_COMM_WORLD);
    for (int i = 0; i < matrix->rows; i++) {
        double sum = 0;
        for (int k = matrix->start[i]; k < matrix->start[i + 1]; k++) sum += matrix->value[k] * whole[matrix->column[k]];
        y[i] = sum;
    }
}

/* Vectors of the own rows, and one of all. */
struct vectors {
    double *x, *z, *r, *p, *q, *whole;
};

/* Solves A z = x approximately. */
static void solve(const struct matrix *matrix, const struct vectors *v) {
    int rows = matrix->rows;
    for (int i = 0; i < rows; i++) {
        v->z[i] = 0;
        v->r[i] = v->p[i] = v->x[i];
    }
    double residual = dot(v->r, v->r, rows);
    for (int step = 0; step < STEPS; step++) {
        product(matrix, v->q, v->p, v->whole);
        double alpha = residual / dot(v->p, v->q, rows);
        for (int i = 0; i < rows; i++) {
            v->z[i] += alpha * v->p[i];
            v->r[i] -= alpha * v->q[i];
        }
        double next = dot(v->r, v->r, rows);
        double beta = next / residual;
        residual = next;
        for (int i = 0; i < rows; i++) v->p[i] = v->r[i] + beta * v->p[i];
    }
}

/* One step of the inverse iteration; returns the estimate of the eigenvalue. */
static double iterate(const struct matrix *matrix, const struct vectors *v, double shift) {
    solve(matrix, v);
    double zeta = shift + 1 / dot(v->x, v->z, matrix->rows);
    double scale = 1 / sqrt(dot(v->z, v->z, matrix->rows));
    for (int i = 0; i < matrix->rows; i++) v->x[i] = scale * v->z[i];
    return zeta;
}

void cg(struct run *run) {
    const struct problem *problem = &PROBLEMS[class_of(run, "SWA")];
    struct matrix matrix = make_matrix(problem, run);
    size_t rows = (size_t)matrix.rows;
    struct vectors v = {
        room(rows, sizeof(double)), room(rows, sizeof(double)), room(rows, sizeof(double)),
        room(rows, sizeof(double)), room(rows, sizeof(double)), room((size_t)matrix.order, sizeof(double)),
    };
    for (size_t i = 0; i < rows; i++) v.x[i] = 1;
    /* Once untimed, so that all memory is touched. */
    iterate(&matrix, &v, problem->shift);
    for (size_t i = 0; i < rows; i++) v.x[i] = 1;
    region_begin(run);
    double zeta = 0;
    for (int time = 0; time < problem->times; time++) zeta = iterate(&matrix, &v, problem->shift);
    region_end(run);
    check(run, "zeta", zeta, problem->zeta, 1e-10);
    void *all[] = {v.x, v.z, v.r, v.p, v.q, v.whole, matrix.start, matrix.column, matrix.value, matrix.rows_of,
                   matrix.first_of};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}
