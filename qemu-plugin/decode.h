/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The properties of an x86-64 instruction that the recorder needs (decode.c). */
#ifndef BIFOLD_DECODE_H
#define BIFOLD_DECODE_H

#include <stdbool.h>
#include <stdint.h>

enum insn_class {
    INSN_PLAIN,
    INSN_LIDT,
    INSN_INVLPG,
    INSN_MOV_TO_CR,   /* cr, reg */
    INSN_MOV_FROM_CR, /* cr, reg */
    INSN_MARKER,      /* code */
    INSN_CPUID,
    INSN_SYSCALL,
    INSN_REP,         /* a string instruction with a repeat prefix */
};

enum { REG_NONE = 0xff, REG_RIP = 0xfe };
enum { SEG_NONE, SEG_FS, SEG_GS };

struct decoded {
    enum insn_class class;
    uint8_t cr, reg;
    uint32_t code;
    bool pt_write; /* KVM of Linux 6.1 classes it as a page-table writing instruction */
    bool store16;  /* MOV of a 16-bit register to memory */
    bool call, ret; /* user code calls or returns; describe() sets these */
    const uint64_t *load_head; /* of its load; describe() sets this (loops.c) */
    /* memory operand of INVLPG */
    uint8_t base, index, scale, segment;
    bool addr32;
    int64_t disp;
};

void decode(const uint8_t *b, unsigned n, struct decoded *d);

#endif
