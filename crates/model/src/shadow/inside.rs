// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the shadow MMU does for a hypervisor that is a guest itself. KVM shadows that hypervisor's nested
//! tables as it shadows a guest's own (`kvm_init_shadow_npt_mmu`, `kvm_init_shadow_ept_mmu`), while the
//! hypervisor itself runs under nested paging: its stores reach its tables through entries that are
//! write-protected where a table is shadowed.

use super::{Shadow, World};
use crate::Sample;
use bifold_mmu::{Gva, PageSize, Step, Walk, walk};
use std::convert::Infallible;

/// Why a hypervisor's store to one of its nested tables exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectStore {
    /// The table is of an upper level: the store was emulated.
    Emulated,
    /// The table is of the lowest level, and became unsync.
    Unsynced,
}

impl Shadow {
    /// The hypervisor has stored the entry at `offset` of its table in `gfn`. None if the table is not
    /// shadowed, or is unsync. What other frames of the hypervisor's memory hold is no table, and is not
    /// write-protected.
    pub fn direct_store(
        &mut self,
        gfn: u64,
        offset: usize,
        world: World<'_>,
        out: &mut Sample,
    ) -> Option<DirectStore> {
        let stored = if self.pages.is_tracked(gfn) {
            self.pte_write(gfn, offset); // page_fault_handle_page_track, x86_emulate_instruction
            Some(DirectStore::Emulated)
        } else {
            self.unsynced = false;
            self.try_to_unsync_pages(gfn, true, false); // make_spte, by kvm_tdp_mmu_map
            std::mem::take(&mut self.unsynced).then_some(DirectStore::Unsynced)
        };
        self.settle(world, out);
        stored
    }

    /// The hypervisor flushes what the processor may have of its nested tables, by an entry into its guest on
    /// AMD (`nested_svm_transition_tlb_flush`) and by INVEPT on Intel (`handle_invept`): its tables' unsync
    /// shadows are synced.
    pub fn sync_nested(&mut self, vcpu: usize, world: World<'_>, out: &mut Sample) {
        let root = self.vcpus[vcpu].root.slots[0];
        self.pages.page_mut(root).write_flooding_count = 0; // kvm_mmu_new_pgd
        if self.sync_children(root, world) {
            // The hypervisor's own mapping of an unsync table is for writing, and loses that
            // (mmu_sync_children's `protected`).
            self.flush_remote_tlbs();
        }
        self.flush_tlb_current(vcpu);
        self.settle(world, out);
    }

    /// Is the hypervisor's table in this frame write-protected?
    pub fn protects(&self, gfn: u64) -> bool {
        if self.pages.is_tracked(gfn) {
            return true;
        }
        let mut slot = self.pages.first_of(gfn);
        while slot != 0 {
            let page = self.pages.page(slot);
            if !page.role.direct && !page.unsync {
                return true;
            }
            slot = self.pages.next_of(slot);
        }
        false
    }

    /// The entry that maps `gva`.
    pub fn leaf(&self, vcpu: usize, gva: Gva) -> Option<Step> {
        match walk::<Infallible>(self.format, self.root(vcpu, gva)?, gva.0, |_, at| Ok(self.spte(at))) {
            Ok(Walk::Leaf(step)) => Some(step),
            Ok(Walk::NotPresent(_)) => None,
            Err(never) => match never {},
        }
    }

    /// The size of the page that maps `gva`, and whether it may be written.
    pub fn mapping(&self, vcpu: usize, gva: Gva) -> Option<(PageSize, bool)> {
        let Step { level, entry, .. } = self.leaf(vcpu, gva)?;
        Some((PageSize::ALL[usize::from(level) - 1], entry & self.format.write != 0))
    }

    /// Number of vCPUs.
    pub fn vcpus(&self) -> usize {
        self.vcpus.len()
    }
}
