// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The host behind a nested guest, written apart from the model: maps and sets of pages by level and number.

use super::placed::Placed;
use super::shift;
use bifold_mmu::PageSize;
use bifold_model::host::HostMemory;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Backed {
    Swapped,
    /// In a snapshot.
    Snapshot,
    Zero,
    ReadOnly,
    Own,
}

/// A page: the level of an entry for it, and its number among the pages of that level.
pub type Key = (u8, u64);

fn frames_of((level, number): Key) -> Range<u64> {
    let shift = shift(level) - 12;
    number << shift..(number + 1) << shift
}

pub struct Host {
    /// The largest pages.
    pub page: PageSize,
    pub frames: u64,
    /// Levels of the nested tables.
    pub depth: u8,
    pub place: HostMemory,
    pub backed: HashMap<Key, Backed>,
    split: HashSet<Key>,
    /// Pages that the nested tables map, and whether for writing.
    pub mapped: HashMap<Key, bool>,
    /// Upper entries that are present.
    pub upper: HashSet<Key>,
    /// Entries with the accessed bit.
    pub accessed: HashSet<Key>,
    /// Entries that walks have used in this interval or violations made, and how many walks used first.
    walked: HashSet<Key>,
    walked_first: u64,
    /// The look of the last use.
    used: HashMap<Key, u32>,
    looks: u32,
    pub swapped_in: u64,
    /// What a read brings back from swap is read-only.
    pub read_only: bool,
    /// What a read brings from a snapshot is a copy.
    copies: bool,
}

/// What [`Host::back`] did.
pub struct Touch {
    pub newly: bool,
    /// The zero page went.
    pub replaced: bool,
}

impl Host {
    pub fn new(page: PageSize, frames: u64, seed: u64) -> Host {
        Host {
            page,
            frames,
            depth: 4,
            place: HostMemory::new(page, frames, Default::default(), seed),
            backed: HashMap::new(),
            split: HashSet::new(),
            mapped: HashMap::new(),
            upper: HashSet::new(),
            accessed: HashSet::new(),
            walked: HashSet::new(),
            walked_first: 0,
            used: HashMap::new(),
            looks: 0,
            swapped_in: 0,
            read_only: true,
            copies: false,
        }
    }

    fn all(&self) -> impl Iterator<Item = Key> + use<> {
        let level = self.page as u8 + 1;
        (0..(self.frames << 12).div_ceil(1 << shift(level))).map(move |number| (level, number))
    }

    /// The guest has touched all memory before.
    pub fn map_all(&mut self) {
        for key in self.all() {
            self.resolve(key.1 << shift(key.0), true, &mut 0, 0, &mut None);
        }
        self.walked.clear();
    }

    /// All memory is that of a snapshot, of which a read may bring copies.
    pub fn restore(&mut self, copies: bool) {
        self.backed = self.all().map(|key| (key, Backed::Snapshot)).collect();
        self.copies = copies;
    }

    /// The page behind `gpa`, or the one that would be.
    pub fn key(&self, gpa: u64) -> Key {
        let mut level = self.page as u8 + 1;
        while self.split.contains(&(level, gpa >> shift(level))) {
            level -= 1;
        }
        (level, gpa >> shift(level))
    }

    fn is_device(&self, gpa: u64) -> bool {
        gpa >> self.page.shift() > self.frames >> (self.page.shift() - 12)
    }

    /// May the page be written as it is? What lies beyond memory is a device's.
    pub fn backing(&self, gpa: u64) -> bool {
        self.is_device(gpa) || self.backed.get(&self.key(gpa)) == Some(&Backed::Own)
    }

    /// Backs the page for an access.
    pub fn back(&mut self, gpa: u64, write: bool) -> Touch {
        let key = self.key(gpa);
        let before = self.backed.get(&key).copied();
        let enough = match before {
            Some(Backed::Own) => true,
            Some(Backed::Zero | Backed::ReadOnly) => !write,
            Some(Backed::Swapped | Backed::Snapshot) | None => false,
        };
        if self.is_device(gpa) || enough {
            return Touch { newly: false, replaced: false };
        }
        if before == Some(Backed::ReadOnly) {
            self.backed.insert(key, Backed::Own);
            return Touch { newly: false, replaced: false };
        }
        self.swapped_in += u64::from(before == Some(Backed::Swapped));
        let of_file = before == Some(Backed::Snapshot) && !self.copies;
        let zero = !write && key.0 == 1 && (before.is_none() || of_file);
        let read_only = self.read_only && !write && before == Some(Backed::Swapped);
        let state = match (zero, read_only) {
            (true, _) => Backed::Zero,
            (_, true) => Backed::ReadOnly,
            _ => Backed::Own,
        };
        self.backed.insert(key, state);
        if self.looks > 0 {
            self.used.insert(key, self.looks + 1);
        }
        Touch { newly: true, replaced: before == Some(Backed::Zero) }
    }

