// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unsync pages: leaf tables that the guest may write without an exit until it flushes a TLB.
//!
//! The functions here make a page unsync (`mmu_try_to_unsync_pages`), find unsync pages below a root
//! (`unsync_child_bitmap`), and bring them up to date with the guest at a CR3 load
//! (`mmu_sync_children`, `FNAME(sync_page)`) or INVLPG (`FNAME(invlpg)`).

use super::fault::LeafSpte;
use super::spte::{
    ACC_ALL, ACCESS_SHIFT, ACCESSED, HOST_WRITABLE, PRESENT, WRITE, gpte_access, protect_clean,
};
use super::{Shadow, World};
use crate::Sample;
use crate::guest::GuestTables;
use crate::host::HostMemory;
use bifold_mmu::Gva;

const EMPTY: [u64; 512] = [0; 512];

impl Shadow {
    /// `mmu_try_to_unsync_pages`: may an spte for `gfn` be writable? If the frame is a
    /// synced leaf table, `can_unsync` and no prefetch, the table becomes unsync.
    pub(super) fn try_to_unsync_pages(&mut self, gfn: u64, can_unsync: bool, prefetch: bool) -> bool {
        if self.pages.is_tracked(gfn) {
            return false;
        }
        let mut slot = self.pages.first_of(gfn);
        while slot != 0 {
            let page = self.pages.page(slot);
            if !page.role.direct {
                if !can_unsync || self.counts_writes() {
                    return false;
                }
                if !page.unsync {
                    if prefetch {
                        return false;
                    }
                    self.pages.page_mut(slot).unsync = true; // kvm_unsync_page
                    self.mark_parents_unsync(slot);
                    self.unsynced = true;
                }
            }
            slot = self.pages.next_of(slot);
        }
        true
    }

    /// `kvm_mmu_mark_parents_unsync`.
    fn mark_parents_unsync(&mut self, slot: usize) {
        for id in self.pages.parents(slot) {
            self.mark_unsync(id);
        }
    }

    /// `mark_unsync`: the child behind this spte is unsync or has such a descendant.
    pub(super) fn mark_unsync(&mut self, id: usize) {
        let slot = id >> 9;
        let page = self.pages.page_mut(slot);
        let (word, bit) = ((id & 511) >> 6, 1u64 << (id & 63));
        if page.unsync_child_bitmap[word] & bit != 0 {
            return;
        }
        page.unsync_child_bitmap[word] |= bit;
        page.unsync_children += 1;
        if page.unsync_children == 1 {
            self.mark_parents_unsync(slot);
        }
    }

    /// `mmu_unsync_walk`: the unsync leaf tables below `slot`, once per path to them.
    /// Bits of children that are gone or synced are cleared on the way. KVM goes by 16
    /// pages at a time so as to bound its stack; the outcome is the same.
    pub(super) fn unsync_walk(&mut self, slot: usize) -> Vec<usize> {
        let mut leaves = Vec::new();
        if self.pages.page(slot).unsync_children != 0 {
            self.unsync_walk_into(slot, &mut leaves);
        }
        leaves
    }

    fn unsync_walk_into(&mut self, slot: usize, leaves: &mut Vec<usize>) -> bool {
        let mut any = false;
        for word in 0..8 {
            let mut bits = self.pages.page(slot).unsync_child_bitmap[word];
            while bits != 0 {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let id = slot << 9 | word << 6 | bit;
                let mut found = false;
                if self.pages.spte(id) & PRESENT != 0 && !self.pages.is_last(id) {
                    let child = self.pages.child(id);
                    if self.pages.page(child).unsync_children != 0 {
                        found = self.unsync_walk_into(child, leaves);
                    } else if self.pages.page(child).unsync {
                        found = true;
                        leaves.push(child);
                    }
                }
                if !found {
                    let page = self.pages.page_mut(slot);
                    page.unsync_child_bitmap[word] &= !(1 << bit); // clear_unsync_child_bit
                    page.unsync_children -= 1;
                }
                any |= found;
            }
        }
        any
    }

    /// `mmu_sync_children`: every unsync table below `slot` is write-protected again
    /// and re-read. True if there were any.
    pub(super) fn sync_children(&mut self, slot: usize, world: World<'_>) -> bool {
        let mut any = false;
        loop {
            let leaves = self.unsync_walk(slot);
            if leaves.is_empty() {
                return any;
            }
            any = true;
            let mut flush = false;
            for &leaf in &leaves {
                flush |= self.write_protect_gfn(self.pages.page(leaf).gfn);
            }
            for &leaf in &leaves {
                // kvm_unlink_unsync_page
                if std::mem::take(&mut self.pages.page_mut(leaf).unsync) {
                    flush |= self.sync_page(leaf, world);
                }
            }
            if flush {
                self.flush_remote_tlbs();
            }
        }
    }

