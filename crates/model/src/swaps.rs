// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The swap operations of hosts that page out, and which of them were superfluous (Amit, Tsafrir, Schuster,
//! "VSwapper", ASPLOS 2014):
//!
//! - a silent write: a page that the guest's disk has too goes to swap;
//! - a stale read: a page comes back from swap only for a device to overwrite all of it;
//! - a false read: the same for the guest's processor, as in `clear_page` or `copy_page`;
//! - double paging: a device reads a frame that the host has in swap.
//!
//! That the disk has a page is known of frames that one piece of a transfer filled or read whole, until a
//! store. Whether a page is overwritten is known in lines of 64 bytes, each of which counts as stored with
//! the first store in it: the stream has no lengths of accesses. What the stream leaves out, such as the
//! unrecorded parts of a sampled one, is not seen.

use crate::host::Backing;
use crate::known::KnownFrames;
use bifold_mmu::Gpa;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;

/// Swap operations of a host.
///
/// A page that a read brought back, and that was not written since, keeps its place in swap and is not
/// written again, where the kernel maps such a page read-only: see
/// [`KvmVersion::swaps_in_read_only`](crate::KvmVersion::swaps_in_read_only).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Swaps {
    /// Pages of 4 KB written.
    pub writes: u64,
    /// Pages written that the guest's disk has too.
    pub silent_writes: u64,
    /// Pages of 4 KB read: the refaults.
    pub reads: u64,
    /// Pages read that a device overwrites.
    pub stale_reads: u64,
    /// Pages read that the guest's processor overwrites before reading any of them.
    pub false_reads: u64,
    /// Pages read that a device reads.
    pub double_paged: u64,
}

impl Swaps {
    /// The operations since an earlier count.
    pub fn since(&self, earlier: &Swaps) -> Swaps {
        Swaps {
            writes: self.writes - earlier.writes,
            silent_writes: self.silent_writes - earlier.silent_writes,
            reads: self.reads - earlier.reads,
            stale_reads: self.stale_reads - earlier.stale_reads,
            false_reads: self.false_reads - earlier.false_reads,
            double_paged: self.double_paged - earlier.double_paged,
        }
    }
}

/// State of a frame: the disk has its content.
const ON_DISK: u8 = 1;
/// State of a frame: for some host it is not known yet whether its read from swap was superfluous.
const OPEN: u8 = 2;

const PAGE: u64 = 4096;
const LINE: u64 = 64;

/// A page that came back for a store, in one host.
#[derive(Debug)]
struct Open {
    host: usize,
    /// For a device's.
    device: bool,
    /// The lines that were stored since.
    stored: u64,
}

/// Watches a run for superfluous swap operations.
#[derive(Debug)]
pub(crate) struct SwapWatch {
    known: KnownFrames,
    frames: Vec<u8>,
    open: HashMap<u64, Vec<Open>>,
    /// Per host. `reads` is the host's own count.
    counts: Vec<Swaps>,
}

/// The bits of the lines that have a part of these bytes of a page.
fn lines(bytes: Range<u64>) -> u64 {
    let (from, to) = (bytes.start / LINE, bytes.end.div_ceil(LINE));
    if to <= from { 0 } else { u64::MAX >> (64 - (to - from)) << from }
}

impl SwapWatch {
    pub fn new(frames: u64, vcpus: usize) -> SwapWatch {
        SwapWatch {
            known: KnownFrames::new(vcpus),
            frames: vec![0; frames as usize],
            open: HashMap::new(),
            counts: Vec::new(),
        }
    }

    pub fn known(&mut self) -> &mut KnownFrames {
        &mut self.known
    }

    /// Does this access change nothing here?
    #[inline(always)]
    pub fn is_settled(&self, vcpu: usize, gva: bifold_mmu::Gva, write: bool, generation: u64) -> bool {
        if !write && self.open.is_empty() {
            return true;
        }
        let matters = if write { ON_DISK | OPEN } else { OPEN };
        let frame = self.known.get(vcpu, gva, generation);
        frame.is_some_and(|frame| self.frames.get(frame as usize).is_none_or(|state| state & matters == 0))
    }

    fn of(&mut self, host: usize) -> &mut Swaps {
        if self.counts.len() <= host {
            self.counts.resize(host + 1, Swaps::default());
        }
        &mut self.counts[host]
    }

    /// A host has brought a page back for the store that comes next: the processor's, or a part of a
    /// device's.
    fn begin(&mut self, host: usize, frame: u64, device: bool) {
        let Some(state) = self.frames.get_mut(frame as usize) else { return };
        *state |= OPEN;
        self.open.entry(frame).or_default().push(Open { host, device, stored: 0 });
    }

