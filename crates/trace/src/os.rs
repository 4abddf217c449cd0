// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A simple operating system for traces of user programs, which have addresses and no page tables.
//!
//! One CPU, one address space, 4-level tables, and every page has 4 KB, or every page has 2 MB. The first
//! access to a page, of any kind, takes a page fault. The kernel then clears the next free frames and writes
//! the entry, after the tables above it that are missing; a program may read, write and execute every page,
//! and the entry is accessed and dirty from the start. Frames are given out in ascending order, tables and
//! pages alike, and never come back. Tables take the frames that 2 MB pages pass over. Of the kernel, those
//! stores alone are in the stream: one of each 64 bytes that it clears, and one of each entry, through a
//! direct map of 2 MB pages that is global, as Linux has it (`do_anonymous_page`, `clear_page`).
//!
//! Left out: the kernel's instructions, fetches and loads; files and their page cache, fork, munmap and swap;
//! other processes; interrupts; pages of both sizes in one process, as Linux's transparent huge pages leave
//! them.

use crate::event::{Event, head, kind};
use crate::generate::guest::*;

/// Where the kernel maps all memory: Linux's `page_offset_base` without KASLR.
const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
/// First frame that is given out; Linux leaves the first MiB to firmware.
const FIRST_GFN: u64 = 256;
/// Bytes that one store clears.
const CLEARED: usize = 64;
/// Pages that were touched of late, by the low bits of their number.
const RECENT: usize = 1024;
/// An instruction fetch, in the error code of a fault (Intel SDM vol. 3A, 4.7).
const FETCH: u64 = 1 << 4;
/// A page number that no address has.
const NO_PAGE: u64 = u64::MAX;

/// Why an access has no place in the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OsError {
    /// No address of 4-level paging.
    #[error("address {0:#x} is not canonical: 4-level paging has addresses of 48 bits")]
    NotCanonical(u64),
    /// The address is where the kernel maps its memory.
    #[error("address {0:#x} is in the kernel's map of memory: the trace is to be of a user program")]
    DirectMap(u64),
    /// The process has run as many instructions as it may.
    #[error("{0} instructions are over")]
    Limit(u64),
    /// No frame is left.
    #[error("the program touches more than {mib} MiB: give it more by --memory", mib = .frames >> 8)]
    Memory {
        /// Frames of the guest.
        frames: u64,
    },
}

/// Size of all pages of a [`Process`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GuestPages {
    /// 4 KB.
    #[default]
    Small,
    /// 2 MB.
    Large,
}

impl GuestPages {
    /// The level of the tables whose entries map pages.
    fn level(self) -> u8 {
        match self {
            GuestPages::Small => 1,
            GuestPages::Large => 2,
        }
    }
}

/// A process, and the events of what it does.
#[derive(Debug)]
pub struct Process {
    memory: Memory,
    pages: GuestPages,
    frames: u64,
    root: u64,
    words: Vec<u64>,
    instructions: u64,
    /// Those that the stream tells of.
    told: u64,
    most: u64,
    /// The page of the last instruction fetch.
    code: u64,
    recent: Box<[u64; RECENT]>,
}

impl Process {
    /// Most memory that a process may have, in frames: 1 TiB, which fits into one entry of the root.
    pub const MOST_FRAMES: u64 = 1 << 27;

    /// A process that has touched nothing yet, in a guest of so many frames.
    ///
    /// # Panics
    /// If there are more than [`Process::MOST_FRAMES`].
    pub fn new(frames: u64) -> Process {
        assert!(frames <= Self::MOST_FRAMES, "{frames} frames");
        // Whole pages of 2 MB for the direct map, and frames for its tables: also in the smallest guest.
        let frames = frames.next_multiple_of(512).max(1024);
        let mut memory = Memory::new(frames, FIRST_GFN);
        let root = memory.new_table(4);
        for gfn in (0..frames).step_by(512) {
            memory.map(root, direct(gfn << 12), 2, gfn << 12 | KERNEL_LARGE, KERNEL_TABLE);
        }
        let (mut words, mut rest) = (Vec::new(), Vec::new());
        let Ok(()) = memory.describe(root, 0..512, &mut rest, &mut |tables| {
            words.extend_from_slice(tables);
            Ok::<(), std::convert::Infallible>(())
        });
        words.append(&mut rest);
        Event::Cr3(root << 12).encode(&mut words);
        let recent = Box::new([NO_PAGE; RECENT]);
        Process {
            memory,
            pages: GuestPages::Small,
            frames,
            root,
            words,
            instructions: 0,
            told: 0,
            most: u64::MAX,
            code: NO_PAGE,
            recent,
        }
    }

