// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Slow walk caches, as the module text of `bifold_mmu`'s `walk_cache.rs` words them.

use super::lists::Lists;
use bifold_model::{Profile, TagKind, Variant};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Of {
    Guest,
    Host,
}

#[derive(Clone)]
struct Entry {
    of: Of,
    level: u8,
    /// Address prefix, or number of the 8-byte word.
    tag: u64,
}

#[derive(Clone)]
struct Array {
    levels: Vec<u8>,
    guest: bool,
    host: bool,
    lists: Lists<Entry>,
}

#[derive(Clone)]
pub struct Caches {
    physical: bool,
    arrays: Vec<Array>,
    /// Pages of the nested TLB: number, writable.
    nested: Option<Lists<(u64, bool)>>,
}

fn prefix(level: u8, va: u64) -> u64 {
    (va & ((1 << 57) - 1)) >> (3 + 9 * u32::from(level))
}

impl Caches {
    pub fn new(profile: &Profile) -> Caches {
        let w = &profile.walk_cache;
        let guest = w.variant != Variant::None;
        let host = guest && w.variant != Variant::OneDimensional;
        let arrays = w.array.iter().map(|a| {
            let dimensions: Vec<String> = a.dimensions.iter().map(|d| format!("{d:?}")).collect();
            Array {
                levels: a.levels.clone(),
                guest: guest && dimensions.iter().any(|d| d == "Guest"),
                host: host && dimensions.iter().any(|d| d == "Host"),
                lists: Lists::new(a.entries, a.ways),
            }
        });
        Caches {
            physical: w.tag == TagKind::Physical,
            arrays: arrays.collect(),
            nested: match (w.variant, &w.nested_tlb) {
                (Variant::WithNestedTlb, Some(n)) => Some(Lists::new(n.entries, n.ways)),
                _ => None,
            },
        }
    }

    pub fn physical(&self) -> bool {
        self.physical
    }

    fn array(&mut self, of: Of, level: u8) -> Option<&mut Array> {
        // The profile's last array for a level is the one in use.
        self.arrays
            .iter_mut()
            .rev()
            .find(|a| a.levels.contains(&level) && if of == Of::Guest { a.guest } else { a.host })
    }

    fn find(&mut self, of: Of, level: u8, tag: u64) -> bool {
        let physical = self.physical;
        let Some(a) = self.array(of, level) else { return false };
        a.lists.find(tag, |e| e.tag == tag && e.of == of && (physical || e.level == level)).is_some()
    }

    /// Level of the first table that a walk reads: below the deepest prefix held, or the root's.
    pub fn first_level(&mut self, of: Of, va: u64, root: u8) -> u8 {
        if self.physical {
            return root;
        }
        (2..=root).find(|&l| self.find(of, l, prefix(l, va))).map_or(root, |l| l - 1)
    }

    /// Physical tags: is the upper entry at `at` held?
    pub fn holds(&mut self, of: Of, level: u8, at: u64) -> bool {
        self.physical && level > 1 && self.find(of, level, at >> 3)
    }

    /// Files an upper entry that points to a table or, of a page that the host maps in pieces, to that page.
    pub fn file(&mut self, of: Of, level: u8, va: u64, at: u64) {
        let tag = if self.physical { at >> 3 } else { prefix(level, va) };
        if let Some(a) = self.array(of, level) {
            a.lists.insert(tag, Entry { of, level, tag });
        }
    }

    pub fn nested_holds(&mut self, page: u64, write: bool) -> bool {
        let Some(n) = &mut self.nested else { return false };
        n.find(page, |e| e.0 == page).is_some_and(|e| !write || e.1)
    }

    pub fn nested_file(&mut self, page: u64, writable: bool) {
        if let Some(n) = &mut self.nested {
            n.retain(|e| e.0 != page);
            n.insert(page, (page, writable));
        }
    }

    /// What a change of the host's tables drops.
    pub fn flush_all(&mut self) {
        self.arrays.iter_mut().for_each(|a| a.lists.retain(|_| false));
        self.nested.iter_mut().for_each(|n| n.retain(|_| false));
    }

    /// What any flush of the guest's drops.
    pub fn flush_guest(&mut self) {
        self.arrays.iter_mut().for_each(|a| a.lists.retain(|e| e.of == Of::Host));
    }
}
