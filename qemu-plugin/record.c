// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The callbacks on every access and every block. They decide how fast a capture
 * is, so the common cases take a few instructions:
 *
 *  - a load writes one word;
 *  - a store writes one word and looks its page up in a small cache of pages
 *    without page tables (tag = page + generation). Every change of translations
 *    or tables begins a new generation;
 *  - a block adds its instruction count and compares its page with the last one.
 *
 * One comparison with `limit` detects both the end of the chunk and the next
 * self-check. The running vCPU is checked once per block.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "decode.h"
#include "plugin.h"

struct hot hot;
struct vcpu *self;
bool recording;

/*
 * For attribution, the stream names the block of an access or an instruction if
 * it differs from the previous one. For a block that spans two pages, `fetch_page`
 * is the second. The next write checks the limit.
 */
static inline void tell_block(void)
{
    const struct block *b = hot.block;
    uint64_t page = hot.fetch_page;

    if (!b || !recording || page == UINT64_MAX)
        return;
    page -= b->page2 != b->page;
    hot.told = b;
    hot.blocks++;
    *hot.p++ = bf_head(BF_KIND_BLOCK, page << PAGE_SHIFT | (b->start & PAGE_MASK));
}

/* Names the block that calls the kernel, for attribution. Many a library's has no other event. */
void name_block(void)
{
    if (hot.block != hot.told)
        tell_block();
}

/* Call this before any event that is not an access, because the event may have a cost. */
void flush_insns(void)
{
    int64_t n;

    if (unlikely(tally != NULL))
        gap_fold();
    n = hot.insns;
    if (unlikely(opt.where) && hot.block != hot.told)
        tell_block();
    if (n <= 0)
        return;
    hot.insns = 0;
    stats[ST_INSNS] += (uint64_t)n;
    emit1(BF_KIND_INSNS, (uint64_t)n);
}

/* Invalidates the cached translations of all vCPUs. The page of the running code
 * is recorded again too, because its TLB entry may be gone. */
void forget_translations(void)
{
    hot.fetch_page = hot.block_page = UINT64_MAX;
    hot.generation += UINT64_C(1) << 52;
    if (hot.generation)
        return;
    for (unsigned i = 0; i < n_vcpus; i++) {
        memset(vcpus[i]->tag, 0, sizeof vcpus[i]->tag);
        memset(vcpus[i]->code, 0, sizeof vcpus[i]->code);
        memset(vcpus[i]->loaded, 0, sizeof vcpus[i]->loaded);
    }
    /* Never generation 0: an empty tag would be valid for page 0. */
    hot.generation = UINT64_C(1) << 52;
}

COLD void switch_vcpu(void)
{
    struct vcpu *v = vcpu_of(current_cpu);

    flush_insns();
    self->fetch_page = hot.fetch_page;
    self = v;
    hot.cpu = v->cpu;
    hot.tag = v->tag;
    hot.fetch_page = v->fetch_page;
    hot.block_page = UINT64_MAX;
    hot.block = hot.told = NULL;
    emit1(BF_KIND_VCPU, v->index);
}

/* The frame that QEMU has just used for this page, or -1 for a device. */
static uint64_t frame_used(qemu_plugin_meminfo_t info, uint64_t va)
{
    struct qemu_plugin_hwaddr *h = qemu_plugin_get_hwaddr(info, va);

    if (!h || qemu_plugin_hwaddr_is_io(h))
        return UINT64_MAX;
    return qemu_plugin_hwaddr_phys_addr(h) >> PAGE_SHIFT;
}

COLD static void self_check(qemu_plugin_meminfo_t info, uint64_t va)
{
    uint64_t page = va >> PAGE_SHIFT, frame = frame_used(info, va), *w;
    unsigned slot = page % CACHE_PAGES;

    if (frame == UINT64_MAX || !ram_at(frame << PAGE_SHIFT))
        return;
    if (hot.tag[slot] == page + hot.generation) {
        stats[ST_TR]++;
        stats[ST_TR_BAD] += self->pfn[slot] != frame;
    }
    w = ring_room(2);
    w[0] = bf_head(BF_KIND_CHECK, va);
    w[1] = frame << PAGE_SHIFT | (va & PAGE_MASK);
}

