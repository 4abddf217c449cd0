// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The plugin's entry and its two phases. Until the start marker only a few
 * instructions have callbacks, which hardly slows the boot. The marker requests a
 * reset. When QEMU has discarded all translated code, recording begins with
 * callbacks on everything. The stop marker ends the stream, waits until the
 * consumer has read all of it, and resets to no callbacks.
 *
 * With boot=1 the reset is requested when the kernel, at its own addresses for the
 * first time, loads CR3 (x86_64_start_kernel, through reset_early_page_tables). Only
 * firmware and some hundred instructions of head_64.S come before. The start marker
 * is then an ordinary event.
 *
 * Arguments: ring=FD,ram=FD,bytes=N,below4g=N,vcpus=N,check=N,kpti=0|1,levels=2|3|4|5,boot=0|1,files=0|1,
 * where=0|1, stacks=0|1, looks=N, for a machine of one vCPU that has booted already cr3=N,cr4=N,idt=N,
 * and for a region (region.c) begin=0|1|2,regions=N,skip=N,length=N,window=N,warm_up=N,period=N,head=N,doubles=N,
 * seed=N,function=OFFSET,function_bytes=N,f0=WORD,...,f7=WORD
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decode.h"
#include "plugin.h"

/* The lowest API version with all functions in use, so that QEMU 9.0 and later load the plugin. */
QEMU_EXPORT int qemu_plugin_version = 2;

struct options opt;
int api_version;
struct vcpu *vcpus[BF_MOST_VCPUS];
unsigned n_vcpus;
uint64_t stats[BF_STATS_WORDS];

/* Where Linux's addresses begin in 32-bit mode (CONFIG_VMSPLIT_3G). */
#define KERNEL_32 UINT64_C(0xc0000000)
/* Bits of CR4 and EFER. */
#define CR4_PAE (UINT64_C(1) << 5)
#define CR4_LA57 (UINT64_C(1) << 12)
#define EFER_LMA (UINT64_C(1) << 10)

qemu_plugin_id_t plugin_id;
static struct vcpu *starter;
static bool stopped;
static GByteArray *reg_buffer;

