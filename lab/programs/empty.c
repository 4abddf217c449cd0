// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * An empty window, to show the cost of the markers.
 * Nested and shadow: 0 exits for paging.
 */
#include "suite.h"

static void run(int n)
{
    (void)n;
    begin();
    end();
    printf("nothing\n");
}

PROGRAM(empty, "empty", 1, run, 0, "nothing: the markers alone");
