// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All events of a guest except accesses: control registers, INVLPG, page faults, stores to page
//! tables.

use super::Model;
use super::groups::places;
use crate::charge::Place;
use crate::memory::Uncached;
use crate::paging::{Cr4Write, Stored};
use crate::regime::Regime;
use crate::timeline::Cut;
use bifold_mmu::{Gpa, Gva, Side};
use bifold_trace::event::{gap, ipi, log_bytes, marker};
use bifold_trace::{DecodeError, Event, decode};

/// The bits of CR4 that make a write load the registers of PAE as a load of CR3 does: PSE, PAE, PGE, SMEP
/// (Intel SDM vol. 3A, 4.4.1; KVM's `X86_CR4_PDPTR_BITS`).
const LOADS_REGISTERS: u64 = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 20;

/// Does a store to a table of this level give a program a page of 2 MB that was free? An entry that was empty
/// maps the page for the program's writes. Linux' do_huge_pmd_anonymous_page() and collapse_huge_page() make
/// such entries; so does move_huge_pmd() of mremap(2), which counts although its page was in use. The zero
/// page and a child's pages after fork(2) are mapped without the right to write, and mprotect(2) leaves no
/// entry empty.
fn first_use(level: u8, old: u64, new: u64) -> bool {
    const PRESENT_WRITE_USER_LARGE: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 7;
    level == 2 && old == 0 && new & PRESENT_WRITE_USER_LARGE == PRESENT_WRITE_USER_LARGE
}

