// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of a generated guest: frames and four-level page tables.
//!
//! Left out: five-level and 32-bit tables, protection keys, NX.

use crate::event::Event;
pub use bifold_mmu::write::bits::{ACCESSED, DIRTY, FRAME, GLOBAL, LARGE, PRESENT, USER, WRITE};
pub use bifold_mmu::write::index;
use bifold_mmu::write::{PageTable, PageTables};

/// Words after which a generator hands its events on.
pub const CHUNK: usize = 4096;

/// Linux's `_PAGE_TABLE` (accessed as the hardware leaves it).
pub const USER_TABLE: u64 = PRESENT | WRITE | USER | ACCESSED;
/// Linux's `_KERNPG_TABLE`.
pub const KERNEL_TABLE: u64 = PRESENT | WRITE | ACCESSED;
/// A page of a program's own data, written before.
pub const USER_DATA: u64 = PRESENT | WRITE | USER | ACCESSED | DIRTY;
/// A page of a program's file.
pub const USER_TEXT: u64 = PRESENT | USER | ACCESSED;
/// 2 MB of kernel memory.
pub const KERNEL_LARGE: u64 = PRESENT | WRITE | ACCESSED | DIRTY | LARGE | GLOBAL;

/// Guest memory: which frames are free and which hold tables.
#[derive(Debug)]
pub struct Memory {
    frames: u64,
    next: u64,
    free: Vec<u64>,
    tables: PageTables,
}

fn take(free: &mut Vec<u64>, next: &mut u64, frames: u64) -> u64 {
    free.pop().unwrap_or_else(|| {
        assert!(*next < frames, "a generator's guest has memory enough");
        *next += 1;
        *next - 1
    })
}

impl Memory {
    /// Memory of `frames` frames, of which the first `reserved` are in use.
    pub fn new(frames: u64, reserved: u64) -> Memory {
        Memory { frames, next: reserved, free: Vec::new(), tables: PageTables::default() }
    }

    /// A free frame; the one freed last comes first, as in Linux's per-CPU lists.
    pub fn take(&mut self) -> u64 {
        take(&mut self.free, &mut self.next, self.frames)
    }

    /// The first of 512 free frames that lie as a 2 MB page does; none if no such frames are left. Frames
    /// that are passed over stay free.
    pub fn take_large(&mut self) -> Option<u64> {
        let first = self.next.next_multiple_of(512);
        if first + 512 > self.frames {
            return None;
        }
        self.free.extend((self.next..first).rev());
        self.next = first + 512;
        Some(first)
    }

    /// How many frames [`Memory::take`] can still give.
    pub fn left(&self) -> u64 {
        self.frames - self.next + self.free.len() as u64
    }

    pub fn give_back(&mut self, gfn: u64) {
        self.free.push(gfn);
    }

    pub fn new_table(&mut self, level: u8) -> u64 {
        let gfn = self.take();
        self.tables.add(gfn, level);
        gfn
    }

    /// Forgets a table; its frame is free again.
    pub fn free_table(&mut self, gfn: u64) {
        self.tables.remove(gfn);
        self.give_back(gfn);
    }

    pub fn table(&self, gfn: u64) -> &PageTable {
        self.tables.table(gfn)
    }

    pub fn entry(&self, gfn: u64, i: usize) -> u64 {
        self.tables.entry(gfn, i)
    }

    pub fn set(&mut self, gfn: u64, i: usize, entry: u64) {
        self.tables.set(gfn, i, entry);
    }

    /// The table of `level` that translates `va`, if there is one.
    pub fn find(&self, root: u64, va: u64, level: u8) -> Option<u64> {
        self.tables.find(root, va, level)
    }

    /// Writes the entry for `va` at `level`, making tables above it with `flags`.
    pub fn map(&mut self, root: u64, va: u64, level: u8, entry: u64, flags: u64) {
        let Memory { frames, next, free, tables } = self;
        tables.map(root, (va, level), entry, flags, || take(free, next, *frames));
    }

    /// Describes the tables below slots `range` of `gfn`, and then `gfn`, lowest first.
    pub fn describe<E>(
        &self,
        gfn: u64,
        range: std::ops::Range<usize>,
        out: &mut Vec<u64>,
        push: &mut dyn FnMut(&[u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        for child in self.tables.children(gfn, range) {
            self.describe(child, 0..512, out, push)?;
        }
        let table = self.table(gfn);
        Event::Table { gfn, level: table.level, entries: &table.entries }.encode(out);
        if out.len() >= CHUNK {
            push(out)?;
            out.clear();
        }
        Ok(())
    }
}
