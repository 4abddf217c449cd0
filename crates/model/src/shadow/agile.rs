// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What agile paging adds to the shadow MMU (Gandhi, Hill and Swift, ISCA 2016): subtrees of the guest's
//! tables that are walked in nested mode.
//!
//! A guest's table in nested mode has no shadow page, and stores to it do not exit. The shadow entry above it
//! has [`SWITCH`] and the table's host address. Which tables are in nested mode is known by their frames, so
//! a table that several address spaces share is so in all of them.
//!
//! Tables that are shadowed are never out of date: no table becomes unsync. KVM's unsync tables save exits
//! where a guest writes a leaf table often, and cost one more for each entry that is used after that, for its
//! absence. Under agile paging the second write has the table walked in nested mode, which saves both.

use super::fault::Outcome;
use super::pages::Pages;
use super::spte::{ACC_ALL, ADDRESS, GuestWalker, LARGE, PRESENT, SWITCH, gpte_access};
use super::{Shadow, World};
use crate::Sample;
use crate::access::{AccessKind, Fault};
use crate::guest::GuestTables;
use crate::host::HostMemory;
use bifold_mmu::{Gpa, Gva, Start};
use std::collections::{HashMap, HashSet};

/// The rules that a profile sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Writes to a table within an interval from which on it is in nested mode. With 0 none is, and the
    /// tables follow the rules of shadow paging.
    pub writes: u32,
    /// The hardware sets accessed and dirty bits in the guest's tables as well.
    pub sets_both: bool,
}

/// The guest's tables in nested mode.
#[derive(Debug, Clone)]
pub(super) struct Subtrees {
    pub(super) rules: Rules,
    nested: HashSet<u64>,
    /// Writes that exited in this interval, by table.
    writes: HashMap<u64, u32>,
    /// Tables that writes have moved.
    moved: Vec<u64>,
}

impl Shadow {
    /// The same tables with subtrees in nested mode.
    pub fn with_subtrees(mut self, rules: Rules) -> Shadow {
        self.subtrees = Some(Box::new(Subtrees {
            rules,
            nested: HashSet::new(),
            writes: HashMap::new(),
            moved: Vec::new(),
        }));
        self
    }

    /// Have tables of the guest to be write-protected against every write, so that the writes can be counted?
    #[inline]
    pub fn counts_writes(&self) -> bool {
        self.subtrees.as_ref().is_some_and(|s| s.rules.writes > 0)
    }

    /// Does the hardware set accessed and dirty bits in the guest's tables as well?
    #[inline]
    pub fn hardware_sets_both(&self) -> bool {
        self.subtrees.as_ref().is_some_and(|s| s.rules.sets_both)
    }

    /// Is the guest's table in this frame in nested mode?
    #[inline]
    pub fn is_nested(&self, gfn: u64) -> bool {
        self.subtrees.as_ref().is_some_and(|s| s.nested.contains(&gfn))
    }

    /// Is the guest's table in this frame shadowed, so that it must not be written?
    #[inline]
    pub fn is_protected(&self, gfn: u64) -> bool {
        let mut slot = self.pages.first_of(gfn);
        while slot != 0 {
            if !self.pages.page(slot).role.direct {
                return true;
            }
            slot = self.pages.next_of(slot);
        }
        false
    }

    /// Must no page of this level that holds the frame be mapped, since it has shadowed tables?
    #[inline]
    pub fn is_apart(&self, gfn: u64, level: u8) -> bool {
        self.pages.disallow_lpage(gfn, level) != 0
    }

    /// The guest's table that the switching entry at `at` leads to.
    #[inline]
    pub fn switches_to(&self, at: u64) -> Option<Gpa> {
        let id = Pages::id_at(at);
        (self.pages.spte(id) & SWITCH != 0).then(|| Gpa::from_frame(self.pages.gfn_of(id)))
    }

    /// The level of the first table below the root, on the way of a walk, that is in nested mode.
    #[inline]
    pub(super) fn nested_level(&self, w: &GuestWalker) -> Option<u8> {
        let nested = &self.subtrees.as_ref()?.nested;
        (w.level..self.format.root_level()).rev().find(|l| nested.contains(&w.table_gfn[usize::from(*l) - 1]))
    }

