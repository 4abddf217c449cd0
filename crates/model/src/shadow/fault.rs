// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The page fault: `FNAME(page_fault)` and the functions that it calls.
//!
//! KVM walks the guest's tables itself, makes shadow pages down to the leaf (`FNAME(fetch)`), sets
//! the leaf spte (`mmu_set_spte`, `make_spte`) and, at level 1, fills the rest of the aligned block
//! of 8 (`FNAME(pte_prefetch)`). A store to a write-tracked table goes to the emulator
//! (`x86_emulate_instruction`).

use super::pages::{Pages, sptep_to_sp};
use super::spte::{
    ACC_EXEC, ACC_USER, ACC_WRITE, ACCESS_SHIFT, ACCESSED, ADDRESS, DIRTY, GuestWalker, HOST_WRITABLE, LARGE,
    NX, PRESENT, Role, USER, WRITE, gpte_access, pages_per_hpage, protect_clean,
};
use super::{Fixed, Shadow, World};
use crate::Sample;
use crate::access::{AccessKind, Fault};
use crate::guest::GuestTables;
use crate::host::{Backing, HostMemory};
use bifold_mmu::{Gpa, Gva};

/// PTE_PREFETCH_NUM.
const PREFETCH: usize = 8;
/// KVM_MAX_HUGEPAGE_LEVEL: 1 GB.
const MAX_HUGEPAGE_LEVEL: u8 = 3;

/// The kind of a fault, which chooses its counter.
pub(super) enum Outcome {
    Hidden,
    Permission,
    Unsync,
    Emulated,
    Unprotected,
}

/// What a leaf spte is made of: arguments of KVM's `make_spte`.
#[derive(Clone, Copy)]
pub(super) struct LeafSpte {
    pub access: u8,
    pub gfn: u64,
    pub prefetch: bool,
    pub host_writable: bool,
}

impl LeafSpte {
    /// Of the page that a fault asks for.
    fn found(access: u8, gfn: u64, host_writable: bool) -> Self {
        LeafSpte { access, gfn, prefetch: false, host_writable }
    }

    /// Of a page beside it.
    fn prefetched(access: u8, gfn: u64) -> Self {
        LeafSpte { access, gfn, prefetch: true, host_writable: true }
    }
}

impl Shadow {
    /// The hardware's walk ended at an entry that is not present, or for a store at a
    /// leaf without write access: one exit. Its reason is what the entry lacked:
    ///
    /// - the store went to the emulator, or unprotected its table and is retried;
    /// - a leaf that was present: the store made a synced table unsync, or the leaf
    ///   allowed less than the guest's entry, being read-only for a clean one, or stale
    ///   (of an unsync table, of a frame that is no table any more, of the zero page);
    /// - else a hidden fault: the entry was missing.
    ///
    /// What KVM's trace tells apart by the present bit of the error code.
    ///
    /// A store to a frame that the zero page backs takes two exits: the host replaces
    /// the page within the first, which makes KVM drop the fault
    /// (`is_page_fault_stale`), and the second finds it replaced.
    pub fn fault(
        &mut self,
        fault: Fault,
        guest: &mut GuestTables,
        host: &mut HostMemory,
        out: &mut Sample,
    ) -> Fixed {
        let Fault { vcpu, gva, kind } = fault;
        if self.root_slot(vcpu, gva) == 0 {
            return Fixed::NotMapped;
        }
        let root = guest.root(vcpu, self.vcpus[vcpu].cr3);
        let Some(mut walker) = GuestWalker::walk(guest, root, gva, kind.writes()) else {
            return Fixed::NotMapped;
        };
        if self.hardware_sets_both() {
            walker.pte_access = walker.access;
        }
        self.unsynced = false;
        self.pages.maker = vcpu;
        let outcome = self.page_fault(fault, &walker, guest, host);
        self.settle(World { guest, host }, out);
        let counter = match outcome {
            Outcome::Hidden => &mut out.exits_hidden_fault,
            Outcome::Permission => &mut out.exits_permission,
            Outcome::Unsync => &mut out.exits_unsync,
            Outcome::Emulated => &mut out.exits_emulated_write,
            Outcome::Unprotected => &mut out.exits_unprotect,
        };
        *counter += 1;
        if matches!(outcome, Outcome::Emulated) { Fixed::Emulated } else { Fixed::Retry }
    }

