// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nested paging for a guest whose hypervisor runs in a virtual machine under nested paging itself (the
//! Turtles project, Ben-Yehuda et al., OSDI 2010; KVM's nested NPT and EPT).
//!
//! There are three translations: the guest's own, the inner hypervisor's nested tables, and the outer one's.
//! The processor walks two at most, so the outer hypervisor composes the two nested ones, and the hardware
//! walks the guest's tables over the composed ones. The inner hypervisor's tables are shadowed for that, by
//! the same [`Shadow`] as a guest's tables under shadow paging.
//!
//! An access that the composed tables do not map exits to the outer hypervisor. If the inner one's tables map
//! the address, the outer hypervisor fills the composed entry. If not, the exit is passed on to the inner
//! hypervisor, which maps the page: its stores to tables that are shadowed exit, and so does its entry into
//! the guest. Then the access exits once more, to be filled.
//!
//! The outer hypervisor has backed the memory of the inner one when the guest comes to it (see
//! [`below`](super::below)).

mod inner;

use super::{Cr4Write, PagingMode, Setup, Vm, Walker};
use crate::Sample;
use crate::access::{AccessKind, Fault, Flush, Miss, Steady};
use crate::counts::Counts;
use crate::exit_log::Access;
use crate::guest::GuestTables;
use crate::host::{Backing, HostMemory};
use crate::memory::{Hardware, Memory};
use crate::page::Page;
use crate::profile::{ExitCosts, Virtualization};
use crate::shadow::{DirectStore, Fixed, Shadow, World};
use crate::walk_2d::{
    self, NestedSpace, Violation, tables_are_steady, walk_2d, walk_2d_steady, walk_host, walk_host_steady,
};
use bifold_mmu::{Entry, Gpa, Gva, Hpa, PageSize, Walk, WalkCache, walk};
use inner::{ACCESSED, InnerTables};
use std::ops::Range;

/// Exits that an access may take. Five suffice in all but contrived cases; the bound is against a livelock.
const MOST_EXITS: usize = 16;

/// Nested paging under an inner hypervisor under nested paging, and the tables of both.
#[derive(Debug)]
pub struct NestedOnNested {
    inner: InnerTables,
    composed: Shadow,
    /// The outer hypervisor's memory behind the inner one's.
    memory: HostMemory,
    /// By the inner hypervisor's tables, from its root's frame on: its own mapping of the table is
    /// write-protected, because the table was shadowed when the mapping was last looked at.
    protected: Vec<bool>,
    syncs_at_entry: bool,
    /// Per vCPU: how often composed tables had been [replaced](Shadow::replaced) when its walk caches were
    /// emptied last; none if they have to be emptied, since they may hold composed entries that are gone.
    clean: Vec<Option<u64>>,
    /// The flushes of TLBs that the outer hypervisor has asked for.
    asked: Flush,
    /// What the inner hypervisor did between the guest's own events, to be counted with the next one.
    pending: Option<Box<Sample>>,
}

/// The composed tables as the second dimension of a walk.
struct Composed<'a> {
    tables: &'a mut Shadow,
    vcpu: usize,
    memory: &'a HostMemory,
    /// The size of the page that was translated last.
    size: PageSize,
    writable: bool,
}

/// The number under which the nested TLB files the page behind `gpa`.
fn nested_page(gpa: Gpa, size: PageSize) -> u64 {
    gpa.0 >> size.shift() | u64::from(size.level()) << 48
}

