/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Random loads. `independent`: addresses follow from arithmetic; `dependent`: each address is what the load
 * before it brought, in one random cycle through all cache lines. Arguments: kind, bytes (a power of two),
 * number of loads. */
#include "bench.h"

static uint64_t mask;

/* A bijection of the line numbers: odd multiplications and right shifts are. */
static uint64_t mix(uint64_t x)
{
    x = ((x ^ (x >> 13)) * 0x951dd5) & mask;
    x = ((x ^ (x >> 11)) * 0xc2b2af) & mask;
    return x ^ (x >> 12);
}

int main(int argc, char **argv)
{
    uint64_t bytes = argument(argc, argv, 2, 256 << 20, 1024), loads = argument(argc, argv, 3, 20000000, 1000);
    uint64_t lines = bytes / 64, state = 1, sum = 0;
    uint64_t *p;

    if (argc < 2 || (strcmp(argv[1], "dependent") && strcmp(argv[1], "independent")) || lines & (lines - 1)) {
        fprintf(stderr, "usage: loads dependent|independent BYTES LOADS (BYTES is a power of two)\n");
        return 2;
    }
    mask = lines - 1;
    p = memory(bytes);
    if (argv[1][0] == 'd') {
        /* Hull and Dobell: full period, since 4 divides a - 1 and c is odd. */
        for (uint64_t i = 0; i < lines; i++) {
            uint64_t then = (state * 0x5deed + 0xb) & mask;

            p[mix(state) * 8] = mix(then) * 8;
            state = then;
        }
        state = mix(state) * 8;
        begin();
        for (uint64_t i = 0; i < loads; i++)
            state = p[state];
        finish(state);
    } else {
        begin();
        for (uint64_t i = 0; i < loads; i++) {
            state = state * 6364136223846793005 + 1442695040888963407;
            sum += p[(state >> 36 & mask) * 8];
        }
        finish(sum + state);
    }
    return 0;
}
