// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes four-level x86-64 page tables in memory: for the generated guests of `bifold-trace`, the
//! hand-made guests of the laboratory's tiny VMM, and tests.
//!
//! Frames come from the caller, who knows what memory is free. Left out: five-level and 32-bit tables.
//! The reference model of `bifold-model`'s tests has tables of its own on purpose.
//!
//! Sources: Intel SDM vol. 3A, 4.5; AMD APM vol. 2, 5.3.

use std::collections::HashMap;

use crate::format::{Format, X86_64_4_LEVEL};

const FORMAT: &Format = &X86_64_4_LEVEL;

/// Bits of entries.
#[allow(missing_docs)] // the manuals' names
pub mod bits {
    use super::FORMAT;

    pub const PRESENT: u64 = FORMAT.present;
    pub const WRITE: u64 = FORMAT.write;
    pub const USER: u64 = 1 << 2;
    pub const ACCESSED: u64 = FORMAT.accessed;
    pub const DIRTY: u64 = FORMAT.dirty;
    pub const LARGE: u64 = FORMAT.page_size;
    pub const GLOBAL: u64 = FORMAT.global;
    /// The physical address.
    pub const FRAME: u64 = FORMAT.address;
}

use bits::{FRAME, LARGE, PRESENT};

/// Index of the entry for `va` in a table of `level`.
pub fn index(va: u64, level: u8) -> usize {
    FORMAT.index(level, va) as usize
}

/// One page table.
#[derive(Debug, Clone)]
pub struct PageTable {
    /// 1 maps 4 KB pages, 4 is a root.
    pub level: u8,
    /// The 512 entries.
    pub entries: Box<[u64; 512]>,
}

/// Page tables by guest frame number.
#[derive(Debug, Clone, Default)]
pub struct PageTables {
    tables: HashMap<u64, PageTable>,
}

impl PageTables {
    /// Puts an empty table into this frame.
    ///
    /// # Panics
    /// If the frame is a table already.
    pub fn add(&mut self, gfn: u64, level: u8) {
        let old = self.tables.insert(gfn, PageTable { level, entries: Box::new([0; 512]) });
        assert!(old.is_none(), "frame {gfn:#x} is a table already");
    }

    /// Forgets a table.
    ///
    /// # Panics
    /// If there is none in this frame.
    pub fn remove(&mut self, gfn: u64) {
        self.tables.remove(&gfn).expect("a removed table exists");
    }

    /// The table in this frame.
    pub fn get(&self, gfn: u64) -> Option<&PageTable> {
        self.tables.get(&gfn)
    }

    /// The table in this frame.
    ///
    /// # Panics
    /// If there is none.
    pub fn table(&self, gfn: u64) -> &PageTable {
        &self.tables[&gfn]
    }

    /// Entry `i` of the table in this frame, which must be there.
    pub fn entry(&self, gfn: u64, i: usize) -> u64 {
        self.table(gfn).entries[i]
    }

    /// Writes entry `i` of the table in this frame, which must be there.
    pub fn set(&mut self, gfn: u64, i: usize, entry: u64) {
        self.tables.get_mut(&gfn).expect("a written table exists").entries[i] = entry;
    }

    /// The table of `level` that translates `va` under `root`, if every entry above it is present.
    pub fn find(&self, root: u64, va: u64, level: u8) -> Option<u64> {
        let mut gfn = root;
        for l in (level + 1..=FORMAT.depth()).rev() {
            let e = self.entry(gfn, index(va, l));
            if e & PRESENT == 0 {
                return None;
            }
            gfn = (e & FRAME) >> 12;
        }
        Some(gfn)
    }

    /// Writes the entry for `va` at `level`. A missing table above it is put into a frame from `take`,
    /// and its entry gets the bits `above`. Returns the table that holds the entry.
    pub fn map(
        &mut self,
        root: u64,
        (va, level): (u64, u8),
        entry: u64,
        above: u64,
        mut take: impl FnMut() -> u64,
    ) -> u64 {
        let mut gfn = root;
        for l in (level + 1..=FORMAT.depth()).rev() {
            let i = index(va, l);
            if self.entry(gfn, i) & PRESENT == 0 {
                let child = take();
                self.add(child, l - 1);
                self.set(gfn, i, child << 12 | above);
            }
            gfn = (self.entry(gfn, i) & FRAME) >> 12;
        }
        self.set(gfn, index(va, level), entry);
        gfn
    }

    /// The tables that this one's entries in `range` point to.
    pub fn children(&self, gfn: u64, range: std::ops::Range<usize>) -> impl Iterator<Item = u64> {
        let table = self.table(gfn);
        let entries = if table.level > 1 { &table.entries[range] } else { &[] };
        entries.iter().filter(|e| **e & PRESENT != 0 && **e & LARGE == 0).map(|e| (e & FRAME) >> 12)
    }

    /// All tables with their frames, by frame.
    pub fn sorted(&self) -> Vec<(u64, &PageTable)> {
        let mut all: Vec<_> = self.tables.iter().map(|(gfn, t)| (*gfn, t)).collect();
        all.sort_by_key(|(gfn, _)| *gfn);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::bits::{ACCESSED, DIRTY, WRITE};
    use super::*;
    use crate::{Start, Walk, walk};

    #[test]
    fn the_walker_finds_what_was_mapped_and_the_tables_above_are_made_once() {
        let (mut tables, mut next) = (PageTables::default(), 0x100);
        tables.add(0xff, 4);
        let mut map = |tables: &mut PageTables, va, level, entry| {
            tables.map(0xff, (va, level), entry, PRESENT | WRITE, || {
                next += 1;
                next - 1
            })
        };
        let leaf = map(&mut tables, 0x40_0000_1000, 1, 0x5000 | PRESENT | ACCESSED | DIRTY);
        assert_eq!(map(&mut tables, 0x40_0000_2000, 1, 0x6000 | PRESENT), leaf);
        map(&mut tables, 0x40_0020_0000, 2, 0x20_0000 | PRESENT | LARGE);
        assert_eq!(tables.sorted().len(), 4);
        assert_eq!(tables.find(0xff, 0x40_0000_1fff, 1), Some(leaf));
        assert_eq!(tables.find(0xff, 0x80_0000_0000, 1), None);
        assert_eq!(tables.children(0xff, 0..512).count(), 1);
        let start = Start { level: FORMAT.depth(), table: 0xff << 12 };
        for (va, level, entry) in
            [(0x40_0000_1008, 1, 0x5000), (0x40_0000_2000, 1, 0x6000), (0x40_0034_5678, 2, 0x20_0000)]
        {
            let read = |_, at: u64| Ok::<_, ()>(tables.entry(at >> 12, (at & 0xfff) as usize / 8));
            let Ok(Walk::Leaf(step)) = walk(FORMAT, start, va, read) else { panic!("{va:#x}") };
            assert_eq!((step.level, FORMAT.target(step.level, step.entry)), (level, entry));
        }
    }
}
