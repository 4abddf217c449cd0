// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Selects the part of the command that counts, for long programs.
 *
 * A region begins with the command's program (start.c), at a marker of the program, or at
 * the first entry to one of its functions; a number of instructions may be skipped after
 * that. The stream begins before the program in any case, so that the region finds
 * memory, tables, TLBs and caches as the command left them. Before a marker or a
 * function the stream has every access, as nothing tells how near it is. Skipped
 * instructions are a gap (see below) but for the last ones, which are a warm-up.
 * The region ends after a number of instructions or at the program's second marker.
 *
 * A program with markers may have many regions. Between two of them the stream has every
 * access, as before the first. The command ends with a region only if so many were
 * asked for. A marker that begins a region within one, or ends one outside of it, does
 * nothing.
 *
 * Sampling (after SMARTS, Wunderlich et al., ISCA 2003) divides the recording into
 * periods of instructions and records the accesses of one window in each period, at
 * a random place. The warm-up before each window is recorded too, and a head before
 * the first period, because a program's start differs from everything that follows.
 * Between windows, in a gap, the stream still has every event except accesses and
 * fetches of user code. The kernel's accesses are recorded once per page and
 * generation (see forget_translations()), which also finds stores to page tables,
 * so that the consumer knows which pages were touched. User code cannot store to a
 * page table, so in a gap its accesses have no callback. gap.c has the callbacks of gaps.
 *
 * A reset of the plugin begins the first gap. Later changes between gap and window are
 * changes between two translations of the code, where QEMU allows that (sides.c). Such
 * a change is asked for, and is carried out by the first callback of the other kind.
 */
#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "plugin.h"

/* Instructions before a region of which every access is in the stream, after a gap. A
 * last-level cache of 32 MB has 500,000 lines, which 10 misses in 1,000 instructions
 * fill. */
#define WARM_UP_INSNS 50000000
/* Where periods double, so often at most, a warm-up is at least a period divided by the second of these, and a
 * window by the third (crates/trace/src/thin.rs). */
#define MOST_DOUBLINGS 5
#define WARM_UPS 20
#define WINDOWS 80

uint64_t region_next = UINT64_MAX;
bool region_leaving;

static enum { WHOLE, HEAD, GAP, WARM_UP, MEASURE } part;
static bool before;             /* the command runs, and its (next) region has not begun */
static bool armed;              /* nor was the marker or function reached */
static uint64_t regions;        /* begun */
static uint64_t region_ticks, region_interrupts; /* in all regions that have ended */
static uint64_t origin;         /* recorded instructions there */
static uint64_t ends = UINT64_MAX;    /* the region's end, in recorded instructions */
/* Recorded instructions. Before the region the second one is its begin. */
static uint64_t period_begins, measure_begins;
static uint64_t drawn; /* the number of windows drawn */
static uint64_t window, warm_up; /* lengths of the window that is measured or comes next, and before it */
static uint64_t dice;
static bool in_gap; /* translated blocks get the callbacks of gaps */
static bool sides;  /* both kinds of translations are there */

/* Marsaglia's xorshift64*, which gives the same numbers on every platform. */
static uint64_t random_below(uint64_t n)
{
    dice ^= dice >> 12;
    dice ^= dice << 25;
    dice ^= dice >> 27;
    return n ? (uint64_t)((unsigned __int128)(dice * UINT64_C(0x2545f4914f6cdd1d)) * n >> 64) : 0;
}

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Draws the window of the period that begins at `period_begins`. */
static void draw(void)
{
    uint64_t doublings = opt.doubles ? drawn++ / opt.doubles : 0;
    uint64_t period = opt.period << (doublings < MOST_DOUBLINGS ? doublings : MOST_DOUBLINGS);

    window = opt.doubles ? most(opt.window, period / WINDOWS) : opt.window;
    warm_up = opt.doubles ? most(opt.warm_up, period / WARM_UPS) : opt.warm_up;
    measure_begins = period_begins + random_below(period - window + 1);
    period_begins += period;
}

static uint64_t warm_up_begins(void)
{
    uint64_t n = before ? WARM_UP_INSNS : warm_up;

    return measure_begins > n ? measure_begins - n : 0;
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

    if ((va & PAGE_MASK) != opt.function_offset || is_kernel(va))
        return false;
    code = qemu_plugin_insn_haddr(insn);
    return code && !memcmp(code, opt.function, n < opt.function_bytes ? n : opt.function_bytes);
}

static void on_block_of_part(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    if (in_gap)
        on_gap_block(id, tb);
    else
        on_recorded_block(id, tb);
}

static void enter_gap(void)
{
    in_gap = true;
    enter_part(GAP, BF_GAP_BEGIN);
    gap_begin();
    await(warm_up_begins());
    next_check = NULL;
    ring_set_limit();
}

static void leave_gap(void)
{
    in_gap = false;
    enter_part(WARM_UP, BF_GAP_WARM_UP);
    gap_end();
    await(measure_begins);
    for (unsigned i = 0; i < n_vcpus; i++)
        vcpus[i]->fetch_page = UINT64_MAX;
    hot.fetch_page = hot.block_page = UINT64_MAX;
    if (opt.check_every)
        next_check = hot.p + opt.check_every;
    ring_set_limit();
}

