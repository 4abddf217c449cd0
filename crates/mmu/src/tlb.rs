// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The TLBs of one CPU under one regime.
//!
//! Any number of arrays, each for one level, one or both sides (data, code) and
//! one or several page sizes, as the hardware profile lists them. The second
//! level is looked up and filled on a first-level miss only; there is no
//! inclusion: an entry may leave the second level and stay in the first. A page
//! larger than any array of a side takes is held as pieces of the largest size
//! that one takes (a "fractured" entry).
//!
//! Not modelled: prefetch into the TLB, coalescing of neighbouring pages, sharing
//! between hyper-threads.

use crate::{Assoc, Attr, Gva, PageSize, SIGNED_BITS};

/// Who accesses: data (loads, stores) or code (instruction fetch).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Loads and stores.
    Data,
    /// Instruction fetch.
    Code,
}

/// One array: which translations it takes, and its geometry.
#[derive(Debug, Clone)]
pub struct ArraySpec {
    /// TLB level, 1 or 2.
    pub level: u8,
    /// Holds data translations.
    pub data: bool,
    /// Holds code translations.
    pub code: bool,
    /// Page sizes it holds.
    pub sizes: Vec<PageSize>,
    /// Number of entries.
    pub entries: usize,
    /// Associativity; 0 = fully associative.
    pub ways: usize,
}

/// What a look-up found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// In the first level.
    L1,
    /// In the second level only; it is in the first now.
    L2,
    /// Present, but not to be written as it is (read-only or clean): a walk follows.
    NotWritable,
    /// Nowhere: a walk follows.
    Miss,
}

/// An entry is filed under its address space, unless it is global.
const GLOBAL_SPACE: u64 = 0xfff;

#[derive(Debug, Clone, Copy)]
struct Slot {
    size: PageSize,
    l1: usize,
    l2: Option<usize>,
}

/// The TLBs of one CPU.
#[derive(Debug, Clone)]
pub struct Tlb {
    arrays: Vec<Assoc>,
    /// Per side: the sizes that have a first-level array, small to large.
    slots: [Vec<Slot>; 2],
    /// Entries are filed under the current address space (PCID); 0 where it is not used.
    space: u64,
    /// A first-level array that [`Tlb::filter_slots`] does not cover changed its order.
    reordered: bool,
    covered: Vec<bool>,
    filter_slots: usize,
}

#[inline]
fn key(size: PageSize, gva: Gva) -> u64 {
    let page = (gva.0 & ((1 << 57) - 1)) >> size.shift();
    page | (size as u64) << (SIGNED_BITS - 3)
}

impl Tlb {
    /// Empty TLBs of the given arrays.
    pub fn new(specs: &[ArraySpec]) -> Tlb {
        let arrays: Vec<Assoc> = specs.iter().map(|s| Assoc::new(s.entries, s.ways)).collect();
        let find = |level: u8, code: bool, size: PageSize| {
            specs.iter().position(|s| s.level == level && (if code { s.code } else { s.data }) && s.sizes.contains(&size))
        };
        let slots = [false, true].map(|code| {
            PageSize::ALL
                .into_iter()
                .filter_map(|size| Some(Slot { size, l1: find(1, code, size)?, l2: find(2, code, size) }))
                .collect::<Vec<_>>()
        });
        // See `filter_slots`. A first-level array that also holds large pages is not covered.
        let only_4k = |i: usize| specs[i].sizes == [PageSize::Size4K];
        let sets = slots.iter().flatten().filter(|s| only_4k(s.l1)).map(|s| arrays[s.l1].sets());
        let filter_slots = sets.map(|s| 1usize << s.trailing_zeros()).min().unwrap_or(1).min(64);
        let covered = (0..arrays.len()).map(|i| only_4k(i) && arrays[i].sets() % filter_slots == 0).collect();
        Tlb { arrays, slots, space: 0, reordered: false, covered, filter_slots }
    }

    /// How many slots a filter in front may have, indexed by the low bits of the 4 KB
    /// page number, so that an access to the page last seen in its slot cannot
    /// change anything here: every access to that page's set goes through the
    /// same slot. Where an array has no such sets, [`Tlb::take_reordered`] tells
    /// when all slots must be forgotten.
    pub fn filter_slots(&self) -> usize {
        self.filter_slots
    }

    /// True once after an array that the filter does not cover changed its order.
    #[inline]
    pub fn take_reordered(&mut self) -> bool {
        std::mem::take(&mut self.reordered)
    }

    /// Does this side have TLBs at all?
    pub fn has(&self, side: Side) -> bool {
        !self.slots[side as usize].is_empty()
    }