    /// Sets the switching entry above the table of `level` on the way of `w`, and the shadow pages above as
    /// for a fault.
    pub(super) fn link_nested(
        &mut self,
        (vcpu, gva): (usize, Gva),
        w: &GuestWalker,
        level: u8,
        guest: &GuestTables,
        host: &mut HostMemory,
    ) {
        let gfn = w.table_gfn[usize::from(level) - 1];
        self.back(host, Gpa::from_frame(gfn), true);
        self.make_mmu_pages_available();
        let world = World { guest, host };
        let id = self.link_down(vcpu, gva, w, level + 1, world);
        if self.pages.zap_pte(id) {
            self.flush_remote_tlbs();
        }
        self.set_switch(id, gfn, host);
        self.touch(id, true);
    }

    fn set_switch(&mut self, id: usize, gfn: u64, host: &HostMemory) {
        let spte = PRESENT | SWITCH | LARGE | host.hpa(Gpa::from_frame(gfn)).0 & ADDRESS;
        self.pages.set_leaf(id, spte, gfn);
    }

    /// The guest's page fault at `gva` came where the shadow tables end. If the guest's tables lead to one in
    /// nested mode, the hypervisor sets the switching entry, and the fault comes again behind it. True then.
    pub fn switches_for_fault(
        &mut self,
        vcpu: usize,
        gva: Gva,
        guest: &GuestTables,
        host: &mut HostMemory,
        out: &mut Sample,
    ) -> bool {
        let root = guest.root(vcpu, self.vcpus[vcpu].cr3);
        let Some((level, w)) = self.way_to_nested(guest, root, gva) else { return false };
        self.pages.maker = vcpu;
        self.link_nested((vcpu, gva), &w, level, guest, host);
        self.settle(World { guest, host }, out);
        out.exits_hidden_fault += 1;
        true
    }

    /// The tables on the way to the first one below the root that is in nested mode, and its level.
    fn way_to_nested(&self, guest: &GuestTables, root: Gpa, gva: Gva) -> Option<(u8, GuestWalker)> {
        let format = guest.format();
        let Start { level, mut table } = guest.start(root, gva).ok()?;
        let mut w = GuestWalker::at(level);
        let mut access = ACC_ALL;
        loop {
            let slot = usize::from(w.level) - 1;
            w.table_gfn[slot] = table >> 12;
            w.pt_access[slot] = access;
            if w.level < level && self.is_nested(table >> 12) {
                return Some((w.level, w));
            }
            let entry = guest.read(Gpa(table + format.offset(w.level, gva.0)));
            if entry & PRESENT == 0 || format.is_leaf(w.level, entry) {
                return None;
            }
            access &= gpte_access(entry);
            table = format.target(w.level, entry);
            w.level -= 1;
        }
    }

    /// A write to a shadowed table that came by the shadow tables. One by an instruction that does not write
    /// page tables is repeated, as under shadow paging: the page may be no table any more, and is not
    /// shadowed until a walk comes to it.
    pub(super) fn write_protected(
        &mut self,
        Fault { vcpu, gva, kind }: Fault,
        w: &GuestWalker,
        guest: &GuestTables,
        host: &mut HostMemory,
    ) -> Outcome {
        self.back(host, Gpa::from_frame(w.gfn), true);
        if self.count_write(w.gfn, kind, host) {
            // The same exit lets the write through, unless the tables on its own way were concerned.
            let root = self.root_slot(vcpu, gva);
            if root != 0 && !self.pages.page(root).invalid && self.nested_level(w).is_none() {
                self.make_mmu_pages_available();
                self.fetch(vcpu, gva, w, true, World { guest, host });
            }
            return Outcome::Unprotected;
        }
        self.pte_write(w.gfn, gva.0 as usize & 0xfff);
        Outcome::Emulated
    }

    /// A write to a shadowed table that came by the nested tables: one exit. True if the hypervisor did the
    /// write; else it is repeated.
    pub fn nested_write(
        &mut self,
        vcpu: usize,
        gpa: Gpa,
        kind: AccessKind,
        world: World<'_>,
        out: &mut Sample,
    ) -> bool {
        self.pages.maker = vcpu;
        let moved = self.count_write(gpa.frame(), kind, world.host);
        if !moved {
            self.pte_write(gpa.frame(), gpa.0 as usize & 0xfff);
        }
        self.settle(world, out);
        *(if moved { &mut out.exits_unprotect } else { &mut out.exits_emulated_write }) += 1;
        !moved
    }

