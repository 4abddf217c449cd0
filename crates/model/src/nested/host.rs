// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the host does to nested tables: maps frames after violations, unmaps them, and looks which ones were
//! used.

use super::{EPOCH_MASK, Nested, Violation, base};
use crate::host::{Backing, Given, HostMemory};
use bifold_mmu::{Gpa, PageSize, Step};
use std::ops::Range;

impl Nested {
    /// Numbers of the entries of a level that map a part of these frames.
    fn entries(&self, level: u8, gfns: &Range<u64>) -> Range<usize> {
        let shift = 9 * (level - 1);
        let end = gfns.end.div_ceil(1 << shift).min(self.levels[usize::from(level) - 1].len() as u64);
        (gfns.start >> shift).min(end) as usize..end as usize
    }

    /// `kvm_unmap_gfn_range`: the host has unmapped these guest frames, so the leaf entries that map any of
    /// them go, of whatever size (`tdp_mmu_zap_leafs`). Tables stay. True if there were any, so that TLBs
    /// must be flushed.
    pub fn host_unmapped(&mut self, gfns: Range<u64>) -> bool {
        let (format, mut dropped) = (self.format, false);
        for level in 1..=self.page.level() {
            let entries = self.entries(level, &gfns);
            for entry in &mut self.levels[usize::from(level) - 1][entries] {
                if *entry & format.present != 0 && format.is_leaf(level, *entry) {
                    *entry = 0;
                    dropped = true;
                }
            }
        }
        self.entries(self.page.level(), &gfns).for_each(|i| self.set_ready(i, 0));
        dropped
    }

    /// `kvm_age_gfn`: clears the accessed bits of the leaf entries that map these guest frames
    /// (`kvm_tdp_mmu_age_gfn_range`). True if any was set.
    pub fn clear_young(&mut self, gfns: Range<u64>) -> bool {
        let (format, mut young) = (self.format, false);
        for level in 1..=self.page.level() {
            let entries = self.entries(level, &gfns);
            for entry in &mut self.levels[usize::from(level) - 1][entries] {
                if format.is_leaf(level, *entry) && *entry & format.accessed != 0 {
                    *entry &= !format.accessed;
                    young = true;
                }
            }
        }
        self.entries(self.page.level(), &gfns).for_each(|i| self.set_ready(i, 0));
        young
    }

    /// Goes on after a time in another mode. What the host unmapped meanwhile is gone:
    /// [`Nested::host_unmapped`].
    pub fn resume(&mut self) {
        self.ready.fill(0);
    }

    /// Tables of leaf entries: what dropping all of them has to free, within a few.
    pub fn tables(&self) -> u64 {
        let above = usize::from(self.page.level());
        let links = |level: usize| {
            let is_link =
                |e: &&u64| **e & self.format.present != 0 && !self.format.is_leaf(level as u8 + 1, **e);
            self.levels[level].iter().filter(is_link).count() as u64
        };
        (1..=above).map(links).sum()
    }

    /// Handles a violation of `vcpu`: backs the frame and maps it by an entry of the host's page. Returns
    /// that page if the host had to give it. The tables made lie where that vCPU's thread gets memory (Linux
    /// 6.1 `tdp_mmu_alloc_sp` takes a page of `vcpu->arch.mmu_shadow_page_cache`, which the thread filled by
    /// `__get_free_page`). Where the host has to replace the zero page, its MMU notifier makes the fault
    /// stale (Linux 6.1 `is_page_fault_stale`): nothing is mapped, the access faults again.
    pub fn resolve(&mut self, host: &mut HostMemory, v: Violation, vcpu: usize) -> Option<Given> {
        // Also where the host replaces the zero page and the entry stays as it is.
        self.set_ready((v.gpa.0 >> self.page.shift()) as usize, 0);
        let stale = host.backing(v.gpa) == Backing::Zero;
        let backed = host.touch(v.gpa, v.write, vcpu);
        if stale && backed.is_some() {
            return backed;
        }
        let size = host.size_at(v.gpa); // kvm_mmu_max_mapping_level
        self.split |= size != self.page;
        for level in (size.level() + 1..=self.format.depth()).rev() {
            let number = v.gpa.0 >> (12 + 9 * (level - 1));
            let child = base(level - 1) + (number << 12);
            if let Some(makers) = &mut self.makers {
                makers.made(level - 1, number, vcpu);
            }
            self.set(level, v.gpa, child | self.format.present | self.format.write);
        }
        let page = Gpa(v.gpa.0 >> size.shift() << size.shift());
        let large = if size == PageSize::Size4K { 0 } else { self.format.page_size };
        let write = if host.backing(v.gpa) == Backing::Own { self.format.write } else { 0 };
        let bits = self.format.present | self.format.accessed | write | large | self.epoch;
        self.set(size.level(), v.gpa, host.hpa(page).0 | bits);
        let level = usize::from(size.level()) - 1;
        self.used_made[level].resize(self.levels[level].len(), [0; 2]);
        self.used_made[level][(v.gpa.0 >> size.shift()) as usize] = [self.ages.now; 2];
        backed
    }

    /// Maps every frame of the guest's memory, for writes, as if the first vCPU had touched each. No walk has
    /// used the entries.
    pub fn map_all(&mut self, host: &mut HostMemory) {
        let step = 1usize << (self.page.shift() - 12);
        for gfn in (0..host.frames()).step_by(step) {
            let gpa = Gpa::from_frame(gfn);
            self.resolve(host, Violation { gpa, write: true }, 0);
            let Step { level, entry, .. } = self.leaf(gpa);
            self.set(level, gpa, entry & !EPOCH_MASK);
            self.used_made[usize::from(level) - 1][(gpa.0 >> (12 + 9 * (level - 1))) as usize] = [0; 2];
        }
    }

    fn set(&mut self, level: u8, gpa: Gpa, entry: u64) {
        let i = (gpa.0 >> (12 + 9 * (level - 1))) as usize;
        let table = &mut self.levels[usize::from(level) - 1];
        if table.len() <= i {
            table.resize((i + 1).next_multiple_of(512), 0);
        }
        table[i] = entry;
    }
}
