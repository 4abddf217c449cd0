// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The event: one thing that a guest did. The capture plugin writes events, a
//! recording stores them and the model consumes them, all by this definition.
//!
//! A stream is a sequence of little-endian 64-bit words. An event is a head
//! word (kind in bits 63..57, payload in bits 56..0) and a fixed number of
//! further words given by its kind. A virtual address is the payload
//! sign-extended from bit 56, which holds canonical addresses of four- and
//! five-level paging alike.
//!
//! `qemu-plugin/events.h` defines the numbers of this module in C; a test compares
//! both.
//!
//! Order within a stream is the order in which the guest did things. Events
//! belong to the vCPU named by the last [`Event::Vcpu`] (0 at the start).
//! A store to a page-table page is two events: the access ([`Event::Store`] or
//! [`Event::StoreOther`]), then its [`Event::PtStore`]. An [`Event::Table`]
//! describes a table before the event that makes the table reachable by a walk.

pub mod log;
mod words;

pub use log::{log_bytes, log_events};
pub use words::{
    DecodeError, KIND_SHIFT, LOG_WORDS, LOOK_WORDS, MAX_WORDS, PAYLOAD_MASK, STATS_WORDS, decode,
    extra_words, head, head_va, kind,
};

/// Codes of [`Event::Marker`].
pub mod marker {
    /// The command is about to start.
    pub const START: u64 = 1;
    /// The command has ended; only logs follow.
    pub const STOP: u64 = 2;
    /// The kernel has just begun to run at its own addresses: where a recording of the
    /// boot starts.
    pub const BOOT: u64 = 3;
    /// The region to be recorded has ended, and the command runs on unrecorded. Ends the stream in
    /// place of [`STOP`].
    pub const REGION_END: u64 = 4;
    /// The command has ended, and the region to be recorded never began. Ends the stream in place of
    /// [`STOP`]; the instructions of its [`Stats`](super::Stats) count from the region's marker or function
    /// on.
    pub const REGION_MISSED: u64 = 5;
    /// The command's own program begins to run in user space. The events since [`START`] are those of the
    /// guest's init and of exec. Recordings made before 0.3 lack it, and so do recordings of the boot.
    pub const PROGRAM: u64 = 6;
    /// The process that runs is the guest's own. The plugin alone sees this marker, so a stream has none.
    pub const OWN: u64 = 7;
    /// A window begins. The code is this plus the number of the window, which is below 256.
    pub const WINDOW_BEGIN: u64 = 0x100;
    /// A window ends. The code is this plus the number of the window.
    pub const WINDOW_END: u64 = 0x200;
    /// Programs mark windows by CPUID with this in EAX and the code in ECX; CPUID exits, so a hypervisor
    /// has the mark too. Codes below [`WINDOW_BEGIN`] are no events there.
    pub const CPUID_LEAF: u64 = 0x4249_464f;
    /// Code of the CPUID by which the guest's init names a buffer of perf events: address in
    /// RBX, length in RDX.
    pub const CPUID_PERF: u64 = 0x10;
}

/// Codes of [`Event::Gap`]: a sampled stream has a head, then gaps, warm-ups and windows by turns. The stream
/// of a region has a gap, a warm-up or both before the region; that of several regions goes on between them.
pub mod gap {
    /// A gap begins: the stream has tables, faults, control registers, instructions and first touches by
    /// the kernel, and no other access.
    pub const BEGIN: u64 = 0;
    /// A warm-up begins: every access is in the stream. Caches are stale, so nothing is measured.
    pub const WARM_UP: u64 = 1;
    /// A window begins: every access is in the stream and measured.
    pub const MEASURE: u64 = 2;
    /// The head begins: every access is in the stream, and its counts are not scaled up. A program's
    /// first instructions are like none that follow.
    pub const HEAD: u64 = 3;
    /// The region to be recorded begins: every access is in the stream. The events before it made the memory,
    /// tables, TLBs and caches that the region finds, and are not part of its counts.
    pub const REGION: u64 = 4;
    /// The region ends, and the command goes on: every access is in the stream, and none is part of the
    /// counts. Another [`REGION`] may follow. The region at whose end the recording stops has none.
    pub const REGION_END: u64 = 5;
}

/// Payloads of [`Event::Ipi`].
pub mod ipi {
    /// The vCPU sends an IPI, to one vCPU or to several: it writes to the command register of its interrupt
    /// controller.
    pub const SENT: u64 = 0;
    /// A function call for one vCPU is delivered (Linux's `CALL_FUNCTION_SINGLE_VECTOR`). Linux flushes the
    /// TLBs of other vCPUs by function calls.
    pub const CALL_SINGLE: u64 = 0xfb;
    /// A function call is delivered (`CALL_FUNCTION_VECTOR`).
    pub const CALL: u64 = 0xfc;
    /// A request to schedule is delivered (`RESCHEDULE_VECTOR`).
    pub const RESCHEDULE: u64 = 0xfd;
}