    /// The same process, which runs so many instructions at most.
    pub fn limited(self, most: u64) -> Process {
        Process { most, ..self }
    }

    /// The same process, with pages of this size.
    pub fn with_pages(self, pages: GuestPages) -> Process {
        Process { pages, ..self }
    }

    /// Size of the pages.
    pub fn pages(&self) -> GuestPages {
        self.pages
    }

    /// Frames of the guest.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Instructions so far.
    pub fn instructions(&self) -> u64 {
        self.instructions
    }

    /// Frames that pages and tables have, those of the direct map's tables included.
    pub fn taken(&self) -> u64 {
        self.frames - self.memory.left() - FIRST_GFN
    }

    /// An instruction of `bytes` bytes runs.
    ///
    /// # Errors
    /// If the address is no program's, memory is used up, or the instruction is one too many.
    pub fn instruction(&mut self, va: u64, bytes: u64) -> Result<(), OsError> {
        if self.instructions == self.most {
            return Err(OsError::Limit(self.most));
        }
        self.instructions += 1;
        for at in pieces(va, bytes)? {
            if at >> 12 != self.code {
                self.touch(at, FETCH)?;
                self.code = at >> 12;
                Event::Fetch(at).encode(&mut self.words);
            }
        }
        Ok(())
    }

    /// The instruction reads `bytes` bytes.
    ///
    /// # Errors
    /// As [`Process::instruction`].
    pub fn load(&mut self, va: u64, bytes: u64) -> Result<(), OsError> {
        self.access(va, bytes, kind::LOAD, 0)
    }

    /// The instruction writes `bytes` bytes.
    ///
    /// # Errors
    /// As [`Process::instruction`].
    pub fn store(&mut self, va: u64, bytes: u64) -> Result<(), OsError> {
        self.access(va, bytes, kind::STORE, WRITE)
    }

    /// The events since the last call, once they are many, or else all that are there if `all`. None if there
    /// are none to take.
    pub fn take(&mut self, all: bool) -> Option<Vec<u64>> {
        if !all && self.words.len() < CHUNK {
            return None;
        }
        self.count();
        (!self.words.is_empty()).then(|| std::mem::take(&mut self.words))
    }

    /// Instructions stand before events that are no accesses, as in a captured stream.
    fn count(&mut self) {
        if self.instructions > self.told {
            Event::Insns(self.instructions - self.told).encode(&mut self.words);
            self.told = self.instructions;
        }
    }

    fn access(&mut self, va: u64, bytes: u64, kind: u64, write: u64) -> Result<(), OsError> {
        for at in pieces(va, bytes)? {
            self.touch(at, write)?;
            self.words.push(head(kind, at));
        }
        Ok(())
    }

    /// The first access to a page faults. `error` has the bits that say what kind of access it is.
    #[inline]
    fn touch(&mut self, va: u64, error: u64) -> Result<(), OsError> {
        let page = va >> 12;
        if self.recent[page as usize % RECENT] == page {
            return Ok(());
        }
        let level = self.pages.level();
        let table = self.memory.find(self.root, va, level);
        if table.is_none_or(|table| self.memory.entry(table, index(va, level)) & PRESENT == 0) {
            self.fault(va, error)?;
        }
        self.recent[page as usize % RECENT] = page;
        Ok(())
    }

    fn fault(&mut self, va: u64, error: u64) -> Result<(), OsError> {
        // The page and three tables at most, so that a fault is whole or does not begin.
        let (page, entry, frames) = match self.pages {
            GuestPages::Small => (None, USER_DATA, 1),
            GuestPages::Large => (self.memory.take_large(), USER_DATA | LARGE, 512),
        };
        if self.memory.left() < 4 || (frames > 1 && page.is_none()) {
            return Err(OsError::Memory { frames: self.frames });
        }
        self.count();
        Event::Fault { gva: va, error: error | USER }.encode(&mut self.words);
        let mut table = self.root;
        for level in (self.pages.level() + 1..=4).rev() {
            let entry = self.memory.entry(table, index(va, level));
            if entry & PRESENT != 0 {
                table = (entry & FRAME) >> 12;
                continue;
            }
            let below = self.memory.new_table(level - 1);
            self.clear(below, 1);
            Event::Table { gfn: below, level: level - 1, entries: &[0; 512] }.encode(&mut self.words);
            self.set_entry(table, index(va, level), below << 12 | USER_TABLE);
            table = below;
        }
        let page = page.unwrap_or_else(|| self.memory.take());
        self.clear(page, frames);
        self.set_entry(table, index(va, self.pages.level()), page << 12 | entry);
        Ok(())
    }

