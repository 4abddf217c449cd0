// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of shadow pages (`kvm_mmu_prepare_zap_page`, `kvm_mmu_commit_zap_page`) and its reasons:
//! the budget (`make_mmu_pages_available`), a table that the guest no longer writes as a table
//! (`kvm_mmu_unprotect_page`), and write flooding (`kvm_mmu_pte_write`). The accounting of shadowed
//! tables is here too, because it ends with the pages.

use super::Shadow;
use super::pages::sptep_to_sp;
use super::spte::{DIRTY, WRITE};
use std::ops::Range;

/// KVM_MIN_FREE_MMU_PAGES and KVM_REFILL_PAGES.
const MIN_FREE: usize = 5;
const REFILL: usize = 25;

impl Shadow {
    /// `account_shadowed`: from now on the table's frame is in no large spte, and
    /// written through none without a fault.
    pub(super) fn account_shadowed(&mut self, slot: usize) {
        let (gfn, level) = (self.pages.page(slot).gfn, self.pages.page(slot).role.level);
        if level > 1 {
            *self.pages.track(gfn) += 1; // kvm_slot_page_track_add_page
        }
        self.pages.update_disallow_lpage(gfn, true);
        // TLBs may hold the frame by the nested tables as well.
        if self.write_protect_gfn(gfn) || self.counts_writes() {
            self.flush_remote_tlbs();
        }
    }

    /// `unaccount_shadowed`. Sptes of the frame stay read-only until they fault.
    fn unaccount_shadowed(&mut self, slot: usize) {
        let (gfn, level) = (self.pages.page(slot).gfn, self.pages.page(slot).role.level);
        if level > 1 {
            *self.pages.track(gfn) -= 1;
        }
        self.pages.update_disallow_lpage(gfn, false);
    }

    /// `kvm_mmu_slot_gfn_write_protect`; true if an spte was writable, so that TLBs
    /// may hold it.
    pub(super) fn write_protect_gfn(&mut self, gfn: u64) -> bool {
        let mut write_protected = false;
        for id in self.pages.rmap(gfn) {
            let spte = self.pages.spte(id);
            if spte & WRITE != 0 {
                self.pages.update(id, spte & !(WRITE | DIRTY));
                write_protected = true;
            }
        }
        write_protected
    }

    /// `__kvm_mmu_prepare_zap_page`: unlinks the page from everything and puts it on
    /// the invalid list, unless it is a root in use. Its unsync descendants go with
    /// it, as nothing would sync them any more; other children stay in the hash.
    /// Returns the number of pages zapped, and whether there were others than itself.
    pub(super) fn prepare_zap(&mut self, slot: usize) -> (usize, bool) {
        self.work.zapped += 1;
        let mut zapped = self.zap_unsync_children(slot);
        let others = zapped != 0;
        for id in slot << 9..(slot + 1) << 9 {
            self.pages.zap_pte(id); // kvm_mmu_page_unlink_children
        }
        for id in self.pages.parents(slot) {
            self.pages.drop_parent_pte(id); // kvm_mmu_unlink_parents
        }
        let page = self.pages.page(slot);
        let (was_invalid, direct, is_root) = (page.invalid, page.role.direct, page.root_count != 0);
        if !was_invalid {
            self.pages.retire(slot);
            if !direct {
                self.unaccount_shadowed(slot);
            }
        }
        let page = self.pages.page_mut(slot);
        page.unsync = false;
        page.invalid = true;
        if is_root {
            self.obsolete_roots |= !was_invalid;
        } else {
            zapped += 1;
            self.pages.used -= 1;
            self.invalid.push(slot);
        }
        (zapped, others)
    }

