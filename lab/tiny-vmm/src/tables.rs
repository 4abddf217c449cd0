// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Four-level page tables of a guest, as the VMM writes them and the model hears of them.

use bifold_mmu::format::X86_64_4_LEVEL as FORMAT;
use bifold_trace::Event;
use std::collections::BTreeMap;

/// Bits of entries.
pub const PRESENT: u64 = 1;
pub const WRITE: u64 = 1 << 1;
pub const ACCESSED: u64 = 1 << 5;
pub const DIRTY: u64 = 1 << 6;
pub const LARGE: u64 = 1 << 7;
pub const FRAME: u64 = 0x000f_ffff_ffff_f000;

/// An entry that points to a table.
pub const TABLE: u64 = PRESENT | WRITE | ACCESSED;
/// A page that was written before.
pub const DATA: u64 = PRESENT | WRITE | ACCESSED | DIRTY;
/// One that never was accessed.
pub const FRESH: u64 = PRESENT | WRITE;

/// Index of the entry for `va` in a table of `level`.
pub fn index(va: u64, level: u8) -> usize {
    FORMAT.index(level, va) as usize
}

#[derive(Debug, Clone)]
struct Table {
    level: u8,
    entries: Box<[u64; 512]>,
}

/// All tables of a guest.
#[derive(Debug, Clone)]
pub struct Tables {
    tables: BTreeMap<u64, Table>,
    next: u64,
}

impl Tables {
    /// None; their frames are taken from `next` upwards.
    pub fn new(next: u64) -> Tables {
        Tables { tables: BTreeMap::new(), next }
    }

    /// The next free frame.
    pub fn take(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// A new table.
    pub fn table(&mut self, level: u8) -> u64 {
        let gfn = self.take();
        self.tables.insert(gfn, Table { level, entries: Box::new([0; 512]) });
        gfn
    }

    /// A new table in a frame of choice.
    pub fn place(&mut self, level: u8, gfn: u64) {
        let old = self.tables.insert(gfn, Table { level, entries: Box::new([0; 512]) });
        assert!(old.is_none(), "a frame is taken once");
    }

    pub fn entry(&self, gfn: u64, i: usize) -> u64 {
        self.tables[&gfn].entries[i]
    }

    pub fn set(&mut self, gfn: u64, i: usize, entry: u64) {
        self.tables.get_mut(&gfn).expect("a written table exists").entries[i] = entry;
    }

    /// Is this frame a table?
    pub fn is_table(&self, gfn: u64) -> bool {
        self.tables.contains_key(&gfn)
    }

    /// The table of `level` that translates `va` under `root`.
    pub fn find(&self, root: u64, va: u64, level: u8) -> Option<u64> {
        let mut gfn = root;
        for l in (level + 1..=4).rev() {
            let e = self.entry(gfn, index(va, l));
            if e & PRESENT == 0 {
                return None;
            }
            gfn = (e & FRAME) >> 12;
        }
        Some(gfn)
    }

    /// Writes the entry for `va` at `level`, making the tables above it. Returns the table
    /// that holds it.
    pub fn map(&mut self, root: u64, va: u64, level: u8, entry: u64) -> u64 {
        let mut gfn = root;
        for l in (level + 1..=4).rev() {
            let i = index(va, l);
            if self.entry(gfn, i) & PRESENT == 0 {
                let child = self.table(l - 1);
                self.set(gfn, i, child << 12 | TABLE);
            }
            gfn = (self.entry(gfn, i) & FRAME) >> 12;
        }
        self.set(gfn, index(va, level), entry);
        gfn
    }

    /// Describes all tables, those of the lowest level first.
    pub fn describe(&self, out: &mut Vec<u64>) {
        for level in 1..=4 {
            for (&gfn, t) in self.tables.iter().filter(|(_, t)| t.level == level) {
                Event::Table { gfn, level, entries: &t.entries }.encode(out);
            }
        }
    }

    /// Frame and entries of every table.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u64; 512])> {
        self.tables.iter().map(|(&gfn, t)| (gfn, &*t.entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_makes_the_tables_above_and_find_finds_them() {
        let mut t = Tables::new(0x100);
        let root = t.table(4);
        let leaf = t.map(root, 0x40_0000_1000, 1, 0x5000 | DATA);
        assert_eq!(t.find(root, 0x40_0000_1fff, 1), Some(leaf));
        assert_eq!(t.entry(leaf, 1), 0x5000 | DATA);
        assert_eq!(t.find(root, 0x80_0000_0000, 1), None);
        assert_eq!(t.iter().count(), 4);
        let mut words = Vec::new();
        t.describe(&mut words);
        assert_eq!(words.len(), 4 * 513);
    }
}
