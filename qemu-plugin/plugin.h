/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * State shared by the plugin's files. One thread runs all of the plugin: QEMU is
 * started with thread=single, so vCPUs take turns on one host thread, and the order
 * of events is the order of execution. There are no locks.
 */
#ifndef BIFOLD_PLUGIN_H
#define BIFOLD_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "depend.h"
#include "events.h"
#include "qemu_api.h"

#define HOT __attribute__((hot))
#define COLD __attribute__((cold, noinline))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define PAGE_SHIFT 12
#define PAGE_MASK UINT64_C(0xfff)
#define PTE_PRESENT UINT64_C(1)
#define PTE_LARGE UINT64_C(0x80)
#define PTE_AD UINT64_C(0x60)
#define PTE_ADDR UINT64_C(0x000ffffffffff000)

/* Number of cached translations per vCPU. 4096 take 32 KB of tags. */
#define CACHE_PAGES 4096
/* Number of cached translations of code pages per vCPU. */
#define CODE_PAGES 1024
/* Room behind `limit`, so that callbacks may write a few words before they check
 * the limit. */
#define SLACK_WORDS 64
#define MAX_INSNS 4096
#define MAX_BLOCK 1024 /* instructions of a block; TCG ends it at 512 */

enum { R_RAX, R_RCX, R_RDX, R_RBX, R_RSP, R_CR2 = 16, R_CR3, R_CR4, R_FS, R_GS, R_RIP, R_EFER, R_COUNT };

/* The description of a translated block, for its exec callback. QEMU translates
 * x86 code independently of its virtual address (CF_PCREL) and runs a block wherever
 * its physical page is mapped. The addresses here are those of its first use; only
 * offsets within a page are valid for every use, see code_page(). */
struct block {
    struct block *next; /* in its hash chain */
    uint64_t page;  /* of its first byte */
    uint64_t page2; /* of its last byte */
    uint64_t start;
    uint64_t last;  /* address of its last instruction */
    uint32_t n;
    uint16_t vector;
    bool rep;
    uint16_t offset[]; /* of each instruction from `start` */
};

struct vcpu {
    void *cpu; /* QEMU's CPUState, only ever compared */
    unsigned index;
    uint64_t cr3, cr4, idt;
    uint64_t fetch_page;
    struct qemu_plugin_register *reg[R_COUNT];
    /* GVA page -> frame. An entry is valid if its tag equals page + generation.
     * Page tables get no entry. */
    uint64_t tag[CACHE_PAGES];
    uint32_t pfn[CACHE_PAGES];
    /* Pages that the kernel has loaded from in a gap (region.c), tagged likewise. */
    uint64_t loaded[CACHE_PAGES];
    /* Page in a block's description -> page in which the block runs, tagged likewise. */
    struct { uint64_t tag, page; } code[CODE_PAGES];
};

/* State of the hot callbacks, on two cache lines. */
struct hot {
    uint64_t *p;     /* next word */
    uint64_t *limit; /* from here on, take the slow path */
    uint64_t generation; /* in bits 63..52; the tags' upper part */
    uint64_t *tag;
    void *cpu;
    uint64_t fetch_page; /* where the last block ran */
    uint64_t block_page; /* the same page in the block's description */
    int64_t insns; /* since the last INSNS event; negative if that event counted too many */
    const struct block *block;
    const struct block *told; /* the last block in the stream, for attribution */
    uint64_t blocks; /* number of blocks in the stream */
};
extern struct hot hot;

struct options {
    int ring_fd, ram_fd;
    uint64_t ram_bytes, below_4g, check_every;
    unsigned vcpus;
    bool kpti;
    /* Levels of the guest's tables: 4 or 5 in 64-bit mode; in 32-bit mode 3 (PAE) or 2 (entries of 4 bytes). */
    unsigned levels;
    uint64_t kernel_from; /* the kernel's addresses begin here */
    bool boot; /* record from the kernel's start, not from the start marker */
    bool files; /* wait for the host's files, see files.c */
    bool where; /* record running blocks and the guest's perf events */
    bool stacks; /* with `where`: record calls and returns of user code */
    uint64_t looks; /* instructions between the first looks at memory (looks.c); 0 = none */
    /* The region (region.c): kind of beginning, skipped instructions, and length in
     * instructions (0 = no end). With markers, the command ends after so many regions
     * (0 = after none). */
    enum { BEGIN_COMMAND, BEGIN_MARKER, BEGIN_FUNCTION } begin;
    uint64_t regions, skip, length;
    /* The function's offset within its page, and its first bytes. */
    uint64_t function_offset, function_bytes, function[8];
    /* Sampling, in instructions. Without a period everything is recorded. The period
     * doubles each time after `doubles` periods, if that is not 0. */
    uint64_t window, warm_up, period, head, doubles, sample_seed;
    /* The registers with which the vCPU goes on after a boot that this process has not run, or 0. */
    uint64_t cr3, cr4, idt;
};
extern struct options opt;
extern int api_version;
extern struct vcpu *vcpus[BF_MOST_VCPUS];
extern unsigned n_vcpus;
extern struct vcpu *self; /* the vCPU of hot.cpu */
extern uint64_t stats[BF_STATS_WORDS];
enum { ST_CR3, ST_CR3_BAD, ST_TR, ST_TR_BAD, ST_TABLE, ST_TABLE_BAD, ST_ACCESSES, ST_INSNS };
extern bool recording;

