/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Which loads of a block wait for other loads (depend.c). */
#ifndef BIFOLD_DEPEND_H
#define BIFOLD_DEPEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How an instruction moves values between the 16 general registers (bit = number) and memory. */
struct flow {
    uint16_t address; /* registers in the address of its load */
    uint16_t read;    /* registers in the value that `written` get */
    uint16_t written; /* they get a value made of `read` and of what is loaded */
    uint16_t zeroed;  /* they get a value made of neither */
    bool load;
    bool fixed;       /* the load's address is constant, or a slot of the stack */
    enum { ENDS_PLAIN, ENDS_CALL, ENDS_RETURN } ends;
    bool dependent;   /* depend() sets this */
};

/* Each register's depth, 0 to 2, in two bits: the number of loads that its value comes from, one through
 * the other. */
typedef uint32_t depths;

void flow_of(const uint8_t *b, unsigned n, struct flow *f);
depths depend(struct flow *f, size_t n, depths in);

#endif
