// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shadow paging: the hardware walks tables that the hypervisor composed of the guest's and the
//! host's. KVM's shadow MMU, which composes them, is in [`crate::shadow`].

use super::{Below, Cr4Write, Machine, Outer, PagingMode, Setup, Vm, Walker};
use crate::access::{AccessKind, Flush, Miss, Steady};
use crate::ages::Reuse;
use crate::exit_log::Access;
use crate::guest::GuestTables;
use crate::host::HostMemory;
use crate::memory::{Hardware, Memory};
use crate::profile::ExitCosts;
use crate::shadow::{Fixed, Shadow, World};
use bifold_mmu::{Entry, Gpa, Gva, PageSize, Walk, WalkCache};
use std::ops::Range;

/// Walks that one access may take. Two suffice in all but contrived cases; the bound is
/// against a livelock.
const MOST_WALKS: usize = 8;

/// Shadow paging, and its tables, by a hypervisor on the machine or in a virtual machine itself.
#[derive(Debug)]
pub struct Shadowed<B>(Shadow, B);

/// Shadow paging by a hypervisor on the machine.
pub type ShadowPaging = Shadowed<Machine>;
/// By a hypervisor in a virtual machine, which uses virtualization that the outer hypervisor emulates.
pub type ShadowOnNested = Shadowed<Outer<true>>;
/// By a hypervisor in a virtual machine that needs no virtualization for its guests: they run in its own
/// virtual machine, and exit to it without the outer hypervisor (PVM: Huang et al., SOSP 2023).
pub type Pvm = Shadowed<Outer<false>>;

impl<B: Below> PagingMode for Shadowed<B> {
    fn new(host: &HostMemory, setup: &Setup<'_>) -> Self {
        let frames = host.frames();
        let shadow = Shadow::new(setup.guest.format(), frames, setup.vcpus, setup.kvm);
        Shadowed(shadow, B::new(setup))
    }

