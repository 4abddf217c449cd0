// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The callbacks of gaps (region.c), which are most of a sampled run.
 *
 * From QEMU 9.1 on, a block of user code needs no call of the plugin: inline operations add
 * its instructions to a counter and store its description, which uncount() needs after a
 * fault. Every GAP_INSNS instructions the plugin is called. A call reads the description
 * from memory, and that read made a gap slower than these operations do. Full recording
 * has no use for them: there, calls of loads and stores hide that read.
 *
 * The inline operations of a block are for the vCPU that translated it (with
 * thread=single), so a guest of several vCPUs has calls. So has attribution, which names
 * blocks.
 */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "decode.h"
#include "plugin.h"

/* Instructions of a gap between two checks. */
#define GAP_INSNS 65536

/* What user blocks of this gap have added to. An element of `score`. NULL outside gaps, and if blocks have calls. */
struct tally {
    uint64_t insns;
    uint64_t block;
};
struct tally *tally;

static struct qemu_plugin_scoreboard *score;
static bool expected; /* the gap's first block sees GAP_INSNS instructions */
static tb_exec_inline_t exec_inline;
static tb_exec_cond_cb_t exec_cond;

/* Looks up what later versions of QEMU have. */
static void look_up(void)
{
    scoreboard_new_t new = (scoreboard_new_t)dlsym(RTLD_DEFAULT, "qemu_plugin_scoreboard_new");

    exec_inline = (tb_exec_inline_t)dlsym(RTLD_DEFAULT, "qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu");
    exec_cond = (tb_exec_cond_cb_t)dlsym(RTLD_DEFAULT, "qemu_plugin_register_vcpu_tb_exec_cond_cb");
    /* API 2 has the first two, without operations that store. */
    if (api_version >= 3 && new && exec_inline && exec_cond)
        score = new(sizeof *tally);
}

/* Whether user blocks of gaps have no calls. */
bool gap_is_inline(void)
{
    static bool looked;

    if (!looked && n_vcpus == 1 && !opt.where)
        look_up();
    looked = true;
    return score != NULL;
}

static struct tally *element(void)
{
    return ((scoreboard_find_t)dlsym(RTLD_DEFAULT, "qemu_plugin_scoreboard_find"))(score, 0);
}

/* Makes the first block of the gap that is about to begin call the plugin. */
void gap_expect(void)
{
    if (!gap_is_inline())
        return;
    *element() = (struct tally){GAP_INSNS, 0};
    expected = true;
}

void gap_begin(void)
{
    struct tally *t;

    if (!gap_is_inline())
        return;
    t = element();
    /* Where the block that is expected is a user's, it has been added. */
    if (!expected || !t->block)
        *t = (struct tally){GAP_INSNS, (uintptr_t)hot.block};
    t->insns -= GAP_INSNS;
    expected = false;
    tally = t;
}

void gap_end(void)
{
    tally = NULL;
}

/* Takes over what user blocks have added. */
void gap_fold(void)
{
    hot.insns += (int64_t)tally->insns;
    tally->insns = 0;
    hot.block = (const struct block *)(uintptr_t)tally->block;
}

/* Instructions since the last INSNS event. */
static inline int64_t gap_insns(void)
{
    return hot.insns + (tally ? (int64_t)tally->insns : 0);
}

/* Records the kernel's first access to a page in this generation. */
COLD static void gap_load_slow(uint64_t va)
{
    uint64_t page = va >> PAGE_SHIFT;

    if (!recording)
        return;
    self->loaded[page % CACHE_PAGES] = page + hot.generation;
    if (opt.where)
        name_block();
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
    if (opt.where)
        name_block();
    *hot.p++ = (uint64_t)u | (va & BF_PAYLOAD_MASK);
    store_slow(info, va, (uint64_t)u);
}

