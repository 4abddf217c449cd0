// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The nested tables of the inner hypervisor, in its memory.

use crate::guest::GuestTables;
use bifold_mmu::format::MOST_LEVELS;
use bifold_mmu::{Format, Gpa, PageSize};

const PRESENT_WRITE_USER: u64 = 1 | 1 << 1 | 1 << 2;
const WRITE: u64 = 1 << 1;
pub(super) const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;

/// The inner hypervisor's nested tables. Data lie at their guest-physical addresses in the inner hypervisor's
/// memory, and the tables behind them.
#[derive(Debug)]
pub(super) struct InnerTables {
    pub tables: GuestTables,
    /// The root's frame.
    pub root: u64,
    /// Frames of the tables below the root, by level and number: 0 of a table that does not exist.
    frames: [Vec<u64>; MOST_LEVELS],
    next: u64,
}

impl InnerTables {
    pub fn new(format: &'static Format, guest_frames: u64) -> Self {
        let root = guest_frames.next_multiple_of(1 << 18);
        let mut tables = GuestTables::new(format);
        tables.add(root, format.depth(), &[0; 512]);
        InnerTables { tables, root, frames: Default::default(), next: root + 1 }
    }

    /// Frames of the inner hypervisor's memory: its guest's, and those of a table for each 512 of them, and
    /// for their tables.
    pub fn all_frames(&self, guest_frames: u64) -> u64 {
        (self.root + guest_frames / 256 + 1024).next_multiple_of(1 << 18)
    }

    /// Number of tables below the root. None is ever freed.
    pub fn made(&self) -> u64 {
        self.next - self.root - 1
    }

    pub fn format(&self) -> &'static Format {
        self.tables.format()
    }

    /// The frame of a table below the root, if it is there.
    fn frame(&self, level: u8, number: u64) -> Option<u64> {
        self.frames[usize::from(level)].get(number as usize).copied().filter(|&frame| frame != 0)
    }

    /// Where the entry of `level` for `gpa` is, if its table is there.
    pub fn entry_at(&self, level: u8, gpa: Gpa) -> Option<Gpa> {
        let format = self.format();
        let number = gpa.0 >> (12 + 9 * level);
        let frame = if level == format.depth() { self.root } else { self.frame(level, number)? };
        Some(Gpa(frame << 12 | format.index(level, gpa.0) << 3))
    }

    /// Sets the entry of `level` for `gpa`, and returns where it is; none if it was so.
    pub fn set(&mut self, level: u8, gpa: Gpa, entry: u64) -> Option<Gpa> {
        let at = self.entry_at(level, gpa)?;
        if self.tables.read(at) == entry {
            return None;
        }
        self.tables.store(at, entry);
        Some(at)
    }

    /// Maps the page behind `gpa`, of this size, by the tables that are needed, from above
    /// (`kvm_tdp_mmu_map`). Returns where it stored.
    pub fn map(&mut self, gpa: Gpa, size: PageSize, writable: bool) -> Vec<Gpa> {
        let mut stored = Vec::new();
        let format = self.format();
        for level in (size.level() + 1..=format.depth()).rev() {
            let number = gpa.0 >> (12 + 9 * (level - 1));
            let frame = match self.frame(level - 1, number) {
                Some(frame) => frame,
                None => {
                    let frame = self.next;
                    self.next += 1;
                    let (frames, i) = (&mut self.frames[usize::from(level) - 1], number as usize);
                    frames.resize(frames.len().max(i + 1), 0);
                    frames[i] = frame;
                    self.tables.add(frame, level - 1, &[0; 512]);
                    frame
                }
            };
            let entry = PRESENT_WRITE_USER | ACCESSED | frame << 12;
            stored.extend(self.set(level, gpa, entry));
        }
        let page = gpa.0 >> size.shift() << size.shift();
        let large = if size == PageSize::Size4K { 0 } else { LARGE };
        let rights = if writable { DIRTY | PRESENT_WRITE_USER } else { PRESENT_WRITE_USER & !WRITE };
        stored.extend(self.set(size.level(), gpa, page | large | rights | ACCESSED));
        stored
    }

    /// The level of the entry that maps `gpa`, and where it is, if there is one.
    pub fn leaf(&self, gpa: Gpa) -> Option<(u8, Gpa)> {
        let format = self.format();
        for level in (1..=format.depth()).rev() {
            let at = self.entry_at(level, gpa)?;
            let entry = self.tables.read(at);
            if entry & format.present == 0 {
                return None;
            }
            if format.is_leaf(level, entry) {
                return Some((level, at));
            }
        }
        None
    }

    /// Do the tables map `gpa` for this access?
    pub fn maps(&self, gpa: Gpa, write: bool) -> bool {
        self.leaf(gpa).is_some_and(|(_, at)| !write || self.tables.read(at) & WRITE != 0)
    }
}
