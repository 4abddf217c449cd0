// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The flow of values through one instruction, for dependent loads (loops.c): which general registers are in the
 * address of its load, and which registers get a value made of which others.
 *
 * A register's depth is the number of loads that its value comes from, one through the
 * other: 0 for constants, induction variables and what is unknown, 1 for a value loaded from an address of depth
 * 0, and so on up to DEEPEST. Moves keep the depth, and a value made of several has the largest.
 *
 * What is lost, always towards depth 0: values that pass through memory (a slot of the stack or a
 * constant address reads as depth 0, because a spilled value is mostly an invariant of its loop),
 * or through vector registers. Flags carry depths as registers do, from a comparison to CMOVcc, SETcc, ADC and SBB.
 *
 * The tables follow the opcode maps of the AMD64 Architecture Programmer's Manual, volume 3, appendix A,
 * as far as TCG implements them. An instruction that they do not know gives its operands
 * depth 0.
 */
#include "depend.h"

#include <string.h>

enum { AX, CX, DX, BX, SP, BP, SI, DI, R11 = 11 };
#define BIT(r) ((uint16_t)(1u << (r)))
/* The flags take the place of RSP, which is no part of any flow: addresses of the stack have depth 0. */
#define FLAGS BIT(SP)

/*
 * What an opcode does with its ModRM operands, E (register or memory) and G (register):
 *   m  E = E op G    g  G = G op E    c  reads both    x  exchanges or adds both
 *   s  E = G         l  G = E         i  E = op E      r  reads E
 *   z  E = other     G  G = other, reads E     a  G = address of E
 *   v  no general register but those of E's address
 *   o  the register in the opcode = other
 *   .  nothing that matters    *  see special()    u  unknown
 */
static const char one_byte[] =
    "mmgg..uummgg..uu" "mmgg..uummgg..uu" "mmgg...ummgg...u" "mmgg...ucccc...u"
    "uuuuuuuuuuuuuuuu" "........oooooooo" "uuul.....l.l...." "................"
    "iiuiccxxssllzarz" "********.*u....." "**..****....****" "........oooooooo"
    "ii..uuzz.*......" "iiiiuuu*vvvvvvvv" "....**....u.**.." "......**......i*";
static const char two_bytes[] =
    "u*GGu*....u.uvuu" "vvvvvvvvvvvvvvvv" "zz..uuuuvvvvGGvv" ".***..uuuuuuuuuu"
    "gggggggggggggggg" "Gvvvvvvvvvvvvvvv" "vvvvvvvvvvvvvvvv" "vvvvvvvvuuuuvv*v"
    "................" "................" "..*cmmuu...mmm*g" "**umuulll.imllll"
    "xxvsvGv*........" "vvvvvvvGvvvvvvvv" "vvvvvvvvvvvvvvvv" "vvvvvvvvvvvvvvvu";

struct insn {
    const uint8_t *p, *end; /* behind the opcode */
    bool short_operand, rep, repne, vex;
    uint8_t rex, map, op, prefix, v;
    bool byte; /* E and G are bytes */
    uint8_t mod, g, rm;
};

/* AH, CH, DH and BH belong to the first four registers. */
static unsigned reg_of(const struct insn *x, unsigned r, bool byte)
{
    return byte && !x->rex && r >= 4 && r < 8 ? r - 4 : r;
}

static void address_of(const struct insn *x, struct flow *f)
{
    const uint8_t *p = x->p + 1;
    unsigned base = x->rm & 7, index = SP, mod = x->mod;
    bool vsib = x->vex && x->map == 2 && x->op >= 0x90 && x->op <= 0x93;

    if (base == 4 && p < x->end) {
        index = ((*p >> 3) & 7) | (x->rex & 2) << 2;
        base = *p++ & 7;
        if (base == 5 && !mod)
            base = 16;
    } else if (base == 5 && !mod) {
        base = 16;
    }
    if (base < 8) {
        base |= (x->rex & 1) << 3;
        f->address |= BIT(base);
    }
    if (index != SP && !vsib)
        f->address |= BIT(index);
    f->address &= ~BIT(SP);
    /* A negative offset from RBP is a slot of the frame in code that keeps a frame pointer. */
    f->fixed = !f->address ||
               (f->address == BIT(BP) && ((mod == 1 && p < x->end && *p >> 7) ||
                                          (mod == 2 && p + 3 < x->end && p[3] >> 7)));
}

