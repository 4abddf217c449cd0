// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The event: what a guest did. The one definition that the capture plugin
//! writes, a recording stores and the model consumes.
//!
//! A stream is a sequence of little-endian 64-bit words. An event is a head
//! word (kind in bits 63..57, payload in bits 56..0) and a fixed number of
//! further words given by its kind. A virtual address is the payload
//! sign-extended from bit 56, which holds canonical addresses of four- and
//! five-level paging alike.
//!
//! `qemu-plugin/events.h` states the same numbers in C; a test holds the two
//! against each other.
//!
//! Order within a stream is the order in which the guest did things. Events
//! belong to the vCPU named by the last [`Event::Vcpu`] (0 at the start).
//! A store to a page-table page comes as the access ([`Event::Store`] or
//! [`Event::StoreOther`]) followed by its [`Event::PtStore`]. Every table that
//! a walk can reach has been described by an [`Event::Table`] before the event
//! that makes it reachable.

pub mod log;
mod words;

pub use log::{log_bytes, log_events};
pub use words::{
    DecodeError, KIND_SHIFT, LOG_WORDS, MAX_WORDS, PAYLOAD_MASK, STATS_WORDS, decode, extra_words, head,
    head_va, kind,
};

/// Codes of [`Event::Marker`].
pub mod marker {
    /// The command is about to start.
    pub const START: u64 = 1;
    /// It has ended; nothing but logs comes after it.
    pub const STOP: u64 = 2;
    /// The kernel has just begun to run at its own addresses: where a recording of the
    /// boot starts.
    pub const BOOT: u64 = 3;
    /// The region to be recorded has ended, and the command runs on unrecorded; the stream's
    /// last event in place of [`STOP`].
    pub const REGION_END: u64 = 4;
    /// A window begins; its number, below 256, is added.
    pub const WINDOW_BEGIN: u64 = 0x100;
    /// A window ends; its number is added.
    pub const WINDOW_END: u64 = 0x200;
    /// Programs mark windows by CPUID with this in EAX and the code in ECX, which a
    /// hypervisor sees too: it exits. Codes below [`WINDOW_BEGIN`] are no events then.
    pub const CPUID_LEAF: u64 = 0x4249_464f;
    /// Code of the CPUID by which the guest's init names a buffer of perf events: address in
    /// RBX, length in RDX.
    pub const CPUID_PERF: u64 = 0x10;
}

/// Codes of [`Event::Gap`]: the parts of a sampled stream: a head, then gaps, warm-ups and windows
/// by turns.
pub mod gap {
    /// From here on the stream tells of tables, faults, control registers, instructions and of
    /// first touches by the kernel, but of no other access.
    pub const BEGIN: u64 = 0;
    /// From here on every access is in the stream; caches are stale, so nothing is measured.
    pub const WARM_UP: u64 = 1;
    /// From here on accesses are measured.
    pub const MEASURE: u64 = 2;
    /// From here on every access is in the stream and stands for itself alone: a program's
    /// first instructions are like none that follow.
    pub const HEAD: u64 = 3;
}

/// One thing a guest did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// Data read at a GVA. An access that crosses a page is two events.
    Load(u64),
    /// Data written at a GVA by an instruction that KVM classes as one that
    /// writes page tables (`x86_page_table_writing_insn`: MOV, XCHG, CMPXCHG,
    /// AND, OR, BTS and so on).
    Store(u64),
    /// Data written at a GVA by any other instruction (MOVS, STOS, PUSH, SSE, ...).
    StoreOther(u64),
    /// Instruction fetch moved to the page that holds this GVA.
    Fetch(u64),
    /// Instructions executed by the current vCPU since its last such event.
    Insns(u64),
    /// The events that follow are this vCPU's.
    Vcpu(u64),
    /// CR3 was loaded with this value.
    Cr3(u64),
    /// CR3 was read.
    Cr3Read,
    /// INVLPG of a GVA.
    Invlpg(u64),
    /// CR4 was loaded with this value.
    Cr4(u64),
    /// A page fault was delivered: CR2 and the error code.
    Fault {
        /// Faulting GVA (CR2).
        gva: u64,
        /// Error code as pushed by the CPU (bit 0 present, 1 write, 2 user, 4 fetch).
        error: u64,
    },
    /// An entry of a page table was written.
    PtStore {
        /// Guest-physical address of the entry, 8-byte aligned.
        gpa: u64,
        /// The entry before.
        old: u64,
        /// The entry after.
        new: u64,
    },
    /// A page became a page table (or was found to be one), with its 512 entries.
    Table {
        /// Guest frame number of the table.
        gfn: u64,
        /// 1 = holds PTEs, 2 = PDEs, 3 = PDPTEs, 4 = PML4Es, 5 = PML5Es.
        level: u8,
        /// Its entries.
        entries: &'a [u64; 512],
    },
    /// A page is no page table any more.
    Retire {
        /// Guest frame number.
        gfn: u64,
    },
    /// Self-check: the emulator translated this GVA to this GPA just now.
    Check {
        /// Guest-virtual address.
        gva: u64,
        /// Guest-physical address.
        gpa: u64,
    },
    /// A marker instruction was executed (see [`marker`]).
    Marker(u64),
    /// The plugin's own counters at the end (see [`Stats`]).
    Stats(Stats),
    /// The host holds these frames of the guest's memory already: its firmware and its
    /// loader wrote to them. Only at the start of a boot's recording, before all else.
    Resident {
        /// First guest frame number.
        gfn: u64,
        /// How many frames.
        frames: u64,
    },
    /// Interrupts delivered while recording. Once, at the end, before [`Event::Stats`];
    /// recordings made before 0.2 have none.
    Ticks {
        /// Of the kernel's timer (Linux's `LOCAL_TIMER_VECTOR`).
        timer: u64,
        /// All others.
        others: u64,
    },
    /// Bytes that say who runs in the guest and what is mapped where, at this point of the
    /// stream. Only in streams captured for attribution.
    Log {
        /// What the bytes are (see [`log`]), 16 bits.
        stream: u64,
        /// Which of its kind, 25 bits.
        number: u64,
        /// How many bytes of `data` count, from the first on; at most 8 times [`LOG_WORDS`].
        bytes: usize,
        /// The bytes, eight a word, low byte first.
        data: &'a [u64; LOG_WORDS],
    },
    /// The accesses and instructions that follow are of the block of code at this GVA. Only in
    /// streams captured for attribution, and only for blocks that do something the stream tells.
    Block(u64),
    /// A sampled stream enters another of its parts (see [`gap`]).
    Gap(u64),
}

/// What the capture plugin counted and checked itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Stats {
    /// Comparisons of the followed CR3 with the register.
    pub cr3_checks: u64,
    /// Of those, how many disagreed.
    pub cr3_mismatches: u64,
    /// Comparisons of the plugin's cached GVA-to-GPA translation with QEMU's.
    pub translation_checks: u64,
    /// Of those, how many disagreed.
    pub translation_mismatches: u64,
    /// Page-table entries compared with RAM at the end.
    pub table_checks: u64,
    /// Of those, how many differed beyond accessed and dirty bits.
    pub table_mismatches: u64,
    /// Accesses written to the stream.
    pub accesses: u64,
    /// Instructions executed while recording.
    pub instructions: u64,
}