/* Called at the word limit: a self-check is due, or the chunk is full. */
COLD static void limit_reached(qemu_plugin_meminfo_t info, uint64_t va)
{
    if (!recording) {
        hot.p = hot.limit;
        return;
    }
    if (next_check && hot.p >= next_check) {
        self_check(info, va);
        next_check = hot.p + opt.check_every;
    }
    ring_set_limit();
    if (hot.p >= hot.limit)
        ring_publish();
}

/* Number of bytes of the access that are in the next page; 0 if none. */
static unsigned beyond(qemu_plugin_meminfo_t info, uint64_t va)
{
    unsigned in_page = 4096 - (unsigned)(va & PAGE_MASK);
    unsigned bytes = 1u << qemu_plugin_mem_size_shift(info);

    return bytes > in_page ? bytes - in_page : 0;
}

COLD static void load_slow(qemu_plugin_meminfo_t info, uint64_t va, uint64_t head)
{
    if (beyond(info, va))
        *hot.p++ = head | (((va | PAGE_MASK) + 1) & BF_PAYLOAD_MASK);
    if (hot.p >= hot.limit)
        limit_reached(info, va);
}

HOT static void on_load(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t va, void *u)
{
    uint64_t *p = hot.p;

    (void)vcpu;
    *p = *(const uint64_t *)u | (va & BF_PAYLOAD_MASK);
    hot.p = p + 1;
    if (unlikely(((va & PAGE_MASK) > 4096 - 16) | (p >= hot.limit)))
        load_slow(info, va, *(const uint64_t *)u);
}

/* A store to a page that may hold page tables. */
COLD static void store_page(uint64_t va, uint64_t frame, unsigned bytes, bool pt_write)
{
    uint64_t page = va >> PAGE_SHIFT;

    if (is_table(frame)) {
        table_store(frame << PAGE_SHIFT | (va & PAGE_MASK), bytes, pt_write);
    } else if (!idt_store(frame) && !log_store(frame)) {
        hot.tag[page % CACHE_PAGES] = page + hot.generation;
        self->pfn[page % CACHE_PAGES] = (uint32_t)frame;
    }
}

/* The low half of the command register of each vCPU's interrupt controller (Intel SDM vol. 3A, 11.6.1). Linux leaves
 * the controller where it is, and guests have no x2APIC. */
#define APIC_ICR UINT64_C(0xfee00300)

/* A store to a device. */
static void device_store(qemu_plugin_meminfo_t info, uint64_t va)
{
    struct qemu_plugin_hwaddr *h = qemu_plugin_get_hwaddr(info, va);

    if (n_vcpus > 1 && h && qemu_plugin_hwaddr_phys_addr(h) == APIC_ICR) {
        flush_insns();
        emit1(BF_KIND_IPI, BF_IPI_SENT);
    }
    files_wait(); /* and the next store there comes here, too */
}

COLD void store_slow(qemu_plugin_meminfo_t info, uint64_t va, uint64_t head)
{
    unsigned bytes = 1u << qemu_plugin_mem_size_shift(info), over = beyond(info, va);
    bool pt_write = head == bf_head(BF_KIND_STORE, 0);

    if (!recording) {
        hot.p = hot.limit;
        return;
    }
    if (hot.tag[(va >> PAGE_SHIFT) % CACHE_PAGES] != (va >> PAGE_SHIFT) + hot.generation) {
        uint64_t frame = frame_used(info, va);

        if (frame == UINT64_MAX)
            device_store(info, va);
        else
            store_page(va, frame, bytes - over, pt_write);
    }
    if (over) {
        uint64_t next = (va | PAGE_MASK) + 1, gpa;
        *hot.p++ = head | (next & BF_PAYLOAD_MASK);
        if (translate(self->cr3, next, &gpa) && is_table(gpa >> PAGE_SHIFT))
            table_store(gpa, over, pt_write);
    }
    if (hot.p >= hot.limit)
        limit_reached(info, va);
}