/* One of the letters above. */
static void operands(struct insn *x, char form, struct flow *f)
{
    bool byte_e = x->byte || (x->map == 1 && (x->op == 0xb6 || x->op == 0xbe));
    bool merges = x->byte || x->short_operand;
    bool memory = x->mod != 3;
    uint16_t e = memory ? 0 : BIT(reg_of(x, x->rm, byte_e)), g = BIT(reg_of(x, x->g, x->byte));

    if (memory)
        address_of(x, f);
    f->load = memory && !strchr("szau", form);
    switch (form) {
    case 'c':
        f->read = e | g;
        break;
    case 'r':
        f->read = e;
        break;
    case 'm':
        f->read = e | g;
        f->written = e;
        break;
    case 'g':
        f->read = e | g;
        f->written = g;
        break;
    case 'x':
        f->read = memory && !merges ? 0 : e | g;
        f->written = e | g;
        break;
    case 's':
        f->read = g | (merges ? e : 0);
        f->written = e;
        break;
    case 'l':
        f->read = e | (merges ? g : 0);
        f->written = g;
        break;
    case 'i':
        f->read = f->written = e;
        break;
    case 'z':
        f->zeroed = merges ? 0 : e;
        break;
    case 'G':
        f->zeroed = g;
        break;
    case 'a':
        f->read = f->address;
        f->written = g;
        break;
    case 'u':
        f->zeroed = e | g;
        break;
    }
    if (!f->load)
        f->address = 0;
}

/* A load from an implicit address, into the accumulator or nowhere. */
static void implicit_load(const struct insn *x, uint16_t address, uint16_t written, struct flow *f)
{
    f->load = true;
    f->fixed = !address;
    f->address = address;
    f->written = written;
    f->read = x->byte || x->short_operand ? written : 0;
}

static void special_one_byte(struct insn *x, struct flow *f)
{
    unsigned low = (x->op & 7) | (x->rex & 1) << 3;

    switch (x->op) {
    case 0x90: case 0x91: case 0x92: case 0x93: case 0x94: case 0x95: case 0x96: case 0x97: /* XCHG rAX */
        f->read = f->written = BIT(AX) | BIT(low);
        break;
    case 0x99: /* CQO */
        f->read = BIT(AX);
        f->written = BIT(DX);
        break;
    case 0xa0: case 0xa1:
        implicit_load(x, 0, BIT(AX), f);
        break;
    case 0xa4: case 0xa5: /* MOVS */
        implicit_load(x, BIT(SI), 0, f);
        break;
    case 0xa6: case 0xa7: /* CMPS */
        implicit_load(x, BIT(SI) | BIT(DI), 0, f);
        break;
    case 0xac: case 0xad: /* LODS */
        implicit_load(x, BIT(SI), BIT(AX), f);
        break;
    case 0xae: case 0xaf: /* SCAS */
        implicit_load(x, BIT(DI), 0, f);
        break;
    case 0xc9: /* LEAVE */
        implicit_load(x, 0, BIT(BP), f);
        break;
    case 0xd7: /* XLAT */
        x->byte = true;
        implicit_load(x, BIT(AX) | BIT(BX), BIT(AX), f);
        break;
    case 0xe4: case 0xe5: case 0xec: case 0xed: /* IN */
        f->zeroed = BIT(AX);
        break;
    case 0xf6: case 0xf7:
        operands(x, (x->g & 7) < 2 ? 'r' : 'i', f);
        if ((x->g & 7) >= 4) { /* MUL, IMUL, DIV, IDIV */
            f->written = BIT(AX) | (x->byte ? 0 : BIT(DX));
            f->read |= BIT(AX) | ((x->g & 7) >= 6 && !x->byte ? BIT(DX) : 0);
        }
        break;
    case 0xff:
        operands(x, (x->g & 7) < 2 ? 'i' : 'r', f);
        if ((x->g & 7) == 2 || (x->g & 7) == 3)
            f->ends = ENDS_CALL;
        else if ((x->g & 7) == 4 || (x->g & 7) == 5)
            f->ends = ENDS_NOWHERE;
        break;
    }
}

