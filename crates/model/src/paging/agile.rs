// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Agile paging (Gandhi, Hill and Swift, "Agile Paging: Exceeding the Best of Nested and Shadow Paging", ISCA
//! 2016): a walk begins in shadow tables, and where an entry there switches, goes on as a nested walk of the
//! guest's tables below.
//!
//! The switching entry gives the host address of the guest's table of the next level. So a walk in two
//! dimensions of 4 levels each makes 4 references where nothing switches, 8, 12, 16 and 20 where the lowest
//! one, two, three or all four levels are nested, and 24 in an address space that the hypervisor has not
//! shadowed yet: CR3 has a guest address, which is translated first.
//!
//! The shadow tables are [`Shadow`]'s, the nested ones [`Nested`]'s, and both map one host's memory. The
//! policy of the hypervisor is here; what is in nested mode, and the write protection, in `shadow/agile.rs`:
//!
//! - An address space begins in nested mode, as short ones cost least there. At the end of an interval in
//!   which it ran it is shadowed if its nested walks have cost more cycles than its part of all loads of CR3
//!   would have, which exit then, by what it takes to fill its shadow tables: it expects a hidden fault for
//!   every four nested entries that the interval used.
//! - The second write to a shadowed table within an interval moves the subtree below that table to nested
//!   mode, and the table can be written freely.
//! - At the end of an interval, tables in nested mode that were not written within it can be shadowed again,
//!   tables above first, as faults come. One that moved several times has to be left alone for longer, each
//!   time for twice as long.
//! - A shadowed address space goes back to nested mode when its exits have cost more than nested walks would
//!   have, by as much as it took to fill its shadow tables. It is shadowed again when nested walks have cost
//!   as much more. What it goes by doubles with each return. So the cost of changes stays within a multiple
//!   of what the better mode costs, whatever the program does.
//!
//! An interval is one of the timeline. The paper's is 1 s, which is 10 ms at the time scale of 100 of the
//! suite's policies.
//!
//! Shadow entries are never out of date, so INVLPG and flushes by CR4 need no exit. A load of CR3 exits while
//! some address space is shadowed, unless the cache of shadow roots has the value. It flushes what the
//! guest's own load would (type 3 of INVVPID retains global translations, Intel SDM vol. 3C): shadow entries
//! are global where the guest's are, unlike KVM's, and each change to shadow tables flushes all. A guest's
//! page fault exits where its walk ends in the shadow tables.
//!
//! Left out: the hypervisor's own time at an interval's end, which reads the dirty bits of the entries that
//! map the guest's tables; that these bits stand for 2 MB where the host's pages are so large; and the nested
//! entries of 4 KB that a protected table in a page of 2 MB would need. The hardware's own references to a
//! protected table do not count as writes to it.

mod hooks;
mod policy;

use super::nested::violate;
use super::{Setup, Vm, Walker};
use crate::access::Miss;
use crate::exit_log::Access;
use crate::guest::GuestTables;
use crate::host::HostMemory;
use crate::memory::{Hardware, Memory};
use crate::nested::Nested;
use crate::page::Page;
use crate::profile::{AgileStart, ExitCosts};
use crate::shadow::{Rules, Shadow, World};
use crate::walk_2d::{Violation, walk_2d};
use crate::{Profile, Sample};
use bifold_mmu::{Dimension, Entry, Gpa, Gva, Hpa, PageSize, Start, Step, Tag};
use policy::{Moved, Space};
use std::collections::{HashMap, HashSet};

/// Walks that one access may take: each exit brings it an entry further, of 5 levels at most on either side.
/// The bound is against a livelock.
const MOST_WALKS: usize = 64;
/// A vCPU.
#[derive(Debug, Clone, Default)]
struct Vcpu {
    cr3: u64,
    root: Gpa,
    /// Its address space, by number.
    space: usize,
    /// The address space is walked in nested mode.
    nested: bool,
    /// Values of CR3 whose roots the hardware knows, the last used first.
    cached: Vec<u64>,
}

/// Counts the references to nested tables on their way.
struct Counting<'a, M> {
    memory: &'a mut M,
    nested: u64,
}

