/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Which loads wait for other loads: flows of values (depend.c) around loops (loops.c). */
#ifndef BIFOLD_DEPEND_H
#define BIFOLD_DEPEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ENDS_PLAIN, ENDS_BRANCH, ENDS_JUMP, ENDS_CALL, ENDS_RETURN, ENDS_NOWHERE };

/* How an instruction moves values between general registers (bit = number), flags (bit 4, as depend.c leaves RSP out)
 * and memory. */
struct flow {
    uint16_t address; /* registers in the address of its load */
    uint16_t read;    /* registers in the value that `written` get */
    uint16_t written; /* they get a value made of `read` and of what is loaded */
    uint16_t zeroed;  /* they get a value made of neither */
    int32_t offset;   /* of its target from its end, for a direct jump or call */
    uint8_t load;
    uint8_t fixed;    /* the load's address is constant, or a slot of the stack */
    uint8_t ends;
    uint8_t direct;   /* `offset` is valid */
};

/* Each register's depth, 0 to DEEPEST, in four bits: the number of loads that its value comes from, one through
 * the other. */
typedef uint64_t depths;
#define DEEPEST 15

/* Registers that a function preserves: System V ABI for AMD64, 3.2.1. Linux uses the same. RSP's place is the flags'. */
#define PRESERVED UINT16_C(0xf028)

void flow_of(const uint8_t *b, unsigned n, struct flow *f);
bool waits(const struct flow *f, depths d, unsigned depth);
depths after(const struct flow *f, depths d);
depths deepest(depths a, depths b, uint16_t regs);
uint16_t chained(depths d);

const uint64_t *heads_of(uint64_t start, uint64_t end, const struct flow *flows, size_t n);

#endif
