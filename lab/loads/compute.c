// SPDX-License-Identifier: Apache-2.0 OR MIT
// Computes sums with known results in registers, with hardly any memory, so the guest seldom exits.
//
// Once a round it exits on purpose: QEMU's TCG (10.0.2) was found to run a guest with GIF clear, which no
// processor does, because VMRUN sets GIF. Nothing interrupts such a guest, and only an intercepted instruction
// ends it.

#include "storm.h"

#define ROUNDS 4000

/* noipa: otherwise the compiler notices that the results are always equal, and makes one call. */
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

/* Leaves the guest on every processor. */
static void leave(void)
{
    unsigned a = 0, b, c = 0, d;

    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
}

void run_compute(struct worker *w)
{
    uint64_t from = draw(w), is = integers(from), seen;
    double start = (double)(from >> 40), real = reals(start), found;

    ready();
    while (!stopped()) {
        leave();
        seen = integers(from);
        found = reals(start);
        if (seen != is || memcmp(&found, &real, sizeof real)) {
            atomic_fetch_add(&shared->corrupted[COMPUTE], 8);
            tell("corrupt compute-%u: %lx for %lx, %g for %g", w->number, seen, is, found, real);
        }
        worked(w);
    }
}
