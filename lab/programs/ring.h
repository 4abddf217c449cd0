// SPDX-License-Identifier: Apache-2.0 OR MIT
/* A ring of processes over pipes. There is one token, so one process runs at a time. */
#ifndef RING_H
#define RING_H
#include "suite.h"

/*
 * Passes the token round a ring of `processes` (this one is 0) `rounds` times, between
 * begin() and end(), after 8 rounds outside the window. `turn` is called by
 * each process at each of its turns in the window, with its number and the round's.
 */
void ring(int processes, int rounds, void (*turn)(int process, int round));

#endif
