/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Declares the functions of QEMU's plugin interface and of glib that this plugin
 * uses, because no Debian binary package has qemu-plugin.h. Signatures are those of
 * API 2 to 6 (QEMU 9.0 to 10.2). Three things differ between versions:
 *
 *  - qemu_plugin_insn_data returns a pointer up to API 2 and copies from API 3
 *    on: insn_bytes() in decode.c asks for the version at run time.
 *  - qemu_plugin_read_register returns an int up to API 5 and a bool from API 6 on
 *    (QEMU 10.2): read_reg() in plugin.c looks at what both have in common.
 *  - API 7 (QEMU 11) gives vCPU callbacks a user pointer instead of the plugin
 *    id, and the plugin refuses it: the typedefs marked [7] and their users in
 *    plugin.c are the places.
 */
#ifndef BIFOLD_QEMU_API_H
#define BIFOLD_QEMU_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QEMU_EXPORT __attribute__((visibility("default")))

typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;

typedef struct {
    const char *target_name;
    struct {
        int min;
        int cur;
    } version;
    bool system_emulation;
    union {
        struct {
            int smp_vcpus;
            int max_vcpus;
        } system;
    };
} qemu_info_t;

enum { CB_NO_REGS, CB_R_REGS };
enum { MEM_R = 1, MEM_W = 2 };

struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_hwaddr;
struct qemu_plugin_register;

typedef struct {
    uint8_t *data;
    unsigned int len;
} GByteArray;

typedef struct {
    char *data;
    unsigned int len;
} GArray;

typedef struct {
    struct qemu_plugin_register *handle;
    const char *name;
    const char *feature;
} qemu_plugin_reg_descriptor;

typedef void (*simple_cb_t)(qemu_plugin_id_t id);                          /* [7] */
typedef void (*vcpu_simple_cb_t)(qemu_plugin_id_t id, unsigned int vcpu); /* [7] */
typedef void (*tb_trans_cb_t)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb); /* [7] */
typedef void (*vcpu_udata_cb_t)(unsigned int vcpu, void *userdata);
typedef void (*vcpu_mem_cb_t)(unsigned int vcpu, qemu_plugin_meminfo_t info,
                              uint64_t vaddr, void *userdata);

void qemu_plugin_reset(qemu_plugin_id_t id, simple_cb_t cb);
void qemu_plugin_register_vcpu_init_cb(qemu_plugin_id_t id, vcpu_simple_cb_t cb);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, tb_trans_cb_t cb);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, vcpu_udata_cb_t cb,
                                          int flags, void *userdata);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn, vcpu_udata_cb_t cb,
                                            int flags, void *userdata);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn, vcpu_mem_cb_t cb,
                                      int flags, int rw, void *userdata);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t i);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
void *qemu_plugin_insn_haddr(const struct qemu_plugin_insn *insn);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *dest, size_t len);
unsigned int qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t info);
struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(qemu_plugin_meminfo_t info, uint64_t vaddr);
bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *h);
uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *h);
GArray *qemu_plugin_get_registers(void);
int qemu_plugin_read_register(struct qemu_plugin_register *reg, GByteArray *buf);

/*
 * From API 3 (QEMU 9.1) on there are operations on a counter that need no call of the
 * plugin. They are looked up at run time (gap.c). A scoreboard has an element per vCPU.
 */
struct qemu_plugin_scoreboard;
typedef struct {
    struct qemu_plugin_scoreboard *score;
    size_t offset; /* in an element */
} qemu_plugin_u64;
enum { INLINE_ADD_U64, INLINE_STORE_U64 };
enum { COND_NEVER, COND_ALWAYS, COND_EQ, COND_NE, COND_LT, COND_LE, COND_GT, COND_GE };
typedef struct qemu_plugin_scoreboard *(*scoreboard_new_t)(size_t element_size);
typedef void *(*scoreboard_find_t)(struct qemu_plugin_scoreboard *score, unsigned int vcpu);
typedef void (*tb_exec_inline_t)(struct qemu_plugin_tb *tb, int op, qemu_plugin_u64 entry, uint64_t imm);
typedef void (*tb_exec_cond_cb_t)(struct qemu_plugin_tb *tb, vcpu_udata_cb_t cb, int flags, int cond,
                                  qemu_plugin_u64 entry, uint64_t imm, void *userdata);

GByteArray *g_byte_array_new(void);
GByteArray *g_byte_array_set_size(GByteArray *a, unsigned int len);
char *g_array_free(GArray *a, int free_segment);

/*
 * The running vCPU. With thread=single QEMU 10 passes to callbacks the index of the
 * vCPU that translated the block, so only this pointer is reliable.
 */
extern __thread void *current_cpu __attribute__((tls_model("initial-exec")));

#endif
