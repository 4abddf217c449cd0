// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Records instructions and events that change an address space: MOV to and from
 * CR3 and CR4, INVLPG, LIDT, the delivery of exceptions, and CPUID, which may mark
 * a window. The instructions are recognised at translation. An exec callback, which
 * runs before the instruction, reads its operand from the registers. CR3 and CR4
 * are followed from the boot on, so that the recording knows them at its start.
 *
 * The delivery of an exception is noticed at its handler's first instruction. TCG
 * shows none of the delivery's accesses, so they are recorded here: the load of the
 * IDT entry and the stores of the frame. Left out: reads of the GDT and the TSS.
 */
#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "plugin.h"

#define VECTORS 256
#define PAGE_FAULT 14
/* The bit of a page fault's error code that says that user code faulted. */
#define FAULT_USER 4
#define FIRST_INTERRUPT 32
/* Linux's IA32_SYSCALL_VECTOR: INT 0x80. */
#define SYSTEM_CALL 0x80
/* Linux's LOCAL_TIMER_VECTOR (arch/x86/include/asm/irq_vectors.h). */
#define TIMER_TICK 0xec
/* Vectors that push an error code: 8, 10-14, 17, 21, 29, 30. */
#define PUSHES_ERROR UINT32_C(0x60227d00)

static struct handler {
    uint64_t entry;
    int vector;
} handlers[VECTORS];
static int n_handlers;
uint64_t ticks, interrupts; /* delivered in the region; `interrupts` excludes ticks */
static uint64_t idt_frames[2] = {UINT64_MAX, UINT64_MAX};
static bool idt_stale;

/* The blocks of a vCPU without tables have no callbacks that would switch to it, see record_block(). */
static struct vcpu *here(void)
{
    if (recording && current_cpu != hot.cpu)
        switch_vcpu();
    return vcpu_of(current_cpu);
}

/* Compares the followed CR3 with the register. */
static void check_cr3(struct vcpu *v)
{
    stats[ST_CR3]++;
    stats[ST_CR3_BAD] += read_reg(v, R_CR3) != v->cr3;
}

/* Set beside a register's number if the instruction is in the kernel's half. */
#define KERNEL_HALF 0x100

static void on_mov_to_cr3(unsigned vcpu, void *u)
{
    struct vcpu *v = here();
    uint64_t old = v->cr3, new = read_reg(v, (uint8_t)(uintptr_t)u);

    (void)vcpu;
    if (recording)
        check_cr3(v);
    if (recording && start_ended_by(new))
        marker_reached(BF_MARKER_STOP);
    v->cr3 = new;
    if (!recording) {
        if ((uintptr_t)u & KERNEL_HALF)
            boot_reached();
        return;
    }
    flush_insns();
    table_root(new);
    emit1(BF_KIND_CR3, new);
    forget_translations();
    hot.fetch_page = UINT64_MAX;
    if (root_at(old) != root_at(new))
        table_left(old);
}

static void on_mov_to_cr4(unsigned vcpu, void *u)
{
    struct vcpu *v = here();

    (void)vcpu;
    v->cr4 = read_reg(v, (unsigned)(uintptr_t)u);
    if (!recording)
        return;
    flush_insns();
    emit1(BF_KIND_CR4, v->cr4);
    forget_translations();
    hot.fetch_page = UINT64_MAX;
}

static void on_mov_from_cr3(unsigned vcpu, void *u)
{
    (void)vcpu, (void)u;
    if (!recording)
        return;
    check_cr3(here());
    flush_insns();
    emit1(BF_KIND_CR3_READ, 0);
}

struct operand {
    struct decoded d;
    uint64_t next; /* address of the next instruction */
};

static void on_invlpg(unsigned vcpu, void *u)
{
    const struct operand *o = u;
    struct vcpu *v = here();
    uint64_t va = (uint64_t)o->d.disp;

    (void)vcpu;
    if (!recording)
        return;
    if (o->d.base == REG_RIP)
        va += narrow() ? 0 : o->next; /* in 32-bit mode no register at all */
    else if (o->d.base != REG_NONE)
        va += read_reg(v, o->d.base);
    if (o->d.index != REG_NONE)
        va += read_reg(v, o->d.index) << o->d.scale;
    if (o->d.addr32 || narrow())
        va = (uint32_t)va;
    if (o->d.segment != SEG_NONE)
        va += read_reg(v, o->d.segment == SEG_FS ? R_FS : R_GS);
    flush_insns();
    emit1(BF_KIND_INVLPG, va);
    forget_translations();
    hot.fetch_page = UINT64_MAX;
}

