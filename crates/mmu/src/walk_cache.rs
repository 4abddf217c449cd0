// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walk caches, which let a walk skip references to upper tables.
//!
//! There are three variants (`docs/design/model.md#walk-caches`, after Bhargava et al., ASPLOS
//! 2008): one-dimensional (guest tables only), two-dimensional (host tables too), and
//! two-dimensional with a nested TLB (whole GPA-to-HPA translations). There are two kinds of tag.
//! With a virtual prefix (Intel SDM vol. 3A section 4.10.3) a hit names the next table, so the walk
//! needs neither the upper entries nor their nested walks. With the entry's physical address (AMD)
//! the walk still goes level by level and translates every guest entry's address, and a hit saves
//! the reference itself. Entries that point to a table are cached; TLBs hold the leaves. The one leaf
//! cached is the guest's, under a physical tag, of a page that the host maps in smaller pages: no TLB
//! holds that page whole. Entries of the host dimension survive the guest's flushes.

use crate::Start;
use crate::ordered::{Array, Ordered};

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

/// Marks a key of the host dimension, which the guest's flushes spare.
const HOST: u64 = 1 << 62;

/// The walk caches of one CPU under one regime.
#[derive(Debug, Clone)]
pub struct WalkCache {
    tag: Tag,
    arrays: Ordered,
    /// Per dimension and level.
    at: [[Array; 6]; 2],
    /// The nested TLB, an array of its own. Values: 1 = writable.
    nested: Ordered,
    nested_tlb: Array,
    /// Every array holds entries of one level, so that the order of fills at several does not matter.
    separate: bool,
    /// No array holds entries of both dimensions.
    apart: bool,
}

impl WalkCache {
    /// Empty caches. `nested_tlb` is (entries, ways).
    pub fn new(tag: Tag, specs: &[CacheSpec], nested_tlb: Option<(usize, usize)>) -> Self {
        let mut at = [[Array::NONE; 6]; 2];
        let mut arrays = Ordered::default();
        for s in specs {
            let array = arrays.add(s.entries, s.ways);
            for &l in &s.levels {
                if s.guest {
                    at[0][usize::from(l)] = array;
                }
                if s.host {
                    at[1][usize::from(l)] = array;
                }
            }
        }
        let mut nested = Ordered::default();
        WalkCache {
            tag,
            separate: specs.iter().all(|s| s.levels.len() == 1),
            apart: specs.iter().all(|s| !(s.guest && s.host)),
            nested_tlb: nested_tlb.map_or(Array::NONE, |(entries, ways)| nested.add(entries, ways)),
            nested,
            arrays,
            at,
        }
    }

    /// How these caches are tagged.
    #[inline(always)]
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// Where a walk of `va` starts: at `root`, or at the deepest table whose pointer is
    /// cached under a virtual prefix.
    #[inline(always)]
    pub fn start(&mut self, dim: Dimension, va: u64, root: Start) -> Start {
        if self.tag == Tag::Physical {
            return root;
        }
        let mut level = 1;
        while level < root.level.min(5) {
            level += 1;
            let (index, key) = prefix(dim, level, va);
            if let Some(table) = self.arrays.lookup(&self.at[dim as usize][usize::from(level)], index, key) {
                return Start { level: level - 1, table };
            }
        }
        root
    }

    /// Is the entry at physical address `at` held, so that no reference is needed?
    #[inline(always)]
    pub fn holds(&mut self, dim: Dimension, level: u8, at: u64) -> bool {
        if self.tag == Tag::Virtual {
            return false;
        }
        self.arrays.lookup(&self.at[dim as usize][usize::from(level)], at >> 3, physical(dim, at)).is_some()
    }

    /// Files an entry of `level`, read at `at` on the way to `va`, that points to `table` (or to a page)
    /// and is not held: [`WalkCache::start`] or [`WalkCache::holds`] would have said so.
    #[inline(always)]
    pub fn fill(&mut self, dim: Dimension, level: u8, va: u64, at: u64, table: u64) {
        let (index, key) = match self.tag {
            Tag::Virtual => prefix(dim, level, va),
            Tag::Physical => (at >> 3, physical(dim, at)),
        };
        self.arrays.insert_absent(&self.at[dim as usize][usize::from(level)], index, key, table);
    }