static void special_two_bytes(struct insn *x, struct flow *f)
{
    switch (x->op) {
    case 0x01: /* RDTSCP, XGETBV; the others write no register */
        if (x->p < x->end && (*x->p == 0xf9 || *x->p == 0xd0))
            f->zeroed = BIT(AX) | BIT(CX) | BIT(DX);
        else if (x->mod != 3)
            operands(x, 'r', f);
        break;
    case 0x05: /* SYSCALL */
        f->zeroed = BIT(CX) | BIT(R11);
        break;
    case 0x31: case 0x32: case 0x33: /* RDTSC, RDMSR, RDPMC */
        f->zeroed = BIT(AX) | BIT(DX);
        break;
    case 0x7e: /* MOVD to a register or memory; with F3 MOVQ to a vector register */
        x->short_operand = false;
        operands(x, x->prefix == 0xf3 ? 'v' : 'z', f);
        break;
    case 0xa2: /* CPUID */
        f->zeroed = BIT(AX) | BIT(CX) | BIT(DX) | BIT(BX);
        break;
    case 0xae: /* RDFSBASE, RDGSBASE; FXRSTOR, LDMXCSR and so on; fences */
        operands(x, x->mod == 3 ? (x->prefix == 0xf3 && (x->g & 7) < 2 ? 'z' : '.') : 'r', f);
        break;
    case 0xb0: case 0xb1: /* CMPXCHG: the accumulator gets the old value */
        operands(x, x->mod == 3 ? 'm' : 'r', f);
        f->read |= BIT(AX);
        f->written |= BIT(AX);
        break;
    case 0xc7: /* CMPXCHG8B and 16B, RDRAND */
        operands(x, x->mod == 3 ? 'z' : 'r', f);
        if (x->mod != 3 && (x->g & 7) == 1)
            f->read = f->written = BIT(AX) | BIT(DX);
        break;
    }
}

/* The maps 0F 38 and 0F 3A, with VEX or without: mostly vectors. */
static void three_bytes(struct insn *x, struct flow *f)
{
    unsigned key = x->map << 8 | x->op;
    char form = 'v';

    if (key == 0x2f0 || key == 0x2f1) { /* CRC32, or MOVBE */
        x->byte = key == 0x2f0 && x->repne;
        form = x->repne ? 'g' : key == 0x2f0 ? 'l' : 's';
    } else if (x->vex ? (key >= 0x2f2 && key <= 0x2f7) : key == 0x2f6) { /* BMI1 and 2; ADX */
        form = 'g';
    } else if (key >= 0x314 && key <= 0x317) { /* PEXTR, EXTRACTPS */
        form = 'z';
        x->short_operand = false;
    } else if (key == 0x3f0) { /* RORX */
        form = 'l';
    }
    if (x->p >= x->end)
        return;
    operands(x, form, f);
    if (key == 0x361 || key == 0x363) /* PCMPESTRI, PCMPISTRI */
        f->zeroed |= BIT(CX);
    if (!x->vex || form != 'g')
        return;
    /* G = E and V, but for BLSR and its like (V = E) and MULX (G and V = E times RDX). */
    f->read &= ~BIT(x->g);
    if (x->mod != 3)
        f->read = 0;
    else
        f->read = BIT(x->rm);
    if (x->op == 0xf3)
        f->written = BIT(x->v);
    else if (x->op == 0xf6)
        f->read |= BIT(DX), f->written |= BIT(x->v);
    else
        f->read |= BIT(x->v);
}

/* Reads prefixes and opcode. Whether there is an instruction. */
static bool opcode(struct insn *x)
{
    for (; x->p < x->end; x->p++) {
        switch (*x->p) {
        case 0x66:
            x->short_operand = true;
            continue;
        case 0xf2: case 0xf3:
            x->repne = *x->p == 0xf2;
            x->rep = !x->repne;
            x->prefix = *x->p;
            continue;
        case 0x26: case 0x2e: case 0x36: case 0x3e: case 0x64: case 0x65: case 0x67: case 0xf0:
            continue;
        }
        break;
    }
    if (x->p < x->end && (*x->p & 0xf0) == 0x40)
        x->rex = *x->p++;
    if (x->end - x->p > 2 && (*x->p == 0xc4 || *x->p == 0xc5)) {
        static const uint8_t prefixes[] = {0, 0x66, 0xf3, 0xf2};
        bool three = *x->p++ == 0xc4;
        uint8_t bits = *x->p++, last = bits;

        x->vex = true;
        x->map = 1;
        x->rex = 0x40 | (bits >> 7 ? 0 : 4);
        if (three) {
            x->map = bits & 31;
            x->rex |= (~bits >> 5) & 3;
            last = *x->p++;
        }
        x->v = (~last >> 3) & 15;
        x->prefix = prefixes[last & 3];
    } else if (x->p < x->end && *x->p == 0x0f) {
        x->p++;
        x->map = 1;
        if (x->p < x->end && (*x->p == 0x38 || *x->p == 0x3a))
            x->map = *x->p++ == 0x38 ? 2 : 3;
    }
    if (x->p >= x->end)
        return false;
    x->op = *x->p++;
    if (x->p < x->end) {
        x->mod = *x->p >> 6;
        x->g = ((*x->p >> 3) & 7) | (x->rex & 4) << 1;
        x->rm = (*x->p & 7) | (x->rex & 1) << 3;
    }
    return true;
}