static void gap_count(void)
{
    if (tally)
        gap_fold();
    if (!recording)
        return;
    if (stats[ST_INSNS] + (uint64_t)hot.insns >= region_next)
        region_due();
    else
        flush_insns();
}

/* For attribution: where the block runs that is named next. */
static void gap_place(const struct block *b)
{
    hot.fetch_page = code_page(b) + (b->page2 != b->page);
    hot.told = NULL;
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
    if (opt.where)
        gap_place(b);
    hot.block_page = opt.where ? b->page2 : b->page;
    /* If faults follow each other closely, no run of instructions gets long. */
    if ((gap_insns() >= GAP_INSNS) | (stats[ST_INSNS] + (uint64_t)gap_insns() >= region_next))
        gap_count();
}

/* Adds to what user blocks add to, so that checks come as often. */
static inline void gap_enter(const struct block *b)
{
    if (!tally && region_leaving)
        region_entered();
    if (!tally) {
        enter(b);
        return;
    }
    tally->insns += b->n;
    tally->block = (uintptr_t)b;
    hot.block = b;
}

HOT static void on_gap_kernel(unsigned vcpu, void *u)
{
    const struct block *b = u;

    (void)vcpu;
    gap_enter(b);
    if (unlikely((b->page != hot.block_page) | (gap_insns() >= GAP_INSNS)) ||
        (opt.where && b->page2 != b->page))
        gap_block_slow(b);
}

static void on_gap_rep(unsigned vcpu, void *u)
{
    if (tally)
        hot.block = (const struct block *)(uintptr_t)tally->block;
    rep_block(vcpu, u, on_gap_kernel);
}

static void on_gap_entry(unsigned vcpu, void *u)
{
    if (region_leaving)
        region_entered();
    if (tally)
        gap_fold();
    entry_block(vcpu, u, false, on_gap_kernel);
}

HOT static void on_gap_user(unsigned vcpu, void *u)
{
    const struct block *b = u;

    (void)vcpu;
    if (unlikely(region_leaving))
        region_entered();
    enter(b);
    if (unlikely(hot.insns >= GAP_INSNS))
        gap_count();
}

/* For attribution: the block's place first, because a check may name the block. */
HOT static void on_gap_user_where(unsigned vcpu, void *u)
{
    const struct block *b = u;

    (void)vcpu;
    if (unlikely(region_leaving))
        region_entered();
    enter(b);
    if (unlikely((b->page != hot.block_page) | (b->page2 != b->page)) && recording) {
        gap_place(b);
        hot.block_page = b->page2;
    }
    if (unlikely(hot.insns >= GAP_INSNS))
        gap_count();
}

static void on_gap_check(unsigned vcpu, void *u)
{
    (void)vcpu, (void)u;
    if (region_leaving)
        region_entered();
    else
        gap_count();
}

static void watch_gap(struct qemu_plugin_insn *insn, const struct decoded *d)
{
    if (is_kernel(qemu_plugin_insn_vaddr(insn))) {
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
    bool kernel = is_kernel(b->start), rep = b->rep && b->n == 1;

    (void)id;
    if (score && !kernel && !rep) {
        exec_inline(tb, INLINE_ADD_U64, (qemu_plugin_u64){score, offsetof(struct tally, insns)}, b->n);
        exec_inline(tb, INLINE_STORE_U64, (qemu_plugin_u64){score, offsetof(struct tally, block)},
                    (uintptr_t)b);
        exec_cond(tb, on_gap_check, CB_R_REGS, COND_GE,
                  (qemu_plugin_u64){score, offsetof(struct tally, insns)}, GAP_INSNS, NULL);
        return;
    }
    qemu_plugin_register_vcpu_tb_exec_cb(tb,
                                         vector >= 0 ? on_gap_entry
                                         : rep       ? on_gap_rep
                                         : kernel    ? on_gap_kernel
                                         : opt.where ? on_gap_user_where
                                                     : on_gap_user,
                                         CB_R_REGS, (void *)b);
}