    fn clear(&mut self, gfn: u64, frames: u64) {
        let from = direct(gfn << 12);
        self.words
            .extend((from..from + (frames << 12)).step_by(CLEARED).map(|at| head(kind::STORE_OTHER, at)));
    }

    fn set_entry(&mut self, table: u64, i: usize, new: u64) {
        let gpa = (table << 12) + i as u64 * 8;
        self.words.push(head(kind::STORE, direct(gpa)));
        Event::PtStore { gpa, old: self.memory.entry(table, i), new }.encode(&mut self.words);
        self.memory.set(table, i, new);
    }
}

/// Address of guest-physical `gpa` in the kernel's direct map.
fn direct(gpa: u64) -> u64 {
    DIRECT_MAP + gpa
}

/// The places of an access: its address, and the start of each further page that it reaches.
fn pieces(va: u64, bytes: u64) -> Result<impl Iterator<Item = u64>, OsError> {
    let last = va.checked_add(bytes.max(1) - 1).ok_or(OsError::NotCanonical(va))?;
    for at in [va, last] {
        // Bits 63 to 47 are equal (Intel SDM vol. 1, 3.3.7.1).
        if !matches!(at as i64 >> 47, 0 | -1) {
            return Err(OsError::NotCanonical(at));
        }
        if (at ^ DIRECT_MAP) >> 39 == 0 {
            return Err(OsError::DirectMap(at));
        }
    }
    if (va ^ last) >> 63 != 0 {
        return Err(OsError::NotCanonical(last));
    }
    Ok((va >> 12..=last >> 12).map(move |page| va.max(page << 12)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn events(words: &[u64]) -> Vec<Event<'_>> {
        let (mut at, mut all) = (0, Vec::new());
        while at < words.len() {
            let (event, n) = decode(&words[at..], at).unwrap();
            all.push(event);
            at += n;
        }
        all
    }

    fn begun() -> Process {
        let mut process = Process::new(1 << 16);
        process.take(true);
        process
    }

    #[test]
    fn the_first_touch_of_a_page_faults_and_maps_it_and_the_next_does_not() {
        let mut process = begun();
        process.instruction(0x40_1000, 4).unwrap();
        process.store(0x7fff_0000_1234, 8).unwrap();
        process.load(0x7fff_0000_1fff, 1).unwrap();
        let words = process.take(true).unwrap();
        let all = events(&words);
        let faults: Vec<_> = all.iter().filter(|e| matches!(e, Event::Fault { .. })).collect();
        assert_eq!(
            faults,
            [
                &Event::Fault { gva: 0x40_1000, error: FETCH | USER },
                &Event::Fault { gva: 0x7fff_0000_1234, error: WRITE | USER },
            ]
        );
        // Tables of levels 3, 2 and 1 for each, and a page for each.
        assert_eq!(all.iter().filter(|e| matches!(e, Event::PtStore { .. })).count(), 8);
        assert_eq!(all.iter().filter(|e| matches!(e, Event::StoreOther(_))).count(), 8 * 64);
        assert_eq!(all[all.len() - 2..], [Event::Store(0x7fff_0000_1234), Event::Load(0x7fff_0000_1fff)]);
        let instructions = |e: &Event<'_>| if let Event::Insns(n) = e { *n } else { 0 };
        assert_eq!(all.iter().map(instructions).sum::<u64>(), 1);
    }

    #[test]
    fn a_process_with_large_pages_faults_once_for_each_2_mb() {
        let mut process = Process::new(1 << 16).with_pages(GuestPages::Large);
        process.take(true);
        for va in [0x40_0000, 0x40_1000, 0x5f_ffff, 0x60_0000] {
            process.store(va, 1).unwrap();
        }
        let words = process.take(true).unwrap();
        let all = events(&words);
        let stores =
            all.iter().filter_map(|e| if let Event::PtStore { new, .. } = e { Some(*new) } else { None });
        let leaves: Vec<u64> = stores.filter(|entry| entry & LARGE != 0).collect();
        let faults = all.iter().filter(|e| matches!(e, Event::Fault { .. })).count();
        assert_eq!((leaves.len(), faults), (2, 2));
        assert!(leaves.iter().all(|entry| (entry & FRAME) % (1 << 21) == 0), "{leaves:x?}");
        assert!(leaves[0] & FRAME < leaves[1] & FRAME);
        // Two tables above the pages, and both pages, 64 bytes at a store.
        assert_eq!(all.iter().filter(|e| matches!(e, Event::StoreOther(_))).count(), (2 + 2 * 512) * 64);
        // The first 2 MB have the firmware's MiB, the root, the direct map and both tables: three pages fit
        // into 8 MiB.
        let mut small = Process::new(2048).with_pages(GuestPages::Large);
        let touched = (1..9).take_while(|page| small.store(page << 21, 1).is_ok()).count();
        assert_eq!(touched, 3);
        assert_eq!(small.store(9 << 21, 1), Err(OsError::Memory { frames: 2048 }));
    }

    #[test]
    fn an_access_that_crosses_a_page_is_two() {
        let mut process = begun();
        process.load(0x1ffc, 8).unwrap();
        let words = process.take(true).unwrap();
        let loads: Vec<_> = events(&words).into_iter().filter(|e| matches!(e, Event::Load(_))).collect();
        assert_eq!(loads, [Event::Load(0x1ffc), Event::Load(0x2000)]);
    }

    #[test]
    fn addresses_of_no_program_and_too_much_memory_are_refused() {
        let mut process = begun();
        assert_eq!(process.load(1 << 47, 1), Err(OsError::NotCanonical(1 << 47)));
        assert_eq!(process.load((1 << 47) - 1, 2), Err(OsError::NotCanonical(1 << 47)));
        assert_eq!(process.load(u64::MAX, 2), Err(OsError::NotCanonical(u64::MAX)));
        assert_eq!(process.store(DIRECT_MAP + 5, 1), Err(OsError::DirectMap(DIRECT_MAP + 5)));
        assert_eq!(process.instruction(u64::MAX - 4096, 4), Ok(()), "vsyscall has such addresses");
        let mut small = Process::new(1);
        let error = (0..2048).find_map(|page| small.load(page << 12, 1).err());
        assert_eq!(error, Some(OsError::Memory { frames: 1024 }));
        assert!(error.unwrap().to_string().contains("4 MiB"));
    }

    proptest! {
        /// Against a map of pages: every access finds the frame that the page got at its first touch, the
        /// frames are all different, and every table is described before an entry points to it.
        #[test]
        fn every_page_has_one_frame_from_its_first_touch_on(
            accesses in proptest::collection::vec((0u64..6, 0u64..3, 0u64..600, 1u64..5000, 0u8..3), 1..200)
        ) {
            let mut process = Process::new(1 << 16);
            let mut words = process.take(true).unwrap();
            let mut touched = std::collections::BTreeSet::new();
            for (top, middle, page, bytes, what) in accesses {
                let va = top << 44 | middle << 30 | page << 12 | (bytes % 4096);
                match what {
                    0 => process.instruction(va, bytes).unwrap(),
                    1 => process.load(va, bytes).unwrap(),
                    _ => process.store(va, bytes).unwrap(),
                }
                touched.extend(va >> 12..=(va + bytes - 1) >> 12);
            }
            words.extend(process.take(true).unwrap_or_default());
            let (mut tables, mut root) = (HashMap::<u64, [u64; 512]>::new(), 0);
            let mut faulted = std::collections::BTreeSet::new();
            for event in events(&words) {
                match event {
                    Event::Table { gfn, entries, .. } => { prop_assert!(tables.insert(gfn, *entries).is_none()); }
                    Event::Cr3(value) => root = value >> 12,
                    Event::Fault { gva, .. } => { prop_assert!(faulted.insert(gva >> 12)); }
                    Event::PtStore { gpa, old, new } => {
                        let entry = &mut tables.get_mut(&(gpa >> 12)).unwrap()[gpa as usize % 4096 / 8];
                        prop_assert_eq!((*entry, old), (old, 0));
                        *entry = new;
                    }
                    Event::Load(va) | Event::Store(va) | Event::StoreOther(va) | Event::Fetch(va) => {
                        let mut gfn = root;
                        for level in [4, 3, 2, 1] {
                            let entry = tables[&gfn][index(va, level)];
                            prop_assert!(entry & PRESENT != 0, "{:#x} at level {}", va, level);
                            gfn = (entry & FRAME) >> 12;
                            if entry & LARGE != 0 {
                                break;
                            }
                        }
                    }
                    _ => {}
                }
            }
            prop_assert_eq!(&faulted, &touched);
            let leaves: std::collections::BTreeSet<u64> = touched
                .iter()
                .map(|page| process.memory.find(process.root, page << 12, 1).map(|t| process.memory.entry(t, index(page << 12, 1)) >> 12).unwrap())
                .collect();
            prop_assert_eq!(leaves.len(), touched.len());
        }
    }
}