/* A guest in 32-bit mode? */
static inline bool narrow(void)
{
    return opt.levels < 4;
}

static inline bool is_kernel(uint64_t va)
{
    return va >= opt.kernel_from;
}

_Noreturn void die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ring.c */
void ring_open(void);
void ring_publish(void);
void ring_drain(void);
void ring_say_in_step(void);
void ring_set_limit(void);
uint64_t *ring_room(unsigned words);
uint64_t ring_accesses(void);
extern uint64_t *next_check;
static inline void emit1(uint64_t kind, uint64_t payload)
{
    *ring_room(1) = bf_head(kind, payload);
}

/* tables.c */
void tables_open(void);
uint64_t root_at(uint64_t cr3);
uint64_t *ram_at(uint64_t gpa);
bool translate(uint64_t cr3, uint64_t gva, uint64_t *gpa);
bool is_table(uint64_t gfn);
void table_store(uint64_t gpa, unsigned bytes, bool pt_write);
void table_root(uint64_t cr3);
void table_left(uint64_t cr3);
void tables_compare(void);
void resident_frames(void);

/* record.c */
struct decoded;
void record_block(struct qemu_plugin_tb *tb);
void record_start(struct vcpu *v);
void record_stop(uint32_t marker);
void flush_insns(void);
void name_block(void);
void forget_translations(void);
struct vcpu *vcpu_of(void *cpu);
uint64_t read_reg(struct vcpu *v, unsigned r);

extern qemu_plugin_id_t plugin_id;
void on_recorded_block(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);
const struct block *describe(struct qemu_plugin_tb *tb,
                             void (*watch)(struct qemu_plugin_insn *, const struct decoded *),
                             int *vector);
void store_slow(qemu_plugin_meminfo_t info, uint64_t va, uint64_t head);
uint64_t code_page(const struct block *b);
void switch_vcpu(void);
static inline void enter(const struct block *b)
{
    if (unlikely(current_cpu != hot.cpu))
        switch_vcpu();
    hot.insns += b->n;
    hot.block = b;
}

/* region.c */
extern uint64_t region_next; /* recorded instructions at which region_due() is */
void region_due(void);
tb_trans_cb_t region_recording(void);
void region_program(void);
bool region_missed(void);
void region_marker(uint32_t code);
void region_watch(struct qemu_plugin_insn *insn);
extern bool region_leaving; /* the other kind of callbacks takes over with the next block */
void region_entered(void);

/* start.c */
extern bool starting; /* the stream has begun, and the command's own program has not */
void start_own(void);
void start_begins(void);
bool start_is_over(void);
void start_ends(void);
bool start_ended_by(uint64_t cr3);

/* sides.c */
bool sides_open(void);
void sides_change(bool unchained);
void sides_close(void);

/* gap.c */
extern struct tally *tally; /* not NULL in a gap whose user blocks have no calls */
bool gap_is_inline(void);
void gap_expect(void);
void gap_begin(void);
void gap_end(void);
void gap_fold(void);
void on_gap_block(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);

/* control.c */
void control_watch(struct qemu_plugin_insn *insn, const struct decoded *d);
bool idt_read(void);
int idt_vector(uint64_t entry);
bool idt_store(uint64_t frame);
extern uint64_t ticks, interrupts;

/* files.c */
bool files_open(void);
void files_wait(void);

/* looks.c */
void look(void);
uint64_t next_look(uint64_t now);

/* transfers.c */
void transfers_open(void);
void transfers_done(void *device);

void deliver(uint16_t vector, bool accesses);

/*
 * Callbacks of two special kinds of blocks, both for full recording and for gaps. `run`
 * is the callback of an ordinary block, which the compiler inlines.
 *
 * A block that is one repeated string instruction. TCG runs it several times, each for
 * a number of iterations, but it counts as one instruction.
 */
static inline void rep_block(unsigned vcpu, const struct block *b, void (*run)(unsigned, void *))
{
    const struct block *before = hot.cpu == current_cpu ? hot.block : NULL;

    run(vcpu, (void *)b);
    if (before && !((before->last ^ b->start) & PAGE_MASK))
        hot.insns--;
}

/* A block that starts at a handler in the IDT: an exception or interrupt was just delivered. */
static inline void entry_block(unsigned vcpu, const struct block *b, bool accesses,
                               void (*run)(unsigned, void *))
{
    if (current_cpu != hot.cpu)
        switch_vcpu();
    if (recording)
        deliver(b->vector, accesses);
    run(vcpu, (void *)b);
}

/* log.c */
void log_open(uint64_t va, uint64_t bytes);
void log_start(void);
bool log_store(uint64_t frame);

/* plugin.c */
void insn_decode(const struct qemu_plugin_insn *insn, struct decoded *d, struct flow *f);
void marker_reached(uint32_t code);
void boot_reached(void);
void stop_recording(uint32_t marker);

#endif