impl NestedSpace for Composed<'_> {
    fn translate<M: Memory>(
        &mut self,
        hw: &mut Hardware<'_, M>,
        gpa: Gpa,
        write: bool,
        guest: u8,
    ) -> Result<(), Violation> {
        let format = self.tables.format();
        let violation = Violation { gpa, write };
        let root = self.tables.root(self.vcpu, Gva(gpa.0)).ok_or(violation)?;
        // What the nested TLB and the TLB hold of the page: its size and rights, which the entry has.
        let (size, writable) =
            self.tables.mapping(self.vcpu, Gva(gpa.0)).unwrap_or((PageSize::Size4K, false));
        (self.size, self.writable) = (size, writable);
        let page = nested_page(gpa, size);
        if hw.caches.nested_lookup(page, write) {
            return Ok(());
        }
        let tables = &*self.tables;
        let end =
            walk_host(hw, format, root, (gpa, guest), |_, at| tables.spte(at), |_, at| tables.table(at));
        match end {
            Walk::Leaf(step) if !write || step.entry & format.write != 0 => {
                self.tables.used(step.at);
                hw.caches.nested_fill(page, write, writable);
                Ok(())
            }
            _ => Err(violation),
        }
    }

    fn translate_steady<M: Memory>(&mut self, hw: &mut Hardware<'_, M>, gpa: Gpa, write: bool, guest: u8) {
        let at = Gva(gpa.0);
        let writable = write || self.tables.ready_page(self.vcpu, at) == Some(true);
        if hw.caches.nested_step(nested_page(gpa, PageSize::Size4K), write, writable) {
            return;
        }
        let Some(&path) = self.tables.path(self.vcpu, at) else {
            debug_assert!(false, "a steady walk has a path");
            return;
        };
        let (levels, page) = ((1, self.tables.format().depth()), |_, at| self.tables.table(at));
        walk_host_steady(hw, levels, gpa, guest, |level| path.table(level), page);
    }

    fn hpa(&self, gpa: Gpa) -> Hpa {
        self.memory.hpa(gpa)
    }

    fn page(&self, gpa: Gpa) -> Page {
        self.memory.page(gpa)
    }

    fn level_at(&self, gpa: Gpa) -> u8 {
        self.tables.mapping(self.vcpu, Gva(gpa.0)).map_or(1, |(size, _)| size.level())
    }
}