HOT static void on_store(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t va, void *u)
{
    uint64_t *p = hot.p, page = va >> PAGE_SHIFT;

    (void)vcpu;
    *p = (uint64_t)u | (va & BF_PAYLOAD_MASK);
    hot.p = p + 1;
    if (unlikely((hot.tag[page % CACHE_PAGES] != page + hot.generation) |
                 ((va & PAGE_MASK) > 4096 - 16) | (p >= hot.limit)))
        store_slow(info, va, (uint64_t)u);
}

/* The load and store callbacks for attribution. */
HOT static void on_load_where(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t va, void *u)
{
    if (hot.block != hot.told)
        tell_block();
    on_load(vcpu, info, va, u);
}

HOT static void on_store_where(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t va, void *u)
{
    if (hot.block != hot.told)
        tell_block();
    on_store(vcpu, info, va, u);
}

/*
 * For stacks: the place of the return address, before the access that stores or loads it. Calls of the kernel's code
 * are not recorded. The words count as blocks' do: they are no accesses.
 */
static inline void tell_call(uint64_t kind, uint64_t slot)
{
    if (!recording)
        return;
    hot.blocks++;
    *hot.p++ = bf_head(kind, slot);
}

HOT static void on_store_call(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t va, void *u)
{
    if (hot.block != hot.told)
        tell_block();
    tell_call(BF_KIND_CALL, va);
    on_store(vcpu, info, va, u);
}

HOT static void on_load_return(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t va, void *u)
{
    if (hot.block != hot.told)
        tell_block();
    tell_call(BF_KIND_RETURN, va);
    on_load(vcpu, info, va, u);
}

/* The virtual page of the block that is about to run. The instruction pointer is
 * valid at a block's start, but reading it is slow, so it is read once per page and
 * generation. If a page of code is mapped twice in an address space, it counts at
 * the address where it ran first in this generation. */
uint64_t code_page(const struct block *b)
{
    uint64_t rip, tag = b->page + hot.generation;
    unsigned slot = b->page % CODE_PAGES;

    if (self->code[slot].tag != tag) {
        rip = read_reg(self, R_RIP);
        if ((rip ^ b->start) & PAGE_MASK)
            die("a block at offset %x runs at %llx", (unsigned)(b->start & PAGE_MASK),
                (unsigned long long)rip);
        self->code[slot].tag = tag;
        self->code[slot].page = rip >> PAGE_SHIFT;
    }
    return self->code[slot].page;
}

/* What begins before a block that has been added. The block has no place yet, and is not to be named. */
static void before_block(const struct block *b, void (*begins)(void))
{
    hot.insns -= b->n;
    hot.block = NULL;
    begins();
    hot.insns += b->n;
    hot.block = b;
}

COLD static void block_slow(const struct block *b)
{
    uint64_t page;

    if (!recording)
        return;
    if (region_leaving)
        before_block(b, region_entered);
    page = code_page(b);
    if (unlikely(starting) && !is_kernel(page << PAGE_SHIFT) && start_is_over())
        before_block(b, start_ends);
    hot.told = NULL; /* it may run at another address than before */
    if (page != hot.fetch_page)
        emit1(BF_KIND_FETCH, page << PAGE_SHIFT | (b->start & PAGE_MASK));
    if (b->page2 != b->page)
        emit1(BF_KIND_FETCH, ++page << PAGE_SHIFT);
    hot.fetch_page = page;
    hot.block_page = b->page2;
    if (hot.insns >= MAX_INSNS)
        flush_insns();
    if (unlikely(stats[ST_INSNS] >= region_next))
        region_due();
}

HOT static void on_block(unsigned vcpu, void *u)
{
    const struct block *b = u;

    (void)vcpu;
    enter(b);
    if (unlikely((b->page != hot.block_page) | (hot.insns >= MAX_INSNS)))
        block_slow(b);
}

/* A block that spans two pages. Its second page is recorded every time. */
HOT static void on_block2(unsigned vcpu, void *u)
{
    const struct block *b = u;

    (void)vcpu;
    enter(b);
    block_slow(b);
}

static void on_rep_block(unsigned vcpu, void *u)
{
    if (region_leaving)
        region_entered();
    rep_block(vcpu, u, on_block);
}

