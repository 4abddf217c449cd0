// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts swap operations in a trace of the laboratory's kernel, and which are superfluous.
//!
//! A page is read where a task's fault (`do_swap_page`) is followed by a read of the disk in that task. Who
//! the fault is for:
//!
//! - the guest's processor, if the vCPU's last exit is a violation at the frame, or if the kernel takes the
//!   fault for another process (an asynchronous page fault). The read is false if the guest's instruction is
//!   in a function that overwrites a page;
//! - otherwise a device: QEMU touches the page. The read is stale if the fault is for a write, and double
//!   paging if not.
//!
//! A page is written where the kernel calls `swap_writepage`. The write is silent if the frame holds the
//! guest's file: the guest says which frames those are in each turn. In its next turn, frames hold the file
//! still until they are used.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use bifold_model::Swaps;

use crate::exits::ftrace::{Formats, Record, read};
use crate::exits::{LEAF, raw_exit};
use crate::vendor::{ExitCause, Vendor};

/// The events' definitions. `struct page` and `struct folio` have `index` at 32, which is the page's address
/// in anonymous memory; `struct vm_fault` has `address` at 24 and `flags` at 40 (Linux 6.1 and 6.12,
/// `mm_types.h` and `mm.h`).
pub const PROBES: [&str; 2] = [
    "p:bifold/swap_write swap_writepage index=+32(%di):u64",
    "p:bifold/swap_fault do_swap_page address=+24(%di):u64 flags=+40(%di):u32",
];
/// The events that are traced.
pub const EVENTS: [&str; 6] = [
    "bifold:swap_write",
    "bifold:swap_fault",
    "block:block_bio_queue",
    "kvm:kvm_exit",
    "kvm:kvm_entry",
    "kvm:kvm_cpuid",
];

/// The bit of a page fault's error code for a write.
const WRITE_ERROR: u64 = 2;
/// Bits of a fault's flags.
const WRITE: u64 = 1;
const REMOTE: u64 = 1 << 7;

/// The guest's functions that overwrite a page and read none of it. Linux chooses one of each kind by the
/// processor.
const OVERWRITES: [&str; 5] =
    ["clear_page_orig", "clear_page_rep", "clear_page_erms", "copy_page", "copy_page_regs"];

/// Address ranges of kernel functions.
#[derive(Debug, Default)]
pub struct Functions(Vec<(u64, u64)>);

impl Functions {
    /// Those that overwrite pages, by the text of `/proc/kallsyms`.
    pub fn that_overwrite(kallsyms: &str) -> Functions {
        let symbol = |line: &str| {
            let mut words = line.split_whitespace();
            let at = u64::from_str_radix(words.next()?, 16).ok()?;
            Some((at, words.nth(1)?.to_owned()))
        };
        let mut all: Vec<_> = kallsyms.lines().filter_map(symbol).collect();
        all.sort();
        let end = |at: u64| all.iter().map(|(next, _)| *next).find(|next| *next > at).unwrap_or(at);
        let chosen = all.iter().filter(|(_, name)| OVERWRITES.contains(&name.as_str()));
        Functions(chosen.map(|(at, _)| (*at, end(*at))).collect())
    }

    /// Was no function found?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn has(&self, rip: u64) -> bool {
        self.0.iter().any(|(from, to)| (*from..*to).contains(&rip))
    }
}

/// The frames of the guest's file by turn, by what `swaps-file` prints.
pub fn file_frames(output: &str) -> BTreeMap<u64, BTreeSet<u64>> {
    let turn = |line: &str| {
        let (turn, runs) = line.strip_prefix("frames ")?.split_once(':')?;
        let run = |run: &str| {
            let (first, frames) = run.split_once('+')?;
            let first = u64::from_str_radix(first, 16).ok()?;
            Some(first..first + u64::from_str_radix(frames, 16).ok()?)
        };
        Some((turn.parse().ok()?, runs.split_whitespace().filter_map(run).flatten().collect()))
    };
    output.lines().filter_map(turn).collect()
}

/// An event, as far as it is of use here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// A violation at a guest-physical address, by the instruction at `rip`; by a write?
    Violation {
        gpa: u64,
        rip: u64,
        write: bool,
    },
    OtherExit,
    Entry,
    Marker(u64),
    Fault {
        address: u64,
        flags: u64,
    },
    DiskRead,
    Write {
        page: u64,
    },
}

type Event = (u64, What);