_Noreturn void die(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fputs("bifold plugin: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    _exit(86);
}

struct vcpu *vcpu_of(void *cpu)
{
    for (unsigned i = 0; i < n_vcpus; i++)
        if (vcpus[i]->cpu == cpu)
            return vcpus[i];
    die("a vCPU that was never announced runs");
}

uint64_t read_reg(struct vcpu *v, unsigned r)
{
    uint64_t value = 0;

    g_byte_array_set_size(reg_buffer, 0);
    /* Up to API 5 an int, the length or -1; from API 6 on a bool, which leaves the bits above the lowest byte undefined. */
    if ((signed char)qemu_plugin_read_register(v->reg[r], reg_buffer) <= 0 || reg_buffer->len > 8)
        die("cannot read register %u", r);
    memcpy(&value, reg_buffer->data, reg_buffer->len);
    return value;
}

static void on_vcpu_init(qemu_plugin_id_t id, unsigned int index)
{
    static const char *const names[R_COUNT] = {
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10",
        "r11", "r12", "r13", "r14", "r15", "cr2", "cr3", "cr4", "fs_base", "gs_base",
        "rip", "efer",
    };
    struct vcpu *v = calloc(1, sizeof *v);
    GArray *regs = qemu_plugin_get_registers();
    const qemu_plugin_reg_descriptor *d = (const void *)regs->data;

    (void)id;
    if (!v || n_vcpus == BF_MOST_VCPUS)
        die("no room for another vCPU");
    v->cpu = current_cpu;
    v->index = index;
    v->cr3 = opt.cr3;
    v->cr4 = opt.cr4;
    v->idt = opt.idt;
    for (unsigned i = 0; i < regs->len; i++)
        for (unsigned r = 0; r < R_COUNT; r++)
            if (!v->reg[r] && !strcmp(d[i].name, names[r]))
                v->reg[r] = d[i].handle;
    g_array_free(regs, 1);
    for (unsigned r = 0; r < R_COUNT; r++)
        if (!v->reg[r])
            die("this QEMU does not show register %s", names[r]);
    vcpus[n_vcpus++] = v;
}

/* Decodes it, and its flow of values if `f` is not NULL. */
void insn_decode(const struct qemu_plugin_insn *insn, struct decoded *d, struct flow *f)
{
    uint8_t bytes[16];
    size_t n = qemu_plugin_insn_size(insn);

    if (n > sizeof bytes)
        n = sizeof bytes;
    if (api_version >= 3) {
        n = qemu_plugin_insn_data(insn, bytes, n);
    } else {
        const void *(*data)(const struct qemu_plugin_insn *) = (void *)qemu_plugin_insn_data;
        memcpy(bytes, data(insn), n);
    }
    decode(bytes, (unsigned)n, d);
    if (f)
        flow_of(bytes, (unsigned)n, f);
}

/* A store of the size with which virtio devices are kicked (virtio 1.2, 4.1.5.2). */
static void on_boot_store(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t va, void *u)
{
    struct qemu_plugin_hwaddr *h = qemu_plugin_get_hwaddr(info, va);

    (void)vcpu, (void)u;
    if (h && qemu_plugin_hwaddr_is_io(h))
        files_wait();
}

static void on_boot_block(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    size_t n = qemu_plugin_tb_n_insns(tb);

    (void)id;
    for (size_t i = 0; i < n; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        struct decoded d;

        insn_decode(insn, &d, NULL);
        control_watch(insn, &d);
        if (opt.files && d.store16 && is_kernel(qemu_plugin_insn_vaddr(insn)))
            qemu_plugin_register_vcpu_mem_cb(insn, on_boot_store, CB_NO_REGS, MEM_W, NULL);
    }
}

void on_recorded_block(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    (void)id;
    record_block(tb);
}

static void after_start(qemu_plugin_id_t id)
{
    record_start(starter);
    qemu_plugin_register_vcpu_tb_trans_cb(id, region_recording());
}

static void after_stop(qemu_plugin_id_t id)
{
    (void)id;
}

/* Refuses a guest whose tables are others than those that the host expects. */
static void check_format(const struct vcpu *v)
{
    static const char *const names[] = {"2-level 32-bit", "PAE", "4-level", "5-level"};
    bool lma = read_reg((struct vcpu *)v, R_EFER) & EFER_LMA;
    unsigned found = lma ? (v->cr4 & CR4_LA57 ? 5 : 4) : v->cr4 & CR4_PAE ? 3 : 2;

    if (found != opt.levels)
        die("the guest's kernel uses %s tables, and %s tables were asked for", names[found - 2],
            names[opt.levels - 2]);
}

static void ask_for_start(void)
{
    starter = vcpu_of(current_cpu);
    starter->cr4 = read_reg(starter, R_CR4);
    check_format(starter);
    qemu_plugin_reset(plugin_id, after_start);
}

void stop_recording(uint32_t marker)
{
    stopped = true;
    record_stop(marker);
    region_leaving = false;
    sides_close();
    qemu_plugin_reset(plugin_id, after_stop);
}

/* Runs before the kernel's first MOV to CR3 at its own addresses. The instruction
 * ends its block, so the new value is in place when the recording starts. */
void boot_reached(void)
{
    if (opt.boot && !starter)
        ask_for_start();
}

void marker_reached(uint32_t code)
{
    static bool started;

    if (code == BF_MARKER_START && opt.boot) {
        if (!recording)
            die("the kernel's start was not recognised");
        if (!started) {
            flush_insns();
            emit1(BF_KIND_MARKER, BF_MARKER_START);
        }
        started = true;
    } else if (code == BF_MARKER_START && !starter) {
        starter = vcpu_of(current_cpu);
        starter->cr4 = read_reg(starter, R_CR4);
        if (read_reg(starter, R_CR3) != starter->cr3)
            die("CR3 was not followed during the boot");
        check_format(starter);
        qemu_plugin_reset(plugin_id, after_start);
    } else if (code == BF_MARKER_OWN && !opt.boot) {
        start_own();
    } else if (code == BF_MARKER_STOP && recording && !stopped) {
        stop_recording(region_missed() ? BF_MARKER_REGION_MISSED : BF_MARKER_STOP);
    }
}

static uint64_t *option(const char *name, size_t len)
{
    static const char *const names[] = {
        "ring",  "ram",      "bytes",     "below4g", "vcpus",  "check",   "kpti", "levels",
        "boot",  "files", "where", "stacks", "looks", "begin", "regions", "skip",      "length",  "window", "warm_up", "period",
        "head", "doubles", "seed",  "function", "function_bytes", "f0",      "f1",     "f2",      "f3",
        "f4",    "f5",       "f6",        "f7",      "cr3",    "cr4",     "idt",
    };
    static uint64_t values[sizeof names / sizeof names[0]];

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strncmp(name, names[i], len) && !names[i][len])
            return &values[i];
    die("unknown argument %s", name);
}

