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

use crate::{Assoc, Attr, Gva, PageSize, PAGE_BITS};

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

const NONE: u8 = u8::MAX;

/// The TLBs of one CPU.
#[derive(Debug, Clone)]
pub struct Tlb {
    arrays: Box<[Assoc]>,
    /// Per side and page size: the array of the first and of the second level, or [`NONE`].
    l1: [[u8; 3]; 2],
    l2: [[u8; 3]; 2],
    /// The current address space (PCID) in a key's place for it; 0 where it is not used.
    space: u64,
    /// First-level arrays that [`Tlb::filter_slots`] does not cover.
    uncovered: Box<[u8]>,
    filter_slots: usize,
}

#[inline]
fn key(size: PageSize, gva: Gva) -> u64 {
    let page = (gva.0 & ((1 << 57) - 1)) >> size.shift();
    page | (size as u64) << (PAGE_BITS - 3)
}

impl Tlb {
    /// Empty TLBs of the given arrays.
    pub fn new(specs: &[ArraySpec]) -> Tlb {
        let arrays: Box<[Assoc]> = specs.iter().map(|s| Assoc::new(s.entries, s.ways)).collect();
        let find = |level: u8, code: bool| {
            PageSize::ALL.map(|size| {
                let takes = |s: &ArraySpec| {
                    s.level == level && (if code { s.code } else { s.data }) && s.sizes.contains(&size)
                };
                specs.iter().position(takes).map_or(NONE, |i| i as u8)
            })
        };
        let l1 = [find(1, false), find(1, true)];
        // See `filter_slots`. A first-level array that also holds large pages is not covered.
        let only_4k = |i: usize| specs[i].sizes == [PageSize::Size4K];
        let first = l1.iter().flatten().filter(|&&i| i != NONE && only_4k(usize::from(i)));
        let sets = first.map(|&i| arrays[usize::from(i)].sets());
        let filter_slots = sets.map(|s| 1usize << s.trailing_zeros()).min().unwrap_or(1).min(64);
        let uncovered = (0..specs.len()).filter(|&i| specs[i].level == 1 && !only_4k(i)).map(|i| i as u8).collect();
        let l2 = [find(2, false), find(2, true)];
        Tlb { arrays, l1, l2, space: 0, uncovered, filter_slots }
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
        let mut any = false;
        for &i in &self.uncovered {
            any |= self.arrays[usize::from(i)].take_reordered();
        }
        any
    }

    /// Does this side have TLBs at all?
    pub fn has(&self, side: Side) -> bool {
        self.l1[side as usize].iter().any(|&a| a != NONE)
    }

    /// Looks a page up; a write needs an entry that allows it as it is.
    #[inline]
    pub fn lookup(&mut self, side: Side, gva: Gva, write: bool) -> Lookup {
        for size in PageSize::ALL {
            let i = usize::from(self.l1[side as usize][size as usize]);
            let Some(array) = self.arrays.get_mut(i) else { continue };
            if array.is_unused() {
                continue;
            }
            let k = key(size, gva);
            if let Some(slot) = array.lookup(k, k | self.space) {
                return if write && !array.writable(slot) { Lookup::NotWritable } else { Lookup::L1 };
            }
        }
        for size in PageSize::ALL {
            let i = usize::from(self.l2[side as usize][size as usize]);
            let Some(array) = self.arrays.get_mut(i) else { continue };
            if array.is_unused() {
                continue;
            }
            let k = key(size, gva);
            if let Some(slot) = array.lookup(k, k | self.space) {
                if write && !array.writable(slot) {
                    return Lookup::NotWritable;
                }
                let attr = array.attr(slot);
                let i = usize::from(self.l1[side as usize][size as usize]);
                if let Some(array) = self.arrays.get_mut(i) {
                    array.insert_absent(k, k | self.space, attr);
                }
                return Lookup::L2;
            }
        }
        Lookup::Miss
    }

    /// Files a translation after a walk, in both levels. `fresh`: the look-up missed, so no
    /// entry of the page is to be replaced.
    #[inline]
    pub fn fill(&mut self, side: Side, gva: Gva, size: PageSize, writable: bool, global: bool, fresh: bool) {
        let l1 = &self.l1[side as usize];
        let Some(size) = PageSize::ALL.into_iter().rev().find(|&s| s <= size && l1[s as usize] != NONE) else {
            return;
        };
        let attr = Attr { writable, global, value: 0 };
        let k = key(size, gva);
        let first = usize::from(l1[size as usize]);
        for i in [first, usize::from(self.l2[side as usize][size as usize])] {
            let Some(array) = self.arrays.get_mut(i) else { continue };
            if fresh {
                array.insert_absent(k, k | self.space, attr);
            } else {
                array.insert(k, k | self.space, attr);
            }
        }
    }

    /// Drops the page's entries (INVLPG, or the page fault that the address caused), global ones too.
    pub fn invalidate(&mut self, gva: Gva) {
        for size in PageSize::ALL {
            let k = key(size, gva);
            for array in &mut self.arrays {
                array.remove(k, k | self.space);
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
        self.space = u64::from(space) << PAGE_BITS;
    }

    /// Drops one address space's entries.
    pub fn flush_space(&mut self, space: u16) {
        for a in &mut self.arrays {
            a.retain(|k, attr| attr.global || k >> PAGE_BITS != u64::from(space));
        }
    }

    /// The pages held now, as a virtual address each.
    pub fn pages(&mut self) -> Vec<Gva> {
        let mut out: Vec<Gva> = Vec::new();
        for a in &mut self.arrays {
            for k in a.keys() {
                let k = k & ((1 << PAGE_BITS) - 1);
                let size = PageSize::ALL[(k >> (PAGE_BITS - 3)) as usize % 3];
                let va = (k & ((1 << (PAGE_BITS - 3)) - 1)) << size.shift();
                out.push(Gva(((va << 7) as i64 >> 7) as u64));
            }
        }
        out.sort_unstable();
        out.dedup();
        out
    }
}