    /// The processor loads from these bytes, or stores; `back`: the hosts that brought the page back for it.
    pub fn access(&mut self, gpa: Gpa, write: bool, back: impl Iterator<Item = usize>) {
        if write {
            back.for_each(|host| self.begin(host, gpa.frame(), false));
        }
        let byte = gpa.0 % PAGE;
        self.uses(gpa.frame(), write, byte..byte + 1);
        if let (true, Some(state)) = (write, self.frames.get_mut(gpa.frame() as usize)) {
            *state &= !ON_DISK;
        }
    }

    /// These bytes of a frame are loaded or stored.
    fn uses(&mut self, frame: u64, write: bool, bytes: Range<u64>) {
        if self.frames.get(frame as usize).is_none_or(|state| state & OPEN == 0) {
            return;
        }
        let now = lines(bytes);
        for open in self.decide(frame, |open| {
            open.stored |= if write { now } else { 0 };
            if write { open.stored == u64::MAX } else { now & !open.stored != 0 }
        }) {
            let of = self.of(open.host);
            match (write, open.device) {
                (true, true) => of.stale_reads += 1,
                (true, false) => of.false_reads += 1,
                (false, _) => {}
            }
        }
    }

    /// Takes out those of which `decided` says so.
    fn decide(&mut self, frame: u64, mut decided: impl FnMut(&mut Open) -> bool) -> Vec<Open> {
        let Some(open) = self.open.get_mut(&frame) else { return Vec::new() };
        let mut all = Vec::new();
        while let Some(n) = open.iter_mut().position(&mut decided) {
            all.push(open.swap_remove(n));
        }
        if open.is_empty() {
            self.open.remove(&frame);
            self.frames[frame as usize] &= !OPEN;
        }
        all
    }

    /// A device reads or writes these bytes of a frame. `back`: the hosts that brought the page back for it.
    pub fn transfer(&mut self, frame: u64, bytes: Range<u64>, write: bool, back: &[usize]) {
        let whole = bytes == (0..PAGE);
        for &host in back {
            match (write, whole) {
                (false, _) => self.of(host).double_paged += 1,
                (true, true) => self.of(host).stale_reads += 1,
                (true, false) => self.begin(host, frame, true),
            }
        }
        self.uses(frame, write, bytes);
        if let Some(state) = self.frames.get_mut(frame as usize) {
            match (write, whole) {
                (_, true) => *state |= ON_DISK,
                (true, false) => *state &= !ON_DISK,
                (false, false) => {}
            }
        }
    }

    /// A host takes a frame back, which goes to swap if `to_swap`. `was`: what was behind the frame.
    pub fn taken(&mut self, host: usize, frame: u64, was: Backing, to_swap: bool) {
        if to_swap && was == Backing::Own {
            let on_disk = self.frames.get(frame as usize).is_some_and(|state| state & ON_DISK != 0);
            let of = self.of(host);
            of.writes += 1;
            of.silent_writes += u64::from(on_disk);
        }
        if matches!(was, Backing::Own | Backing::ReadOnly) {
            self.decide(frame, |open| open.host == host);
        }
    }

    /// Counts of a host, without its reads.
    pub fn counts(&self, host: usize) -> Swaps {
        self.counts.get(host).copied().unwrap_or_default()
    }