impl NestedOnNested {
    /// The composed tables of a vCPU for one walk.
    fn space(&mut self, vcpu: usize) -> Composed<'_> {
        let NestedOnNested { composed, memory, .. } = self;
        Composed { tables: composed, vcpu, memory, size: PageSize::Size4K, writable: false }
    }

    /// The outer hypervisor handles a violation of the composed tables, or passes the exit on.
    fn violate(&mut self, violation: Violation, vcpu: usize, gva: Gva, fetch: bool, vm: &mut Vm<'_>) {
        let Violation { gpa, write } = violation;
        if self.inner.maps(gpa, write) {
            let kind = if write { AccessKind::Write } else { AccessKind::Read };
            let mut work = Sample::default();
            let fault = Fault { vcpu, gva: Gva(gpa.0), kind };
            let fixed = self.composed.fault(fault, &mut self.inner.tables, &mut self.memory, &mut work);
            debug_assert!(fixed == Fixed::Retry, "no table of the inner hypervisor's is its guest's memory");
            // Of a table that was not shadowed, TLBs of all vCPUs may hold the inner hypervisor's mapping for
            // writing (__kvm_mmu_get_shadow_page).
            if self.note_protected(gpa) && work.shadow_pages_made > 0 {
                self.composed.flush_all();
            }
            vm.counts.now.outer_fills += 1;
            add_work(&mut vm.counts.now, &work);
            return;
        }
        vm.counts.now.exits_violation += 1;
        let present = self.inner.leaf(gpa).is_some();
        vm.counts.log_exits(|| Access { gva, gpa: Some(gpa), write, fetch, present });
        self.map_inside(violation, vcpu, vm);
        self.enter(vcpu, &mut vm.counts.now);
    }

    /// The inner hypervisor backs and maps the page, as [`Nested::resolve`](crate::nested::Nested::resolve)
    /// does.
    fn map_inside(&mut self, Violation { gpa, write }: Violation, vcpu: usize, vm: &mut Vm<'_>) {
        let Vm { host, counts } = vm;
        let stale = host.backing(gpa) == Backing::Zero;
        let backed = host.touch(gpa, write, vcpu);
        backed.iter().for_each(|given| counts.now.add_given(*given));
        if stale && backed.is_some() {
            // The notifier of the host's MMU drops the zero page, and the fault is stale.
            let frame = gpa.frame();
            self.unmap(frame..frame + 1, &mut counts.now);
            return;
        }
        let (size, writable) = (host.size_at(gpa), host.backing(gpa) == Backing::Own);
        // Stores to a new table do not exit, as it is not shadowed yet.
        for at in self.inner.map(gpa, size, writable) {
            self.stored(at, &mut counts.now);
        }
    }

    /// The inner hypervisor has stored an entry of its tables.
    fn stored(&mut self, at: Gpa, out: &mut Sample) {
        let gfn = at.frame();
        let mut work = Sample::default();
        let world = World { guest: &self.inner.tables, host: &self.memory };
        let exits = match self.composed.direct_store(gfn, at.0 as usize & 0xfff, world, &mut work) {
            Some(DirectStore::Emulated) => true,
            // The entry by which the inner hypervisor writes the table is writable from now on.
            Some(DirectStore::Unsynced) => {
                self.unprotect(gfn);
                true
            }
            None => self.unprotect(gfn),
        };
        out.outer_stores += u64::from(exits);
        add_work(out, &work);
    }

    /// The tables on the way to `gpa` are shadowed now, and so write-protected. True if one was not known to
    /// be.
    fn note_protected(&mut self, gpa: Gpa) -> bool {
        let mut any = false;
        for level in 1..=self.inner.format().depth() {
            let table = self.inner.entry_at(level, gpa).map(Gpa::frame);
            if let Some(gfn) = table.filter(|gfn| self.composed.protects(*gfn)) {
                let i = (gfn - self.inner.root) as usize;
                self.protected.resize(self.protected.len().max(i + 1), false);
                any |= !std::mem::replace(&mut self.protected[i], true);
            }
        }
        any
    }

    /// The inner hypervisor's own mapping of its table lets writes through from now on. True if it did not.
    fn unprotect(&mut self, gfn: u64) -> bool {
        self.protected.get_mut((gfn - self.inner.root) as usize).is_some_and(std::mem::take)
    }

    /// After the outer hypervisor's flushes no walk cache is [clean](NestedOnNested::clean) at once, and
    /// flushes of TLBs come when they are asked for.
    fn note_flush(&mut self) {
        let flush = self.composed.take_flush();
        match flush {
            Flush::None => return,
            Flush::Vcpu(vcpu) => self.clean[usize::from(vcpu)] = None,
            Flush::All => self.clean.fill(None),
        }
        self.asked = if self.asked == Flush::None || self.asked == flush { flush } else { Flush::All };
    }

    /// A flush that the outer hypervisor asked for reaches the walk caches, which
    /// [`PagingMode::flush_caches`] empties of the guest's entries alone.
    fn drop_stale(&mut self, vcpu: usize, caches: &mut WalkCache) {
        if self.clean[vcpu].is_none() {
            caches.flush_all();
            self.clean[vcpu] = Some(self.composed.replaced());
        }
    }

    /// Composed entries that are gone must not stay in walk caches.
    fn after_exit<M>(&mut self, vcpu: usize, cpu: &mut Walker<'_, M>) {
        self.note_flush();
        if !cpu.tagged {
            self.clean[vcpu] = None;
        }
        self.drop_stale(vcpu, cpu.caches);
    }

    /// The inner hypervisor enters its guest again.
    fn enter(&mut self, vcpu: usize, out: &mut Sample) {
        if self.syncs_at_entry {
            self.sync(vcpu, out);
        }
    }

    fn sync(&mut self, vcpu: usize, out: &mut Sample) {
        let mut work = Sample::default();
        let world = World { guest: &self.inner.tables, host: &self.memory };
        self.composed.sync_nested(vcpu, world, &mut work);
        add_work(out, &work);
    }

    /// The inner hypervisor's entries for these frames go. True if there were any.
    fn unmap(&mut self, gfns: Range<u64>, out: &mut Sample) -> bool {
        let (mut any, mut gfn) = (false, gfns.start);
        while gfn < gfns.end {
            let gpa = Gpa::from_frame(gfn);
            let leaf = self.inner.leaf(gpa);
            let frames = leaf.map_or(1, |(level, _)| 1 << (9 * (level - 1)));
            gfn = (gfn & !(frames - 1)) + frames;
            let Some((level, _)) = leaf else { continue };
            any = true;
            if let Some(at) = self.inner.set(level, gpa, 0) {
                self.stored(at, out);
            }
        }
        if any && !self.syncs_at_entry {
            out.outer_flushes += 1; // INVEPT
        }
        if any {
            (0..self.composed.vcpus()).for_each(|vcpu| self.sync(vcpu, out));
        }
        any
    }
}

