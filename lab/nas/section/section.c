/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A library for LD_PRELOAD that marks a section of HPCC for `bifold compare --from-marker`. HPCC's first rank writes
 * "Begin of NAME section." and "End of NAME section." to its output; the environment variable HPCC_SECTION is NAME.
 */
#define _GNU_SOURCE

#include "../../../include/bifold.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef size_t write_function(const void *, size_t, size_t, FILE *);

/* Whether the text is the line of an edge (Begin or End) of the wanted section. */
static bool is_edge(const char *edge, const char *text, size_t length) {
    const char *name = getenv("HPCC_SECTION");
    char line[100];
    int want = name == NULL ? -1 : snprintf(line, sizeof line, "%s of %s section.\n", edge, name);
    return want > 0 && (size_t)want < sizeof line && (size_t)want == length && memcmp(line, text, length) == 0;
}

size_t fwrite(const void *text, size_t size, size_t number, FILE *file) {
    static write_function *next;
    if (next == NULL) {
        void *found = dlsym(RTLD_NEXT, "fwrite");
        if (found == NULL) abort();
        memcpy(&next, &found, sizeof next);
    }
    if (is_edge("End", text, size * number)) bifold_end();
    size_t done = next(text, size, number, file);
    if (is_edge("Begin", text, size * number)) bifold_begin();
    return done;
}