    /// Counts begin again, as a region does.
    pub fn restart(&mut self) {
        self.counts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: usize = 1;

    fn watch() -> SwapWatch {
        SwapWatch::new(64, 1)
    }

    /// The page at frame 5 comes back for a store to its line 0.
    fn stored(w: &mut SwapWatch) {
        w.access(Gpa(5 << 12), true, [HOST].into_iter());
    }

    fn store_lines(w: &mut SwapWatch, lines: Range<u64>) {
        lines.for_each(|n| w.access(Gpa((5 << 12) + n * LINE + 8), true, std::iter::empty()));
    }

    fn load(w: &mut SwapWatch, byte: u64) {
        w.access(Gpa((5 << 12) + byte), false, std::iter::empty());
    }

    #[test]
    fn a_read_is_false_if_all_lines_are_stored_before_another_is_loaded() {
        let mut w = watch();
        stored(&mut w);
        load(&mut w, 63);
        store_lines(&mut w, 1..63);
        assert_eq!(w.counts(HOST).false_reads, 0);
        store_lines(&mut w, 63..64);
        assert_eq!(w.counts(HOST), Swaps { false_reads: 1, ..Swaps::default() });
        store_lines(&mut w, 0..64);
        assert_eq!(w.counts(HOST).false_reads, 1, "decided once");
        assert_eq!(w.counts(0), Swaps::default());
    }

    #[test]
    fn a_load_of_what_is_not_stored_makes_a_read_a_true_one_and_so_does_the_next_swapping_out() {
        for true_read in [true, false] {
            let mut w = watch();
            stored(&mut w);
            if true_read {
                load(&mut w, 64);
            } else {
                w.taken(HOST, 5, Backing::Own, true);
            }
            store_lines(&mut w, 0..64);
            assert_eq!(w.counts(HOST).false_reads, 0);
            assert!(w.open.is_empty() && w.frames[5] & OPEN == 0);
        }
        // A page that came back for a load needs nothing.
        let mut w = watch();
        w.access(Gpa(5 << 12), false, [HOST].into_iter());
        store_lines(&mut w, 0..64);
        assert_eq!(w.counts(HOST).false_reads, 0);
    }

    #[test]
    fn hosts_decide_each_for_itself() {
        let mut w = watch();
        stored(&mut w);
        store_lines(&mut w, 0..32);
        // The other host brings the page back later, and all lines are stored once more.
        w.access(Gpa(5 << 12), true, [0].into_iter());
        store_lines(&mut w, 32..64);
        assert_eq!([0, HOST].map(|h| w.counts(h).false_reads), [0, 1]);
        store_lines(&mut w, 1..32);
        assert_eq!([0, HOST].map(|h| w.counts(h).false_reads), [1, 1]);
    }

    #[test]
    fn a_transfer_into_a_page_is_stale_if_it_fills_the_page_at_once_or_in_pieces() {
        let mut w = watch();
        w.transfer(5, 0..4096, true, &[HOST]);
        assert_eq!(w.counts(HOST), Swaps { stale_reads: 1, ..Swaps::default() });
        w.transfer(5, 0..2048, true, &[HOST]);
        w.transfer(5, 2048..4000, true, &[]);
        assert_eq!(w.counts(HOST).stale_reads, 1, "96 bytes are left");
        w.transfer(5, 4000..4096, true, &[]);
        assert_eq!(w.counts(HOST).stale_reads, 2);
        w.transfer(5, 0..2048, true, &[HOST]);
        load(&mut w, 2048);
        w.transfer(5, 2048..4096, true, &[]);
        assert_eq!(w.counts(HOST), Swaps { stale_reads: 2, ..Swaps::default() });
    }

    #[test]
    fn a_device_that_reads_what_is_in_swap_is_double_paging() {
        let mut w = watch();
        w.transfer(5, 100..200, false, &[0, HOST]);
        w.transfer(5, 0..4096, false, &[]);
        assert_eq!(w.counts(HOST), Swaps { double_paged: 1, ..Swaps::default() });
        // What it reads was needed.
        stored(&mut w);
        w.transfer(5, 0..4096, false, &[]);
        store_lines(&mut w, 0..64);
        assert_eq!(w.counts(HOST), Swaps { double_paged: 1, ..Swaps::default() });
    }

    #[test]
    fn a_write_is_silent_from_a_transfer_of_the_whole_page_to_the_first_store() {
        let silent = |before: &dyn Fn(&mut SwapWatch)| {
            let mut w = watch();
            before(&mut w);
            w.taken(HOST, 5, Backing::Own, true);
            assert_eq!(w.counts(HOST).writes, 1);
            w.counts(HOST).silent_writes == 1
        };
        assert!(!silent(&|_| ()));
        assert!(silent(&|w| w.transfer(5, 0..4096, true, &[])));
        assert!(silent(&|w| w.transfer(5, 0..4096, false, &[])), "the guest wrote it to its disk");
        assert!(!silent(&|w| w.transfer(5, 0..4000, true, &[])));
        assert!(!silent(&|w| w.transfer(6, 0..4096, true, &[])));
        let read = |w: &mut SwapWatch| {
            w.transfer(5, 0..4096, true, &[]);
            load(w, 8);
        };
        assert!(silent(&read));
        assert!(!silent(&|w| {
            read(w);
            store_lines(w, 3..4);
        }));
    }

    #[test]
    fn pages_that_are_in_swap_still_or_dropped_are_not_written() {
        for (was, to_swap) in [
            (Backing::ReadOnly, true),
            (Backing::Zero, true),
            (Backing::Swapped, true),
            (Backing::Own, false),
        ] {
            let mut w = watch();
            w.transfer(5, 0..4096, true, &[]);
            w.taken(HOST, 5, was, to_swap);
            assert_eq!(w.counts(HOST), Swaps::default(), "{was:?}");
        }
    }

    #[test]
    fn accesses_are_settled_where_they_change_nothing() {
        use bifold_mmu::Gva;
        let mut w = watch();
        let settled = |w: &SwapWatch| [false, true].map(|write| w.is_settled(0, Gva(0x7000), write, 1));
        assert_eq!(settled(&w), [true, false], "the frame is not known");
        w.known().note(0, Gva(0x7000), 1, 5);
        assert_eq!(settled(&w), [true, true]);
        w.transfer(5, 0..4096, true, &[]);
        assert_eq!(settled(&w), [true, false]);
        stored(&mut w);
        assert_eq!(settled(&w), [false, false]);
        load(&mut w, 4000);
        assert_eq!(settled(&w), [true, true]);
    }
}