/// The outer hypervisor's work on shadow pages counts as that of shadow paging.
fn add_work(out: &mut Sample, work: &Sample) {
    out.shadow_pages_made += work.shadow_pages_made;
    out.shadow_pages_zapped += work.shadow_pages_zapped;
    out.syncs += work.syncs;
}

impl PagingMode for NestedOnNested {
    fn new(host: &HostMemory, setup: &Setup<'_>) -> Self {
        let inner = InnerTables::new(setup.nested, host.frames());
        let frames = inner.all_frames(host.frames());
        let mut memory = setup.host(setup.outer_page, frames, 0);
        memory.hold(0, frames);
        let mut composed = Shadow::new(setup.nested, frames, setup.vcpus, setup.kvm);
        for vcpu in 0..setup.vcpus {
            composed.set_initial_cr3(vcpu, inner.root << 12, &inner.tables);
        }
        composed.take_flush(); // nothing is cached yet
        let protected = vec![true]; // the root
        let syncs_at_entry = setup.virtualization == Virtualization::Svm;
        let clean = vec![Some(composed.replaced()); setup.vcpus];
        NestedOnNested {
            inner,
            composed,
            memory,
            protected,
            syncs_at_entry,
            clean,
            asked: Flush::None,
            pending: None,
        }
    }