/* LIDT reads a 2-byte limit and then a base of 8 bytes, or in 32-bit mode of 4. The base is the IDT's address. */
static void on_lidt(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t va, void *u)
{
    struct qemu_plugin_hwaddr *h;
    char *at;

    (void)vcpu, (void)u;
    if (qemu_plugin_mem_size_shift(info) != (narrow() ? 2 : 3))
        return;
    h = qemu_plugin_get_hwaddr(info, va);
    at = h ? (char *)ram_at(qemu_plugin_hwaddr_phys_addr(h)) : NULL;
    if (at)
        memcpy(&here()->idt, at, narrow() ? 4 : 8);
    if (recording) {
        idt_read();
        forget_translations(); /* stores to the IDT must be noticed */
    }
}

static void on_marker(unsigned vcpu, void *u)
{
    (void)vcpu;
    marker_reached((uint32_t)(uintptr_t)u);
}

static void on_cpuid(unsigned vcpu, void *u)
{
    uint32_t code;

    (void)vcpu, (void)u;
    if ((uint32_t)read_reg(here(), R_RAX) != BF_CPUID_LEAF)
        return;
    code = (uint32_t)read_reg(here(), R_RCX);
    if (code == BF_CPUID_PERF && opt.where && !recording)
        log_open(read_reg(here(), R_RBX), read_reg(here(), R_RDX));
    if (code < BF_MARKER_WINDOW_BEGIN)
        return;
    if (recording) {
        flush_insns();
        emit1(BF_KIND_MARKER, code);
    }
    region_marker(code);
}

static void on_syscall(unsigned vcpu, void *u)
{
    (void)vcpu, (void)u;
    name_block();
}

void control_watch(struct qemu_plugin_insn *insn, const struct decoded *d)
{
    vcpu_udata_cb_t cb = NULL;
    void *u = NULL;

    switch (d->class) {
    case INSN_LIDT:
        qemu_plugin_register_vcpu_mem_cb(insn, on_lidt, CB_NO_REGS, MEM_R, NULL);
        return;
    case INSN_MARKER:
        cb = on_marker;
        u = (void *)(uintptr_t)d->code;
        break;
    case INSN_CPUID:
        cb = on_cpuid;
        break;
    case INSN_SYSCALL:
        cb = opt.where ? on_syscall : NULL;
        break;
    case INSN_MOV_TO_CR:
        cb = d->cr == 3 ? on_mov_to_cr3 : d->cr == 4 ? on_mov_to_cr4 : NULL;
        u = (void *)(uintptr_t)d->reg;
        if (d->cr == 3 && is_kernel(qemu_plugin_insn_vaddr(insn)))
            u = (void *)((uintptr_t)u | KERNEL_HALF);
        break;
    case INSN_MOV_FROM_CR:
        cb = d->cr == 3 ? on_mov_from_cr3 : NULL;
        break;
    case INSN_INVLPG: {
        struct operand *o = malloc(sizeof *o);
        if (!o)
            die("no memory for an operand");
        *o = (struct operand){*d, qemu_plugin_insn_vaddr(insn) + qemu_plugin_insn_size(insn)};
        cb = on_invlpg;
        u = o;
        break;
    }
    default:
        break;
    }
    if (cb)
        qemu_plugin_register_vcpu_insn_exec_cb(insn, cb, CB_R_REGS, u);
}

static int by_entry(const void *a, const void *b)
{
    const struct handler *x = a, *y = b;

    return x->entry < y->entry ? -1 : x->entry > y->entry;
}

/* A gate of the IDT: two words, in 32-bit mode one. The handler's address; 0 if the gate is not present. */
static uint64_t gate(int vector)
{
    unsigned words = narrow() ? 1 : 2;
    uint64_t word[2] = {0, 0}, gpa;

    for (unsigned j = 0; j < words; j++)
        if (translate(vcpus[0]->cr3, vcpus[0]->idt + (uint64_t)vector * words * 8 + j * 8, &gpa) && ram_at(gpa))
            word[j] = *ram_at(gpa);
    if (!(word[0] >> 47 & 1))
        return 0;
    return (word[0] & 0xffff) | (word[0] >> 48) << 16 | word[1] << 32;
}

