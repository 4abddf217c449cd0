// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's steps in a fork storm: accesses, filled pages, written entries and linked tables, each
//! with its events.

use super::*;

impl Storm {
    pub(super) fn access(&mut self, kind: u64, va: u64) {
        self.words.push(head(kind, va));
        self.instructions += 3;
    }

    /// A string instruction over a whole page: zeroes or copies it.
    pub(super) fn fill_page(&mut self, from: Option<u64>, to: u64) {
        for i in 0..512 {
            if let Some(from) = from {
                self.words.push(head(kind::LOAD, direct(from << 12) + i * 8));
            }
            self.words.push(head(kind::STORE_OTHER, direct(to << 12) + i * 8));
        }
        self.instructions += 64;
    }

    /// Kernel code: `n` accesses to slab objects, in functions here and there.
    pub(super) fn kernel_work(&mut self, n: u64) {
        for i in 0..n {
            if i % 12 == 0 {
                let text = KERNEL + (self.random.below(KERNEL_TEXT_PAGES) << 12);
                self.words.push(head(kind::FETCH, text));
            }
            let at = self.random.below(SLAB_PAGES * 512) * 8;
            let kind = if i % 3 == 2 { kind::STORE } else { kind::LOAD };
            self.access(kind, direct(SLAB_GFN << 12) + at);
        }
    }

    pub(super) fn enter_kernel(&mut self) {
        self.words.push(head(kind::FETCH, KERNEL));
        for i in 0..6 {
            self.access(kind::STORE_OTHER, direct(STACK_GFN << 12) + 0xff8 - i * 8);
        }
    }

    pub(super) fn return_to_user(&mut self) {
        for i in 0..6 {
            self.access(kind::LOAD, direct(STACK_GFN << 12) + 0xfd0 + i * 8);
        }
        self.words.push(head(kind::FETCH, self.ip));
    }

    /// Counts in the `struct page` of a frame.
    pub(super) fn struct_page(&mut self, gfn: u64) {
        self.access(kind::STORE, VMEMMAP + gfn * 64 + 24);
    }

    pub(super) fn set_entry(&mut self, table: u64, i: usize, new: u64) {
        let gpa = (table << 12) + i as u64 * 8;
        self.access(kind::STORE, direct(gpa));
        if self.reachable.contains(&table) {
            let old = self.memory.entry(table, i);
            Event::PtStore { gpa, old, new }.encode(&mut self.words);
        }
        self.memory.set(table, i, new);
    }

    pub(super) fn new_table(&mut self, level: u8) -> u64 {
        let gfn = self.memory.new_table(level);
        self.fill_page(None, gfn);
        self.struct_page(gfn);
        gfn
    }

    /// The page table for `va`, made if need be.
    pub(super) fn leaf_table(&mut self, root: u64, va: u64) -> u64 {
        let mut table = root;
        for level in [4, 3, 2] {
            let i = index(va, level);
            let mut entry = self.memory.entry(table, i);
            self.access(kind::LOAD, direct((table << 12) + i as u64 * 8));
            if entry & PRESENT == 0 {
                let child = self.new_table(level - 1);
                if self.reachable.contains(&table) {
                    self.make_reachable(child, 0..512);
                }
                entry = child << 12 | USER_TABLE;
                self.set_entry(table, i, entry);
            }
            table = (entry & FRAME) >> 12;
        }
        table
    }

    /// Describes the tables below slots `range` of `gfn` and `gfn` itself.
    pub(super) fn make_reachable(&mut self, gfn: u64, range: std::ops::Range<usize>) {
        let level = self.memory.table(gfn).level;
        for i in range {
            let e = self.memory.entry(gfn, i);
            if level > 1 && e & PRESENT != 0 && e & LARGE == 0 {
                self.make_reachable((e & FRAME) >> 12, 0..512);
            }
        }
        let entries = &self.memory.table(gfn).entries;
        Event::Table { gfn, level, entries }.encode(&mut self.words);
        self.reachable.insert(gfn);
    }

    pub(super) fn retire(&mut self, gfn: u64) {
        self.reachable.remove(&gfn);
        Event::Retire { gfn }.encode(&mut self.words);
        self.memory.free_table(gfn);
        self.struct_page(gfn);
    }

    pub(super) fn load_cr3(&mut self, root: u64) {
        Event::Cr3(root << 12).encode(&mut self.words);
        self.root = root;
    }

    /// `flush_tlb_mm` of the running process, without PCID.
    pub(super) fn flush_tlb(&mut self) {
        Event::Cr3Read.encode(&mut self.words);
        self.load_cr3(self.root);
    }

    /// Clears slots `range` of a table after those of the tables below.
    pub(super) fn unlink(&mut self, gfn: u64, range: std::ops::Range<usize>, freed: &mut Vec<u64>) {
        let level = self.memory.table(gfn).level;
        for i in range {
            let e = self.memory.entry(gfn, i);
            if level > 1 && e & PRESENT != 0 {
                let below = (e & FRAME) >> 12;
                self.unlink(below, 0..512, freed);
                self.set_entry(gfn, i, 0);
                freed.push(below);
            }
        }
    }
}
