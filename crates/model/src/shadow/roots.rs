// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Roots: CR3 loads, with the current root and three cached roots per vCPU (`kvm_set_cr3`,
//! `kvm_mmu_new_pgd`, `fast_pgd_switch`), global flushes (`kvm_post_set_cr4`), and roots whose table
//! was zapped while they were loaded.
//!
//! The root of a guest in 32-bit mode is no shadow page. It has four entries (`pae_root`), each of which
//! points to the shadow page of a PAE guest's page directory or of a quarter of a 32-bit one. KVM caches no
//! such root.

use super::spte::{ACC_ALL, Role};
use super::{Shadow, World};
use crate::Sample;
use crate::guest::GuestTables;
use bifold_mmu::{Gva, Start};

/// KVM_MMU_NUM_PREV_ROOTS.
const PREV_ROOTS: usize = 3;

/// `struct kvm_mmu_root_info`; slot 0 is INVALID_PAGE.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Root {
    pub pgd: u64,
    /// The root's page, or by gigabyte the pages of `pae_root`.
    pub slots: [usize; 4],
}

impl Root {
    fn is_valid(&self) -> bool {
        self.slots != [0; 4]
    }
}

/// What KVM keeps per vCPU.
#[derive(Debug, Clone, Default)]
pub(super) struct Vcpu {
    pub cr3: u64,
    pub root: Root,
    pub prev_roots: [Root; PREV_ROOTS],
    /// `last_retry_addr`: where the last store was retried that is not page-table writing.
    pub last_retry: Option<u64>,
    /// `pdptrs` when the current root was made.
    pdptrs: [u64; 4],
}

impl Vcpu {
    /// The pages of the current root and of the valid cached ones.
    #[cfg(test)]
    pub fn roots(&self) -> impl Iterator<Item = usize> + use<> {
        let [a, b, c] = self.prev_roots;
        [self.root, a, b, c].into_iter().flat_map(|r| r.slots).filter(|&s| s != 0)
    }
}

impl Shadow {
    /// The CR3 that a vCPU has when the recording begins. No exit is counted.
    pub fn set_initial_cr3(&mut self, vcpu: usize, value: u64, guest: &GuestTables) {
        self.free_root(vcpu, None);
        self.commit_zap();
        self.vcpus[vcpu].cr3 = value;
        self.mmu_load(vcpu, guest, None);
        self.work = super::Work::default();
    }

    /// MOV to CR3 (`kvm_set_cr3`): a cached root if one fits, else one from the hash;
    /// in either case the unsync tables below it are synced.
    pub fn load_cr3(&mut self, vcpu: usize, value: u64, world: World<'_>, out: &mut Sample) {
        out.exits_cr3_write += 1;
        self.load_pdptrs(vcpu, world.guest);
        if value != self.vcpus[vcpu].cr3 || !self.vcpus[vcpu].root.is_valid() {
            self.vcpus[vcpu].cr3 = value;
            if !self.new_pgd(vcpu, value) {
                out.root_misses += 1;
                self.mmu_load(vcpu, world.guest, Some(world)); // kvm_mmu_reload
            }
        }
        // kvm_invalidate_pcid: KVM_REQ_MMU_SYNC, KVM_REQ_TLB_FLUSH_CURRENT. Under agile paging no table is
        // unsync, and the hypervisor flushes what the guest's write would.
        if !self.counts_writes() {
            self.sync_roots(vcpu, world);
            self.flush_tlb_current(vcpu);
        }
        self.settle(world, out);
    }

    /// `load_pdptrs`: other entries than those loaded before make the current root invalid. The guest's
    /// registers are loaded before.
    fn load_pdptrs(&mut self, vcpu: usize, guest: &GuestTables) {
        if self.vcpus[vcpu].pdptrs != guest.registers(vcpu) {
            self.free_root(vcpu, None);
            self.commit_zap();
        }
    }

    /// `kvm_mmu_sync_roots`.
    fn sync_roots(&mut self, vcpu: usize, world: World<'_>) {
        for slot in self.vcpus[vcpu].root.slots {
            self.sync_children(slot, world);
        }
    }