    /// Looks a page up; a write needs an entry that allows it as it is.
    #[inline]
    pub fn lookup(&mut self, side: Side, gva: Gva, write: bool) -> Lookup {
        let space = self.space << SIGNED_BITS;
        for i in 0..self.slots[side as usize].len() {
            let slot = self.slots[side as usize][i];
            if self.arrays[slot.l1].is_unused() {
                continue;
            }
            let k = key(slot.size, gva);
            if let Some(hit) = self.arrays[slot.l1].lookup_either(k, k | space, k | GLOBAL_SPACE << SIGNED_BITS) {
                self.reordered |= !hit.was_recent && !self.covered[slot.l1];
                return if write && !hit.attr.writable { Lookup::NotWritable } else { Lookup::L1 };
            }
        }
        for i in 0..self.slots[side as usize].len() {
            let slot = self.slots[side as usize][i];
            let Some(l2) = slot.l2 else { continue };
            if self.arrays[l2].is_unused() {
                continue;
            }
            let k = key(slot.size, gva);
            if let Some(hit) = self.arrays[l2].lookup_either(k, k | space, k | GLOBAL_SPACE << SIGNED_BITS) {
                let attr = hit.attr;
                if write && !attr.writable {
                    return Lookup::NotWritable;
                }
                let k = if attr.global { k | GLOBAL_SPACE << SIGNED_BITS } else { k | space };
                self.arrays[slot.l1].insert_absent(k, k, attr);
                self.reordered |= !self.covered[slot.l1];
                return Lookup::L2;
            }
        }
        Lookup::Miss
    }

    /// The size under which this side holds a translation of `size`.
    #[inline]
    pub fn held_size(&self, side: Side, size: PageSize) -> PageSize {
        self.slots[side as usize].iter().rev().map(|s| s.size).find(|&s| s <= size).unwrap_or(size)
    }

    /// Files a translation after a walk, in both levels. `fresh`: the look-up missed, so no
    /// entry of the page is to be replaced.
    #[inline]
    pub fn fill(&mut self, side: Side, gva: Gva, size: PageSize, writable: bool, global: bool, fresh: bool) {
        let Some(&slot) = self.slots[side as usize].iter().rev().find(|s| s.size <= size) else { return };
        let attr = Attr { writable, global, value: 0 };
        let space = if global { GLOBAL_SPACE } else { self.space };
        let k = key(slot.size, gva) | space << SIGNED_BITS;
        self.reordered |= !self.covered[slot.l1];
        for array in [Some(slot.l1), slot.l2].into_iter().flatten() {
            if fresh {
                self.arrays[array].insert_absent(k, k, attr);
            } else {
                self.arrays[array].insert(k, k, attr);
            }
        }
    }

    /// Drops the page's entries (INVLPG, or the page fault that the address caused), global ones too.
    pub fn invalidate(&mut self, gva: Gva) {
        for i in 0..self.slots.len() {
            for j in 0..self.slots[i].len() {
                let slot = self.slots[i][j];
                let k = key(slot.size, gva);
                for array in [Some(slot.l1), slot.l2].into_iter().flatten() {
                    self.arrays[array].remove(k, k | self.space << SIGNED_BITS);
                    self.arrays[array].remove(k, k | GLOBAL_SPACE << SIGNED_BITS);
                }
            }
        }
    }

    /// Drops everything.
    pub fn flush_all(&mut self) {
        self.arrays.iter_mut().for_each(Assoc::flush_all);
    }

    /// Drops all but global entries (MOV to CR3 without PCID).
    pub fn flush_non_global(&mut self) {
        self.arrays.iter_mut().for_each(Assoc::flush_non_global);
    }

    /// Changes the current address space without dropping anything (PCID).
    pub fn set_space(&mut self, space: u16) {
        self.space = u64::from(space);
    }

    /// Drops one address space's entries.
    pub fn flush_space(&mut self, space: u16) {
        for a in &mut self.arrays {
            a.retain(|k, _| k >> SIGNED_BITS != u64::from(space));
        }
    }

    /// The pages held now, as a virtual address each.
    pub fn pages(&mut self) -> Vec<Gva> {
        let mut out: Vec<Gva> = Vec::new();
        for a in &mut self.arrays {
            for k in a.keys() {
                let k = k & ((1 << SIGNED_BITS) - 1);
                let size = PageSize::ALL[(k >> (SIGNED_BITS - 3)) as usize & 3];
                let va = (k & ((1 << (SIGNED_BITS - 3)) - 1)) << size.shift();
                out.push(Gva(((va << 7) as i64 >> 7) as u64));
            }
        }
        out.sort_unstable();
        out.dedup();
        out
    }
}