/* Where control goes from here. */
static void ending(const struct insn *x, struct flow *f)
{
    bool branch = x->map ? (x->op & 0xf0) == 0x80 : (x->op & 0xf0) == 0x70 || (x->op & 0xfc) == 0xe0;

    if (x->vex)
        return;
    if (branch)
        f->ends = ENDS_BRANCH;
    else if (!x->map && (x->op == 0xe9 || x->op == 0xeb))
        f->ends = ENDS_JUMP;
    else if (!x->map && x->op == 0xe8)
        f->ends = ENDS_CALL;
    else if (x->map ? x->op == 0x05 || x->op == 0x07 || x->op == 0x34 || x->op == 0x35
                    : x->op == 0xca || x->op == 0xcb || x->op == 0xcf)
        f->ends = ENDS_NOWHERE;
    else if (!x->map && (x->op == 0xc2 || x->op == 0xc3))
        f->ends = ENDS_RETURN;
    if (f->ends == ENDS_PLAIN || f->ends == ENDS_RETURN || f->ends == ENDS_NOWHERE || x->op == 0xff)
        return;
    if (x->end - x->p == 4)
        f->offset = (int32_t)(x->p[0] | x->p[1] << 8 | x->p[2] << 16 | (uint32_t)x->p[3] << 24);
    else if (x->end - x->p == 1)
        f->offset = (int8_t)*x->p;
    else
        return;
    f->direct = true;
}

static void leave_stack_out(struct flow *f)
{
    f->read &= ~BIT(SP);
    f->written &= ~BIT(SP);
    f->zeroed &= ~BIT(SP);
}

enum effect { KEEPS, SETS, LOSES };

/* What an instruction of the first two maps makes of the flags. SETS: from what it reads. */
static enum effect effect_on_flags(const struct insn *x)
{
    unsigned op = x->op, group = x->g & 7;

    if (x->vex)
        return KEEPS;
    if (x->map) {
        if (op == 0x2e || op == 0x2f) /* UCOMISS, COMISS and their like */
            return LOSES;
        return op == 0xaf || op == 0xa3 || op == 0xab || op == 0xb3 || op == 0xba || op == 0xbb || op == 0xbc ||
                       op == 0xbd || op == 0xa4 || op == 0xa5 || op == 0xac || op == 0xad || op == 0xb8 ||
                       (op >= 0xb0 && op <= 0xb1) || (op >= 0xc0 && op <= 0xc1)
                   ? SETS
                   : KEEPS;
    }
    if (op < 0x40 ? (op & 7) < 6 : (op >= 0x80 && op <= 0x85) || op == 0x69 || op == 0x6b || op == 0xa8 || op == 0xa9)
        return SETS;
    if (op == 0xc0 || op == 0xc1 || (op >= 0xd0 && op <= 0xd3))
        return SETS;
    if (op == 0xf6 || op == 0xf7)
        return group == 2 ? KEEPS : SETS; /* NOT */
    if (op == 0xfe || op == 0xff)
        return group < 2 ? SETS : KEEPS;
    return op == 0x9d || op == 0x9e || op == 0xa6 || op == 0xa7 || op == 0xae || op == 0xaf ? LOSES : KEEPS;
}

/* Flags that are read and written. */
static void flags(const struct insn *x, struct flow *f)
{
    unsigned group = x->g & 7;
    bool memory = x->mod != 3;

    if (x->map && !x->vex && (x->op & 0xf0) == 0x40) { /* CMOVcc */
        f->read |= FLAGS;
    } else if (x->map && !x->vex && (x->op & 0xf0) == 0x90 && !memory) { /* SETcc of a byte, the rest is kept */
        f->written = BIT(reg_of(x, x->rm, true)) & ~BIT(SP);
        f->read = f->written | FLAGS;
    } else if (!x->map && !x->vex &&
               (x->op < 0x40 ? (x->op & 0x30) == 0x10 && (x->op & 7) < 6
                             : x->op >= 0x80 && x->op <= 0x83 && (group == 2 || group == 3))) { /* ADC, SBB */
        f->read |= FLAGS;
    }
    switch (effect_on_flags(x)) {
    case SETS:
        f->written |= FLAGS;
        break;
    case LOSES:
        f->zeroed |= FLAGS;
        break;
    case KEEPS:
        break;
    }
}

