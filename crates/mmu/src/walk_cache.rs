// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walk caches: what lets a walk skip references to upper tables.
//!
//! Three variants (MODEL.md section 1, after Bhargava et al., ASPLOS 2008):
//! one-dimensional (guest tables only), two-dimensional (host tables too), and
//! two-dimensional with a nested TLB (whole GPA-to-HPA translations). And two
//! ways of tagging: by virtual prefix (Intel SDM vol. 3A section 4.10.3: a hit
//! names the next table, so neither the upper entries nor their nested walks are
//! needed) or by the entry's physical address (AMD: the walk still goes level
//! by level, translates every guest entry's address, and a hit saves the
//! reference itself). Only entries that point to a table are cached; leaves
//! belong to the TLBs. Entries of the host dimension are filed as global: they
//! survive the guest's flushes.

use crate::{Assoc, Attr, Start};

/// How the caches are tagged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    /// By the upper bits of the address that is translated.
    Virtual,
    /// By the physical address of the entry.
    Physical,
}

/// Which tables: the guest's (or the only ones), or the host's nested ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dimension {
    /// Indexed by virtual address.
    Guest,
    /// Indexed by guest-physical address.
    Host,
}

/// One cache array.
#[derive(Debug, Clone)]
pub struct CacheSpec {
    /// Levels whose entries it holds (2 = PDE, 3 = PDPTE, 4 = PML4E, 5 = PML5E).
    pub levels: Vec<u8>,
    /// Holds guest entries.
    pub guest: bool,
    /// Holds host entries.
    pub host: bool,
    /// Number of entries.
    pub entries: usize,
    /// Associativity; 0 = fully associative.
    pub ways: usize,
}

/// The walk caches of one CPU under one regime.
#[derive(Debug, Clone)]
pub struct WalkCache {
    tag: Tag,
    arrays: Vec<Assoc>,
    /// Per dimension and level: the array.
    at: [[Option<usize>; 6]; 2],
    /// Per dimension, levels with an array, from the leaf side up.
    levels: [Vec<(u8, usize)>; 2],
    nested_tlb: Option<Assoc>,
}

impl WalkCache {
    /// Empty caches. `nested_tlb` is (entries, ways).
    pub fn new(tag: Tag, specs: &[CacheSpec], nested_tlb: Option<(usize, usize)>) -> Self {
        let mut at = [[None; 6]; 2];
        for (i, s) in specs.iter().enumerate() {
            for &l in &s.levels {
                if s.guest {
                    at[0][usize::from(l)] = Some(i);
                }
                if s.host {
                    at[1][usize::from(l)] = Some(i);
                }
            }
        }
        let levels = at.map(|d| (2..6u8).filter_map(|l| Some((l, d[usize::from(l)]?))).collect());
        WalkCache {
            tag,
            arrays: specs.iter().map(|s| Assoc::new(s.entries, s.ways)).collect(),
            at,
            levels,
            nested_tlb: nested_tlb.map(|(entries, ways)| Assoc::new(entries, ways)),
        }
    }

    /// How these caches are tagged.
    #[inline]
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// Where a walk of `va` starts: at `root`, or at the deepest table whose pointer is
    /// cached under a virtual prefix.
    #[inline]
    pub fn start(&mut self, dim: Dimension, va: u64, root: Start) -> Start {
        if self.tag == Tag::Physical {
            return root;
        }
        for i in 0..self.levels[dim as usize].len() {
            let (level, array) = self.levels[dim as usize][i];
            if level > root.level {
                break;
            }
            let (index, key) = prefix(dim, level, va);
            if let Some(slot) = self.arrays[array].lookup(index, key) {
                return Start { level: level - 1, table: self.arrays[array].value(slot) };
            }
        }
        root
    }

    /// Is the entry at physical address `at` held, so that no reference is needed?
    #[inline]
    pub fn holds(&mut self, dim: Dimension, level: u8, at: u64) -> bool {
        if self.tag == Tag::Virtual {
            return false;
        }
        match self.at[dim as usize][usize::from(level)] {
            Some(array) => self.arrays[array].lookup(at >> 3, at >> 3).is_some(),
            None => false,
        }
    }

    /// Files an entry of `level`, read at `at` on the way to `va`, that points to `table`
    /// and is not held: [`WalkCache::start`] or [`WalkCache::holds`] would have said so.
    #[inline]
    pub fn fill(&mut self, dim: Dimension, level: u8, va: u64, at: u64, table: u64) {
        let Some(array) = self.at[dim as usize][usize::from(level)] else { return };
        let attr = Attr { writable: true, global: dim == Dimension::Host, value: table };
        let (index, key) = match self.tag {
            Tag::Virtual => prefix(dim, level, va),
            Tag::Physical => (at >> 3, at >> 3),
        };
        self.arrays[array].insert_absent(index, key, attr);
    }

    /// Looks a host page up in the nested TLB.
    #[inline]
    pub fn nested_lookup(&mut self, page: u64, write: bool) -> bool {
        match &mut self.nested_tlb {
            Some(t) => t.lookup(page, page).is_some_and(|slot| !write || t.writable(slot)),
            None => false,
        }
    }

    /// Files a host page in the nested TLB after [`WalkCache::nested_lookup`] for the same `write` failed.
    #[inline]
    pub fn nested_fill(&mut self, page: u64, write: bool, writable: bool) {
        let Some(t) = &mut self.nested_tlb else { return };
        let attr = Attr { writable, global: true, value: 0 };
        if write {
            // It may be there, read-only.
            t.insert(page, page, attr);
        } else {
            t.insert_absent(page, page, attr);
        }
    }

    /// Drops what the guest's own flushes drop: everything of the guest dimension.
    pub fn flush_guest(&mut self) {
        self.arrays.iter_mut().for_each(Assoc::flush_non_global);
    }

    /// Drops everything.
    pub fn flush_all(&mut self) {
        self.arrays.iter_mut().for_each(Assoc::flush_all);
        if let Some(t) = &mut self.nested_tlb {
            t.flush_all();
        }
    }
}

#[inline]
fn prefix(dim: Dimension, level: u8, va: u64) -> (u64, u64) {
    let p = (va & ((1 << 57) - 1)) >> (12 + 9 * (u32::from(level) - 1));
    (p, p | u64::from(level) << 40 | (dim as u64) << 44)
}