impl<M: Memory> Memory for Counting<'_, M> {
    #[inline(always)]
    fn touch(&mut self, guest: u8, host: u8, at: impl FnOnce() -> Hpa, page: impl FnOnce() -> Page) -> usize {
        self.nested += u64::from(host > 0);
        self.memory.touch(guest, host, at, page)
    }
}

/// Where a walk ended.
enum End {
    /// In the shadow tables: at this entry, or at one that is not present.
    Shadow(Option<Step>),
    /// In the guest's tables, below an entry that switches.
    Nested,
    /// The nested tables lack an entry.
    Violation(Violation),
}

/// Where the hardware's walk of an address leaves the shadow tables.
enum Part {
    Shadow(Option<Step>),
    /// To the guest's tables from here on. The address of the first is known or not.
    Nested(Start, bool),
}

/// Agile paging, and its tables.
#[derive(Debug)]
pub struct AgilePaging {
    shadow: Shadow,
    nested: Nested,
    vcpus: Vec<Vcpu>,
    /// Number 0 is that of a vCPU which has not loaded CR3.
    spaces: Vec<Space>,
    /// Their numbers, by the frames of their roots.
    numbers: HashMap<u64, usize>,
    /// Numbers that are free.
    free: Vec<usize>,
    /// Some address space was shadowed at the end of the last interval, or has begun so.
    shadowed: bool,
    /// Frames of tables in nested mode, or not used by walks yet, that were written in this interval.
    written: HashSet<u64>,
    /// Tables that writes moved to nested mode.
    moved: HashMap<u64, Moved>,
    start: AgileStart,
    /// Roots that the hardware can know, per vCPU.
    cache: usize,
    /// Cycles of a reference to a nested table, and of exits.
    ref_cycles: f64,
    costs: ExitCosts,
    /// A new interval has begun, and the policy has not acted yet.
    due: bool,
    /// In this interval: loads of CR3, those that exited, and entries that violations have made.
    loads: u64,
    cr3_exits: u64,
    made: u64,
    /// Entries of the nested tables that were used since the policy acted, up to the interval's end.
    young: u64,
    /// The flush to come concerns nested tables as well.
    flushes_nested: bool,
}

impl AgilePaging {
    fn of(host: &HostMemory, setup: &Setup<'_>, profile: &Profile) -> Self {
        let keys = profile.agile;
        let rules = Rules { writes: keys.writes, sets_both: keys.sets_both };
        let shadow = Shadow::new(setup.guest.format(), host.frames(), setup.vcpus, setup.kvm);
        let walk = &profile.walk;
        AgilePaging {
            shadow: shadow.with_subtrees(rules),
            nested: Nested::new(host, setup.nested),
            vcpus: vec![Vcpu::default(); setup.vcpus],
            spaces: vec![Space::default()],
            numbers: HashMap::new(),
            free: Vec::new(),
            shadowed: false,
            written: HashSet::new(),
            moved: HashMap::new(),
            start: keys.start,
            cache: usize::from(keys.cr3_cache),
            ref_cycles: (walk.host_upper + walk.host_leaf) as f64 / 2.0,
            costs: profile.exit.clone(),
            due: false,
            loads: 0,
            cr3_exits: 0,
            made: 0,
            young: 0,
            flushes_nested: false,
        }
    }

    /// Loads of CR3 exit, unless the hardware knows the root: some address space is shadowed.
    fn intercepts(&self) -> bool {
        !self.shadow.counts_writes() || self.shadowed
    }

    /// The number of the address space with the root in this frame, which begins if it was not seen before.
    fn space(&mut self, gfn: u64) -> usize {
        if let Some(&number) = self.numbers.get(&gfn) {
            return number;
        }
        let fresh = self.start == AgileStart::Nested;
        if fresh {
            self.shadow.begin_nested(gfn);
        }
        self.shadowed |= !fresh;
        let number = self.free.pop().unwrap_or_else(|| {
            self.spaces.push(Space::default());
            self.spaces.len() - 1
        });
        self.spaces[number] = Space::new(gfn, fresh);
        self.numbers.insert(gfn, number);
        number
    }

