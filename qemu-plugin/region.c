// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Selects the part of the command that is recorded, for long programs.
 *
 * A region begins with the command, at a marker of the program, or at the first
 * entry to one of its functions; a number of instructions may be skipped after
 * that. Until then the guest runs with the callbacks of the boot, or with one that
 * counts instructions. The region ends after a number of instructions or at the
 * program's second marker.
 *
 * Sampling (after SMARTS, Wunderlich et al., ISCA 2003) divides the recording into
 * periods of instructions and records the accesses of one window in each period, at
 * a random place. The warm-up before each window is recorded too, and a head before
 * the first period, because a program's start differs from everything that follows.
 * Between windows, in a gap, the stream still has every event except accesses and
 * fetches of user code. The kernel's accesses are recorded once per page and
 * generation (see forget_translations()), which also finds stores to page tables,
 * so that the consumer knows which pages were touched. User code cannot store to a
 * page table, so in a gap its accesses have no callback. A reset of the plugin
 * changes between the two kinds of callbacks.
 */
#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "plugin.h"

/* The head of a sampled recording is a period divided by this. */
#define HEADS 10
/* Instructions of a gap between two checks. */
#define GAP_INSNS 65536

uint64_t region_next = UINT64_MAX;

static enum { WHOLE, HEAD, GAP, WARM_UP, MEASURE } part;
static bool armed;              /* the command runs, and its region has not begun */
static bool counting;           /* instructions are skipped */
static uint64_t skipped;
static uint64_t ends = UINT64_MAX;    /* the region's end, in recorded instructions */
static uint64_t period_begins, measure_begins;
static uint64_t dice;

/* Marsaglia's xorshift64*, which gives the same numbers on every platform. */
static uint64_t random_below(uint64_t n)
{
    dice ^= dice >> 12;
    dice ^= dice << 25;
    dice ^= dice >> 27;
    return n ? (uint64_t)((unsigned __int128)(dice * UINT64_C(0x2545f4914f6cdd1d)) * n >> 64) : 0;
}

/* Draws the window of the period that begins at `period_begins`. */
static void draw(void)
{
    measure_begins = period_begins + random_below(opt.period - opt.window + 1);
    period_begins += opt.period;
}

static uint64_t warm_up_begins(void)
{
    return measure_begins > opt.warm_up ? measure_begins - opt.warm_up : 0;
}

/* Sets the instruction of the next change. */
static void await(uint64_t at)
{
    region_next = at < ends ? at : ends;
}

static void enter_part(int next, uint64_t code)
{
    part = next;
    flush_insns();
    emit1(BF_KIND_GAP, code);
}

/* Recognises the function at which the region begins by its offset within its page
 * and its code. Its address is unknown, because the program may be loaded anywhere. */
static bool at_function(const struct qemu_plugin_insn *insn)
{
    uint64_t va = qemu_plugin_insn_vaddr(insn);
    size_t n = 4096 - opt.function_offset;
    const void *code;

    if ((va & PAGE_MASK) != opt.function_offset || va >> 63)
        return false;
    code = qemu_plugin_insn_haddr(insn);
    return code && !memcmp(code, opt.function, n < opt.function_bytes ? n : opt.function_bytes);
}

static void begin(void)
{
    armed = false;
    if (opt.skip) {
        counting = true;
        start_counting();
    } else {
        start_recording();
    }
}

static void on_function(unsigned vcpu, void *u)
{
    (void)vcpu, (void)u;
    if (armed)
        begin();
}

/* Called at the command's start. Whether recording begins later. */
bool region_later(void)
{
    if (opt.begin == BEGIN_COMMAND && !opt.skip)
        return false;
    armed = true;
    if (opt.begin == BEGIN_COMMAND)
        begin();
    return true;
}

void region_watch(struct qemu_plugin_insn *insn)
{
    if (armed && opt.begin == BEGIN_FUNCTION && at_function(insn))
        qemu_plugin_register_vcpu_insn_exec_cb(insn, on_function, CB_NO_REGS, NULL);
}

void region_marker(uint32_t code)
{
    if (opt.begin != BEGIN_MARKER)
        return;
    if (code == BF_MARKER_WINDOW_BEGIN && armed)
        begin();
    else if (code == BF_MARKER_WINDOW_END && recording)
        stop_recording(BF_MARKER_REGION_END);
}

static void on_skipped_block(unsigned vcpu, void *u)
{
    (void)vcpu;
    skipped += (uintptr_t)u;
    if (unlikely(skipped >= opt.skip) && counting) {
        counting = false;
        start_recording();
    }
}

void region_skip_block(struct qemu_plugin_tb *tb)
{
    qemu_plugin_register_vcpu_tb_exec_cb(tb, on_skipped_block, CB_NO_REGS,
                                         (void *)(uintptr_t)qemu_plugin_tb_n_insns(tb));
}

/* Records that the command ended before its region began, and its instructions
 * if they were counted. */
void region_missed(void)
{
    if (!armed && !counting)
        return;
    armed = counting = false;
    stats[ST_INSNS] = skipped;
    ring_open();
    record_stop(BF_MARKER_STOP);
}

/* Called when recording has begun. */
void region_recording(void)
{
    if (opt.length)
        ends = opt.length;
    if (!opt.period) {
        await(UINT64_MAX);
        return;
    }
    dice = opt.sample_seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
    period_begins = opt.period / HEADS;
    draw();
    enter_part(HEAD, BF_GAP_HEAD);
    await(opt.period / HEADS);
}