/// One thing a guest did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// Data read at a GVA. An access that crosses a page is two events.
    Load(u64),
    /// Data read at a GVA that the CPU knows only after other loads: the address comes from a load whose
    /// own address was loaded. Otherwise the same as [`Event::Load`]. A core cannot overlap such a load
    /// with the loads before it. The capture finds these by `qemu-plugin/loops.c`.
    LoadDependent(u64),
    /// Data read at a GVA, independent as [`Event::Load`] is, behind which a chain of dependent loads
    /// restarts: a core overlaps that chain with those before, as far as it looks ahead.
    LoadBeforeChain(u64),
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
    /// The following events are of this vCPU.
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
    /// An entry of a page table was written. In 32-bit paging, whose entries have 4 bytes, the word that
    /// holds the entry.
    PtStore {
        /// Guest-physical address of the entry or word, 8-byte aligned.
        gpa: u64,
        /// The entry or word before.
        old: u64,
        /// The entry or word after.
        new: u64,
    },
    /// A page became a page table, or was found to be a page table; with its 512 entries, or the 512 words of
    /// its 1,024. PAE's root is a table of level 3, whose page may hold other data too.
    Table {
        /// Guest frame number of the table.
        gfn: u64,
        /// 1 = holds PTEs, 2 = PDEs, 3 = PDPTEs, 4 = PML4Es, 5 = PML5Es.
        level: u8,
        /// The words of the table, as its memory holds them.
        entries: &'a [u64; 512],
    },
    /// A page stopped being a page table.
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
    /// The host already backs these guest frames, because firmware and loader wrote to them. Only at the
    /// start of a boot's recording, before every other event.
    Resident {
        /// First guest frame number.
        gfn: u64,
        /// How many frames.
        frames: u64,
    },
    /// Interrupts delivered while recording. One such event stands at the end, before [`Event::Stats`];
    /// recordings made before 0.2 lack it.
    Ticks {
        /// Interrupts of the kernel's timer (Linux's `LOCAL_TIMER_VECTOR`).
        timer: u64,
        /// All other interrupts.
        others: u64,
    },
    /// A log of the guest: its tasks and mappings at this point of the stream. Only in streams captured
    /// for attribution.
    Log {
        /// Kind of log (see [`log`]), 16 bits.
        stream: u64,
        /// Number of the log within its kind, 25 bits.
        number: u64,
        /// Number of valid bytes at the start of `data`; at most 8 times [`LOG_WORDS`].
        bytes: usize,
        /// The bytes of the log, eight a word, low byte first.
        data: &'a [u64; LOG_WORDS],
    },
    /// The block of code at this GVA makes the accesses and instructions that follow. Only in streams
    /// captured for attribution, and only for blocks that cause events or call the kernel.
    Block(u64),
    /// The stream of a region or a sample enters its next part (see [`gap`]).
    Gap(u64),
    /// The block that runs calls a function: the next access stores the return address at this GVA. Only of
    /// user code, and only in streams captured for stacks.
    Call(u64),
    /// The block that runs returns: the next access loads the return address from this GVA. As
    /// [`Event::Call`].
    Return(u64),
    /// A device has moved data from or to the guest's memory. The host's files are a 9p device without
    /// sectors. Only in streams captured with looks.
    Transfer {
        /// Guest-physical address of the first byte.
        gpa: u64,
        /// How many bytes, from there on.
        bytes: u32,
        /// Whether the device wrote to memory, as it does where the guest reads a file.
        write: bool,
    },
    /// The guest's allocator has these frames in free blocks of 2 MB or more, at the [`Event::Look`] that
    /// follows.
    Free {
        /// First guest frame number.
        gfn: u64,
        /// How many frames.
        frames: u64,
    },
    /// What the guest's kernel uses its memory for, at this place in the stream. Only in streams captured
    /// with looks.
    Look(MemoryLook),
    /// An inter-processor interrupt: the vCPU sends one ([`ipi::SENT`]), or one with this vector is delivered
    /// to it. Only in streams of several vCPUs; recordings made before 0.2 lack it.
    Ipi(u64),
}

/// What the guest's kernel uses its memory for, in frames of 4 KB, by its own page descriptors
/// (`struct page`). Each frame is in one of the classes `free`, `cache_clean`, `cache_dirty`, `anonymous`,
/// `kernel` and `tables`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct MemoryLook {
    /// All frames that have a descriptor.
    pub frames: u64,
    /// Free, in the buddy allocator or on a CPU's list.
    pub free: u64,
    /// Of these, in blocks of 2 MB or more, which free page reporting would report (Linux `pageblock_order`).
    pub free_blocks: u64,
    /// Free, with content that is not zero: the host holds what the guest has given up.
    pub free_held: u64,
    /// Of these, in blocks of 2 MB or more.
    pub free_blocks_held: u64,
    /// Pages of files that are as on the disk.
    pub cache_clean: u64,
    /// Pages of files that have to be written first.
    pub cache_dirty: u64,
    /// Anonymous memory of programs and shared memory: what only swap can take.
    pub anonymous: u64,
    /// Everything else that the kernel has allocated or reserved.
    pub kernel: u64,
    /// Page tables of programs.
    pub tables: u64,
    /// Frames in use that hold zeros only.
    pub zero: u64,
    /// Frames in use with another content than zeros that another frame in use has too, without the first of
    /// each content.
    pub same: u64,
    /// Anonymous frames that were compressed as a sample.
    pub sampled: u64,
    /// Bytes that the sampled frames take, compressed one by one with zstd at level 3, as the kernel's; 4,096
    /// for one that does not shrink.
    pub compressed_bytes: u64,
}

/// The capture plugin's own counters and self-checks.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
pub struct Stats {
    /// CR3 loads compared with the register.
    pub cr3_checks: u64,
    /// Those of them that disagreed.
    pub cr3_mismatches: u64,
    /// Translations compared with the emulator's.
    pub translation_checks: u64,
    /// Those of them that disagreed.
    pub translation_mismatches: u64,
    /// Table entries compared with RAM at the end.
    pub table_checks: u64,
    /// Those of them that disagreed.
    pub table_mismatches: u64,
    /// Data accesses captured.
    pub accesses: u64,
    /// Instructions captured.
    pub instructions: u64,
}
