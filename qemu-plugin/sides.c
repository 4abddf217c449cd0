// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Keeps two translations of the guest's code side by side.
 *
 * Gaps and windows (region.c) have other callbacks. A reset of the plugin throws away
 * all translated code, and a compiler's code takes 0.3 s to translate. QEMU looks up a
 * translation by its address and by flags of the translator (curr_cflags). One of
 * these flags comes from `-d nochain`: blocks of such a translation do not jump to each other
 * directly. Setting it changes to other translations, and clearing it changes back.
 *
 * Direct jumps stay within the other side's translations, so the running vCPU is sent to
 * the main loop, which looks the next block up. A block that was left by a direct jump
 * that does not exist yet is not linked to a block of the other side either, because the
 * main loop links no block after a vCPU was asked to exit.
 *
 * Like files.c, this file uses symbols that QEMU exports for its modules. Without them
 * the plugin is reset.
 */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "plugin.h"

/* CPU_LOG_TB_NOCHAIN of QEMU's log.h. */
#define NO_CHAIN (1 << 13)

static int *log_level;
static uint32_t (*flags_of)(void *cpu);
static void (*leave)(void *cpu);

/* Whether changes are possible. Called by the running vCPU. */
bool sides_open(void)
{
    uint32_t before;
    bool differs;

    log_level = (int *)dlsym(RTLD_DEFAULT, "qemu_loglevel");
    flags_of = (uint32_t (*)(void *))dlsym(RTLD_DEFAULT, "curr_cflags");
    leave = (void (*)(void *))dlsym(RTLD_DEFAULT, "cpu_exit");
    if (!log_level || !flags_of || !leave || *log_level & NO_CHAIN) {
        log_level = NULL;
        return false;
    }
    before = flags_of(current_cpu);
    *log_level |= NO_CHAIN;
    differs = flags_of(current_cpu) != before;
    *log_level &= ~NO_CHAIN;
    return differs;
}

/* Recording is over. */
void sides_close(void)
{
    if (log_level)
        *log_level &= ~NO_CHAIN;
}

/* From the next block on, the vCPU runs translations of this side. */
void sides_change(bool unchained)
{
    *log_level = unchained ? *log_level | NO_CHAIN : *log_level & ~NO_CHAIN;
    leave(current_cpu);
}
