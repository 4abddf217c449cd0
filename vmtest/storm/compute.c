// SPDX-License-Identifier: Apache-2.0 OR MIT
// Sums whose result is known: registers hold them, and hardly any memory. Their guest is seldom left.

#include "storm.h"

#define ROUNDS 4000

/* noipa: or the compiler sees that they give the same each time, and calls them once. */
__attribute__((noipa)) static uint64_t integers(uint64_t x)
{
    for (int i = 0; i < ROUNDS; i++)
        x = mix(x);
    return x;
}

/* Eight sums at a time, which the compiler keeps in the registers of SSE. */
__attribute__((noipa)) static double reals(double x)
{
    double s[8] = {x, x + 1, x + 2, x + 3, x + 4, x + 5, x + 6, x + 7}, sum = 0;

    for (int i = 0; i < ROUNDS; i++)
        for (int k = 0; k < 8; k++)
            s[k] = s[k] * 0.75 + k;
    for (int k = 0; k < 8; k++)
        sum += s[k];
    return sum;
}

void run_compute(struct worker *w)
{
    uint64_t from = draw(w), is = integers(from), seen;
    double start = (double)(from >> 40), real = reals(start), found;

    ready();
    while (!stopped()) {
        seen = integers(from);
        found = reals(start);
        if (seen != is || memcmp(&found, &real, sizeof real)) {
            atomic_fetch_add(&shared->corrupted[COMPUTE], 8);
            tell("corrupt compute-%u: %lx for %lx, %g for %g", w->number, seen, is, found, real);
        }
        worked(w);
    }
}
