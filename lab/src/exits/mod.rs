// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts exits by reason from KVM's trace events, in the windows that the guest marks.
//!
//! A guest marks a window with CPUID (leaf [`LEAF`]), which always exits and appears as the event kvm_cpuid.
//! The events between an exit and the next entry classify a page fault: reflected into the guest
//! (kvm_inj_exception), emulated (kvm_emulate_insn, and the guest continues after the instruction), a table
//! that became unsync (kvm_mmu_unsync_page), or a device access (kvm_mmio). Otherwise the shadow entry was
//! missing or, if the error code has the present bit, read-only. Each vCPU has exits of its own; a window has
//! those of all.

pub mod ftrace;
pub mod outer;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::vendor::{ExitCause, PagingExit, RawExit, Vendor};
use ftrace::{Formats, Record, TraceError, read};

/// EAX of the marker: "BIFO".
pub const LEAF: u64 = 0x4249_464f;

/// The trace events that classify exits.
pub const EVENTS: [&str; 8] = [
    "kvm:kvm_exit",
    "kvm:kvm_entry",
    "kvm:kvm_cpuid",
    "kvm:kvm_inj_exception",
    "kvm:kvm_inj_virq",
    "kvm:kvm_emulate_insn",
    "kvm:kvm_mmio",
    "kvmmmu:kvm_mmu_unsync_page",
];

/// The trace event of the laboratory's disk, which is there for swapping.
pub const DISK: &str = "block:block_bio_queue";
const SECTORS_PER_PAGE: u64 = 8;

/// Addresses below this one are user addresses.
const USER_END: u64 = 1 << 47;
const PRESENT: u64 = 1;
const PF_VECTOR: u64 = 14;

/// One exit that concerns paging.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedExit {
    /// Nanoseconds of the trace's clock.
    pub time: u64,
    /// Reason: the name of the model's counter without `exits_`.
    pub reason: String,
    /// Address of the instruction.
    pub rip: u64,
    /// Faulting address: guest-virtual, or guest-physical with nested paging.
    pub address: u64,
    /// The page fault's error code.
    pub error: u64,
}

/// What happened in a window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Exits that concern paging, by reason.
    pub exits: BTreeMap<String, u64>,
    /// All other exits, by the vendor's `exit_reason`. Device accesses have that of the page fault.
    pub others: BTreeMap<u64, u64>,
    /// Interrupts delivered to the guest.
    pub interrupts: u64,
    /// Interrupts that arrived in user mode.
    pub user_interrupts: u64,
    /// Nanoseconds of the trace's clock.
    pub nanoseconds: u64,
    /// Pages that were read from the laboratory's disk and written to it, if [`DISK`] is traced.
    #[serde(default)]
    pub pages_read: u64,
    #[allow(missing_docs)]
    #[serde(default)]
    pub pages_written: u64,
    /// Every exit, if exits are logged.
    pub log: Vec<LoggedExit>,
}

/// An exit before its entry.
#[derive(Debug, Clone, Copy, Default)]
struct Open {
    code: u64,
    time: u64,
    rip: u64,
    paging: Option<PagingExit>,
    injected: bool,
    emulated: bool,
    /// The register that an emulated MOV from CRn reads.
    register: Option<u8>,
    unsynced: bool,
    device: bool,
    interrupted: bool,
    entry: Option<u64>,
}

impl Open {
    fn reason(&self) -> Option<&'static str> {
        let exit = self.paging?;
        match exit.cause {
            ExitCause::ReadCr(3) => Some("cr3_read"),
            // Under QEMU every such exit appears as a read of CR0, even reads of CR2, which no processor
            // intercepts (lab/kvm_module.rs).
            ExitCause::ReadCr(_) if self.register == Some(3) => Some("cr3_read"),
            ExitCause::WriteCr(3) => Some("cr3_write"),
            ExitCause::WriteCr(4) => Some("cr4_write"),
            ExitCause::Invlpg => Some("invlpg"),
            ExitCause::NestedFault if !self.device => Some("violation"),
            ExitCause::PageFault if !self.device => Some(self.page_fault(exit.error)),
            _ => None,
        }
    }

    fn page_fault(&self, error: u64) -> &'static str {
        if self.injected {
            "guest_fault"
        } else if self.emulated && self.entry != Some(self.rip) {
            "emulated_write"
        } else if self.emulated {
            "unprotect"
        } else if error & PRESENT == 0 {
            "hidden_fault"
        } else if self.unsynced {
            "unsync"
        } else {
            "permission"
        }
    }
}