    /// May the guest dimension be looked up and filled level by level ([`WalkCache::step`]), before the host
    /// dimension?
    #[inline(always)]
    pub fn has_guest_steps(&self) -> bool {
        self.separate && self.apart && self.tag == Tag::Virtual
    }

    /// Is the entry of `level` on the way to `va` cached? Nothing becomes more recent. May say no where the
    /// array is a large one.
    #[inline(always)]
    pub fn peek(&self, dim: Dimension, level: u8, va: u64) -> bool {
        let (index, key) = prefix(dim, level, va);
        self.arrays.peek(&self.at[dim as usize][usize::from(level)], index, key)
    }

    /// May a walk of the host dimension look up and fill level by level ([`WalkCache::step`])?
    #[inline(always)]
    pub fn has_host_steps(&self) -> bool {
        self.separate && self.tag == Tag::Virtual
    }

    /// One level of a walk that is known to succeed, from below: is the entry of `level` on the way to `va`
    /// cached? If not, it is from now on, with the table that it points to.
    #[inline(always)]
    pub fn step(&mut self, dim: Dimension, level: u8, va: u64, table: u64) -> bool {
        let (index, key) = prefix(dim, level, va);
        self.arrays.lookup_or_insert(&self.at[dim as usize][usize::from(level)], index, key, table).is_some()
    }

    /// The level of the table at which a walk of `va` starts that is known to end at level `leaf`, and whose
    /// tables are known, from one of 4 or 5 levels down: below the first entry, from below, that the
    /// dimension holds. The entries on the way there are cached from now on.
    #[inline(always)]
    pub fn first_table(
        &mut self,
        dim: Dimension,
        (leaf, depth): (u8, u8),
        va: u64,
        table: impl Fn(u8) -> u64,
    ) -> u8 {
        // One after the other, so that each level's key is computed with constants.
        if leaf < 2 && self.step(dim, 2, va, table(1)) {
            1
        } else if leaf < 3 && self.step(dim, 3, va, table(2)) {
            2
        } else if self.step(dim, 4, va, table(3)) {
            3
        } else if depth > 4 && self.step(dim, 5, va, table(4)) {
            4
        } else {
            depth
        }
    }

    /// [`WalkCache::nested_lookup`] and, if it fails, [`WalkCache::nested_fill`].
    #[inline(always)]
    pub fn nested_step(&mut self, page: u64, write: bool, writable: bool) -> bool {
        let value = u64::from(writable);
        match self.nested.lookup_or_insert(&self.nested_tlb, page, page, value) {
            Some(was) if !write || was == 1 => true,
            Some(_) => {
                self.nested.replace(&self.nested_tlb, page, value);
                false
            }
            None => false,
        }
    }

    /// Looks a host page up in the nested TLB.
    #[inline(always)]
    pub fn nested_lookup(&mut self, page: u64, write: bool) -> bool {
        let found = self.nested.lookup(&self.nested_tlb, page, page);
        found.is_some_and(|writable| !write || writable == 1)
    }

    /// Files a host page in the nested TLB after [`WalkCache::nested_lookup`] for the same `write` failed.
    #[inline(always)]
    pub fn nested_fill(&mut self, page: u64, write: bool, writable: bool) {
        let value = u64::from(writable);
        if write {
            // It may be there, read-only.
            self.nested.insert(&self.nested_tlb, page, page, value);
        } else {
            self.nested.insert_absent(&self.nested_tlb, page, page, value);
        }
    }

    /// Is nothing cached?
    pub fn is_empty(&self) -> bool {
        self.arrays.is_empty() && self.nested.is_empty()
    }

    /// Drops what the guest's own flushes drop: everything of the guest dimension.
    pub fn flush_guest(&mut self) {
        self.arrays.flush(HOST);
    }

    /// Drops everything.
    pub fn flush_all(&mut self) {
        self.arrays.flush_all();
        self.nested.flush_all();
    }
}

#[inline(always)]
fn prefix(dim: Dimension, level: u8, va: u64) -> (u64, u64) {
    let p = (va & ((1 << 57) - 1)) >> (12 + 9 * (u32::from(level) - 1));
    (p, p | u64::from(level) << 40 | (dim as u64) << 62)
}

#[inline(always)]
fn physical(dim: Dimension, at: u64) -> u64 {
    at >> 3 | (dim as u64) << 62
}