    /// `FNAME(page_fault)`.
    fn page_fault(
        &mut self,
        fault: Fault,
        walker: &GuestWalker,
        guest: &GuestTables,
        host: &mut HostMemory,
    ) -> Outcome {
        let Fault { vcpu, gva, kind } = fault;
        let write = kind.writes();
        let last = self.last_sptep(vcpu, gva);
        let old = self.pages.spte(last);
        let gpa = Gpa::from_frame(walker.gfn);

        if let Some(level) = self.nested_level(walker) {
            self.link_nested((vcpu, gva), walker, level, guest, host);
            return Outcome::Hidden;
        }
        if write && self.counts_writes() && self.is_protected(walker.gfn) {
            return self.write_protected(fault, walker, guest, host);
        }

        // page_fault_handle_page_track
        if old & PRESENT != 0 && write && self.pages.is_tracked(walker.gfn) {
            self.touch(last, true);
            self.clear_flood(vcpu, gva);
            self.back(host, gpa, true); // by the emulator's store, which does not exit
            return self.emulate(vcpu, gva, walker.gfn, kind);
        }
        let stale = self.back(host, gpa, write); // kvm_faultin_pfn
        self.make_mmu_pages_available();
        if stale {
            return Outcome::Hidden; // is_page_fault_stale
        }
        let map_writable = host.backing(gpa) == Backing::Own;
        let wrprot = self.fetch(vcpu, gva, walker, map_writable, World { guest, host });
        if wrprot && write {
            return self.emulate(vcpu, gva, walker.gfn, kind);
        }
        if old & PRESENT == 0 {
            Outcome::Hidden
        } else if self.unsynced {
            Outcome::Unsync
        } else {
            Outcome::Permission
        }
    }

    /// Where the hardware's walk ends.
    fn last_sptep(&self, vcpu: usize, gva: Gva) -> usize {
        let mut slot = self.root_slot(vcpu, gva);
        loop {
            let id = self.sptep(slot, gva.0);
            if self.pages.spte(id) & PRESENT == 0 || self.pages.is_last(id) {
                return id;
            }
            slot = self.pages.child(id);
        }
    }

    /// `shadow_page_table_clear_flood`.
    fn clear_flood(&mut self, vcpu: usize, gva: Gva) {
        let mut slot = self.root_slot(vcpu, gva);
        loop {
            let id = self.sptep(slot, gva.0);
            self.clear_write_flooding(id);
            if self.pages.spte(id) & PRESENT == 0 || self.pages.is_last(id) {
                return;
            }
            slot = self.pages.child(id);
        }
    }

    /// `x86_emulate_instruction` for a store to a write-tracked table. An instruction
    /// that does not write page tables (`x86_page_table_writing_insn`) is retried
    /// with the table unprotected (`retry_instruction`); if it is back at once it is
    /// emulated, and a string instruction then floods the table in one go. KVM
    /// compares the instruction's address too, which the stream does not carry.
    fn emulate(&mut self, vcpu: usize, gva: Gva, gfn: u64, kind: AccessKind) -> Outcome {
        let again = self.vcpus[vcpu].last_retry == Some(gva.0);
        if !(again && self.kvm.keeps_last_retry()) {
            self.vcpus[vcpu].last_retry = None;
        }
        if again || kind == AccessKind::Write {
            self.pte_write(gfn, gva.0 as usize & 0xfff);
            return Outcome::Emulated;
        }
        self.unprotect_page(gfn);
        self.vcpus[vcpu].last_retry = Some(gva.0);
        Outcome::Unprotected
    }

    /// `FNAME(fetch)`: shadow pages from the root to the guest's leaf entry, below a
    /// large one direct pages as far as the host's page size or a shadowed table
    /// inside needs them, then the leaf. True if the leaf had to be write-protected.
    pub(super) fn fetch(
        &mut self,
        vcpu: usize,
        gva: Gva,
        w: &GuestWalker,
        map_writable: bool,
        world: World<'_>,
    ) -> bool {
        let mut id = self.link_down(vcpu, gva, w, w.level, world);
        let mut level = w.level;
        let goal = self.goal_level(w, world.host);
        while level > goal {
            self.clear_write_flooding(id);
            let gfn = w.gfn & !(pages_per_hpage(level) - 1);
            level -= 1;
            let role = self.child_role(id, level, true, w.pte_access);
            let slot = self.link_child(id, gfn, role, world);
            id = self.sptep(slot, gva.0);
        }
        self.clear_write_flooding(id);
        let base = w.gfn & !(pages_per_hpage(level) - 1);
        let Some(wrprot) = self.set_spte(world.host, id, LeafSpte::found(w.pte_access, base, map_writable))
        else {
            return false; // RET_PF_SPURIOUS
        };
        self.touch(id, true);
        self.pte_prefetch(id, w, world);
        wrprot
    }