/// Reads the windows of a trace, by number. With `log` every exit is kept.
pub fn windows(
    raw: &[u8],
    formats: &Formats,
    vendor: &Vendor,
    log: bool,
) -> Result<BTreeMap<u64, Window>, TraceError> {
    let mut all = BTreeMap::new();
    let mut at: Option<(u64, u64, Window)> = None;
    // Each vCPU is a thread.
    let mut open: BTreeMap<u64, Option<Open>> = BTreeMap::new();
    read(raw, formats, |r| {
        let thread = r.get("common_pid");
        if r.format.name == "kvm_cpuid" && r.get("function") == LEAF {
            // Exits of other threads that have ended belong to the window before the marker.
            let others = open.iter_mut().filter(|(other, _)| **other != thread).map(|(_, open)| open);
            let ended = others.filter(|open| open.is_some_and(|exit| exit.entry.is_some()));
            ended.for_each(|open| close(open, &mut at, log));
        }
        let open = open.entry(thread).or_default();
        step(&r, vendor, open, &mut at, &mut all, log);
    })?;
    Ok(all)
}

/// The control register that `mov %crN, reg` (0F 20 /r) reads.
fn register_read(insn: &[u8]) -> Option<u8> {
    let rex = insn.first().copied().filter(|b| b & 0xf0 == 0x40);
    let [0x0f, 0x20, modrm, ..] = insn[usize::from(rex.is_some())..] else { return None };
    Some(modrm >> 3 & 7 | rex.map_or(0, |r| (r >> 2 & 1) << 3))
}

fn close(open: &mut Option<Open>, window: &mut Option<(u64, u64, Window)>, log: bool) {
    let (Some(exit), Some((_, _, w))) = (open.take(), window.as_mut()) else { return };
    match exit.reason() {
        Some(reason) => {
            *w.exits.entry(reason.to_owned()).or_default() += 1;
            if log {
                let (time, rip) = (exit.time, exit.rip);
                let (address, error) = exit.paging.map_or((0, 0), |p| (p.address, p.error));
                w.log.push(LoggedExit { time, reason: reason.to_owned(), rip, address, error });
            }
        }
        None => *w.others.entry(exit.code).or_default() += 1,
    }
}

/// The fields of a record of `kvm_exit`.
pub(crate) fn raw_exit(r: &Record) -> RawExit {
    RawExit {
        exit_reason: r.get("exit_reason"),
        info1: r.get("info1"),
        info2: r.get("info2"),
        intr_info: r.get("intr_info"),
        error_code: r.get("error_code"),
    }
}

fn step(
    r: &Record,
    vendor: &Vendor,
    open: &mut Option<Open>,
    window: &mut Option<(u64, u64, Window)>,
    all: &mut BTreeMap<u64, Window>,
    log: bool,
) {
    match r.format.name.as_str() {
        "kvm_exit" => {
            close(open, window, log);
            let raw = raw_exit(r);
            *open = Some(Open {
                code: raw.exit_reason,
                time: r.time,
                rip: r.get("guest_rip"),
                paging: (vendor.decode)(&raw),
                ..Open::default()
            });
        }
        "kvm_cpuid" if r.get("function") == LEAF => {
            let marker = r.get("index");
            // The marker's own exit belongs to no window.
            *open = None;
            match marker >> 8 {
                1 => *window = Some((marker & 0xff, r.time, Window::default())),
                2 => {
                    if let Some((number, begun, mut w)) = window.take() {
                        w.nanoseconds = r.time - begun;
                        all.insert(number, w);
                    }
                }
                _ => {}
            }
        }
        "block_bio_queue" => {
            let pages = r.get("nr_sector") / SECTORS_PER_PAGE;
            if let Some((_, _, w)) = window {
                match r.bytes("rwbs").first() {
                    Some(b'R') => w.pages_read += pages,
                    Some(b'W') => w.pages_written += pages,
                    _ => {}
                }
            }
        }
        "kvm_inj_virq" => {
            if let Some((_, _, w)) = window {
                w.interrupts += 1;
            }
            if let Some(o) = open {
                o.interrupted = true;
            }
        }
        name => {
            if let Some(o) = open {
                during_exit(o, name, r, window);
            }
        }
    }
}