    /// `mmu_zap_unsync_children`.
    fn zap_unsync_children(&mut self, parent: usize) -> usize {
        if self.pages.page(parent).role.level == 1 {
            return 0;
        }
        let mut zapped = 0;
        loop {
            let leaves = self.unsync_walk(parent);
            if leaves.is_empty() {
                return zapped;
            }
            for slot in leaves {
                // Two parents may lead to it: once is enough.
                if !self.pages.page(slot).invalid {
                    zapped += self.prepare_zap(slot).0;
                }
            }
        }
    }

    /// `kvm_mmu_commit_zap_page`.
    pub(super) fn commit_zap(&mut self) {
        if self.invalid.is_empty() {
            return;
        }
        self.flush_remote_tlbs();
        for slot in std::mem::take(&mut self.invalid) {
            self.pages.free(slot);
        }
    }

    /// `kvm_mmu_unprotect_page`: zaps every shadow page of the table in `gfn`.
    pub(super) fn unprotect_page(&mut self, gfn: u64) {
        for slot in self.pages.shadows_of(gfn) {
            if !self.pages.page(slot).invalid {
                self.prepare_zap(slot);
            }
        }
        self.commit_zap();
    }

    /// `get_written_sptes`: the sptes of a page that shadow the guest's entry at this offset of its table. An
    /// entry of a 32-bit page directory maps what two sptes map, and most pages of its table shadow other
    /// entries.
    fn written_sptes(&self, slot: usize, mut offset: usize) -> Range<usize> {
        let role = self.pages.page(slot).role;
        let mut sptes = 1;
        if self.has_4_byte_gpte {
            offset <<= 1;
            if role.level > 1 {
                offset = (offset & !7) << 1;
                sptes = 2;
            }
            if offset >> 12 != usize::from(role.quadrant) {
                return 0..0;
            }
        }
        let first = slot << 9 | offset >> 3 & 511;
        first..first + sptes
    }

    /// `kvm_mmu_pte_write`: the emulator has written the entry at `offset` of the table in
    /// `gfn`. The third write since the table was last walked zaps it
    /// (`detect_write_flooding`).
    pub(super) fn pte_write(&mut self, gfn: u64, offset: usize) {
        let mut flush = false;
        for slot in self.pages.shadows_of(gfn) {
            if self.pages.page(slot).invalid {
                continue;
            }
            let page = self.pages.page_mut(slot);
            if page.role.level > 1 {
                page.write_flooding_count += 1;
                if page.write_flooding_count >= 3 {
                    self.prepare_zap(slot);
                    continue;
                }
            }
            for id in self.written_sptes(slot, offset) {
                flush |= self.pages.zap_pte(id);
            }
        }
        if flush {
            self.flush_remote_tlbs();
        }
        self.commit_zap();
    }

    /// `make_mmu_pages_available` and `kvm_mmu_zap_oldest_mmu_pages`: under 5 free,
    /// pages go in order of their creation until 25 are free; roots in use stay.
    pub(super) fn make_mmu_pages_available(&mut self) {
        let available = self.pages.max.saturating_sub(self.pages.used);
        if available >= MIN_FREE {
            return;
        }
        let goal = REFILL - available;
        let mut total = 0;
        let mut slot = self.pages.oldest();
        while slot != 0 && total < goal {
            let newer = self.pages.newer(slot);
            if self.pages.page(slot).root_count != 0 {
                slot = newer;
                continue;
            }
            let (zapped, others) = self.prepare_zap(slot);
            total += zapped;
            // Others were taken off the list too: begin again.
            slot = if others { self.pages.oldest() } else { newer };
        }
        self.commit_zap();
    }

    /// `clear_sp_write_flooding_count` of the page that holds an spte.
    pub(super) fn clear_write_flooding(&mut self, id: usize) {
        self.pages.page_mut(sptep_to_sp(id)).write_flooding_count = 0;
    }

    /// Id of the spte for `gva` in the page in `slot`.
    #[inline]
    pub(super) fn sptep(&self, slot: usize, gva: u64) -> usize {
        let level = self.pages.page(slot).role.level;
        slot << 9 | self.format.index(level, gva) as usize
    }
}