    #[inline]
    fn walk<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        miss: &Miss,
        guest: &mut GuestTables,
    ) -> Option<Entry> {
        let format = self.0.format();
        let write = miss.kind.writes();
        // What is ready has no address. Where that is translated below, it is the page's: to read the entry
        // would take as long as all the rest of the walk.
        let page =
            if B::TRANSLATES { cpu.vm.host.hpa(miss.leaf.gpa(miss.gva)).0 & format.address } else { 0 };
        for _ in 0..MOST_WALKS {
            let root = self.0.root(miss.vcpu, miss.gva)?;
            let mut ready = None;
            let read = |level, at| {
                ready = if level == 1 { self.0.ready(at) } else { None };
                ready.map_or_else(|| self.0.spte(at), |entry| entry | page)
            };
            let end = self.1.walk(cpu, (format, root), miss.gva, read, |at| self.0.table(at));
            if let Walk::Leaf(step) = end {
                let writable = step.entry & format.write != 0;
                if writable || !write {
                    if ready.is_none() {
                        self.0.used(step.at);
                    }
                    let size = self.1.size(PageSize::ALL[usize::from(step.level) - 1]);
                    return Some(Entry { size, page: size, writable, global: false });
                }
            }
            let Vm { host, counts } = &mut cpu.vm;
            let fixed =
                counts.tallied(miss.vcpu, miss.gva, |c| self.0.fault(miss.fault(), guest, host, &mut c.now));
            counts.log_exits(|| {
                let fetch = miss.kind == AccessKind::Fetch;
                let present = matches!(end, Walk::Leaf(_));
                Access { gva: miss.gva, gpa: None, write, fetch, present }
            });
            match fixed {
                // KVM flushes before the guest goes on. A walk cache must not keep a table
                // that this very fault has zapped.
                Fixed::Retry if !cpu.tagged || self.0.asks_to_flush(miss.vcpu) => cpu.caches.flush_all(),
                Fixed::Retry => {}
                Fixed::Emulated | Fixed::NotMapped => return None,
            }
        }
        None
    }

    #[inline]
    fn steady(&mut self, _: &WalkCache, miss: &Steady<'_>) -> Option<bool> {
        let writable = self.0.ready_page(miss.vcpu, miss.gva)?;
        (writable || !miss.write).then_some(writable)
    }

    #[inline]
    fn walk_steady<M: Memory>(&mut self, hw: &mut Hardware<'_, M>, miss: &Steady<'_>, host: &HostMemory) {
        let Some(&path) = self.0.path(miss.vcpu, miss.gva) else {
            debug_assert!(false, "a steady walk has a path");
            return;
        };
        let leaf = || Gpa(host.hpa(miss.gpa()).0);
        self.1.walk_steady(hw, miss, |level| path.table(level), leaf, |at| self.0.table(at));
    }

    fn replaced(&self, _: &GuestTables) -> u64 {
        self.0.replaced()
    }

    fn walk_to_fault<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        vcpu: usize,
        gva: Gva,
        _: Gpa,
        _: &GuestTables,
    ) {
        let Some(root) = self.0.root(vcpu, gva) else {
            cpu.begin_walk();
            return;
        };
        self.1.walk(cpu, (self.0.format(), root), gva, |_, at| self.0.spte(at), |at| self.0.table(at));
    }

    /// The fault is reflected into the guest. For a protection fault KVM also drops the
    /// address's shadow entry (`kvm_inject_emulated_page_fault`).
    fn guest_fault(
        &mut self,
        vm: &mut Vm<'_>,
        vcpu: usize,
        gva: Gva,
        error: u64,
        guest: &GuestTables,
    ) -> Option<bool> {
        let present = vm.counts.log.is_some() && self.0.leaf(vcpu, gva).is_some();
        let world = World { guest, host: vm.host };
        let invalidates = self.0.reflect(vcpu, gva, error, world, &mut vm.counts.now);
        vm.counts.now.outer_flushes += u64::from(B::EXITS && invalidates);
        Some(present)
    }

    /// Composed entries are all of the guest dimension, and no flush spares them.
    fn flush_caches(&self, caches: &mut WalkCache) {
        caches.flush_all();
    }

    fn flushes_by_exit(&self) -> bool {
        true
    }

    #[inline]
    fn take_flush(&mut self) -> Flush {
        self.0.take_flush()
    }

    fn initial_cr3(&mut self, vcpu: usize, value: u64, guest: &GuestTables) {
        self.0.set_initial_cr3(vcpu, value, guest);
    }

    fn load_cr3(&mut self, vm: &mut Vm<'_>, vcpu: usize, value: u64, guest: &GuestTables) {
        self.0.load_cr3(vcpu, value, World { guest, host: vm.host }, &mut vm.counts.now);
    }

    fn read_cr3(&mut self, vm: &mut Vm<'_>, vcpu: usize) {
        self.0.read_cr3(vcpu, &mut vm.counts.now);
    }

    fn write_cr4(&mut self, vm: &mut Vm<'_>, vcpu: usize, write: Cr4Write, guest: &GuestTables) {
        if write.exits(false) {
            self.0.write_cr4(
                vcpu,
                write.flushes_global(),
                World { guest, host: vm.host },
                &mut vm.counts.now,
            );
        }
    }

    fn invlpg(&mut self, vm: &mut Vm<'_>, vcpu: usize, gva: Gva, guest: &GuestTables) {
        self.0.invlpg(vcpu, gva, World { guest, host: vm.host }, &mut vm.counts.now);
        // `kvm_mmu_invlpg` flushes the address by INVLPGA or INVVPID.
        vm.counts.now.outer_flushes += u64::from(B::EXITS);
    }

    fn host_unmapped(&mut self, gfns: Range<u64>) -> bool {
        self.0.host_unmapped(gfns)
    }

    fn clear_young(&mut self, gfns: Range<u64>) -> bool {
        self.0.clear_young(gfns)
    }

    fn begin_interval(&mut self) {
        self.0.begin_interval();
    }

    fn reuse(&self) -> Vec<Reuse> {
        self.0.reuse()
    }

    fn use_page(&mut self, vcpu: usize, _: Gpa, gva: Gva, _: &GuestTables) {
        if let Some(step) = self.0.leaf(vcpu, gva) {
            self.0.used(step.at);
        }
    }

    fn cold_exit_cycles(&self, exit: &ExitCosts) -> u64 {
        exit.hidden_fault.cycles
    }

    fn tables(&self) -> u64 {
        self.0.pages() as u64
    }

    fn most_tables(&self) -> u64 {
        self.0.most_used() as u64
    }

    fn reads_host_tables(&self) -> bool {
        B::TRANSLATES
    }

    /// Nothing tracks the guest's stores while the hardware walks its tables.
    fn can_be_kept(&self) -> bool {
        false
    }
}