    /// One more write to the table has exited. True if it is not shadowed any more.
    fn count_write(&mut self, gfn: u64, kind: AccessKind, host: &HostMemory) -> bool {
        let Some(subtrees) = &mut self.subtrees else { return false };
        let writes = subtrees.writes.entry(gfn).or_default();
        *writes += 1;
        let moves = *writes >= subtrees.rules.writes;
        if moves {
            subtrees.moved.push(gfn);
            self.enter_nested(gfn, host);
        } else if kind == AccessKind::WriteOther {
            self.unprotect_page(gfn);
        }
        moves || kind == AccessKind::WriteOther
    }

    /// The table and the subtree below it go over to nested mode: their shadow pages are zapped, and the
    /// entries above switch.
    pub fn enter_nested(&mut self, gfn: u64, host: &HostMemory) {
        let Some(subtrees) = &mut self.subtrees else { return };
        subtrees.nested.insert(gfn);
        let mut parents = Vec::new();
        for slot in self.pages.shadows_of(gfn) {
            parents.extend(self.pages.parents(slot));
            self.unload(slot);
            self.zap_subtree(slot);
        }
        for id in parents {
            if !self.pages.page(id >> 9).invalid && self.pages.spte(id) == 0 {
                self.set_switch(id, gfn, host);
            }
        }
        self.commit_zap();
    }

    /// The table is in nested mode from the start, and has no shadow page.
    pub fn begin_nested(&mut self, gfn: u64) {
        if let Some(subtrees) = &mut self.subtrees {
            subtrees.nested.insert(gfn);
        }
    }

    /// No vCPU has the page as its root any more.
    fn unload(&mut self, slot: usize) {
        for vcpu in 0..self.vcpus.len() {
            if self.vcpus[vcpu].root.slots[0] == slot {
                self.free_root(vcpu, None);
            }
            for i in 0..self.vcpus[vcpu].prev_roots.len() {
                if self.vcpus[vcpu].prev_roots[i].slots[0] == slot {
                    self.free_root(vcpu, Some(i));
                }
            }
        }
    }

    /// Zaps a shadow page and those below it to which nothing else leads.
    fn zap_subtree(&mut self, slot: usize) {
        if self.pages.page(slot).invalid {
            return;
        }
        let is_link = |id: &usize| self.pages.spte(*id) & PRESENT != 0 && !self.pages.is_last(*id);
        let links: Vec<usize> = (slot << 9..(slot + 1) << 9).filter(is_link).collect();
        let children: Vec<usize> = links.into_iter().map(|id| self.pages.child(id)).collect();
        self.prepare_zap(slot);
        for child in children {
            if self.pages.parents(child).is_empty() && self.pages.page(child).root_count == 0 {
                self.zap_subtree(child);
            }
        }
    }

    /// A new interval begins: of the tables in nested mode those stay that are among `stay`, and those are
    /// added. The others are shadowed again as faults come. True if some entry switched to one of these.
    pub fn stay_nested(&mut self, stay: HashSet<u64>) -> bool {
        let Some(subtrees) = &mut self.subtrees else { return false };
        subtrees.writes.clear();
        let left = std::mem::replace(&mut subtrees.nested, stay);
        let mut left: Vec<u64> = left.into_iter().filter(|gfn| !self.is_nested(*gfn)).collect();
        left.sort_unstable();
        left.into_iter().filter(|gfn| self.drop_switches(*gfn)).count() > 0
    }

    /// The frames of the guest's tables in nested mode.
    #[cfg(test)]
    pub fn nested(&self) -> impl Iterator<Item = u64> + '_ {
        self.subtrees.iter().flat_map(|s| s.nested.iter().copied())
    }

    /// The frames of tables that writes have moved to nested mode since the last call.
    pub fn take_moved(&mut self) -> Vec<u64> {
        self.subtrees.as_mut().map(|s| std::mem::take(&mut s.moved)).unwrap_or_default()
    }

    /// The table in this frame is in nested mode no more, or is a table no more.
    pub fn leave_nested(&mut self, gfn: u64) {
        let was_nested = self.subtrees.as_mut().is_some_and(|s| s.nested.remove(&gfn));
        if was_nested && self.drop_switches(gfn) {
            self.flush_remote_tlbs();
        }
    }

    fn drop_switches(&mut self, gfn: u64) -> bool {
        let mut ids = self.pages.rmap(gfn);
        ids.retain(|&id| self.pages.spte(id) & SWITCH != 0);
        for &id in &ids {
            self.pages.drop_spte(id);
        }
        !ids.is_empty()
    }
}