    /// The hypervisor's `work` in an exit of the vCPU, whose cycles are its address space's.
    fn exit<R>(
        &mut self,
        vcpu: usize,
        vm: &mut Vm<'_>,
        work: impl FnOnce(&mut Self, &mut HostMemory, &mut Sample) -> R,
    ) -> R {
        vm.host.note_unmapped(true);
        let mut done = Sample::default();
        let result = work(self, vm.host, &mut done);
        vm.counts.now.add(&done);
        self.cr3_exits += done.exits_cr3_write;
        let own = Sample { exits_cr3_write: 0, ..done.without_given() };
        self.spaces[self.vcpus[vcpu].space].exit_cycles += self.costs.cycles(&own);
        self.tell_nested(vm.host);
        self.refresh();
        result
    }

    /// The nested tables lose what the host unmapped while it backed pages for the shadow tables, which know.
    fn tell_nested(&mut self, host: &mut HostMemory) {
        for gfns in host.take_unmapped().into_iter().flatten() {
            if self.nested.host_unmapped(gfns) {
                self.flushes_nested = true;
                self.shadow.flush_all();
            }
        }
    }

    /// The other way round: it backed pages for the nested tables.
    fn tell_shadow(&mut self, host: &mut HostMemory) {
        for gfns in host.take_unmapped().into_iter().flatten() {
            if self.shadow.host_unmapped(gfns) {
                self.shadow.flush_all();
            }
        }
    }

    /// Notes for each vCPU in which mode its address space is.
    fn refresh(&mut self) {
        for v in &mut self.vcpus {
            v.nested = self.shadow.is_nested(v.root.frame());
        }
    }

    /// The vCPU goes on in the shadow tables of its address space, if it is not there.
    fn load_shadow(&mut self, vcpu: usize, world: World<'_>, out: &mut Sample) {
        let v = &self.vcpus[vcpu];
        if v.space != 0 {
            self.shadow.load_cr3(vcpu, v.cr3, world, out);
        }
    }

    /// The hardware's walk of `gva` in the shadow tables, without references.
    fn part(&self, vcpu: usize, gva: Gva) -> Part {
        let v = &self.vcpus[vcpu];
        let format = self.shadow.format();
        if v.nested {
            return Part::Nested(
                Start { level: format.depth(), table: v.root.0 },
                !self.spaces[v.space].fresh,
            );
        }
        let Some(Start { mut level, mut table }) = self.shadow.root(vcpu, gva) else {
            return Part::Shadow(None);
        };
        loop {
            let at = table | format.index(level, gva.0) << 3;
            let entry = self.shadow.spte(at);
            if entry & format.present == 0 {
                return Part::Shadow(None);
            }
            if let Some(table) = self.shadow.switches_to(at) {
                return Part::Nested(Start { level: level - 1, table: table.0 }, true);
            }
            if format.is_leaf(level, entry) {
                return Part::Shadow(Some(Step { level, at, entry }));
            }
            table = format.target(level, entry);
            level -= 1;
        }
    }