    /// The guest's entries that the sptes of a leaf page shadow (`get_level1_sp_gpa`).
    pub(super) fn gptes<'a>(&self, slot: usize, guest: &'a GuestTables) -> Option<&'a [u64; 512]> {
        let page = self.pages.page(slot);
        guest.entries(page.gfn, page.role.quadrant)
    }

    /// `FNAME(sync_page)`: re-reads the entries that the page has, and those only (of them, those that it
    /// may change: [`Settled`](super::settled::Settled)). True if TLBs must be flushed.
    pub(super) fn sync_page(&mut self, slot: usize, world: World<'_>) -> bool {
        self.work.syncs += 1;
        let gptes = self.gptes(slot, world.guest).unwrap_or(&EMPTY);
        let mut flush = false;
        for word in 0..8 {
            let mut due = self.pages.due(slot, word, gptes);
            while due != 0 {
                let id = slot << 9 | word << 6 | due.trailing_zeros() as usize;
                due &= due - 1;
                flush |= self.sync_spte(world.host, id, gptes[id & 511]);
                self.pages.settle(id);
            }
        }
        flush
    }

    /// `FNAME(sync_spte)`: an entry that is there follows the guest's. True if TLBs must be
    /// flushed: it went, lost write access, or its accessed bit (the new spte has none,
    /// `make_spte` takes it for prefetched).
    fn sync_spte(&mut self, host: &HostMemory, id: usize, gpte: u64) -> bool {
        let old = self.pages.spte(id);
        if old == 0 {
            return false;
        }
        let gfn = self.format.target(1, gpte) >> 12;
        if gpte & PRESENT == 0 || gpte & ACCESSED == 0 || gfn != self.pages.gfn_of(id) {
            self.pages.drop_spte(id);
            return true;
        }
        let role = self.pages.page(id >> 9).role;
        let access = protect_clean(role.access & gpte_access(gpte), gpte);
        if !self.kvm.sync_makes_unchanged_entries() && (old >> ACCESS_SHIFT) as u8 & ACC_ALL == access {
            return false;
        }
        let leaf = LeafSpte { access, gfn, prefetch: true, host_writable: old & HOST_WRITABLE != 0 };
        let (new, _) = self.make_spte(host, 1, leaf, old, false);
        self.pages.update(id, new);
        old & !new & (WRITE | ACCESSED) != 0 // mmu_spte_update
    }

    /// INVLPG (`kvm_mmu_invalidate_gva`): in the current root and the cached ones. The
    /// engine drops the address from the vCPU's TLB itself.
    pub fn invlpg(&mut self, vcpu: usize, gva: Gva, world: World<'_>, out: &mut Sample) {
        out.exits_invlpg += 1;
        for slot in self.roots_of(vcpu, gva) {
            self.invlpg_root(slot, gva, world);
        }
        self.settle(world, out);
    }

    /// `FNAME(invlpg)`: if the walk comes to an unsync leaf table, its entry is zapped,
    /// and made again at once if the guest's is present and accessed; or synced
    /// ([`KvmVersion::invlpg_makes_absent_entries`](crate::KvmVersion)).
    pub(super) fn invlpg_root(&mut self, root: usize, gva: Gva, world: World<'_>) {
        let mut slot = root;
        loop {
            let id = self.sptep(slot, gva.0);
            let page = self.pages.page(slot);
            if page.role.level == 1 {
                if page.unsync {
                    let gpte = self.gptes(slot, world.guest).map_or(0, |gptes| gptes[id & 511]);
                    if self.kvm.invlpg_makes_absent_entries() {
                        if self.pages.zap_pte(id) {
                            self.flush_remote_tlbs();
                        }
                        self.prefetch_gpte(world.host, id, gpte);
                    } else if self.sync_spte(world.host, id, gpte) {
                        self.flush_remote_tlbs();
                    }
                }
                return;
            }
            if page.unsync_children == 0 || self.pages.spte(id) & PRESENT == 0 || self.pages.is_last(id) {
                return;
            }
            slot = self.pages.child(id);
        }
    }
}