    /// A write to CR4; `global_flush` if it toggles PGE (`kvm_post_set_cr4`, then
    /// `kvm_vcpu_flush_tlb_guest`): syncs the current root and frees unsync cached
    /// ones, whose pages stay in the hash.
    pub fn write_cr4(&mut self, vcpu: usize, global_flush: bool, world: World<'_>, out: &mut Sample) {
        out.exits_cr4_write += 1;
        let loaded = self.vcpus[vcpu].root.is_valid();
        self.load_pdptrs(vcpu, world.guest);
        if loaded && !self.vcpus[vcpu].root.is_valid() {
            self.mmu_load(vcpu, world.guest, Some(world)); // kvm_mmu_reload
        }
        if global_flush {
            self.sync_roots(vcpu, world);
            for i in 0..PREV_ROOTS {
                // kvm_mmu_sync_prev_roots
                if self.pages.page(self.vcpus[vcpu].prev_roots[i].slots[0]).unsync_children != 0 {
                    self.free_root(vcpu, Some(i));
                }
            }
            self.commit_zap();
            self.flush_tlb_current(vcpu);
        }
        self.settle(world, out);
    }

    /// `kvm_mmu_new_pgd` and `cached_root_find_and_keep_current`: rotates the cached
    /// roots until one fits; if none does, the least recent is freed.
    fn new_pgd(&mut self, vcpu: usize, pgd: u64) -> bool {
        if self.has_pae_root {
            self.free_root(vcpu, None); // fast_pgd_switch
            self.commit_zap();
        }
        let v = &mut self.vcpus[vcpu];
        let pages = &self.pages;
        let usable = |r: &Root| r.is_valid() && r.pgd == pgd && !pages.page(r.slots[0]).invalid;
        if !v.root.is_valid() {
            // Before the first CR3, or a root that is not cached: an obsolete one is replaced at once.
            return false;
        }
        let mut found = usable(&v.root);
        for i in 0..PREV_ROOTS {
            if found {
                break;
            }
            std::mem::swap(&mut v.root, &mut v.prev_roots[i]);
            found = usable(&v.root);
        }
        if found {
            let slot = v.root.slots[0];
            self.pages.page_mut(slot).write_flooding_count = 0;
        } else {
            self.free_root(vcpu, None);
            self.commit_zap();
        }
        found
    }

    /// `kvm_mmu_load`: `mmu_alloc_shadow_roots`, then `kvm_mmu_sync_roots`.
    fn mmu_load(&mut self, vcpu: usize, guest: &GuestTables, world: Option<World<'_>>) {
        self.pages.maker = vcpu;
        self.make_mmu_pages_available();
        let pgd = self.vcpus[vcpu].cr3;
        self.vcpus[vcpu].pdptrs = guest.registers(vcpu);
        let mut slots = [0; 4];
        let entries = if self.has_pae_root { 4 } else { 1 };
        for (i, slot) in slots.iter_mut().enumerate().take(entries) {
            // An address in the gigabyte of the entry, whose register may be empty.
            let Ok(Start { table, .. }) = guest.start(guest.root(vcpu, pgd), Gva((i as u64) << 30)) else {
                continue;
            };
            let quadrant = if self.has_4_byte_gpte { i as u8 } else { 0 };
            let role = Role { level: self.format.root_level(), direct: false, access: ACC_ALL, quadrant };
            *slot = self.get_shadow_page(table >> 12, role, world);
            self.pages.page_mut(*slot).root_count += 1;
        }
        self.vcpus[vcpu].root = Root { pgd, slots };
        if let Some(world) = world {
            self.sync_roots(vcpu, world);
        }
        self.flush_tlb_current(vcpu);
    }

    /// `mmu_free_root_page` of a cached root, or of the current one.
    pub(super) fn free_root(&mut self, vcpu: usize, prev: Option<usize>) {
        let v = &mut self.vcpus[vcpu];
        let root = match prev {
            Some(i) => &mut v.prev_roots[i],
            None => &mut v.root,
        };
        for slot in std::mem::take(root).slots.into_iter().filter(|&slot| slot != 0) {
            let page = self.pages.page_mut(slot);
            page.root_count -= 1;
            if page.root_count == 0 && page.invalid {
                self.prepare_zap(slot);
            }
        }
    }

    /// `kvm_mmu_free_obsolete_roots` of every vCPU, and a new root where it was the
    /// current one. A root that is no shadow page counts as obsolete (`is_obsolete_root`).
    pub(super) fn free_obsolete_roots(&mut self, world: World<'_>) {
        self.obsolete_roots = false;
        for vcpu in 0..self.vcpus.len() {
            for i in 0..PREV_ROOTS {
                if self.pages.page(self.vcpus[vcpu].prev_roots[i].slots[0]).invalid {
                    self.free_root(vcpu, Some(i));
                }
            }
            let current = self.vcpus[vcpu].root;
            let reload =
                current.is_valid() && (self.has_pae_root || self.pages.page(current.slots[0]).invalid);
            if reload {
                self.free_root(vcpu, None);
            }
            self.commit_zap();
            if reload {
                self.mmu_load(vcpu, world.guest, Some(world));
            }
        }
    }
}