void flow_of(const uint8_t *b, unsigned n, struct flow *f)
{
    struct insn x = {.p = b, .end = b + n};
    char form;

    memset(f, 0, sizeof *f);
    if (!opcode(&x))
        return;
    if (x.map > 1) {
        three_bytes(&x, f);
        leave_stack_out(f);
        f->zeroed |= FLAGS;
        return;
    }
    form = x.map ? two_bytes[x.op] : one_byte[x.op];
    if (x.vex && form != 'v' && form != 'G' && x.op != 0x7e)
        form = 'v';
    /* Even opcodes of these have byte operands. */
    if (x.map)
        x.byte = !x.vex && (x.op == 0xb0 || x.op == 0xc0);
    else
        x.byte = !(x.op & 1) && (x.op < 0x40 || (x.op >= 0x80 && x.op <= 0x8a) ||
                                 (x.op >= 0xa0 && x.op < 0xb0) || x.op == 0xc0 || x.op == 0xc6 ||
                                 x.op == 0xd0 || x.op == 0xd2 || x.op >= 0xe0);
    if (form == '*') {
        if (x.map)
            special_two_bytes(&x, f);
        else
            special_one_byte(&x, f);
    } else if (form == 'o') {
        f->zeroed = BIT((x.op & 7) | (x.rex & 1) << 3);
    } else if (form != '.' && x.p < x.end) {
        if (!x.map && x.op >= 0x80 && x.op <= 0x83 && (x.g & 7) == 7)
            form = 'r'; /* CMP */
        else if (x.map && x.op == 0xba && (x.g & 7) == 4)
            form = 'r'; /* BT */
        operands(&x, form, f);
        if (!x.map && (x.op == 0xd2 || x.op == 0xd3))
            f->read |= f->written ? BIT(CX) : 0;
        /* XOR and SUB of a register with itself. SBB leaves the carry flag alone. */
        if (!x.map && x.op < 0x34 && x.mod == 3 && x.g == x.rm && !x.byte && !x.short_operand) {
            if ((x.op & 0xf8) == 0x30 || (x.op & 0xf8) == 0x28) {
                f->zeroed = f->written;
                f->written = f->read = 0;
            } else if ((x.op & 0xf8) == 0x18) {
                f->read = 0;
            }
        }
    }
    if (!x.map && x.rep + x.repne && x.op >= 0xa4 && x.op <= 0xaf && (x.op & 0xfe) != 0xa8)
        f->zeroed |= BIT(CX);
    ending(&x, f);
    leave_stack_out(f);
    flags(&x, f);
}

static unsigned depth_of(depths d, uint16_t regs)
{
    unsigned most = 0;

    for (; regs; regs &= regs - 1) {
        unsigned depth = d >> (4 * __builtin_ctz(regs)) & DEEPEST;
        most = depth > most ? depth : most;
    }
    return most;
}

static depths with_depth(depths d, uint16_t regs, unsigned depth)
{
    for (; regs; regs &= regs - 1) {
        unsigned shift = 4 * (unsigned)__builtin_ctz(regs);
        d = (d & ~((depths)DEEPEST << shift)) | (depths)depth << shift;
    }
    return d;
}

/* Whether its load has an address of so many loads or more. */
bool waits(const struct flow *f, depths d, unsigned depth)
{
    return f->load && depth_of(d, f->address) >= depth;
}

/* The depths after the instruction. */
depths after(const struct flow *f, depths d)
{
    unsigned address = depth_of(d, f->address), value = depth_of(d, f->read);

    if (f->load && !f->fixed && value <= address)
        value = address == DEEPEST ? DEEPEST : address + 1;
    return with_depth(with_depth(d, f->written, value), f->zeroed, 0);
}

/* Of each register the larger depth; of registers other than `regs` that in `a`. */
depths deepest(depths a, depths b, uint16_t regs)
{
    for (; regs; regs &= regs - 1) {
        uint16_t r = regs & -regs;
        if (depth_of(b, r) > depth_of(a, r))
            a = with_depth(a, r, depth_of(b, r));
    }
    return a;
}

/* The registers whose value comes from loads without end. */
uint16_t chained(depths d)
{
    uint16_t regs = 0;

    for (unsigned r = 0; r < 16; r++)
        if ((d >> 4 * r & DEEPEST) == DEEPEST)
            regs |= BIT(r);
    return regs;
}