static void on_entry(unsigned vcpu, void *u)
{
    if (region_leaving)
        region_entered();
    entry_block(vcpu, u, true, on_block2);
}

/* Room for a description, never freed: in the first 2 GB if possible, where an address is a short operand (gap.c). */
static void *room_for(size_t bytes)
{
    static char *at, *end;
    const size_t piece = 1 << 20;

    bytes = (bytes + 7) & ~(size_t)7;
    if (bytes > (size_t)(end - at)) {
        at = mmap(NULL, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
        if (at == MAP_FAILED)
            at = mmap(NULL, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED)
            die("no memory for blocks' descriptions");
        end = at + piece;
    }
    at += bytes;
    return at - bytes;
}

/* A block is described once, however often it is translated. QEMU does not report
 * dropped translations, so a description per translation would never be freed. */
static const struct block *unique(const struct block *b)
{
    static struct block *chains[1 << 16];
    size_t bytes = sizeof *b + b->n * sizeof b->offset[0], rest = offsetof(struct block, page);
    struct block **chain = &chains[(b->start ^ b->start >> 16 ^ b->n << 10) & 0xffff], *new;

    for (new = *chain; new; new = new->next)
        if (new->n == b->n && !memcmp((const char *)new + rest, (const char *)b + rest, bytes - rest))
            return new;
    new = room_for(bytes);
    memcpy(new, b, bytes);
    new->next = *chain;
    return *chain = new;
}

/* The block's description. Every instruction is passed to `watch`. `vector` becomes that
 * of the exception whose handler starts here, or -1. */
const struct block *describe(struct qemu_plugin_tb *tb,
                             void (*watch)(struct qemu_plugin_insn *, const struct decoded *),
                             int *vector)
{
    static union {
        struct block b;
        char room[sizeof(struct block) + MAX_BLOCK * sizeof(uint16_t)];
    } scratch;
    static struct decoded decoded[MAX_BLOCK];
    static struct flow flows[MAX_BLOCK];
    struct block *b = &scratch.b;
    size_t n = qemu_plugin_tb_n_insns(tb);
    const uint64_t *heads;
    uint64_t end = 0;

    if (n > MAX_BLOCK)
        die("a block of %zu instructions", n);
    memset(b, 0, sizeof *b);
    b->n = (uint32_t)n;
    b->start = qemu_plugin_tb_vaddr(tb);
    for (size_t i = 0; i < n; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);

        insn_decode(insn, &decoded[i], &flows[i]);
        b->last = qemu_plugin_insn_vaddr(insn);
        b->offset[i] = (uint16_t)(b->last - b->start);
        end = b->last + qemu_plugin_insn_size(insn) - 1;
        b->rep = decoded[i].class == INSN_REP;
    }
    b->page = b->start >> PAGE_SHIFT;
    b->page2 = end >> PAGE_SHIFT;
    *vector = idt_vector(b->start);
    b->vector = (uint16_t)(*vector < 0 ? 0 : *vector);
    heads = heads_of(b->start, end + 1, flows, n);
    if (!heads)
        die("no memory for a block's loads");
    for (size_t i = 0; i < n; i++) {
        decoded[i].load_head = &heads[i];
        decoded[i].call = flows[i].ends == ENDS_CALL && !is_kernel(b->start);
        decoded[i].ret = flows[i].ends == ENDS_RETURN && !is_kernel(b->start);
        watch(qemu_plugin_tb_get_insn(tb, i), &decoded[i]);
        region_watch(qemu_plugin_tb_get_insn(tb, i));
    }
    return unique(b);
}

static void watch_all(struct qemu_plugin_insn *insn, const struct decoded *d)
{
    vcpu_mem_cb_t load = opt.where ? on_load_where : on_load, store = opt.where ? on_store_where : on_store;

    if (opt.stacks && d->call)
        store = on_store_call;
    if (opt.stacks && d->ret)
        load = on_load_return;
    qemu_plugin_register_vcpu_mem_cb(insn, load, CB_NO_REGS, MEM_R, (void *)d->load_head);
    qemu_plugin_register_vcpu_mem_cb(
        insn, store, CB_NO_REGS, MEM_W,
        (void *)bf_head(d->pt_write ? BF_KIND_STORE : BF_KIND_STORE_OTHER, 0));
    control_watch(insn, d);
}