static void after_gap(qemu_plugin_id_t id)
{
    enter_part(WARM_UP, BF_GAP_WARM_UP);
    await(measure_begins);
    for (unsigned i = 0; i < n_vcpus; i++)
        vcpus[i]->fetch_page = UINT64_MAX;
    hot.fetch_page = hot.block_page = UINT64_MAX;
    if (opt.check_every)
        next_check = hot.p + opt.check_every;
    ring_set_limit();
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_recorded_block);
}

static void after_window(qemu_plugin_id_t id)
{
    enter_part(GAP, BF_GAP_BEGIN);
    await(warm_up_begins());
    next_check = NULL;
    ring_set_limit();
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_gap_block);
}

/* Ends the head or a window and begins the gap or warm-up before the next window. */
static void await_window(void)
{
    if (warm_up_begins() > stats[ST_INSNS]) {
        qemu_plugin_reset(plugin_id, after_window);
        return;
    }
    enter_part(WARM_UP, BF_GAP_WARM_UP);
    await(measure_begins);
}

/* Called when `region_next` instructions were recorded. */
void region_due(void)
{
    flush_insns();
    region_next = UINT64_MAX;
    if (stats[ST_INSNS] >= ends) {
        stop_recording(BF_MARKER_REGION_END);
        return;
    }
    switch (part) {
    case WHOLE:
        break;
    case GAP:
        qemu_plugin_reset(plugin_id, after_gap);
        break;
    case WARM_UP:
        enter_part(MEASURE, BF_GAP_MEASURE);
        await(stats[ST_INSNS] + opt.window);
        break;
    case MEASURE:
        draw();
        /* fall through */
    case HEAD:
        await_window();
        break;
    }
}

/* Records the kernel's first access to a page in this generation. */
COLD static void gap_load_slow(uint64_t va)
{
    uint64_t page = va >> PAGE_SHIFT;

    if (!recording)
        return;
    self->loaded[page % CACHE_PAGES] = page + hot.generation;
    /* Dependent or not: nothing is measured in a gap. */
    *hot.p++ = bf_head(BF_KIND_LOAD, va);
    if (hot.p >= hot.limit)
        ring_publish();
}

HOT static void on_gap_load(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t va, void *u)
{
    uint64_t page = va >> PAGE_SHIFT, slot = page % CACHE_PAGES, tag = page + hot.generation;

    (void)vcpu, (void)info, (void)u;
    if (unlikely((self->loaded[slot] != tag) & (hot.tag[slot] != tag)))
        gap_load_slow(va);
}

HOT static void on_gap_store(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t va, void *u)
{
    uint64_t page = va >> PAGE_SHIFT;

    (void)vcpu;
    if (likely((hot.tag[page % CACHE_PAGES] == page + hot.generation) &
               ((va & PAGE_MASK) <= 4096 - 16)))
        return;
    *hot.p++ = (uint64_t)u | (va & BF_PAYLOAD_MASK);
    store_slow(info, va, (uint64_t)u);
}

static void gap_count(void)
{
    if (recording && stats[ST_INSNS] + (uint64_t)hot.insns >= region_next)
        region_due();
    else
        flush_insns();
}

COLD static void gap_block_slow(const struct block *b)
{
    if (!recording)
        return;
    if (self->code[b->page % CODE_PAGES].tag != b->page + hot.generation) {
        uint64_t page = code_page(b) << PAGE_SHIFT;
        emit1(BF_KIND_FETCH, page | (b->start & PAGE_MASK));
        if (b->page2 != b->page)
            emit1(BF_KIND_FETCH, page + PAGE_MASK + 1);
    }
    hot.block_page = b->page;
    /* If faults follow each other closely, no run of instructions gets long. */
    if ((hot.insns >= GAP_INSNS) | (stats[ST_INSNS] + (uint64_t)hot.insns >= region_next))
        gap_count();
}

HOT static void on_gap_kernel(unsigned vcpu, void *u)
{
    const struct block *b = u;

    (void)vcpu;
    enter(b);
    if (unlikely((b->page != hot.block_page) | (hot.insns >= GAP_INSNS)))
        gap_block_slow(b);
}

static void on_gap_rep(unsigned vcpu, void *u)
{
    rep_block(vcpu, u, on_gap_kernel);
}

static void on_gap_entry(unsigned vcpu, void *u)
{
    entry_block(vcpu, u, false, on_gap_kernel);
}

HOT static void on_gap_user(unsigned vcpu, void *u)
{
    const struct block *b = u;

    (void)vcpu;
    enter(b);
    if (unlikely(hot.insns >= GAP_INSNS))
        gap_count();
}

static void watch_gap(struct qemu_plugin_insn *insn, const struct decoded *d)
{
    if (qemu_plugin_insn_vaddr(insn) >> 63) {
        qemu_plugin_register_vcpu_mem_cb(insn, on_gap_load, CB_NO_REGS, MEM_R, NULL);
        qemu_plugin_register_vcpu_mem_cb(
            insn, on_gap_store, CB_NO_REGS, MEM_W,
            (void *)bf_head(d->pt_write ? BF_KIND_STORE : BF_KIND_STORE_OTHER, 0));
    }
    control_watch(insn, d);
}

void on_gap_block(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    int vector;
    const struct block *b = describe(tb, watch_gap, &vector);
    bool kernel = b->start >> 63;

    (void)id;
    qemu_plugin_register_vcpu_tb_exec_cb(tb,
                                         vector >= 0            ? on_gap_entry
                                         : b->rep && b->n == 1  ? on_gap_rep
                                         : kernel               ? on_gap_kernel
                                                                : on_gap_user,
                                         CB_R_REGS, (void *)b);
}