    /// Shadow pages of the guest's tables from the root down to that of level `to`. Returns the id of the
    /// spte there.
    pub(super) fn link_down(
        &mut self,
        vcpu: usize,
        gva: Gva,
        w: &GuestWalker,
        to: u8,
        world: World<'_>,
    ) -> usize {
        let mut id = self.sptep(self.root_slot(vcpu, gva), gva.0);
        for level in (to..self.format.root_level()).rev() {
            self.clear_write_flooding(id);
            let upper = usize::from(level) - 1;
            let role = self.child_role(id, level, false, w.pt_access[upper]);
            let slot = self.link_child(id, w.table_gfn[upper], role, world);
            id = self.sptep(slot, gva.0);
        }
        id
    }

    /// `kvm_mmu_child_role`: of the page below an spte. Two pages shadow the halves of a 32-bit leaf table.
    pub(super) fn child_role(&self, id: usize, level: u8, direct: bool, access: u8) -> Role {
        let quadrant = if self.has_4_byte_gpte { (id & 1) as u8 } else { 0 };
        Role { level, direct, access, quadrant }
    }

    /// `kvm_mmu_get_child_sp` and `link_shadow_page`: the child that the spte points to
    /// if it is the right one, else one from the hash or a new one, synced first. That
    /// covers `validate_direct_spte`: a direct page made for a clean guest entry has
    /// another role than the dirty entry asks for.
    pub(super) fn link_child(&mut self, id: usize, gfn: u64, role: Role, world: World<'_>) -> usize {
        let present = self.pages.spte(id) & PRESENT != 0;
        if present && !self.pages.is_last(id) {
            let child = self.pages.child(id);
            let page = self.pages.page(child);
            if page.gfn == gfn && page.role == role {
                return child;
            }
        }
        let child = self.get_shadow_page(gfn, role, Some(world));
        self.sync_children(child, world);
        if self.pages.zap_pte(id) {
            self.flush_remote_tlbs();
        }
        let spte = PRESENT | WRITE | USER | ACCESSED | Pages::hpa(child); // make_nonleaf_spte
        self.pages.set_child(id, spte, child);
        let page = self.pages.page(child);
        if page.unsync || page.unsync_children != 0 {
            self.mark_unsync(id);
        }
        child
    }

    /// `__kvm_mmu_get_shadow_page`. A leaf table found unsync is re-read, but stays
    /// unsync; an upper-level table replaces unsync pages of the same frame.
    pub(super) fn get_shadow_page(&mut self, gfn: u64, role: Role, world: Option<World<'_>>) -> usize {
        let mut found = 0;
        let mut replaced = Vec::new();
        let mut at = self.pages.first_of(gfn);
        while at != 0 {
            let page = self.pages.page(at);
            if page.role == role {
                found = at;
                break;
            }
            if role.level > 1 && page.unsync {
                replaced.push(at);
            }
            at = self.pages.next_of(at);
        }
        for slot in replaced {
            self.prepare_zap(slot);
        }
        if found != 0 && !role.direct {
            if let (true, Some(world)) = (self.pages.page(found).unsync, world) {
                if self.sync_page(found, world) {
                    self.flush_remote_tlbs();
                }
            }
            self.pages.page_mut(found).write_flooding_count = 0;
        }
        self.commit_zap();
        if found != 0 {
            return found;
        }
        self.work.made += 1;
        let slot = self.pages.alloc(gfn, role);
        if self.touched.len() < self.pages.slots() {
            self.touched.resize(self.pages.slots(), [0; 8]);
            self.used_in.resize(self.pages.slots(), [0; 64]);
            self.table_used_in.resize(self.pages.slots(), 0);
        }
        self.table_used_in[slot] = self.ages.now;
        if !role.direct {
            self.account_shadowed(slot);
        }
        slot
    }

    /// `kvm_mmu_hugepage_adjust`: the level of the leaf, no higher than the guest's
    /// page, the host's page, or what shadowed tables inside leave
    /// (`kvm_mmu_max_mapping_level`).
    fn goal_level(&self, w: &GuestWalker, host: &HostMemory) -> u8 {
        if w.level == 1 || w.is_self_change_mapping() {
            return 1;
        }
        let mut max = w.level.min(MAX_HUGEPAGE_LEVEL);
        while max > 1 && self.pages.disallow_lpage(w.gfn, max) != 0 {
            max -= 1;
        }
        max.min(host.size_at(Gpa::from_frame(w.gfn)).level())
    }