/* Reads the IDT; Linux has one for all vCPUs. False if the IDT is empty. */
bool idt_read(void)
{
    uint64_t gpa;

    n_handlers = 0;
    idt_stale = false;
    for (unsigned i = 0; i < 2; i++)
        idt_frames[i] = translate(vcpus[0]->cr3, vcpus[0]->idt + i * PAGE_MASK, &gpa)
                            ? gpa >> PAGE_SHIFT
                            : UINT64_MAX;
    for (int i = 0; i < VECTORS; i++) {
        uint64_t entry = gate(i);
        if (entry)
            handlers[n_handlers++] = (struct handler){entry, i};
    }
    qsort(handlers, (size_t)n_handlers, sizeof handlers[0], by_entry);
    return n_handlers > 0;
}

/* Whether a frame that was stored to holds the IDT. A booting kernel sets gates in
 * the loaded IDT. A handler runs only through its gate, so no handler was
 * translated before its gate was set; later translations use the new table. */
bool idt_store(uint64_t frame)
{
    bool hit = frame == idt_frames[0] || frame == idt_frames[1];

    idt_stale |= hit;
    return hit;
}

/* The vector whose handler starts here, or -1. */
int idt_vector(uint64_t entry)
{
    struct handler key = {entry, 0}, *h;

    if (idt_stale)
        idt_read();
    h = bsearch(&key, handlers, (size_t)n_handlers, sizeof key, by_entry);
    return h ? h->vector : -1;
}

/* An element of the stack: an aligned word in the guest's virtual memory, in 32-bit mode of 4 bytes. */
static uint64_t stacked(uint64_t va)
{
    uint64_t gpa, value = 0;

    if (translate(self->cr3, va, &gpa) && ram_at(gpa))
        memcpy(&value, (char *)ram_at(gpa), narrow() ? 4 : 8);
    return value;
}

/* Exceptions whose frame points to the instruction that raised them. Left out:
 * traps, aborts and external interrupts. */
#define FAULTS UINT32_C(0x000b7ce1) /* 0, 5-7, 10-14, 16, 17, 19 */

/* A block counts its instructions when it starts. A fault in its middle subtracts
 * the instructions that were not executed. */
static void uncount(uint16_t vector, uint64_t rip, bool fetch)
{
    const struct block *b = hot.block;

    if (!b || vector >= 32 || !(FAULTS >> vector & 1) || fetch)
        return;
    for (uint32_t i = 0; i < b->n; i++) {
        if (!(((b->start + b->offset[i]) ^ rip) & PAGE_MASK)) {
            hot.insns -= b->n - i;
            return;
        }
    }
}

/* Records the delivery of an exception on the current vCPU, before the handler's
 * first instruction runs. The delivery's accesses are recorded only if wanted. */
void deliver(uint16_t vector, bool accesses)
{
    bool error_code = vector < 32 && (PUSHES_ERROR >> vector & 1);
    uint64_t rsp = read_reg(self, R_RSP), error = 0, rip, cr2 = 0;
    unsigned size = narrow() ? 4 : 8, words = error_code ? 6 : 5;

    check_cr3(self);
    if (vector == TIMER_TICK)
        ticks++;
    else if (vector >= FIRST_INTERRUPT && vector != SYSTEM_CALL)
        interrupts++;
    if (error_code)
        error = stacked(rsp);
    rip = stacked(rsp + (error_code ? size : 0));
    /* In 32-bit mode the kernel's own stack is not pushed. */
    if (narrow() && !(stacked(rsp + (error_code ? 2 : 1) * size) & 3))
        words -= 2;
    if (vector == PAGE_FAULT)
        cr2 = read_reg(self, R_CR2);
    uncount(vector, rip, vector == PAGE_FAULT && cr2 == rip);
    flush_insns();
    if (unlikely(starting) && vector == PAGE_FAULT && error & FAULT_USER && start_is_over())
        start_ends();
    if (n_vcpus > 1 && vector >= BF_IPI_CALL_SINGLE && vector <= BF_IPI_RESCHEDULE)
        emit1(BF_KIND_IPI, vector);
    if (vector == PAGE_FAULT) {
        uint64_t *w = ring_room(2);
        w[0] = bf_head(BF_KIND_FAULT, cr2);
        w[1] = error;
    }
    if (hot.p >= hot.limit)
        ring_publish();
    if (!accesses)
        return;
    *hot.p++ = bf_head(BF_KIND_LOAD, self->idt + vector * 2u * size);
    while (words-- > 0)
        *hot.p++ = bf_head(BF_KIND_STORE_OTHER, rsp + words * size);
}
