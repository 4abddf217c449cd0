// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a generated guest has in memory: frames and four-level page tables.
//!
//! Left out: five-level and 32-bit tables, protection keys, NX.

use super::CHUNK;
use crate::event::Event;
use std::collections::HashMap;

pub const PRESENT: u64 = 1;
pub const WRITE: u64 = 1 << 1;
pub const USER: u64 = 1 << 2;
pub const ACCESSED: u64 = 1 << 5;
pub const DIRTY: u64 = 1 << 6;
pub const LARGE: u64 = 1 << 7;
pub const GLOBAL: u64 = 1 << 8;
pub const FRAME: u64 = 0x000f_ffff_ffff_f000;

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

#[derive(Debug)]
pub struct Table {
    pub level: u8,
    pub entries: Box<[u64; 512]>,
}

/// Guest memory: which frames are free and which hold tables.
#[derive(Debug)]
pub struct Memory {
    frames: u64,
    next: u64,
    free: Vec<u64>,
    tables: HashMap<u64, Table>,
}

/// Index of the entry for `va` in a table of `level`.
pub fn index(va: u64, level: u8) -> usize {
    ((va >> (3 + 9 * u32::from(level))) & 511) as usize
}

impl Memory {
    /// Memory of `frames` frames, of which the first `reserved` are in use.
    pub fn new(frames: u64, reserved: u64) -> Memory {
        Memory { frames, next: reserved, free: Vec::new(), tables: HashMap::new() }
    }

    /// A free frame; the one freed last comes first, as in Linux's per-CPU lists.
    pub fn take(&mut self) -> u64 {
        self.free.pop().unwrap_or_else(|| {
            assert!(self.next < self.frames, "a generator's guest has memory enough");
            self.next += 1;
            self.next - 1
        })
    }

    pub fn give_back(&mut self, gfn: u64) {
        self.free.push(gfn);
    }

    pub fn new_table(&mut self, level: u8) -> u64 {
        let gfn = self.take();
        self.tables.insert(gfn, Table { level, entries: Box::new([0; 512]) });
        gfn
    }

    /// Forgets a table; its frame is free again.
    pub fn free_table(&mut self, gfn: u64) {
        self.tables.remove(&gfn).expect("a freed table exists");
        self.give_back(gfn);
    }

    pub fn table(&self, gfn: u64) -> &Table {
        &self.tables[&gfn]
    }

    pub fn entry(&self, gfn: u64, i: usize) -> u64 {
        self.table(gfn).entries[i]
    }

    pub fn set(&mut self, gfn: u64, i: usize, entry: u64) {
        self.tables.get_mut(&gfn).expect("a written table exists").entries[i] = entry;
    }

    /// The table of `level` that translates `va`, if there is one.
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

    /// Writes the entry for `va` at `level`, making tables above it with `flags`.
    pub fn map(&mut self, root: u64, va: u64, level: u8, entry: u64, flags: u64) {
        let mut gfn = root;
        for l in (level + 1..=4).rev() {
            let i = index(va, l);
            if self.entry(gfn, i) & PRESENT == 0 {
                let child = self.new_table(l - 1);
                self.set(gfn, i, child << 12 | flags);
            }
            gfn = (self.entry(gfn, i) & FRAME) >> 12;
        }
        self.set(gfn, index(va, level), entry);
    }

    /// Describes the tables below slots `range` of `gfn`, and then `gfn`, lowest first.
    pub fn describe<E>(
        &self,
        gfn: u64,
        range: std::ops::Range<usize>,
        out: &mut Vec<u64>,
        push: &mut dyn FnMut(&[u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        let table = self.table(gfn);
        if table.level > 1 {
            for e in &table.entries[range] {
                if e & PRESENT != 0 && e & LARGE == 0 {
                    self.describe((e & FRAME) >> 12, 0..512, out, push)?;
                }
            }
        }
        Event::Table { gfn, level: table.level, entries: &table.entries }.encode(out);
        if out.len() >= CHUNK {
            push(out)?;
            out.clear();
        }
        Ok(())
    }
}
