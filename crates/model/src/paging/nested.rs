// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nested paging: the hardware walks the guest's tables and the host's (EPT, NPT). Exits are
//! violations, and on AMD also CR4 writes; the tables themselves are in [`crate::nested`].

use super::{Cr4Write, PagingMode, Setup, Vm, Walker};
use crate::access::{AccessKind, Miss, Steady};
use crate::ages::Reuse;
use crate::exit_log::Access;
use crate::guest::GuestTables;
use crate::host::HostMemory;
use crate::memory::{Hardware, Memory};
use crate::nested::Nested;
use crate::page::Made;
use crate::profile::{ExitCosts, Virtualization};
use crate::walk_2d::Violation;
use bifold_mmu::{Entry, Gpa, Gva, WalkCache};
use std::ops::Range;

/// An exit for a frame that the nested tables do not map as needed.
#[cold]
pub(super) fn violate(
    nested: &mut Nested,
    violation: Violation,
    vcpu: usize,
    gva: Gva,
    fetch: bool,
    vm: &mut Vm<'_>,
) {
    let Vm { host, counts } = vm;
    counts.now.exits_violation += 1;
    counts.log_exits(|| {
        let Violation { gpa, write } = violation;
        let present = nested.peek(gpa.frame()) & 1 != 0;
        Access { gva, gpa: Some(gpa), write, fetch, present }
    });
    if let Some(given) = nested.resolve(host, violation, vcpu) {
        counts.now.add_given(given);
    }
}

/// Nested paging, and its tables.
#[derive(Debug)]
pub struct NestedPaging(Nested);

impl NestedPaging {
    /// See [`Nested::tables_made`].
    pub fn tables_made(&self) -> Vec<(u8, Gpa, Made)> {
        self.0.tables_made()
    }
}

impl PagingMode for NestedPaging {
    fn new(host: &HostMemory, setup: &Setup<'_>) -> Self {
        let reads_roots = setup.guest.format().registers && setup.virtualization == Virtualization::Svm;
        NestedPaging(Nested::new(host, setup.nested).that_reads_roots(reads_roots))
    }

    #[inline]
    fn walk<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        miss: &Miss,
        guest: &mut GuestTables,
    ) -> Option<Entry> {
        let write = miss.kind.writes();
        // The guest's translation is known, so its register is there.
        let top = self.0.top(guest, miss.root, miss.gva)?;
        loop {
            let (mut hw, host) = cpu.begin_walk();
            let read = |at| miss.read(guest, at);
            match self.0.over(host).walk_2d(&mut hw, guest.format(), top, (miss.gva, write), read) {
                Ok(_) => {
                    let gpa = miss.leaf.gpa(miss.gva);
                    let entry = miss.guest_entry(guest);
                    return Some(Entry {
                        size: entry.size.min(cpu.vm.host.size_at(gpa)),
                        writable: entry.writable && self.0.writable(gpa),
                        ..entry
                    });
                }
                Err(violation) => {
                    let fetch = miss.kind == AccessKind::Fetch;
                    let Vm { host, counts } = &mut cpu.vm;
                    counts.tallied(miss.vcpu, miss.gva, |counts| {
                        violate(&mut self.0, violation, miss.vcpu, miss.gva, fetch, &mut Vm { host, counts })
                    });
                }
            }
        }
    }

    #[inline]
    fn steady(&mut self, caches: &WalkCache, miss: &Steady<'_>) -> Option<bool> {
        self.0.steady(caches, miss)
    }

    #[inline]
    fn walk_steady<M: Memory>(&mut self, hw: &mut Hardware<'_, M>, miss: &Steady<'_>, host: &HostMemory) {
        self.0.walk_steady(hw, miss, host);
    }

    fn walk_to_fault<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        vcpu: usize,
        gva: Gva,
        root: Gpa,
        guest: &GuestTables,
    ) {
        let Some(top) = self.0.top(guest, root, gva) else {
            cpu.begin_walk();
            return;
        };
        loop {
            let (mut hw, host) = cpu.begin_walk();
            let read = |at| guest.read(Gpa(at));
            match self.0.over(host).walk_2d(&mut hw, guest.format(), top, (gva, false), read) {
                Ok(_) => return,
                Err(violation) => violate(&mut self.0, violation, vcpu, gva, false, &mut cpu.vm),
            }
        }
    }

    /// A table that the nested tables do not map is a violation here as well.
    fn load_registers<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        vcpu: usize,
        root: Gpa,
        guest: &GuestTables,
    ) {
        let at = GuestTables::root_table(root);
        loop {
            let (mut hw, host) = cpu.parts();
            match self.0.load_registers(&mut hw, guest.format(), at, host) {
                Ok(()) => return,
                Err(violation) => violate(&mut self.0, violation, vcpu, Gva(0), false, &mut cpu.vm),
            }
        }
    }

    /// A guest table that the nested tables do not map is a violation for this walk too.
    fn permission_fault(&mut self, vm: &mut Vm<'_>, vcpu: usize, gva: Gva, root: Gpa, guest: &GuestTables) {
        let Some(top) = self.0.top(guest, root, gva) else { return };
        while let Some(violation) = self.0.unmapped_table(guest, top, false, gva) {
            violate(&mut self.0, violation, vcpu, gva, false, vm);
        }
    }

    fn write_cr4(&mut self, vm: &mut Vm<'_>, _: usize, write: Cr4Write, _: &GuestTables) {
        vm.counts.now.exits_cr4_write += u64::from(write.exits(true));
    }

    fn host_unmapped(&mut self, gfns: Range<u64>) -> bool {
        self.0.host_unmapped(gfns)
    }

    fn clear_young(&mut self, gfns: Range<u64>) -> bool {
        self.0.clear_young(gfns)
    }

    fn map_all(&mut self, host: &mut HostMemory) {
        self.0.map_all(host);
    }

    fn begin_interval(&mut self) {
        self.0.begin_interval();
    }

    fn reuse(&self) -> Vec<Reuse> {
        self.0.reuse()
    }

    fn use_page(&mut self, _: usize, root: Gpa, gva: Gva, guest: &GuestTables) {
        if let Some(top) = self.0.top(guest, root, gva) {
            self.0.use_path(guest, top, gva);
        }
    }

    fn cold_exit_cycles(&self, exit: &ExitCosts) -> u64 {
        exit.violation.cycles
    }

    #[inline]
    fn read_ahead(&self, frames: &[u64]) -> u64 {
        frames.iter().fold(0, |seen, &frame| seen ^ self.0.read_ahead(frame))
    }

    #[inline]
    fn reads_host_tables(&self) -> bool {
        true
    }

    fn tables(&self) -> u64 {
        self.0.tables()
    }

    fn first_used(&self) -> [u64; 3] {
        self.0.first_used
    }

    fn can_be_kept(&self) -> bool {
        true
    }

    fn resume(&mut self) {
        self.0.resume();
    }
}
