// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists the references of a walk, entry by entry, as [`bifold_mmu::walk`] makes them: one-dimensional over
//! shadow tables, two-dimensional over the guest's and the nested tables.
//!
//! The model counts references by guest and host level ([`bifold_model::memory::Refs`]). The same walker over
//! the tables of a real machine gives the entries.

use bifold_mmu::format::Format;
use bifold_mmu::{Start, Step, Walk, walk};
use std::collections::BTreeSet;

/// An access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    pub va: u64,
    pub write: bool,
}

/// Page tables: their format, the physical address of their root, and a reader of their entries.
#[derive(Debug, Clone, Copy)]
pub struct Tree<'a, R> {
    pub format: &'a Format,
    pub root: u64,
    pub read: R,
}

/// A reference of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// Whether the entry is one of the host's tables (otherwise of the guest's).
    pub host: bool,
    /// Host-physical address of the entry.
    pub pa: u64,
}

/// The entries that a walk reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entries {
    /// All references in order.
    pub order: Vec<Reference>,
    /// Host-physical address of the data.
    pub data: u64,
    /// Guest-physical addresses of guest entries.
    pub guest: BTreeSet<u64>,
    /// Host-physical addresses of nested or shadow entries.
    pub host: BTreeSet<u64>,
    /// Leaf entries whose D bit the walk sets.
    pub guest_dirty: BTreeSet<u64>,
    pub host_dirty: BTreeSet<u64>,
    /// References by guest and host level, as the model counts them.
    pub refs: [[u64; 6]; 6],
}

/// The error of a walk that ends at a missing entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotMapped {
    /// Whether the entry is missing in a host table (otherwise in a guest table).
    pub host: bool,
    pub at: u64,
}

impl std::fmt::Display for NotMapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let whose = if self.host { "host" } else { "guest" };
        write!(f, "the {whose}'s entry at {:#x} is absent", self.at)
    }
}

impl std::error::Error for NotMapped {}

impl Entries {
    /// Walks the host's tables for `pa`, which is a guest-physical address under nested
    /// paging and a virtual one under shadow paging, and returns the host-physical address. `row` is the
    /// guest's level.
    fn host_walk(
        &mut self,
        tables: &Tree<impl Fn(u64) -> u64>,
        pa: u64,
        write: bool,
        row: Option<usize>,
    ) -> Result<u64, NotMapped> {
        let start = Start { level: tables.format.depth(), table: tables.root };
        let end = walk::<NotMapped>(tables.format, start, pa, |level, at| {
            self.host.insert(at);
            self.order.push(Reference { host: true, pa: at });
            match row {
                Some(row) => self.refs[row][usize::from(level)] += 1,
                None => self.refs[usize::from(level)][0] += 1,
            }
            Ok((tables.read)(at))
        })?;
        match end {
            Walk::Leaf(step) => {
                if write {
                    self.host_dirty.insert(step.at);
                }
                Ok(leads_to(tables.format, step, pa))
            }
            Walk::NotPresent(step) => Err(NotMapped { host: true, at: step.at }),
        }
    }

    /// A walk of shadow tables.
    pub fn shadow(tables: Tree<impl Fn(u64) -> u64>, access: Access) -> Result<Entries, NotMapped> {
        let mut out = Entries::default();
        out.data = out.host_walk(&tables, access.va, access.write, None)?;
        Ok(out)
    }

    /// A two-dimensional walk. Reading a guest entry counts as a write of its page, as it
    /// may set the entry's A bit (AMD APM vol. 2, 15.25.6).
    pub fn nested(
        guest: Tree<impl Fn(u64) -> u64>,
        host: Tree<impl Fn(u64) -> u64>,
        access: Access,
    ) -> Result<Entries, NotMapped> {
        let mut out = Entries::default();
        let start = Start { level: guest.format.depth(), table: guest.root };
        let end = walk(guest.format, start, access.va, |level, at| {
            let pa = out.host_walk(&host, at, true, Some(usize::from(level)))?;
            out.guest.insert(at);
            out.order.push(Reference { host: false, pa });
            out.refs[usize::from(level)][0] += 1;
            Ok((guest.read)(at))
        })?;
        match end {
            Walk::Leaf(step) => {
                if access.write {
                    out.guest_dirty.insert(step.at);
                }
                let gpa = leads_to(guest.format, step, access.va);
                out.data = out.host_walk(&host, gpa, access.write, Some(0))?;
                Ok(out)
            }
            Walk::NotPresent(step) => Err(NotMapped { host: false, at: step.at }),
        }
    }

    /// Adds the entries of another walk.
    pub fn add(&mut self, other: Entries) {
        self.guest.extend(other.guest);
        self.host.extend(other.host);
        self.guest_dirty.extend(other.guest_dirty);
        self.host_dirty.extend(other.host_dirty);
    }

    /// Number of references.
    pub fn count(&self) -> u64 {
        self.refs.iter().flatten().sum()
    }
}

/// The address that a leaf entry gives for `va`.
fn leads_to(format: &Format, leaf: Step, va: u64) -> u64 {
    format.target(leaf.level, leaf.entry) | va & ((1 << format.level(leaf.level).shift) - 1)
}