    fn walk<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        miss: &Miss,
        guest: &mut GuestTables,
    ) -> Option<Entry> {
        if let Some(pending) = self.pending.take() {
            cpu.vm.counts.now.add(&pending);
        }
        let write = miss.kind.writes();
        let Ok(top) = guest.start(miss.root, miss.gva) else { return None };
        self.drop_stale(miss.vcpu, cpu.caches);
        for _ in 0..MOST_EXITS {
            let (mut hw, _) = cpu.begin_walk();
            let mut space = self.space(miss.vcpu);
            let first = walk_2d::first(hw.caches, guest.format(), top, miss.gva);
            let read = |_, at| miss.read(guest, at);
            match walk_2d(&mut space, &mut hw, guest.format(), first, (miss.gva, write), read) {
                Ok(_) => {
                    let (size, writable) = (space.size, space.writable);
                    let entry = miss.guest_entry(guest);
                    let size = entry.size.min(size);
                    return Some(Entry { size, writable: entry.writable && writable, ..entry });
                }
                Err(violation) => {
                    let fetch = miss.kind == AccessKind::Fetch;
                    let Vm { host, counts } = &mut cpu.vm;
                    counts.tallied(miss.vcpu, miss.gva, |counts| {
                        self.violate(violation, miss.vcpu, miss.gva, fetch, &mut Vm { host, counts })
                    });
                    self.after_exit(miss.vcpu, cpu);
                }
            }
        }
        None
    }

    /// Only over composed entries of 4 KB.
    fn steady(&mut self, caches: &WalkCache, miss: &Steady<'_>) -> Option<bool> {
        if self.pending.is_some() || self.clean[miss.vcpu] != Some(self.composed.replaced()) {
            return None;
        }
        let writable = self.composed.ready_page(miss.vcpu, Gva(miss.gpa().0))?;
        if miss.write && !writable {
            return None;
        }
        let is_ready = |level| self.composed.ready_page(miss.vcpu, Gva(miss.path.table(level))) == Some(true);
        tables_are_steady(caches, miss, is_ready).then_some(miss.writable && writable)
    }

    fn walk_steady<M: Memory>(&mut self, hw: &mut Hardware<'_, M>, miss: &Steady<'_>, _: &HostMemory) {
        let page = (miss.gpa(), miss.write);
        let space = &mut self.space(miss.vcpu);
        walk_2d_steady(space, hw, miss.format, miss.gva, |level| miss.path.table(level), page);
    }

    fn walk_to_fault<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        vcpu: usize,
        gva: Gva,
        root: Gpa,
        guest: &GuestTables,
    ) {
        let Ok(top) = guest.start(root, gva) else {
            cpu.begin_walk();
            return;
        };
        self.drop_stale(vcpu, cpu.caches);
        for _ in 0..MOST_EXITS {
            let (mut hw, _) = cpu.begin_walk();
            let mut space = self.space(vcpu);
            let first = walk_2d::first(hw.caches, guest.format(), top, gva);
            let read = |_, at| guest.read(Gpa(at));
            match walk_2d(&mut space, &mut hw, guest.format(), first, (gva, false), read) {
                Ok(_) => return,
                Err(violation) => {
                    self.violate(violation, vcpu, gva, false, &mut cpu.vm);
                    self.after_exit(vcpu, cpu);
                }
            }
        }
    }

    fn permission_fault(&mut self, vm: &mut Vm<'_>, vcpu: usize, gva: Gva, root: Gpa, guest: &GuestTables) {
        for _ in 0..MOST_EXITS {
            let Ok(start) = guest.start(root, gva) else { return };
            let end =
                walk(guest.format(), start, gva.0, |_, at| match self.composed.mapping(vcpu, Gva(at)) {
                    Some((_, true)) => Ok(guest.read(Gpa(at))),
                    _ => Err(Violation { gpa: Gpa(at), write: true }),
                });
            let Err(violation) = end else { return };
            self.violate(violation, vcpu, gva, false, vm);
        }
    }

    fn take_flush(&mut self) -> Flush {
        self.note_flush();
        std::mem::take(&mut self.asked)
    }

    /// The inner hypervisor intercepts the write.
    fn write_cr4(&mut self, vm: &mut Vm<'_>, vcpu: usize, write: Cr4Write, _: &GuestTables) {
        if write.exits(true) {
            vm.counts.now.exits_cr4_write += 1;
            self.enter(vcpu, &mut vm.counts.now);
        }
    }

    fn host_unmapped(&mut self, gfns: Range<u64>) -> bool {
        self.note_flush();
        let mut pending = self.pending.take().unwrap_or_default();
        let any = self.unmap(gfns, &mut pending);
        self.pending = Some(pending);
        self.composed.take_flush(); // the caller flushes all
        any
    }

    /// The inner hypervisor clears the bits in its tables, which drops the composed entries.
    fn clear_young(&mut self, gfns: Range<u64>) -> bool {
        self.note_flush();
        let mut pending = self.pending.take().unwrap_or_default();
        let mut young = false;
        for gfn in gfns {
            let Some((level, at)) = self.inner.leaf(Gpa::from_frame(gfn)) else { continue };
            let entry = self.inner.tables.read(at);
            if entry & ACCESSED != 0 {
                young = true;
                if let Some(at) = self.inner.set(level, Gpa::from_frame(gfn), entry & !ACCESSED) {
                    self.stored(at, &mut pending);
                }
            }
        }
        if young {
            (0..self.composed.vcpus()).for_each(|vcpu| self.sync(vcpu, &mut pending));
        }
        self.pending = Some(pending);
        self.composed.take_flush(); // the caller flushes all
        young
    }

    fn begin_interval(&mut self) {
        self.composed.begin_interval();
    }

    fn cold_exit_cycles(&self, exit: &ExitCosts) -> u64 {
        exit.violation.cycles
    }

    fn reads_host_tables(&self) -> bool {
        true
    }

    fn hpa(&self, _: &HostMemory, gpa: Gpa) -> Hpa {
        self.memory.hpa(gpa)
    }

    fn tables(&self) -> u64 {
        self.composed.pages() as u64
    }

    fn most_tables(&self) -> u64 {
        self.inner.made()
    }

    /// The inner hypervisor has mapped all memory, and the outer one has composed entries of all that.
    fn map_all(&mut self, host: &mut HostMemory) {
        let mut uncounted = Counts::default();
        let step = 1usize << (host.page_size().min(self.memory.page_size()).shift() - 12);
        for gfn in (0..host.frames()).step_by(step) {
            let violation = Violation { gpa: Gpa::from_frame(gfn), write: true };
            for _ in 0..MOST_EXITS {
                if self.composed.mapping(0, Gva(violation.gpa.0)).is_some_and(|(_, writable)| writable) {
                    break;
                }
                self.violate(violation, 0, Gva(0), false, &mut Vm { host, counts: &mut uncounted });
            }
        }
        self.composed.take_flush(); // nothing is cached yet
        self.clean.fill(Some(self.composed.replaced()));
    }
}