    /// `mmu_set_spte`: `Some(wrprot)`, or `None` if the spte was that already.
    fn set_spte(&mut self, host: &HostMemory, id: usize, leaf: LeafSpte) -> Option<bool> {
        let level = self.pages.page(sptep_to_sp(id)).role.level;
        let mut flush = false;
        let old = self.pages.spte(id);
        if old & PRESENT != 0 {
            if !self.pages.is_last(id) {
                self.pages.drop_parent_pte(id); // a table of 4 KB entries gives way to a large spte
                flush = true;
            } else if leaf.gfn != self.pages.gfn_of(id) {
                self.pages.drop_spte(id);
                flush = true;
            }
        }
        let old = self.pages.spte(id);
        let (new, wrprot) = self.make_spte(host, level, leaf, old, true);
        if old == new {
            return if wrprot { Some(true) } else { None };
        }
        if old == 0 {
            self.pages.set_leaf(id, new, leaf.gfn);
        } else {
            self.pages.update(id, new);
            flush |= old & !new & (WRITE | ACCESSED) != 0; // mmu_spte_update
        }
        if flush {
            self.flush_remote_tlbs();
        }
        Some(wrprot)
    }

    /// `make_spte`: the spte, and whether write access was taken off it because the
    /// frame is a shadowed table that must not, or not now, become unsync.
    pub(super) fn make_spte(
        &mut self,
        host: &HostMemory,
        level: u8,
        LeafSpte { access, gfn, prefetch, host_writable }: LeafSpte,
        old: u64,
        can_unsync: bool,
    ) -> (u64, bool) {
        let mut spte = PRESENT | (host.hpa(Gpa::from_frame(gfn)).0 & ADDRESS);
        spte |= u64::from(access) << ACCESS_SHIFT;
        let mut wrprot = false;
        if !prefetch {
            spte |= ACCESSED; // mark_spte_for_access_track
        }
        if access & ACC_EXEC == 0 {
            spte |= NX;
        }
        if access & ACC_USER != 0 {
            spte |= USER;
        }
        if level > 1 {
            spte |= LARGE;
        }
        if host_writable {
            spte |= HOST_WRITABLE;
            if access & ACC_WRITE != 0 {
                // What was writable stays so: its table, if it is one, is unsync already.
                let was_writable = old & (PRESENT | WRITE) == PRESENT | WRITE;
                if was_writable || self.try_to_unsync_pages(gfn, can_unsync, prefetch) {
                    spte |= WRITE | DIRTY;
                } else {
                    wrprot = true;
                }
            }
        }
        (spte, wrprot)
    }

    /// `FNAME(pte_prefetch)`: the aligned block of 8 around a leaf just set, from its
    /// start, until a guest entry cannot be used.
    fn pte_prefetch(&mut self, id: usize, w: &GuestWalker, world: World<'_>) {
        let role = self.pages.page(sptep_to_sp(id)).role;
        if role.level > 1 {
            return;
        }
        if role.direct {
            return self.direct_pte_prefetch(world.host, id, role);
        }
        let Some(gptes) = world.guest.entries(w.table_gfn[0], role.quadrant) else { return };
        let first = id & !(PREFETCH - 1);
        for other in first..first + PREFETCH {
            if other == id || self.pages.spte(other) & PRESENT != 0 {
                continue;
            }
            if !self.prefetch_gpte(world.host, other, gptes[other & 511]) {
                return;
            }
        }
    }

    /// `FNAME(prefetch_gpte)`: false if the guest's entry is absent or not accessed
    /// (`FNAME(prefetch_invalid_gpte)`), or its frame not there to be written.
    pub(super) fn prefetch_gpte(&mut self, host: &HostMemory, id: usize, gpte: u64) -> bool {
        if gpte & PRESENT == 0 || gpte & ACCESSED == 0 && !self.hardware_sets_both() {
            self.pages.drop_spte(id);
            return false;
        }
        let gfn = self.format.target(1, gpte) >> 12;
        if !self.is_resident(host, gfn) {
            return false;
        }
        let role = self.pages.page(sptep_to_sp(id)).role;
        let access = role.access & gpte_access(gpte);
        let access = if self.hardware_sets_both() { access } else { protect_clean(access, gpte) };
        self.set_spte(host, id, LeafSpte::prefetched(access, gfn));
        true
    }

    /// `__direct_pte_prefetch` and `direct_pte_prefetch_many`: each run of absent
    /// entries of the block as far as its frames are resident from the run's start;
    /// a run whose first frame is not ends it all.
    fn direct_pte_prefetch(&mut self, host: &HostMemory, id: usize, role: Role) {
        let access = role.access;
        let page_gfn = self.pages.page(sptep_to_sp(id)).gfn;
        let first = id & !(PREFETCH - 1);
        let mut at = first;
        while at < first + PREFETCH {
            let start = at;
            while at < first + PREFETCH && at != id && self.pages.spte(at) & PRESENT == 0 {
                at += 1;
            }
            for run in start..at {
                let gfn = page_gfn + (run as u64 & 511);
                if !self.is_resident(host, gfn) {
                    if run == start {
                        return;
                    }
                    break;
                }
                self.set_spte(host, run, LeafSpte::prefetched(access, gfn));
            }
            at += 1;
        }
    }
}