/*
 * While the guest boots, its other vCPUs begin in real mode, in the kernel's trampoline. Until such a vCPU loads CR3
 * for the first time, its addresses are physical ones: they are left out, some hundred instructions. No vCPU with
 * tables runs this code.
 */
static bool has_tables(struct qemu_plugin_tb *tb)
{
    if (vcpu_of(current_cpu)->cr3)
        return true;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        struct decoded d;

        insn_decode(insn, &d, NULL);
        control_watch(insn, &d);
    }
    return false;
}

void record_block(struct qemu_plugin_tb *tb)
{
    int vector;
    const struct block *b;

    if (opt.boot && !has_tables(tb))
        return;
    b = describe(tb, watch_all, &vector);

    /* R_REGS, because code_page() may read the instruction pointer and later versions of QEMU check this. */
    if (vector >= 0)
        qemu_plugin_register_vcpu_tb_exec_cb(tb, on_entry, CB_R_REGS, (void *)b);
    else if (b->rep && b->n == 1)
        qemu_plugin_register_vcpu_tb_exec_cb(tb, on_rep_block, CB_R_REGS, (void *)b);
    else
        qemu_plugin_register_vcpu_tb_exec_cb(tb, b->page == b->page2 ? on_block : on_block2,
                                             CB_R_REGS, (void *)b);
}

/* Writes the state from which a consumer starts: resident frames, tables, then each
 * vCPU's registers. */
void record_start(struct vcpu *v)
{
    if (!idt_read() && !opt.boot)
        die("the guest's IDT at %#llx is empty", (unsigned long long)vcpus[0]->idt);
    hot.generation = UINT64_C(1) << 52;
    self = v;
    hot.cpu = v->cpu;
    hot.tag = v->tag;
    hot.block = NULL;
    next_check = NULL;
    ring_open();
    if (opt.boot)
        resident_frames();
    for (unsigned i = 0; i < n_vcpus; i++) {
        vcpus[i]->fetch_page = UINT64_MAX;
        if (!vcpus[i]->cr3)
            continue; /* a vCPU that the booting kernel has not started */
        table_root(vcpus[i]->cr3);
        /* The boot's first tables have no pair yet; later tables are marked when they are loaded. */
        if (opt.kpti && !opt.boot)
            table_root(vcpus[i]->cr3 ^ UINT64_C(1) << PAGE_SHIFT);
    }
    for (unsigned i = 0; i < n_vcpus; i++) {
        if (!vcpus[i]->cr3)
            continue;
        emit1(BF_KIND_VCPU, vcpus[i]->index);
        emit1(BF_KIND_CR4, vcpus[i]->cr4);
        emit1(BF_KIND_CR3, vcpus[i]->cr3);
    }
    emit1(BF_KIND_VCPU, v->index);
    emit1(BF_KIND_MARKER, opt.boot ? BF_MARKER_BOOT : BF_MARKER_START);
    log_start();
    hot.fetch_page = hot.block_page = UINT64_MAX;
    if (opt.check_every)
        next_check = hot.p + opt.check_every;
    ring_set_limit();
    recording = true;
}

void record_stop(uint32_t marker)
{
    uint64_t *w;

    flush_insns();
    if (opt.looks)
        look();
    tables_compare();
    stats[ST_ACCESSES] = ring_accesses() - hot.blocks;
    /* In one chunk, because the consumer searches all of this at the end of a chunk. */
    w = ring_room(4 + BF_STATS_WORDS);
    w[0] = bf_head(BF_KIND_TICKS, ticks);
    w[1] = interrupts;
    w[2] = bf_head(BF_KIND_STATS, 0);
    memcpy(w + 3, stats, sizeof stats);
    w[3 + BF_STATS_WORDS] = bf_head(BF_KIND_MARKER, marker);
    recording = false;
    ring_drain();
    /* Callbacks of the current block still write and must reach the limit. */
    next_check = NULL;
    hot.limit = hot.p;
}