static void after_reset(qemu_plugin_id_t id)
{
    if (part == GAP)
        leave_gap();
    else
        enter_gap();
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_block_of_part);
}

/* Begins or ends a gap. Most of a run that only skips instructions comes after its one gap, and is
 * faster with blocks that jump to each other. */
static void change(void)
{
    if (!sides || before) {
        sides = opt.period && !before && sides_open();
        qemu_plugin_reset(plugin_id, after_reset);
        return;
    }
    region_leaving = true;
    in_gap = !in_gap;
    sides_change(!in_gap);
    /* The next block takes its slow path. */
    hot.block_page = UINT64_MAX;
    if (in_gap)
        gap_expect();
}

/* Called by the first callback of the other kind. */
void region_entered(void)
{
    region_leaving = false;
    if (in_gap)
        enter_gap();
    else
        leave_gap();
}

static void begin(void)
{
    uint64_t now;

    flush_insns();
    now = stats[ST_INSNS];
    if (before)
        emit1(BF_KIND_GAP, BF_GAP_REGION);
    ticks = region_ticks;
    interrupts = region_interrupts;
    regions++;
    before = false;
    part = WHOLE;
    if (opt.length)
        ends = now + opt.length;
    if (!opt.period) {
        await(opt.looks ? now : UINT64_MAX);
        return;
    }
    dice = opt.sample_seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
    period_begins = now + opt.head;
    draw();
    enter_part(HEAD, BF_GAP_HEAD);
    await(now + opt.head);
}

/* The region's end. The command runs on for the program's next marker, or ends. */
static void end(void)
{
    if (opt.begin != BEGIN_MARKER || regions == opt.regions) {
        stop_recording(BF_MARKER_REGION_END);
        return;
    }
    enter_part(WARM_UP, BF_GAP_REGION_END);
    region_ticks = ticks;
    region_interrupts = interrupts;
    before = armed = true;
    measure_begins = ends = UINT64_MAX;
    await(UINT64_MAX);
}

/* The marker or the function. */
static void place_reached(void)
{
    armed = false;
    flush_insns();
    origin = stats[ST_INSNS];
    measure_begins = origin + opt.skip;
    if (!opt.skip)
        begin();
    else if (warm_up_begins() > origin)
        change();
    else
        await(measure_begins);
}

static void on_function(unsigned vcpu, void *u)
{
    (void)vcpu, (void)u;
    if (armed && !starting)
        place_reached();
}

void region_watch(struct qemu_plugin_insn *insn)
{
    if (armed && opt.begin == BEGIN_FUNCTION && at_function(insn))
        qemu_plugin_register_vcpu_insn_exec_cb(insn, on_function, CB_NO_REGS, NULL);
}

void region_marker(uint32_t code)
{
    if (opt.begin != BEGIN_MARKER || !recording || starting)
        return;
    if (code == BF_MARKER_WINDOW_BEGIN && armed)
        place_reached();
    else if (code == BF_MARKER_WINDOW_END && !before)
        end();
}

/* Called when the command ends. Whether its region never began; the stream's number
 * of instructions is then that since the marker or function, or 0 without it. */
bool region_missed(void)
{
    if (!before)
        return false;
    if (regions) {
        ticks = region_ticks;
        interrupts = region_interrupts;
        return false;
    }
    flush_insns();
    stats[ST_INSNS] = armed ? 0 : stats[ST_INSNS] - origin;
    return true;
}

/* Called when the command's program begins. */
void region_program(void)
{
    before = armed || opt.skip;
    origin = stats[ST_INSNS];
    measure_begins = armed ? UINT64_MAX : origin + opt.skip;
    if (!before) {
        begin();
    } else if (!armed && warm_up_begins() > origin) {
        change();
    } else {
        enter_part(WARM_UP, BF_GAP_WARM_UP);
        await(measure_begins);
    }
}

/* Called when recording has begun. Returns what translated blocks are passed to. A recording of the boot is of the
 * whole guest. */
tb_trans_cb_t region_recording(void)
{
    armed = opt.begin != BEGIN_COMMAND;
    if (opt.boot)
        region_program();
    else
        start_begins();
    return on_block_of_part;
}

/* Ends the head or a window and begins the gap or warm-up before the next window. */
static void await_window(void)
{
    if (warm_up_begins() > stats[ST_INSNS]) {
        change();
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
        end();
        return;
    }
    switch (part) {
    case WHOLE:
        if (opt.looks) {
            look();
            await(next_look(stats[ST_INSNS]));
        }
        break;
    case GAP:
        change();
        break;
    case WARM_UP:
        if (before) {
            begin();
            break;
        }
        enter_part(MEASURE, BF_GAP_MEASURE);
        await(stats[ST_INSNS] + window);
        break;
    case MEASURE:
        draw();
        /* fall through */
    case HEAD:
        await_window();
        break;
    }
}
