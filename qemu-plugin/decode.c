// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Decodes the 64-bit x86 instructions that the recorder must know: those that
 * change an address space, the marker, and stores that KVM classes as page-table
 * writes. These stores are the entries flagged `PageTable` in
 * arch/x86/kvm/emulate.c of Linux 6.1 (opcode_table, twobyte_table, group1,
 * group8, group9, group11), which x86_page_table_writing_insn() reports. BTR,
 * XADD, MOVNTI, string, stack and SSE stores are not among them.
 */
#include "decode.h"

#include <string.h>

#include "events.h"

struct modrm {
    uint8_t mod, reg, rm;
};

static int32_t le32(const uint8_t *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return v;
}

static void memory_operand(const uint8_t *p, const uint8_t *end, uint8_t rex, struct decoded *d)
{
    uint8_t mod = *p >> 6, rm = *p & 7;

    p++;
    d->base = rm | (rex & 1) << 3;
    d->index = REG_NONE;
    if (rm == 4 && p < end) {
        uint8_t sib = *p++;
        uint8_t index = ((sib >> 3) & 7) | (rex & 2) << 2;
        d->scale = sib >> 6;
        d->index = index == 4 ? REG_NONE : index;
        d->base = (sib & 7) | (rex & 1) << 3;
        if ((sib & 7) == 5 && mod == 0) {
            d->base = REG_NONE;
            mod = 2;
        }
    } else if (rm == 5 && mod == 0) {
        d->base = REG_RIP;
        mod = 2;
    }
    if (mod == 1 && p < end)
        d->disp = (int8_t)*p;
    else if (mod == 2 && p + 4 <= end)
        d->disp = le32(p);
}

static bool one_byte_pt_write(uint8_t op, struct modrm m)
{
    switch (op) {
    case 0x08: case 0x09: case 0x20: case 0x21: /* OR, AND */
    case 0x86: case 0x87:                       /* XCHG */
    case 0x88: case 0x89: case 0x8c:            /* MOV */
    case 0xa2: case 0xa3:
        return true;
    case 0x80: case 0x81: case 0x83:
        return m.reg == 1 || m.reg == 4;
    case 0xc6: case 0xc7:
        return m.reg == 0;
    default:
        return false;
    }
}

static bool two_byte_pt_write(uint8_t op, struct modrm m)
{
    switch (op) {
    case 0xab: case 0xb0: case 0xb1: case 0xbb: /* BTS, CMPXCHG, BTC */
        return true;
    case 0xba:
        return m.reg == 5 || m.reg == 7;
    case 0xc7: /* CMPXCHG8B/16B */
        return m.reg == 1;
    default:
        return false;
    }
}

static void two_bytes(const uint8_t *p, const uint8_t *end, uint8_t rex, struct decoded *d)
{
    uint8_t op = *p++;
    struct modrm m = {0};

    if (p < end)
        m = (struct modrm){*p >> 6, (*p >> 3) & 7, *p & 7};
    d->pt_write = two_byte_pt_write(op, m);
    if (op == 0x01 && m.mod != 3 && m.reg == 3) {
        d->class = INSN_LIDT;
    } else if (op == 0x01 && m.mod != 3 && m.reg == 7) {
        d->class = INSN_INVLPG;
        memory_operand(p, end, rex, d);
    } else if (op == 0x20 || op == 0x22) {
        d->class = op == 0x22 ? INSN_MOV_TO_CR : INSN_MOV_FROM_CR;
        d->cr = m.reg | (rex & 4) << 1;
        d->reg = m.rm | (rex & 1) << 3;
    } else if (op == 0xa2) {
        d->class = INSN_CPUID;
    } else if (op == 0x05) {
        d->class = INSN_SYSCALL;
    } else if (op == 0x1f && end - p == 6 && p[0] == 0x84 && p[1] == 0) {
        uint32_t disp = (uint32_t)le32(p + 2);
        if ((disp & ~UINT32_C(0xff)) == BF_MARKER_MAGIC) {
            d->class = INSN_MARKER;
            d->code = disp & 0xff;
        }
    }
}

void decode(const uint8_t *b, unsigned n, struct decoded *d)
{
    const uint8_t *p = b, *end = b + n;
    uint8_t rex = 0;
    bool rep = false, short_operand = false;

    memset(d, 0, sizeof *d);
    for (; p < end; p++) {
        switch (*p) {
        case 0xf2: case 0xf3:
            rep = true;
            continue;
        case 0x64:
            d->segment = SEG_FS;
            continue;
        case 0x65:
            d->segment = SEG_GS;
            continue;
        case 0x67:
            d->addr32 = true;
            continue;
        case 0x66:
            short_operand = true;
            continue;
        case 0xf0: case 0x2e: case 0x36: case 0x3e: case 0x26:
            continue;
        }
        break;
    }
    if (p < end && (*p & 0xf0) == 0x40)
        rex = *p++;
    if (p >= end)
        return;
    if (*p == 0x0f) {
        if (p + 1 < end)
            two_bytes(p + 1, end, rex, d);
        return;
    }
    struct modrm m = {0};
    if (p + 1 < end)
        m = (struct modrm){p[1] >> 6, (p[1] >> 3) & 7, p[1] & 7};
    d->pt_write = one_byte_pt_write(*p, m);
    d->store16 = *p == 0x89 && short_operand && m.mod != 3;
    if (rep && ((*p >= 0xa4 && *p <= 0xa7) || (*p >= 0xaa && *p <= 0xaf) ||
                (*p >= 0x6c && *p <= 0x6f)))
        d->class = INSN_REP;
}