    /// The hypervisor's part: back the page, map it; a zero page replaced makes the fault stale.
    pub fn resolve(
        &mut self,
        gpa: u64,
        write: bool,
        count: &mut u64,
        cpu: usize,
        placed: &mut Option<Placed>,
    ) {
        let key = self.key(gpa);
        let touch = self.back(gpa, write);
        if touch.newly {
            *count += if key.0 == 3 { 512 } else { 1 };
            if let Some(placed) = placed {
                placed.touched(gpa, shift(key.0), cpu);
            }
        }
        if touch.replaced {
            return;
        }
        for level in (key.0 + 1..=self.depth).rev() {
            self.upper.insert((level, gpa >> shift(level)));
            if let Some(placed) = placed {
                placed.table(level - 1, gpa >> shift(level), cpu);
            }
        }
        let writable = self.backing(gpa);
        self.mapped.insert(key, writable);
        self.walked.insert(key);
        self.accessed.insert(key);
    }

    /// A walk ends at the entry.
    pub fn walks(&mut self, key: Key) {
        self.walked_first += u64::from(self.walked.insert(key));
    }

    /// Ends the interval. Returns how many entries that were there before it walks have used in it.
    pub fn end_interval(&mut self) -> u64 {
        self.walked.clear();
        std::mem::take(&mut self.walked_first)
    }

    /// Takes pages back, page by page. Returns the frames that are unmapped: all those of a page of which a
    /// part goes.
    pub fn take_back(&mut self, gfns: Range<u64>, swap: bool) -> Vec<Range<u64>> {
        let page = 1 << (self.page.shift() - 12);
        let end = if gfns.end < self.frames { gfns.end } else { self.frames.next_multiple_of(page) };
        let mut gone = Vec::new();
        let mut gfn = gfns.start;
        while gfn < end {
            let key = loop {
                let key = self.key(gfn << 12);
                let page = frames_of(key);
                let goes_whole = !swap && gfns.start <= page.start && page.end <= end;
                if key.0 == 1 || goes_whole || self.backed.get(&key) != Some(&Backed::Own) {
                    break key;
                }
                // It stays in pieces, each of which was used when the whole was.
                self.split.insert(key);
                self.backed.remove(&key);
                let used = self.used.get(&key).copied();
                for number in 512 * key.1..512 * (key.1 + 1) {
                    self.backed.insert((key.0 - 1, number), Backed::Own);
                    used.map(|used| self.used.insert((key.0 - 1, number), used));
                }
                gone.push(page);
            };
            let page = frames_of(key);
            gfn = page.end;
            if key.0 > 1 && !(gfns.start <= page.start && page.end <= end) {
                continue; // nothing there
            }
            match (self.backed.get(&key).copied(), swap) {
                (Some(Backed::Own | Backed::ReadOnly), true) => {
                    self.backed.insert(key, Backed::Swapped);
                    gone.push(page);
                }
                (Some(was), false) => {
                    self.backed.remove(&key);
                    if was != Backed::Swapped {
                        gone.push(page);
                    }
                }
                _ => {}
            }
        }
        gone
    }

    /// The nested tables lose these frames. True if they had any.
    pub fn unmap(&mut self, gone: &[Range<u64>]) -> bool {
        let hit = |key: &Key| {
            let page = frames_of(*key);
            gone.iter().any(|g| g.start < page.end && page.start < g.end)
        };
        self.accessed.retain(|key| !hit(key));
        let before = self.mapped.len();
        self.mapped.retain(|key, _| !hit(key));
        self.mapped.len() < before
    }

    fn own(&self) -> Vec<Key> {
        let own = self.backed.iter().filter(|(_, state)| matches!(state, Backed::Own | Backed::ReadOnly));
        own.map(|(key, _)| *key).collect()
    }

    /// Looks which pages were used: `young` says so of their frames. True if any was.
    pub fn look(&mut self, mut young: impl FnMut(Range<u64>) -> bool) -> bool {
        self.looks += 1;
        let mut any = false;
        for key in self.own() {
            if self.accessed.remove(&key) | young(frames_of(key)) {
                self.used.insert(key, self.looks);
                any = true;
            }
        }
        any
    }

    /// The pages that were not used for longest.
    pub fn oldest(&self, most: usize) -> Vec<Range<u64>> {
        let mut pages: Vec<(u32, Range<u64>)> = self
            .own()
            .into_iter()
            .map(|key| (self.used.get(&key).copied().unwrap_or(0), frames_of(key)))
            .collect();
        pages.sort_by_key(|(used, page)| (*used, page.start));
        pages.truncate(most);
        pages.into_iter().map(|(_, page)| page).collect()
    }
}