impl Model {
    /// Decodes the event at word `i` of a chunk. Refuses that of a vCPU which the guest does not have.
    pub(super) fn decode<'a>(&self, words: &'a [u64], i: usize) -> Result<(Event<'a>, usize), DecodeError> {
        let (event, n) = decode(&words[i..], self.words + i)?;
        match event {
            Event::Vcpu(vcpu) if vcpu >= self.vcpus.len() as u64 => {
                Err(DecodeError::Vcpu { vcpu, vcpus: self.vcpus.len(), word: self.words + i })
            }
            _ => Ok((event, n)),
        }
    }

    pub(super) fn event(&mut self, event: Event<'_>) {
        let vcpu = self.current;
        match event {
            Event::Insns(n) => self.ran(n, vcpu),
            Event::Vcpu(n) => {
                self.current = n as usize;
                if let Some(uses) = &mut self.observers.uses {
                    uses.turn(self.current);
                }
            }
            Event::Cr3(value) => self.load_cr3(value),
            Event::Cr3Read => {
                for r in &mut self.regimes {
                    r.read_cr3(vcpu);
                }
            }
            Event::Cr4(value) => self.load_cr4(value),
            Event::Invlpg(gva) => self.invlpg(vcpu, Gva(gva)),
            Event::Fault { gva, error } => self.fault(Gva(gva), error),
            Event::Ipi(ipi::SENT) => {
                self.regimes.iter_mut().for_each(Regime::send_ipi);
                self.flush_asked();
                self.vcpus[vcpu].forget();
            }
            Event::Ipi(vector) => self.vcpus[vcpu].called = matches!(vector, ipi::CALL | ipi::CALL_SINGLE),
            Event::PtStore { gpa, new, old } => self.store_entry(gpa, new, old),
            // Tables are in memory; what a damaged stream puts elsewhere reads as not present.
            Event::Table { gfn, level, entries } if gfn < self.frames => {
                self.hear(Stored::Table(gfn, entries));
                self.guest.add(gfn, level, entries);
            }
            Event::Table { .. } => {}
            Event::Retire { gfn } => {
                self.hear(Stored::Retired(gfn));
                self.guest.retire(gfn);
            }
            Event::Check { gva, gpa } => {
                self.walk_checks += 1;
                let ours = self.guest.lookup(self.vcpus[vcpu].root, Gva(gva)).map(|l| l.gpa(Gva(gva)));
                self.walk_mismatches += u64::from(ours != Ok(Gpa(gpa)));
            }
            Event::Resident { gfn, frames } => self.resident.push((gfn, frames)),
            Event::Marker(marker::PROGRAM) => self.begin_program(),
            Event::Marker(_) | Event::Stats(_) | Event::Ticks { .. } => {}
            Event::Transfer { .. } | Event::Free { .. } | Event::Look(_) => self.of_memory(event),
            Event::Gap(gap::REGION) => self.begin_region(),
            Event::Gap(gap::REGION_END) => self.end_region(),
            Event::Gap(code) => self.gap(code),
            Event::Log { stream, number, bytes, data } => {
                if let Some(charges) = &mut self.charges {
                    let running = &mut self.vcpus[vcpu].running;
                    charges.log(stream, number, &log_bytes(data)[..bytes], vcpu, running);
                }
            }
            Event::Call(slot) | Event::Return(slot) => {
                if let Some(charges) = &mut self.charges {
                    let called = matches!(event, Event::Call(_)).then(|| self.vcpus[vcpu].running.code);
                    charges.stack(vcpu, Gva(slot), called);
                }
            }
            // Accesses and blocks are taken in `consume`.
            Event::Load(_)
            | Event::LoadDependent(_)
            | Event::LoadBeforeChain(_)
            | Event::Store(_)
            | Event::StoreOther(_)
            | Event::Fetch(_)
            | Event::Block(_) => {}
        }
        if let Some(charges) = &mut self.charges {
            let data = match event {
                Event::Cr3(_) | Event::Cr3Read | Event::Cr4(_) | Event::Ipi(ipi::SENT) => None,
                Event::Invlpg(gva) | Event::Fault { gva, .. } => Some(Gva(gva)),
                _ => return,
            };
            let running = &mut self.vcpus[vcpu].running;
            let place = Place { vcpu, code: running.code, data, size: None };
            charges.charge(&self.regimes, self.observers.caches.as_deref(), place, true, running);
            // Only now: the exit that delivers the fault is charged to the code that faulted.
            if let Event::Fault { gva, error } = event {
                running.fault(Gva(gva), error);
            }
        }
    }

    #[inline]
    fn ran(&mut self, n: u64, vcpu: usize) {
        self.common.instructions += n;
        if !self.between_regions() {
            self.vcpus[vcpu].instructions += n;
        }
        if let Some(caches) = &mut self.observers.caches {
            caches.ran(n, self.common.accesses);
        }
        if let Some(uses) = &mut self.observers.uses {
            uses.ran(self.common.instructions);
        }
        for log in self.regimes.iter_mut().filter_map(|r| r.counts.log.as_mut()) {
            log.instructions = self.common.instructions;
        }
        let ideal = self.ideal_cycles();
        // A sampled stream has no timeline: its intervals would hold windows by chance.
        if self.timeline.due(ideal) && self.sampled.is_none() && !self.between_regions() {
            self.cut(ideal, Cut::Due);
        }
        if self.limit.is_some() {
            self.keep_limit();
        }
    }

    fn invlpg(&mut self, vcpu: usize, gva: Gva) {
        self.flushed_for_another();
        self.invalidate(vcpu, gva);
        for regime in &mut self.regimes {
            regime.flush_caches(vcpu, &self.guest);
            regime.invlpg(vcpu, gva, &self.guest);
        }
        self.flush_asked();
        self.vcpus[vcpu].forget();
    }

    #[inline]
    fn store_entry(&mut self, gpa: u64, new: u64, old: u64) {
        // The waits of a sampled stream are those of windows, which stand for the rest; this event is
        // seen everywhere.
        if let (Some(caches), None) = (&mut self.observers.caches, &self.sampled) {
            let level = self.guest.level(gpa >> 12).filter(|_| self.guest.format().entry_shift == 3);
            if level.is_some_and(|level| first_use(level, old, new)) {
                caches.first_use();
            }
        }
        self.hear(Stored::Entry(Gpa(gpa)));
        self.guest.store_word(Gpa(gpa), old, new);
        if self.pcid && old & 1 != 0 {
            let owner = self.guest.owner(gpa >> 12);
            for v in &mut self.vcpus {
                v.spaces.changed(owner, v.root);
            }
        }
    }

    /// Configurations hear of a store to a table, if they have to. Not of the tables that there are when the
    /// guest starts.
    #[inline]
    fn hear(&mut self, store: Stored<'_>) {
        if self.hears_stores && self.vcpus[self.current].started {
            for regime in self.regimes.iter_mut().filter(|r| r.hears_stores()) {
                regime.stored(self.current, store, &self.guest);
            }
            self.flush_asked();
        }
    }

    /// The vCPU flushes. Within a function call of another vCPU, the flush is that one's: a shootdown, once
    /// for a call. Ends at the vCPU's next fault, interrupt or switch of address spaces, so that its own
    /// flushes count for none.
    fn flushed_for_another(&mut self) {
        self.common.tlb_shootdowns += u64::from(std::mem::take(&mut self.vcpus[self.current].called));
    }

    fn load_cr3(&mut self, value: u64) {
        let vcpu = self.current;
        let root = self.guest.root(vcpu, value);
        if self.vcpus[vcpu].root == root {
            self.flushed_for_another();
        }
        self.vcpus[vcpu].called = false;
        self.hold_resident();
        let v = &mut self.vcpus[vcpu];
        let first = !std::mem::replace(&mut v.started, true);
        if !first {
            self.common.cr3_load_cycles += self.profile.cpu.cr3_load_cycles.unwrap_or(0);
        }
        let same = v.root == root;
        v.root = root;
        self.guest.load_registers(vcpu, root);
        let space = v.spaces.load(root, same);
        if space.is_some() {
            // Entries of this address space may come back, and the filter files by page only.
            for (side, filter) in [Side::Data, Side::Code].into_iter().zip(&mut v.filters) {
                for (page, last) in filter.drain() {
                    for group in &mut self.groups {
                        group.tlbs[vcpu].used_at(side, page, last);
                    }
                }
            }
        }
        v.forget();
        for regime in &mut self.regimes {
            regime.root_changes(vcpu, first, &self.guest);
            regime.load_cr3(vcpu, value, first, &self.guest);
        }
        if !first {
            self.read_registers(vcpu, root);
        }
        self.flush_asked();
        if first {
            self.groups.iter_mut().for_each(|g| g.tlbs[vcpu].set_space(space.map_or(0, |s| s.number)));
            return;
        }
        for group in &mut self.groups {
            let of = group.mask(|r| !self.regimes[r].flushes_by_exit());
            let tlb = &mut group.tlbs[vcpu];
            // With PCIDs, all members follow the guest's address spaces or none. A VM that does not now may
            // later.
            if let Some(s) = space {
                tlb.set_space(s.number);
            }
            if of == 0 {
                continue;
            }
            match space {
                None => tlb.flush_non_global(of),
                Some(s) if s.flush => tlb.flush_space(s.number),
                Some(_) => {}
            }
            for place in places(of) {
                let regime = &mut self.regimes[group.members[place]];
                regime.counts.now.tlb_flushes += u64::from(space.is_none_or(|s| s.flush));
                // Walk caches are not filed by address space here, so every switch empties them.
                regime.flush_caches(vcpu, &self.guest);
            }
        }
    }

    /// The vCPU's TLBs drop the page around `gva`, both pieces of one of 4 MB. Under shadow paging a TLB
    /// knows no page of the guest's, and KVM flushes the address alone (`vmx_flush_tlb_gva`,
    /// `svm_flush_tlb_gva`).
    fn invalidate(&mut self, vcpu: usize, gva: Gva) {
        self.groups.iter_mut().for_each(|group| group.tlbs[vcpu].invalidate(gva));
        let Some(other) = self.guest.format().other_piece(gva.0) else { return };
        for group in &mut self.groups {
            let of = group.mask(|r| !self.regimes[r].flushes_by_exit());
            group.tlbs[vcpu].invalidate_large(Gva(other), of);
        }
    }

    /// What the guest's registers were loaded from is read in every configuration.
    fn read_registers(&mut self, vcpu: usize, root: Gpa) {
        if !self.guest.format().registers {
            return;
        }
        for (i, regime) in self.regimes.iter_mut().enumerate() {
            if self.observers.any() {
                // Nothing overlaps with a serializing instruction.
                let memory = &mut self.observers.memory(i, vcpu, 1);
                regime.load_registers(vcpu, root, &self.guest, memory);
            } else {
                regime.load_registers(vcpu, root, &self.guest, &mut Uncached);
            }
        }
        self.observers.backed();
    }

    fn load_cr4(&mut self, value: u64) {
        let vcpu = self.current;
        self.flushed_for_another();
        let Some(old) = self.vcpus[vcpu].cr4.replace(value) else { return };
        let write = Cr4Write { old, new: value, virtualization: self.profile.cpu.virtualization };
        let flush = write.flushes_global();
        let root = self.vcpus[vcpu].root;
        let loads = (old ^ value) & LOADS_REGISTERS != 0;
        if loads {
            self.guest.load_registers(vcpu, root);
        }
        for regime in &mut self.regimes {
            regime.write_cr4(vcpu, write, &self.guest);
        }
        if loads {
            self.read_registers(vcpu, root);
        }
        self.flush_asked();
        for group in &mut self.groups {
            let of = group.mask(|r| flush && !self.regimes[r].flushes_by_exit());
            group.tlbs[vcpu].flush_all(of);
            for place in places(of) {
                let regime = &mut self.regimes[group.members[place]];
                regime.flush_caches(vcpu, &self.guest);
                regime.counts.now.tlb_flushes += 1;
            }
        }
        self.vcpus[vcpu].forget();
    }

    fn fault(&mut self, gva: Gva, error: u64) {
        let vcpu = self.current;
        let root = self.vcpus[vcpu].root;
        self.vcpus[vcpu].called = false;
        self.common.guest_page_faults += 1;
        self.note_fault(vcpu, gva);
        for (i, regime) in self.regimes.iter_mut().enumerate() {
            if self.observers.any() {
                // The core waits for the fault, and so for its walk.
                let memory = &mut self.observers.memory(i, vcpu, 1);
                regime.guest_fault(vcpu, (gva, error), root, &self.guest, memory);
            } else {
                regime.guest_fault(vcpu, (gva, error), root, &self.guest, &mut Uncached);
            }
        }
        // Its walk may have had tables backed.
        self.observers.backed();
        self.flush_asked();
        // A page fault drops the entries of its address (Intel SDM vol. 3A 4.10.4.1).
        self.invalidate(vcpu, gva);
        self.vcpus[vcpu].forget();
    }
}