/// Every present entry of the tables under `root`: address, level, value.
pub fn all_entries(format: &Format, root: u64, table: &impl Fn(u64) -> Vec<u64>) -> Vec<(u64, u8, u64)> {
    fn go(
        format: &Format,
        level: u8,
        at: u64,
        table: &impl Fn(u64) -> Vec<u64>,
        out: &mut Vec<(u64, u8, u64)>,
    ) {
        for (i, entry) in table(at).into_iter().enumerate() {
            if entry & format.present == 0 {
                continue;
            }
            out.push((at + 8 * i as u64, level, entry));
            if !format.is_leaf(level, entry) {
                go(format, level - 1, format.target(level, entry), table, out);
            }
        }
    }
    let mut out = Vec::new();
    go(format, format.depth(), root, table, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{DATA, LARGE, Tables, index};
    use bifold_mmu::format::X86_64_4_LEVEL as FORMAT;
    use bifold_mmu::{Gpa, Gva, PageSize, Tag, WalkCache};
    use bifold_model::guest::GuestTables;
    use bifold_model::host::HostMemory;
    use bifold_model::memory::{Hardware, Refs, Uncached};
    use bifold_model::nested::Nested;
    use bifold_trace::Event;

    const VA: u64 = 0x40_0020_3000;

    fn guest(level: u8) -> (Tables, u64) {
        let mut t = Tables::new(0x100);
        let root = t.table(4);
        t.map(root, VA, level, 0x0060_0000 | DATA | if level > 1 { LARGE } else { 0 });
        (t, root)
    }

    /// Host tables that map 16 MB one to one at an offset, with pages of `level`.
    fn host(level: u8) -> (Tables, u64) {
        let mut t = Tables::new(0x10_0000);
        let root = t.table(4);
        for gpa in (0..16u64 << 20).step_by(1 << FORMAT.level(level).shift) {
            t.map(root, gpa, level, (gpa + (1 << 30)) | DATA | if level > 1 { LARGE } else { 0 });
        }
        (t, root)
    }

    /// Of VA in its page.
    fn offset(level: u8) -> u64 {
        VA & ((1 << FORMAT.level(level).shift) - 1)
    }

    fn tree(t: &Tables, root: u64) -> Tree<'static, impl Fn(u64) -> u64 + '_> {
        Tree { format: &FORMAT, root: root << 12, read: |at| t.entry(at >> 12, (at >> 3) as usize & 511) }
    }

    /// The model's references for the same walk.
    fn model(tables: &Tables, root: u64, size: PageSize) -> [[u64; 6]; 6] {
        let mut guest = GuestTables::new(&FORMAT);
        let mut words = Vec::new();
        tables.describe(&mut words);
        let mut at = 0;
        while at < words.len() {
            let (event, n) = bifold_trace::decode(&words[at..], at).unwrap();
            if let Event::Table { gfn, level, entries } = event {
                guest.add(gfn, level, entries);
            }
            at += n;
        }
        let mut host = HostMemory::new(size, 4096, Default::default(), 1);
        let mut nested = Nested::new(&host, &FORMAT);
        let mut caches = WalkCache::new(Tag::Virtual, &[], None);
        loop {
            let mut refs = Refs::default();
            let mut hw = Hardware { caches: &mut caches, memory: &mut Uncached, refs: &mut refs };
            let read = |at| guest.read(Gpa(at));
            let top = bifold_mmu::Start { level: FORMAT.depth(), table: root << 12 };
            match nested.over(&host).walk_2d(&mut hw, &FORMAT, top, (Gva(VA), true), read) {
                Ok(_) => return refs.by_step(),
                Err(v) => drop(nested.resolve(&mut host, v, 0)),
            };
        }
    }

    #[test]
    fn references_are_the_models_level_by_level() {
        for (guest_level, host_level, count) in [(1, 1, 24), (1, 2, 19), (2, 1, 19), (2, 2, 15)] {
            let ((g, groot), (h, hroot)) = (guest(guest_level), host(host_level));
            let access = Access { va: VA, write: true };
            let e = Entries::nested(tree(&g, groot), tree(&h, hroot), access).unwrap();
            assert_eq!(e.count(), count);
            assert_eq!((e.order.len() as u64, e.data), (count, (1 << 30) + 0x60_0000 + offset(guest_level)));
            let size = [PageSize::Size4K, PageSize::Size2M][usize::from(host_level) - 1];
            assert_eq!(e.refs, model(&g, groot, size));
            assert_eq!(e.guest.len() as u64, 5 - u64::from(guest_level));
            assert_eq!(e.guest_dirty.len(), 1);
        }
    }

    #[test]
    fn a_shadow_walk_reads_one_entry_per_level() {
        let (t, root) = guest(1);
        let e = Entries::shadow(tree(&t, root), Access { va: VA, write: false }).unwrap();
        assert_eq!((e.count(), e.host.len(), e.host_dirty.len()), (4, 4, 0));
        let absent = Entries::shadow(tree(&t, root), Access { va: VA + 0x1000, write: false });
        assert!(absent.unwrap_err().host);
    }

    #[test]
    fn all_entries_are_those_present() {
        let (t, root) = host(2);
        let table = |at: u64| (0..512).map(|i| t.entry(at >> 12, i)).collect::<Vec<_>>();
        let all = all_entries(&FORMAT, root << 12, &table);
        assert_eq!(all.len(), 1 + 1 + 8);
        assert_eq!(all[2].0, t.find(root, 0, 2).unwrap() << 12 | (index(0, 2) as u64) << 3);
    }
}