fn event(r: &Record, vendor: &Vendor) -> Option<Event> {
    let what = match r.format.name.as_str() {
        "kvm_exit" => {
            let raw = raw_exit(r);
            match (vendor.decode)(&raw) {
                Some(exit) if exit.cause == ExitCause::NestedFault => {
                    let write = exit.error & WRITE_ERROR != 0;
                    What::Violation { gpa: exit.address, rip: r.get("guest_rip"), write }
                }
                _ => What::OtherExit,
            }
        }
        "kvm_entry" => What::Entry,
        "kvm_cpuid" if r.get("function") == LEAF => What::Marker(r.get("index")),
        "swap_fault" => What::Fault { address: r.get("address"), flags: r.get("flags") },
        "swap_write" => What::Write { page: r.get("index") },
        "block_bio_queue" if r.bytes("rwbs").first() == Some(&b'R') => What::DiskRead,
        _ => return None,
    };
    Some((r.get("common_pid"), what))
}

/// What was counted in a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Of the guest's memory.
    pub swaps: Swaps,
    /// Reads of QEMU's own pages.
    pub others: u64,
    /// The guest said which frames have its file. Otherwise no silent write is known.
    pub knows_file: bool,
}

/// The first address of the guest's memory in QEMU: what most violations and the faults that follow say.
fn base(events: &[Event]) -> Option<u64> {
    let mut votes: BTreeMap<u64, u64> = BTreeMap::new();
    let mut open = None;
    for (task, what) in events {
        match (what, open) {
            (What::Violation { gpa, .. }, _) => open = Some((*task, *gpa)),
            (What::Fault { address, .. }, Some((of, gpa))) if of == *task => {
                *votes.entry((address & !0xfff).wrapping_sub(gpa & !0xfff)).or_default() += 1;
                open = None;
            }
            (What::OtherExit | What::Entry, _) => open = None,
            _ => {}
        }
    }
    votes.into_iter().max_by_key(|(_, n)| *n).map(|(base, _)| base)
}

/// The guest of a trace.
#[derive(Debug)]
pub struct Guest<'a> {
    /// Its memory.
    pub frames: u64,
    /// Its functions that overwrite pages.
    pub overwrites: &'a Functions,
    /// Its file's frames by turn.
    pub file: &'a BTreeMap<u64, BTreeSet<u64>>,
}

fn window(events: &[Event], number: u64, guest: &Guest) -> Result<Counted> {
    let base = base(events).context("the trace has no fault of the guest's")?;
    let frame = |address: u64| Some(address.wrapping_sub(base) >> 12).filter(|frame| *frame < guest.frames);
    let mut counted = Counted { knows_file: !guest.file.is_empty(), ..Counted::default() };
    let (mut inside, mut turn, mut ended) = (false, 0, false);
    // The frame whose violation a vCPU handles now, and by frame whether the last violation was by an
    // instruction that overwrites the page.
    let mut handled: Option<(u64, u64)> = None;
    let mut overwritten: BTreeMap<u64, bool> = BTreeMap::new();
    // The last fault of each task.
    let mut faults: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for &(task, what) in events {
        match what {
            What::Violation { gpa, rip, write } => {
                handled = Some((task, gpa >> 12));
                overwritten.insert(gpa >> 12, write && guest.overwrites.has(rip));
            }
            What::OtherExit | What::Entry => handled = None,
            What::Marker(code) => match (code >> 8, code & 0xff) {
                (1, n) if n == number => inside = true,
                (2, n) if n == number => (inside, ended) = (false, true),
                (3, n) => turn = n,
                _ => {}
            },
            What::Fault { address, flags } => {
                faults.insert(task, (address, flags));
            }
            What::DiskRead => {
                let Some((address, flags)) = faults.remove(&task).filter(|_| inside) else { continue };
                let Some(frame) = frame(address) else {
                    counted.others += 1;
                    continue;
                };
                let swaps = &mut counted.swaps;
                swaps.reads += 1;
                if handled == Some((task, frame)) || flags & REMOTE != 0 {
                    swaps.false_reads += u64::from(overwritten.get(&frame) == Some(&true));
                } else if flags & WRITE != 0 {
                    swaps.stale_reads += 1;
                } else {
                    swaps.double_paged += 1;
                }
            }
            What::Write { page } => {
                let Some(frame) = frame(page << 12).filter(|_| inside) else { continue };
                counted.swaps.writes += 1;
                let of_turn = |turn: Option<u64>| {
                    turn.and_then(|t| guest.file.get(&t)).is_some_and(|f| f.contains(&frame))
                };
                let holds_file = of_turn(Some(turn)) || of_turn(turn.checked_sub(1));
                counted.swaps.silent_writes += u64::from(holds_file);
            }
        }
    }
    anyhow::ensure!(ended, "the inner guest ended without its window");
    Ok(counted)
}

