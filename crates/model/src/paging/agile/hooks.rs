// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What agile paging does on a miss, on the guest's instructions, stores to tables and faults, and at an
//! interval's end.

use super::{AgilePaging, Counting, End, MOST_WALKS, Part};
use crate::access::{AccessKind, Flush, Miss, Steady};
use crate::ages::Reuse;
use crate::exit_log::Access;
use crate::guest::GuestTables;
use crate::host::HostMemory;
use crate::memory::{Hardware, Memory};
use crate::paging::{Cr4Write, PagingMode, Setup, Stored, Vm, Walker, walk_1d_steady};
use crate::profile::ExitCosts;
use crate::shadow::{Fixed, World};
use bifold_mmu::{Entry, Gpa, Gva, PageSize, WalkCache};
use std::ops::Range;

impl PagingMode for AgilePaging {
    fn new(host: &HostMemory, setup: &Setup<'_>) -> Self {
        AgilePaging::of(host, setup, setup.profile)
    }

    // Not inlined, here and below, so that the loops of other modes stay as they are.
    #[inline(never)]
    fn walk<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        miss: &Miss,
        guest: &mut GuestTables,
    ) -> Option<Entry> {
        self.before_walk(cpu, miss.vcpu, guest);
        let write = miss.kind.writes();
        let fetch = miss.kind == AccessKind::Fetch;
        for _ in 0..MOST_WALKS {
            let end = self.walk_once(cpu, (miss.vcpu, miss.gva, write), guest, |at| miss.read(guest, at));
            let present = match end {
                End::Violation(violation) => {
                    self.violation_in_walk(&mut cpu.vm, violation, (miss.vcpu, miss.gva, fetch));
                    self.after_exit(cpu, miss.vcpu);
                    continue;
                }
                End::Nested => {
                    let entry = self.nested_entry(miss, guest, cpu.vm.host);
                    let gpa = miss.leaf.gpa(miss.gva);
                    if !write || !self.shadow.is_protected(gpa.frame()) {
                        return Some(entry);
                    }
                    let Vm { host, counts } = &mut cpu.vm;
                    let emulated = counts.tallied(miss.vcpu, miss.gva, |counts| {
                        self.exit(miss.vcpu, &mut Vm { host, counts }, |agile, host, done| {
                            agile.shadow.nested_write(miss.vcpu, gpa, miss.kind, World { guest, host }, done)
                        })
                    });
                    counts.log_exits(|| Access {
                        gva: miss.gva,
                        gpa: Some(gpa),
                        write,
                        fetch,
                        present: true,
                    });
                    self.after_exit(cpu, miss.vcpu);
                    if emulated {
                        return None;
                    }
                    continue;
                }
                End::Shadow(Some(step)) => {
                    let writable = step.entry & self.shadow.format().write != 0;
                    if writable || !write {
                        self.shadow.used(step.at);
                        let clean = self.shadow.hardware_sets_both() && !miss.guest_entry(guest).writable;
                        let size = PageSize::ALL[usize::from(step.level) - 1];
                        let global = self.shadow.counts_writes() && miss.guest_entry(guest).global;
                        return Some(Entry { size, page: size, writable: writable && !clean, global });
                    }
                    true
                }
                End::Shadow(None) => false,
            };
            let Vm { host, counts } = &mut cpu.vm;
            let fixed = counts.tallied(miss.vcpu, miss.gva, |counts| {
                self.exit(miss.vcpu, &mut Vm { host, counts }, |agile, host, done| {
                    agile.shadow.fault(miss.fault(), guest, host, done)
                })
            });
            counts.log_exits(|| Access { gva: miss.gva, gpa: None, write, fetch, present });
            self.after_exit(cpu, miss.vcpu);
            if fixed != Fixed::Retry {
                return None;
            }
        }
        None
    }

    /// A walk that switches on its way never is.
    #[inline(never)]
    fn steady(&mut self, caches: &WalkCache, miss: &Steady<'_>) -> Option<bool> {
        let v = &self.vcpus[miss.vcpu];
        if self.due || v.nested && !self.spaces[v.space].fresh {
            return None;
        }
        let writable = if v.nested {
            self.nested.steady(caches, miss)? && !self.shadow.is_protected(miss.gpa().frame())
        } else {
            let writable = self.shadow.ready_page(miss.vcpu, miss.gva)?;
            writable && (miss.writable || !self.shadow.hardware_sets_both())
        };
        (writable || !miss.write).then_some(writable)
    }

    #[inline(never)]
    fn walk_steady<M: Memory>(&mut self, hw: &mut Hardware<'_, M>, miss: &Steady<'_>, host: &HostMemory) {
        let v = &self.vcpus[miss.vcpu];
        let space = &mut self.spaces[v.space];
        space.walks += 1;
        if v.nested {
            let memory = &mut Counting { memory: &mut *hw.memory, nested: 0 };
            let hw = &mut Hardware { caches: hw.caches, memory, refs: hw.refs };
            self.nested.walk_steady(hw, miss, host);
            space.nested_refs += hw.memory.nested;
        } else if let Some(&path) = self.shadow.path(miss.vcpu, miss.gva) {
            let page = |at| self.shadow.table(at);
            walk_1d_steady(hw, miss.format, miss.gva, |level| path.table(level), page);
        }
    }

    fn replaced(&self, guest: &GuestTables) -> u64 {
        guest.replaced() + self.shadow.replaced()
    }

    #[inline]
    fn read_ahead(&self, frames: &[u64]) -> u64 {
        frames.iter().fold(0, |seen, &frame| seen ^ self.nested.read_ahead(frame))
    }

    fn walk_to_fault<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        vcpu: usize,
        gva: Gva,
        _: Gpa,
        guest: &GuestTables,
    ) {
        self.before_walk(cpu, vcpu, guest);
        for _ in 0..MOST_WALKS {
            match self.walk_once(cpu, (vcpu, gva, false), guest, |at| guest.read(Gpa(at))) {
                End::Violation(violation) => {
                    self.violation_in_walk(&mut cpu.vm, violation, (vcpu, gva, false));
                    self.after_exit(cpu, vcpu);
                }
                End::Nested => return,
                // The guest's tables may lead to one in nested mode, where the fault comes again.
                End::Shadow(_) => {
                    if !self.switch_for_fault(&mut cpu.vm, vcpu, gva, guest) {
                        return;
                    }
                    self.after_exit(cpu, vcpu);
                }
            }
        }
    }

    /// The hypervisor switches to the nested part where the shadow tables end above it. There, a table that
    /// the nested tables do not map is a violation for this walk too.
    fn permission_fault(&mut self, vm: &mut Vm<'_>, vcpu: usize, gva: Gva, _: Gpa, guest: &GuestTables) {
        loop {
            match self.part(vcpu, gva) {
                Part::Nested(start, known) => {
                    let Some(violation) = self.nested.unmapped_table(guest, start, known, gva) else {
                        return;
                    };
                    self.violation(vm, violation, (vcpu, gva, false));
                }
                Part::Shadow(_) => {
                    if !self.switch_for_fault(vm, vcpu, gva, guest) {
                        return;
                    }
                }
            }
        }
    }

    fn guest_fault(
        &mut self,
        vm: &mut Vm<'_>,
        vcpu: usize,
        gva: Gva,
        error: u64,
        guest: &GuestTables,
    ) -> Option<bool> {
        let Part::Shadow(step) = self.part(vcpu, gva) else { return None };
        self.exit(vcpu, vm, |agile, host, done| {
            agile.shadow.reflect(vcpu, gva, error, World { guest, host }, done);
        });
        Some(step.is_some())
    }

    fn flush_caches(&self, caches: &mut WalkCache) {
        if self.flushes_nested || !self.shadow.counts_writes() {
            caches.flush_all()
        } else {
            caches.flush_guest()
        }
    }

    fn flushes_by_exit(&self) -> bool {
        !self.shadow.counts_writes()
    }

    #[inline]
    fn take_flush(&mut self) -> Flush {
        self.shadow.take_flush()
    }

    fn initial_cr3(&mut self, vcpu: usize, value: u64, guest: &GuestTables) {
        let root = guest.root(vcpu, value);
        let space = self.space(root.frame());
        let v = &mut self.vcpus[vcpu];
        (v.cr3, v.root, v.space) = (value, root, space);
        self.refresh();
        if !self.vcpus[vcpu].nested {
            self.shadow.set_initial_cr3(vcpu, value, guest);
        }
    }

    fn load_cr3(&mut self, vm: &mut Vm<'_>, vcpu: usize, value: u64, guest: &GuestTables) {
        if self.due {
            self.decide(guest, vm.host, &mut vm.counts.now);
        }
        let root = guest.root(vcpu, value);
        let space = self.space(root.frame());
        self.loads += 1;
        let v = &mut self.vcpus[vcpu];
        (v.cr3, v.root, v.space) = (value, root, space);
        self.refresh();
        let intercepts = self.intercepts();
        let v = &mut self.vcpus[vcpu];
        let known = v.cached.iter().position(|&cached| cached == value);
        if intercepts && self.cache > 0 {
            known.map(|i| v.cached.remove(i));
            v.cached.insert(0, value);
            v.cached.truncate(self.cache);
        }
        let known = known.is_some();
        if v.nested {
            if intercepts && !known {
                self.exit(vcpu, vm, |_, _, done| done.exits_cr3_write += 1);
            }
            return;
        }
        self.exit(vcpu, vm, |agile, host, done| {
            agile.load_shadow(vcpu, World { guest, host }, done);
            // The hardware may know a root whose page was zapped meanwhile.
            if known && done.shadow_pages_made == 0 {
                done.exits_cr3_write = 0;
            }
        });
    }

    fn read_cr3(&mut self, vm: &mut Vm<'_>, vcpu: usize) {
        if !self.shadow.counts_writes() {
            self.shadow.read_cr3(vcpu, &mut vm.counts.now);
        }
    }

    fn write_cr4(&mut self, vm: &mut Vm<'_>, vcpu: usize, write: Cr4Write, guest: &GuestTables) {
        if self.shadow.counts_writes() {
            vm.counts.now.exits_cr4_write += u64::from(write.exits(true));
        } else if write.exits(false) {
            let world = World { guest, host: vm.host };
            self.shadow.write_cr4(vcpu, write.flushes_global(), world, &mut vm.counts.now);
        }
    }

    fn invlpg(&mut self, vm: &mut Vm<'_>, vcpu: usize, gva: Gva, guest: &GuestTables) {
        if !self.shadow.counts_writes() {
            self.shadow.invlpg(vcpu, gva, World { guest, host: vm.host }, &mut vm.counts.now);
        }
    }

    fn hears_stores(&self) -> bool {
        self.shadow.counts_writes()
    }

    fn stored(&mut self, _: &mut Vm<'_>, _: usize, store: Stored<'_>, _: &GuestTables) {
        match store {
            Stored::Entry(at) => {
                if !self.shadow.is_protected(at.frame()) {
                    self.written.insert(at.frame());
                }
            }
            Stored::Table(..) => {}
            Stored::Retired(gfn) => {
                if self.vcpus.iter().any(|v| v.root.frame() == gfn) {
                    return; // a root that is still loaded
                }
                self.written.remove(&gfn);
                self.moved.remove(&gfn);
                if let Some(number) = self.numbers.remove(&gfn) {
                    self.spaces[number].root = None;
                    self.free.push(number);
                }
                self.shadow.leave_nested(gfn);
            }
        }
    }

    fn host_unmapped(&mut self, gfns: Range<u64>) -> bool {
        self.shadow.host_unmapped(gfns.clone()) | self.nested.host_unmapped(gfns)
    }

    fn clear_young(&mut self, gfns: Range<u64>) -> bool {
        self.shadow.clear_young(gfns.clone()) | self.nested.clear_young(gfns)
    }

    fn map_all(&mut self, host: &mut HostMemory) {
        self.nested.map_all(host);
    }

    fn begin_interval(&mut self) {
        self.young += self.nested.young() + std::mem::take(&mut self.made);
        self.shadow.begin_interval();
        self.nested.begin_interval();
        self.due = true;
    }

    fn reuse(&self) -> Vec<Reuse> {
        let mut reuse = self.shadow.reuse();
        for more in self.nested.reuse() {
            match reuse.iter_mut().find(|r| (r.last, r.made) == (more.last, more.made)) {
                Some(r) => (r.exits, r.tables) = (r.exits + more.exits, r.tables + more.tables),
                None => reuse.push(more),
            }
        }
        reuse
    }

    fn use_page(&mut self, vcpu: usize, _: Gpa, gva: Gva, guest: &GuestTables) {
        match self.part(vcpu, gva) {
            Part::Shadow(Some(step)) => self.shadow.used(step.at),
            Part::Shadow(None) => {}
            Part::Nested(start, _) => self.nested.use_path(guest, start, gva),
        }
    }

    fn cold_exit_cycles(&self, exit: &ExitCosts) -> u64 {
        exit.hidden_fault.cycles
    }

    #[inline]
    fn reads_host_tables(&self) -> bool {
        true
    }

    fn tables(&self) -> u64 {
        self.shadow.pages() as u64 + self.nested.tables()
    }
}
