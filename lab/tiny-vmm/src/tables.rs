// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds a guest's four-level page tables, which the VMM writes into guest memory and describes to the
//! model.

use bifold_mmu::write::PageTables;
pub use bifold_mmu::write::bits::{ACCESSED, DIRTY, FRAME, LARGE, PRESENT, WRITE};
pub use bifold_mmu::write::index;
use bifold_trace::Event;

/// An entry that points to a table.
pub const TABLE: u64 = PRESENT | WRITE | ACCESSED;
/// Bits of an entry for a page that was written before.
pub const DATA: u64 = PRESENT | WRITE | ACCESSED | DIRTY;
/// Bits of an entry for a page that was never accessed.
pub const FRESH: u64 = PRESENT | WRITE;

/// All tables of a guest.
#[derive(Debug, Clone)]
pub struct Tables {
    tables: PageTables,
    next: u64,
}

impl Tables {
    /// No tables yet. Frames are taken from `next` upwards.
    pub fn new(next: u64) -> Tables {
        Tables { tables: PageTables::default(), next }
    }

    /// The next free frame.
    pub fn take(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// A new table.
    pub fn table(&mut self, level: u8) -> u64 {
        let gfn = self.take();
        self.tables.add(gfn, level);
        gfn
    }

    /// A new table in the given frame.
    pub fn place(&mut self, level: u8, gfn: u64) {
        self.tables.add(gfn, level);
    }

    pub fn entry(&self, gfn: u64, i: usize) -> u64 {
        self.tables.entry(gfn, i)
    }

    pub fn set(&mut self, gfn: u64, i: usize, entry: u64) {
        self.tables.set(gfn, i, entry);
    }

    /// Whether the frame holds a table.
    pub fn is_table(&self, gfn: u64) -> bool {
        self.tables.get(gfn).is_some()
    }

    /// The table of `level` that translates `va` under `root`.
    pub fn find(&self, root: u64, va: u64, level: u8) -> Option<u64> {
        self.tables.find(root, va, level)
    }

    /// Writes the entry for `va` at `level` and makes missing tables above it. Returns the table with the
    /// entry.
    pub fn map(&mut self, root: u64, va: u64, level: u8, entry: u64) -> u64 {
        let next = &mut self.next;
        self.tables.map(root, (va, level), entry, TABLE, || {
            *next += 1;
            *next - 1
        })
    }

    /// Describes all tables to the model, the lowest level first.
    pub fn describe(&self, out: &mut Vec<u64>) {
        let all = self.tables.sorted();
        for level in 1..=4 {
            for (gfn, t) in all.iter().filter(|(_, t)| t.level == level) {
                Event::Table { gfn: *gfn, level, entries: &t.entries }.encode(out);
            }
        }
    }

    /// Frame and entries of every table.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u64; 512])> {
        self.tables.sorted().into_iter().map(|(gfn, t)| (gfn, &*t.entries))
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