/// Counts the operations of a window in a trace of one CPU.
pub fn count(raw: &[u8], formats: &Formats, vendor: &Vendor, number: u64, guest: &Guest) -> Result<Counted> {
    let mut events = Vec::new();
    read(raw, formats, |r| events.extend(event(&r, vendor)))?;
    window(&events, number, guest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Counted = Counted {
        swaps: Swaps {
            writes: 0,
            silent_writes: 0,
            reads: 0,
            stale_reads: 0,
            false_reads: 0,
            double_paged: 0,
        },
        others: 0,
        knows_file: true,
    };
    const VCPU: u64 = 10;
    const WORKER: u64 = 11;
    const KERNEL: u64 = 12;
    const BASE: u64 = 0x7f00_0000_0000;
    const CLEAR: u64 = 0xffff_ffff_8100_0010;

    fn functions() -> Functions {
        Functions::that_overwrite(
            "ffffffff81000000 T clear_page_erms\nffffffff81000020 t other\nffffffff80000000 T first\n",
        )
    }

    fn violation(frame: u64, rip: u64) -> Event {
        (VCPU, What::Violation { gpa: (frame << 12) + 8, rip, write: true })
    }

    fn fault(task: u64, frame: u64, flags: u64) -> [Event; 2] {
        [(task, What::Fault { address: BASE + (frame << 12), flags }), (task, What::DiskRead)]
    }

    fn count_of(events: &[Event]) -> Counted {
        let begin =
            [violation(1, 0)].into_iter().chain(fault(VCPU, 1, 0)).chain([(VCPU, What::Marker(0x107))]);
        let all: Vec<Event> =
            begin.chain(events.iter().copied()).chain([(VCPU, What::Marker(0x207))]).collect();
        let file = file_frames("frames 0: 5+2 9+1\nframes 1: 20+1\n40 MB\n");
        window(&all, 7, &Guest { frames: 64, overwrites: &functions(), file: &file }).unwrap()
    }

    #[test]
    fn a_read_is_for_the_processor_or_for_a_device() {
        let for_cpu = |rip| [&[violation(3, rip)][..], &fault(VCPU, 3, 0)].concat();
        assert_eq!(count_of(&for_cpu(CLEAR)).swaps, Swaps { reads: 1, false_reads: 1, ..Swaps::default() });
        assert_eq!(count_of(&for_cpu(CLEAR + 0x10)).swaps, Swaps { reads: 1, ..Swaps::default() });
        // The page that is copied from.
        let load = (VCPU, What::Violation { gpa: 3 << 12, rip: CLEAR, write: false });
        assert_eq!(count_of(&[&[load][..], &fault(VCPU, 3, 0)].concat()).swaps.false_reads, 0);
        // An asynchronous fault, after the guest has gone on.
        let later = [&[violation(3, CLEAR), (VCPU, What::Entry)][..], &fault(KERNEL, 3, REMOTE)].concat();
        assert_eq!(count_of(&later).swaps.false_reads, 1);
        let stale = Swaps { reads: 1, stale_reads: 1, ..Swaps::default() };
        assert_eq!(count_of(&fault(WORKER, 3, WRITE)).swaps, stale);
        // In the vCPU's thread, at an exit to QEMU.
        assert_eq!(count_of(&[&[(VCPU, What::OtherExit)][..], &fault(VCPU, 3, WRITE)].concat()).swaps, stale);
        let double = Swaps { reads: 1, double_paged: 1, ..Swaps::default() };
        assert_eq!(count_of(&fault(WORKER, 3, 0)).swaps, double);
        assert_eq!(count_of(&fault(WORKER, 64, WRITE)), Counted { others: 1, ..NONE });
        // The page was in memory still, or another task reads.
        assert_eq!(count_of(&fault(WORKER, 3, 0)[..1]), NONE);
        assert_eq!(count_of(&[fault(WORKER, 3, 0)[0], (KERNEL, What::DiskRead)]), NONE);
    }

    #[test]
    fn a_write_is_silent_if_the_frame_had_the_file_in_this_turn_or_the_last() {
        let write = |frame: u64| (KERNEL, What::Write { page: (BASE >> 12) + frame });
        let mark = |turn: u64| (VCPU, What::Marker(0x300 | turn));
        let silent = |turn, frame| {
            let swaps = count_of(&[mark(turn), write(frame)]).swaps;
            assert_eq!(swaps.writes, 1);
            swaps.silent_writes == 1
        };
        assert!(silent(0, 5) && silent(0, 6) && silent(0, 9) && silent(1, 5) && silent(1, 0x20));
        assert!(!silent(0, 7) && !silent(0, 0x20) && !silent(2, 5));
        assert_eq!(count_of(&[write(64)]), NONE);
    }

    #[test]
    fn a_trace_without_the_window_is_refused() {
        let file = BTreeMap::new();
        let guest = Guest { frames: 64, overwrites: &functions(), file: &file };
        let events = [&[violation(1, 0)][..], &fault(VCPU, 1, 0), &[(VCPU, What::Marker(0x107))]].concat();
        assert!(window(&events, 7, &guest).unwrap_err().to_string().contains("without its window"));
        assert!(window(&[], 7, &guest).unwrap_err().to_string().contains("no fault"));
    }
}
