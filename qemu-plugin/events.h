/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The event stream's numbers in C, as in crates/trace/src/event/words.rs. A test of
 * crates/guest reads this file and compares every number with Rust's, so keep each
 * on a separate line: #define BF_NAME number.
 */
#ifndef BIFOLD_EVENTS_H
#define BIFOLD_EVENTS_H

#include <stdint.h>

#define BF_KIND_SHIFT 57
#define BF_MAX_WORDS 513
#define BF_STATS_WORDS 8
#define BF_MOST_VCPUS 8

#define BF_KIND_LOAD 1
#define BF_KIND_STORE 2
#define BF_KIND_STORE_OTHER 3
#define BF_KIND_FETCH 4
#define BF_KIND_LOAD_DEPENDENT 5
#define BF_KIND_LOAD_BEFORE_CHAIN 6
#define BF_KIND_INSNS 8
#define BF_KIND_VCPU 9
#define BF_KIND_CR3 10
#define BF_KIND_CR3_READ 11
#define BF_KIND_INVLPG 12
#define BF_KIND_CR4 13
#define BF_KIND_FAULT 14
#define BF_KIND_PT_STORE 15
#define BF_KIND_TABLE 16
#define BF_KIND_RETIRE 17
#define BF_KIND_CHECK 18
#define BF_KIND_MARKER 19
#define BF_KIND_STATS 20
#define BF_KIND_RESIDENT 21
#define BF_KIND_LOG 22
#define BF_KIND_BLOCK 23
#define BF_KIND_GAP 24
#define BF_KIND_TICKS 25
#define BF_KIND_CALL 26
#define BF_KIND_RETURN 27
#define BF_KIND_TRANSFER 28
#define BF_KIND_FREE 29
#define BF_KIND_LOOK 30
#define BF_KIND_IPI 31

#define BF_IPI_SENT 0
#define BF_IPI_CALL_SINGLE 0xfb
#define BF_IPI_CALL 0xfc
#define BF_IPI_RESCHEDULE 0xfd

#define BF_LOOK_WORDS 16
#define BF_LOG_WORDS 32
#define BF_LOG_PERF 1

#define BF_MARKER_START 1
#define BF_MARKER_STOP 2
#define BF_MARKER_BOOT 3
#define BF_MARKER_REGION_END 4
#define BF_MARKER_REGION_MISSED 5
#define BF_MARKER_PROGRAM 6
#define BF_MARKER_OWN 7
#define BF_MARKER_WINDOW_BEGIN 0x100
#define BF_MARKER_WINDOW_END 0x200

#define BF_GAP_BEGIN 0
#define BF_GAP_WARM_UP 1
#define BF_GAP_MEASURE 2
#define BF_GAP_HEAD 3
#define BF_GAP_REGION 4
#define BF_GAP_REGION_END 5

/*
 * The marker instruction: an 8-byte NOP (0F 1F 84 00 disp32) with this
 * displacement plus the marker's code.
 */
#define BF_MARKER_MAGIC 0x2b1f0d00
/*
 * Windows are marked by CPUID with this leaf ("BIFO") in EAX and the code in
 * ECX. Any program may execute CPUID, and under a hypervisor it exits, so a trace
 * of exits shows it too. Codes below BF_MARKER_WINDOW_BEGIN belong to the NOP;
 * init executes both instructions.
 */
#define BF_CPUID_LEAF 0x4249464f
/*
 * With this code in ECX of CPUID, init names the perf buffers of the vCPUs, one
 * after the other: address in EBX, length in EDX.
 */
#define BF_CPUID_PERF 0x10

/* The ring's control page (crates/guest/src/capture/ring.rs has the same offsets). */
#define BF_RING_MAGIC 0x676e6972646c6f66
#define BF_RING_HEADER_BYTES 4096

#define BF_PAYLOAD_MASK ((UINT64_C(1) << BF_KIND_SHIFT) - 1)

static inline uint64_t bf_head(uint64_t kind, uint64_t payload)
{
    return kind << BF_KIND_SHIFT | (payload & BF_PAYLOAD_MASK);
}

#endif
