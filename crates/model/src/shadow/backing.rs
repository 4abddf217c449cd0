// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The host's frames behind the guest's: backed at a fault, unmapped, looked at for their use (MMU
//! notifiers).

use super::{Shadow, spte};
use crate::host::{Backing, HostMemory};
use bifold_mmu::Gpa;
use std::ops::Range;

impl Shadow {
    /// The host backs the page behind `gpa` (`hva_to_pfn`). Where a write replaces the
    /// zero page, the host tells KVM to unmap that (`kvm_unmap_gfn_range`); true then.
    pub(super) fn back(&mut self, host: &mut HostMemory, gpa: Gpa, write: bool) -> bool {
        let was = host.backing(gpa);
        let Some(given) = host.touch(gpa, write, self.pages.maker) else { return false };
        let before = self.work.given.replace(given);
        debug_assert!(before.is_none(), "an exit is for one page");
        if was != Backing::Zero {
            return false;
        }
        let frames = 1u64 << (given.size.shift() - 12);
        let first = gpa.frame() & !(frames - 1);
        if self.host_unmapped(first..first + frames) {
            self.flush_remote_tlbs();
        }
        true
    }

    /// `kvm_unmap_gfn_range`: the host has unmapped these guest frames, so their sptes go.
    /// True if there were any, so that TLBs must be flushed.
    pub fn host_unmapped(&mut self, gfns: Range<u64>) -> bool {
        let mut dropped = false;
        for gfn in gfns {
            for id in self.pages.rmap(gfn) {
                self.pages.drop_spte(id);
                dropped = true;
            }
        }
        dropped
    }

    /// `kvm_age_gfn`: clears the accessed bits of the sptes that map these guest frames (`kvm_age_rmap`,
    /// `mmu_spte_age`). True if any was set.
    pub fn clear_young(&mut self, gfns: Range<u64>) -> bool {
        let mut young = false;
        for gfn in gfns {
            for id in self.pages.rmap(gfn) {
                let spte = self.pages.spte(id);
                if spte & spte::ACCESSED != 0 {
                    self.pages.update(id, spte & !spte::ACCESSED);
                    young = true;
                }
            }
        }
        young
    }

    /// Can the host's page behind `gfn` be mapped without sleeping, for a write
    /// (`gfn_to_pfn_memslot_atomic`)? What prefetch asks.
    pub(super) fn is_resident(&self, host: &HostMemory, gfn: u64) -> bool {
        gfn < self.guest_frames && host.backing(Gpa::from_frame(gfn)) == Backing::Own
    }
}
