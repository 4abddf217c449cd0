/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Rounds of a dissemination barrier as a plain loop, beside which `make bench` puts the simulator. Each step, every
 * rank computes; in each round, it sends to the rank at the round's distance and receives from the rank at that
 * distance below. With noise, each rank is interrupted periodically.
 *
 *     rounds RANKS STEPS quiet|periodic
 *
 * prints the CPU seconds and the last rank's time in nanoseconds.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double L = 2500, o = 1500, grain = 100000, period = 1e7, length = 25000;
static double *now_, *sent, *next_;

/* When work that begins at a time is done. */
static double work(long r, double begin, double left)
{
    if (!next_)
        return begin + left;
    for (;;) {
        double end = next_[r] + length;
        if (end <= begin) {
            next_[r] += period;
        } else if (next_[r] <= begin) {
            begin = end;
        } else if (begin + left <= next_[r]) {
            return begin + left;
        } else {
            left -= next_[r] - begin;
            begin = end;
        }
    }
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    long n = atol(argv[1]), steps = atol(argv[2]);
    int noisy = !strcmp(argv[3], "periodic");
    now_ = calloc(n, sizeof(double));
    sent = calloc(n, sizeof(double));
    next_ = noisy ? calloc(n, sizeof(double)) : NULL;
    if (!now_ || !sent || (noisy && !next_))
        return 1;
    uint64_t random = 1;
    for (long r = 0; noisy && r < n; r++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        next_[r] = -(double)(random >> 11) / 9007199254740992.0 * period;
    }
    clock_t begin = clock();
    for (long s = 0; s < steps; s++) {
        for (long r = 0; r < n; r++)
            now_[r] = work(r, now_[r], grain);
        for (long distance = 1; distance < n; distance *= 2) {
            for (long r = 0; r < n; r++)
                sent[r] = work(r, now_[r], o);
            for (long r = 0; r < n; r++) {
                double arrival = sent[r < distance ? r + n - distance : r - distance] + L;
                now_[r] = work(r, sent[r] > arrival ? sent[r] : arrival, o);
            }
        }
    }
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC, last = 0;
    for (long r = 0; r < n; r++)
        last = now_[r] > last ? now_[r] : last;
    printf("%.4f %.0f\n", seconds, last);
    return 0;
}