    /// One walk of the hardware. `read` returns the guest's entry at an address.
    fn walk_once<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        (vcpu, gva, write): (usize, Gva, bool),
        guest: &GuestTables,
        read: impl Fn(u64) -> u64,
    ) -> End {
        let format = guest.format();
        let v = &self.vcpus[vcpu];
        let fresh = self.spaces[v.space].fresh;
        cpu.vm.counts.now.walks += 1;
        let memory = &mut Counting { memory: &mut *cpu.memory, nested: 0 };
        let mut hw = Hardware { caches: cpu.caches, memory, refs: &mut cpu.vm.counts.refs };
        let top = match v.nested {
            true => Start { level: format.depth(), table: v.root.0 },
            false => match self.shadow.root(vcpu, gva) {
                Some(top) => top,
                None => return End::Shadow(None),
            },
        };
        let va = format.cached_as(gva.0);
        let mut start = hw.caches.start(Dimension::Guest, va, top);
        let mut known = if start == top { v.nested && !fresh } else { hw.caches.tag() == Tag::Virtual };
        let end = loop {
            if !self.shadow.has_at(start.table) {
                let space = &mut self.nested.over(cpu.vm.host);
                let end = walk_2d(space, &mut hw, format, (start, known), (gva, write), |_, at| read(at));
                break end.map_or_else(End::Violation, |_| End::Nested);
            }
            let level = start.level;
            let at = start.table | format.index(level, gva.0) << 3;
            let held = level > 1 && hw.caches.holds(Dimension::Guest, level, at);
            if !held {
                hw.touch(level, 0, || Hpa(at), || self.shadow.table(at));
            }
            let entry = self.shadow.spte(at);
            if entry & format.present == 0 {
                break End::Shadow(None);
            }
            let switches = self.shadow.switches_to(at);
            if switches.is_none() && format.is_leaf(level, entry) {
                break End::Shadow(Some(Step { level, at, entry }));
            }
            if switches.is_some() {
                self.shadow.used(at);
            }
            let table = switches.map_or_else(|| format.target(level, entry), |table| table.0);
            if !held {
                hw.caches.fill(Dimension::Guest, level, va, at, table);
            }
            (start, known) = (Start { level: level - 1, table }, switches.is_some());
        };
        let nested = hw.memory.nested;
        let space = &mut self.spaces[self.vcpus[vcpu].space];
        space.walks += 1;
        space.nested_refs += nested;
        end
    }

    /// The TLB entry after a walk that ended in the nested part. None if the page is a table that must not be
    /// written.
    fn nested_entry(&self, miss: &Miss, guest: &GuestTables, host: &HostMemory) -> Entry {
        let gpa = miss.leaf.gpa(miss.gva);
        let entry = miss.guest_entry(guest);
        let mut size = entry.size.min(host.size_at(gpa));
        if self.shadow.counts_writes() {
            while size > PageSize::Size4K && self.shadow.is_apart(gpa.frame(), size.level()) {
                size = PageSize::ALL[usize::from(size.level()) - 2];
            }
        }
        let writable = entry.writable && self.nested.writable(gpa) && !self.shadow.is_protected(gpa.frame());
        Entry { size, writable, ..entry }
    }

    /// The nested tables lack an entry. The policy takes each violation for an entry that shadow tables would
    /// need too.
    fn violation(&mut self, vm: &mut Vm<'_>, violation: Violation, (vcpu, gva, fetch): (usize, Gva, bool)) {
        vm.host.note_unmapped(true);
        self.made += 1;
        violate(&mut self.nested, violation, vcpu, gva, fetch, vm);
        self.tell_shadow(vm.host);
    }

    /// [`AgilePaging::violation`] in a walk: its exit is of the access.
    fn violation_in_walk(
        &mut self,
        vm: &mut Vm<'_>,
        violation: Violation,
        (vcpu, gva, fetch): (usize, Gva, bool),
    ) {
        let Vm { host, counts } = vm;
        counts.tallied(vcpu, gva, |counts| {
            self.violation(&mut Vm { host, counts }, violation, (vcpu, gva, fetch));
        });
    }

    /// The guest's page fault came where the shadow tables end. True if the way goes on in nested mode: that
    /// took an exit.
    fn switch_for_fault(&mut self, vm: &mut Vm<'_>, vcpu: usize, gva: Gva, guest: &GuestTables) -> bool {
        let switches = self.exit(vcpu, vm, |agile, host, done| {
            agile.shadow.switches_for_fault(vcpu, gva, guest, host, done)
        });
        if switches {
            vm.counts.log_exits(|| Access { gva, gpa: None, write: false, fetch: false, present: false });
        }
        switches
    }

    /// What must be done before a walk.
    #[inline]
    fn before_walk<M: Memory>(&mut self, cpu: &mut Walker<'_, M>, vcpu: usize, guest: &GuestTables) {
        self.flushes_nested = false;
        if self.due {
            self.decide(guest, cpu.vm.host, &mut cpu.vm.counts.now);
            self.after_exit(cpu, vcpu);
        }
    }

    /// KVM flushes before the guest goes on. A walk cache must not keep a table that this very fault has
    /// zapped.
    fn after_exit<M: Memory>(&self, cpu: &mut Walker<'_, M>, vcpu: usize) {
        // Without tags an exit flushes what goes by the guest's addresses, and no translations of the nested
        // tables alone (Intel SDM vol. 3C, "Operations that invalidate cached mappings").
        if self.flushes_nested {
            cpu.caches.flush_all();
        } else if !cpu.tagged || self.shadow.asks_to_flush(vcpu) {
            cpu.caches.flush_guest();
        }
    }
}