static uint64_t value_of(const char *name)
{
    return *option(name, strlen(name));
}

QEMU_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc,
                                    char **argv)
{
    if (info->version.cur > 6)
        die("API %d of plugins is newer than this plugin", info->version.cur);
    if (!info->system_emulation || strcmp(info->target_name, "x86_64"))
        die("needs qemu-system-x86_64, not %s", info->target_name);
    for (int i = 0; i < argc; i++) {
        const char *eq = strchr(argv[i], '=');
        if (!eq)
            die("argument %s has no value", argv[i]);
        *option(argv[i], (size_t)(eq - argv[i])) = strtoull(eq + 1, NULL, 0);
    }
    opt = (struct options){
        .ring_fd = (int)value_of("ring"),
        .ram_fd = (int)value_of("ram"),
        .ram_bytes = value_of("bytes"),
        .below_4g = value_of("below4g"),
        .check_every = value_of("check"),
        .vcpus = (unsigned)value_of("vcpus"),
        .kpti = value_of("kpti"),
        .levels = value_of("levels") ? (unsigned)value_of("levels") : 4,
        .boot = value_of("boot"),
        .files = value_of("files"),
        .where = value_of("where"),
        .stacks = value_of("stacks"),
        .looks = value_of("looks"),
        .cr3 = value_of("cr3"),
        .cr4 = value_of("cr4"),
        .idt = value_of("idt"),
        .begin = (unsigned)value_of("begin"),
        .regions = value_of("regions"),
        .skip = value_of("skip"),
        .length = value_of("length"),
        .function_offset = value_of("function") & PAGE_MASK,
        .function_bytes = value_of("function_bytes"),
        .window = value_of("window"),
        .warm_up = value_of("warm_up"),
        .period = value_of("period"),
        .head = value_of("head"),
        .doubles = value_of("doubles"),
        .sample_seed = value_of("seed"),
    };
    if (opt.levels < 2 || opt.levels > 5)
        die("tables of %u levels", opt.levels);
    opt.kernel_from = narrow() ? KERNEL_32 : UINT64_C(1) << 63;
    for (char i = 0; i < 8; i++)
        opt.function[(int)i] = value_of((const char[]){'f', (char)('0' + i), 0});
    if (opt.function_bytes > sizeof opt.function || (opt.period && opt.window > opt.period))
        die("a region that cannot be");
    api_version = info->version.cur;
    plugin_id = id;
    reg_buffer = g_byte_array_new();
    tables_open();
    if (files_open())
        ring_say_in_step();
    qemu_plugin_register_vcpu_init_cb(id, on_vcpu_init);
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_boot_block);
    return 0;
}