/// What comes between an exit and the entry after it.
fn during_exit(o: &mut Open, name: &str, r: &Record, window: &mut Option<(u64, u64, Window)>) {
    match name {
        // Only the first entry ends the exit. An exit to user space has none.
        "kvm_entry" => {
            o.entry = o.entry.or(Some(r.get("rip")));
            let user = r.get("rip") < USER_END;
            if let (true, true, Some((_, _, w))) = (std::mem::take(&mut o.interrupted), user, window) {
                w.user_interrupts += 1;
            }
        }
        // An exception that was being delivered when the exit came does not belong to the exit.
        "kvm_inj_exception" => {
            o.injected |= r.get("exception") == PF_VECTOR && r.get("reinjected") == 0;
        }
        "kvm_emulate_insn" => {
            o.emulated = true;
            o.register = register_read(r.bytes("insn"));
        }
        "kvm_mmio" => o.device = true,
        "kvm_mmu_unsync_page" => o.unsynced = true,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vendor::AMD;

    /// SVM's exit codes.
    mod code {
        pub const READ_CR0: u64 = 0x00;
        pub const PAGE_FAULT: u64 = 0x4e;
        pub const NESTED_FAULT: u64 = 0x400;
    }

    /// Events with their fields, each 8 bytes.
    const FIELDS: [(&str, &[&str]); 10] = [
        ("kvm_exit", &["exit_reason", "guest_rip", "info1", "info2"]),
        ("kvm_entry", &["rip"]),
        ("kvm_cpuid", &["function", "index"]),
        ("kvm_inj_exception", &["exception", "reinjected"]),
        ("kvm_inj_virq", &["vector"]),
        ("kvm_emulate_insn", &["insn"]),
        ("kvm_mmio", &["gpa"]),
        ("kvm_mmu_unsync_page", &["gfn"]),
        ("kvm_nested_vmexit", &[]),
        ("kvm_nested_vmexit_inject", &[]),
    ];

    pub(super) fn formats() -> Formats {
        let mut formats = Formats::default();
        for (id, (name, fields)) in FIELDS.iter().enumerate() {
            let mut text = format!(
                "name: {name}\nID: {id}\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n"
            );
            for (i, f) in fields.iter().enumerate() {
                text += &format!("\tfield:u64 {f};\toffset:{};\tsize:8;\tsigned:0;\n", 8 + 8 * i);
            }
            formats.add(&text).unwrap();
        }
        formats
    }

    /// A page of records a nanosecond apart, of one thread.
    pub(super) fn page(events: &[(&str, &[u64])]) -> Vec<u8> {
        records(&events.iter().map(|e| (1, *e)).collect::<Vec<_>>())
    }

    /// A page of window 7, with each record's thread.
    fn page_of(events: &[(u64, (&str, &[u64]))]) -> Vec<u8> {
        let exit: (&str, &[u64]) = ("kvm_exit", &[0x72, 0, 0, 0]);
        let begin = [(1, exit), (1, ("kvm_cpuid", &[LEAF, 0x107][..]))];
        let end = [(1, exit), (1, ("kvm_cpuid", &[LEAF, 0x207][..]))];
        records(&[&begin[..], events, &end].concat())
    }

    fn records(events: &[(u64, (&str, &[u64]))]) -> Vec<u8> {
        let mut records = Vec::new();
        for (thread, (name, values)) in events {
            let id = FIELDS.iter().position(|(n, _)| n == name).unwrap();
            let mut data = (thread << 32 | id as u64).to_le_bytes().to_vec();
            values.iter().for_each(|v| data.extend(v.to_le_bytes()));
            records.extend(((data.len() as u32 / 4) | (1 << 5)).to_le_bytes());
            records.extend(data);
        }
        let mut page = 0u64.to_le_bytes().to_vec();
        page.extend((records.len() as u64).to_le_bytes());
        page.extend(records);
        page
    }

    /// The one window made of these events.
    fn window(events: &[(&str, &[u64])]) -> Window {
        let marker = |code| ("kvm_cpuid", [LEAF, code]);
        let (begin, end) = (marker(0x107), marker(0x207));
        let exit: (&str, &[u64]) = ("kvm_exit", &[0x72, 0, 0, 0]);
        let all = [&[exit, (begin.0, &begin.1)][..], events, &[exit, (end.0, &end.1)]].concat();
        let mut windows = windows(&page(&all), &formats(), &AMD, true).unwrap();
        assert_eq!(windows.len(), 1);
        windows.remove(&7).unwrap()
    }

    fn only(window: &Window) -> (&str, u64) {
        assert_eq!(window.exits.len(), 1, "{window:?}");
        window.exits.iter().map(|(k, n)| (k.as_str(), *n)).next().unwrap()
    }

    const RIP: u64 = 0xffff_ffff_8100_0000;
    const FAULT: (&str, &[u64]) = ("kvm_exit", &[code::PAGE_FAULT, RIP, 0, 0x1000]);
    const PROTECTION: (&str, &[u64]) = ("kvm_exit", &[code::PAGE_FAULT, RIP, 3, 0x1000]);
    const BACK: (&str, &[u64]) = ("kvm_entry", &[RIP]);
    const BEHIND: (&str, &[u64]) = ("kvm_entry", &[RIP + 3]);
    const STORE: (&str, &[u64]) = ("kvm_emulate_insn", &[0x0007_8948]);

    #[test]
    fn a_page_fault_is_what_happened_before_the_next_entry() {
        assert_eq!(only(&window(&[FAULT, BACK])), ("hidden_fault", 1));
        assert_eq!(only(&window(&[PROTECTION, BACK])), ("permission", 1));
        assert_eq!(only(&window(&[PROTECTION, ("kvm_mmu_unsync_page", &[1]), BACK])), ("unsync", 1));
        assert_eq!(only(&window(&[FAULT, ("kvm_mmu_unsync_page", &[1]), BACK])), ("hidden_fault", 1));
        assert_eq!(only(&window(&[PROTECTION, STORE, BEHIND])), ("emulated_write", 1));
        assert_eq!(only(&window(&[PROTECTION, STORE, BACK])), ("unprotect", 1));
        assert_eq!(only(&window(&[FAULT, ("kvm_inj_exception", &[14, 0]), BACK])), ("guest_fault", 1));
        let nested = ("kvm_exit", &[code::NESTED_FAULT, RIP, 0, 0x5000][..]);
        assert_eq!(only(&window(&[nested, BACK])), ("violation", 1));
    }

    #[test]
    fn a_fault_met_in_delivering_another_is_not_the_guests() {
        assert_eq!(only(&window(&[FAULT, ("kvm_inj_exception", &[14, 1]), BACK])), ("hidden_fault", 1));
    }

    #[test]
    fn devices_faults_and_other_exits_are_not_pagings() {
        let w = window(&[FAULT, ("kvm_mmio", &[1]), STORE, BEHIND, ("kvm_exit", &[0x60, RIP, 0, 0]), BACK]);
        assert!(w.exits.is_empty());
        assert_eq!(w.others, BTreeMap::from([(code::PAGE_FAULT, 1), (0x60, 1)]));
    }

    #[test]
    fn reads_of_cr3_are_told_from_reads_of_cr2_by_the_instruction() {
        let read = ("kvm_exit", &[code::READ_CR0, RIP, 0, 0][..]);
        // mov %cr3,%rax; mov %cr2,%r12; mov %cr8,%rax
        assert_eq!(only(&window(&[read, ("kvm_emulate_insn", &[0x00d8_200f]), BEHIND])), ("cr3_read", 1));
        assert!(window(&[read, ("kvm_emulate_insn", &[0xd420_0f41]), BEHIND]).exits.is_empty());
        assert!(window(&[read, ("kvm_emulate_insn", &[0xc020_0f44]), BEHIND]).exits.is_empty());
    }

    #[test]
    fn interrupts_that_find_the_guest_in_user_mode_are_counted_apart() {
        let exit = ("kvm_exit", &[0x60, RIP, 0, 0][..]);
        let interrupt = ("kvm_inj_virq", &[0xec][..]);
        let w = window(&[exit, interrupt, ("kvm_entry", &[0x40_1000]), exit, interrupt, BACK]);
        assert_eq!((w.interrupts, w.user_interrupts), (2, 1));
    }

    #[test]
    fn vcpus_have_exits_of_their_own() {
        // A page fault of one thread is closed by its own entry, though another thread's exit comes between.
        let raw = page_of(&[
            (1, FAULT),
            (2, PROTECTION),
            (2, BACK),
            (1, ("kvm_inj_exception", &[14, 0])),
            (1, BACK),
        ]);
        let w = windows(&raw, &formats(), &AMD, false).unwrap().remove(&7).unwrap();
        assert_eq!(w.exits, BTreeMap::from([("guest_fault".into(), 1), ("permission".into(), 1)]));
    }

    #[test]
    fn exits_outside_of_windows_count_for_nothing_and_the_log_has_all_within() {
        let raw = page(&[FAULT, BACK, PROTECTION, BACK]);
        assert!(windows(&raw, &formats(), &AMD, true).unwrap().is_empty());
        let w = window(&[FAULT, BACK, PROTECTION, BACK]);
        let log: Vec<_> = w.log.iter().map(|e| (e.reason.as_str(), e.address, e.error)).collect();
        assert_eq!(log, [("hidden_fault", 0x1000, 0), ("permission", 0x1000, 3)]);
    }
}
