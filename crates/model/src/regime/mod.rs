// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One configuration at work: its tables, its walk caches per vCPU, and its counts.
//!
//! All modes share one pipeline: a TLB miss comes here, the mode's tables are walked, and the
//! walk ends with the TLB entry to fill. What differs between modes is behind the hooks of
//! [`PagingMode`].

mod instructions;
#[cfg(test)]
mod tests;

use crate::access::{Flush, Miss, Steady};
use crate::ages::Reuse;
use crate::counts::Counts;
use crate::guest::GuestTables;
use crate::host::{Backing, HostMemory, Taking};
use crate::memory::{Hardware, Memory};
use crate::page::{Made, Page};
use crate::paging::{PagingMode, Setup, Tables, Vm, Walker, each_mode, usual_mode};
use crate::profile::ExitCosts;
use crate::{Config, Paging, Profile, Sample, VmState};
use bifold_mmu::{Entry, Gpa, Gva, Hpa, PageSize, WalkCache};
use std::ops::Range;

/// One configuration: tables, walk caches per vCPU, counts.
#[derive(Debug)]
pub struct Regime {
    /// The configuration.
    pub config: Config,
    host: HostMemory,
    tables: Tables,
    caches: Vec<WalkCache>,
    /// Counts since the start.
    pub counts: Counts,
    /// TLB entries survive exits.
    tagged: bool,
    /// No TLB entry survives an exit to the hypervisor of the guest.
    flushes_at_exit: bool,
    exits_seen: u64,
    /// What each vCPU has in CR3, from its first load on.
    loaded: Vec<Option<u64>>,
    /// Per vCPU: [`PagingMode::replaced`] when the guest dimension of its walk caches was last flushed from
    /// here; none if they may lead to tables of another root.
    clean: Vec<Option<u64>>,
    /// Tables of another mode, kept while the VM is in this one.
    kept: Option<Tables>,
    /// [`PagingMode::first_used`] of tables that switches have dropped.
    dropped_used: [u64; 3],
    /// The state of the VM at the start.
    vm: VmState,
    before: Before,
}

/// What there was when the counts were last set to 0.
#[derive(Debug, Clone, Copy, Default)]
struct Before {
    frames: u64,
    huge_frames: u64,
    /// [`PagingMode::most_tables`].
    tables: u64,
    /// [`PagingMode::first_used`].
    first_used: [u64; 3],
}

impl Regime {
    /// Empty tables and caches for `config`.
    pub fn new(config: Config, profile: &Profile, setup: &Setup<'_>, frames: u64, seed: u64) -> Self {
        let (tag, specs, nested_tlb) = profile.cache_specs();
        let setup = &setup.of(config);
        let host = setup.host(config.host_page, frames, seed);
        Regime {
            config,
            tables: Tables::new(config.mode, &host, setup),
            host,
            caches: vec![WalkCache::new(tag, &specs, nested_tlb); setup.vcpus],
            counts: Counts::default(),
            tagged: profile.cpu.tlb_tagged,
            flushes_at_exit: !profile.cpu.tlb_tagged
                || config.mode.flushes_at_entry(profile.cpu.virtualization),
            exits_seen: 0,
            loaded: vec![None; setup.vcpus],
            clean: vec![None; setup.vcpus],
            kept: None,
            dropped_used: [0; 3],
            vm: setup.vm,
            before: Before::default(),
        }
    }

    /// Begins again with empty tables over `host`, before the guest has run.
    pub fn start_over(&mut self, host: HostMemory, setup: &Setup<'_>) {
        self.tables = Tables::new(self.config.mode, &host, &setup.of(self.config));
        self.host = host;
    }

    /// Walks for an access that missed the TLB: see [`PagingMode::walk`].
    #[inline]
    pub fn walk<M: Memory>(&mut self, miss: &Miss, guest: &mut GuestTables, memory: &mut M) -> Option<Entry> {
        let Regime { tables, host, caches, counts, tagged, .. } = self;
        let vm = Vm { host, counts };
        let mut cpu = Walker { caches: &mut caches[miss.vcpu], tagged: *tagged, memory, vm };
        let filled = usual_mode!(tables, t => t.walk(&mut cpu, miss, guest), walk_other(tables, &mut cpu, miss, guest));
        self.tell_kept();
        filled
    }

    /// May walks of this vCPU be [steady](Regime::steady)? Steady walks do not change the answer.
    #[inline]
    pub fn may_be_steady(&self, vcpu: usize, guest: &GuestTables) -> bool {
        let replaced = usual_mode!(&self.tables, t => t.replaced(guest), replaced_other(&self.tables, guest));
        // Without tags, the next walk brings the flush for an exit that no flush has followed yet, such as a
        // read of CR3.
        guest.format().is_long()
            && self.clean[vcpu] == Some(replaced)
            && self.caches[vcpu].has_guest_steps()
            && self.tagged
    }

    /// Would [`Regime::walk`] take no exit and note nothing, where walks [may](Regime::may_be_steady) be
    /// such: see [`PagingMode::steady`].
    #[inline(always)]
    pub fn steady(&mut self, miss: &Steady<'_>) -> Option<bool> {
        let caches = &self.caches[miss.vcpu];
        usual_mode!(&mut self.tables, t => t.steady(caches, miss), steady_other(&mut self.tables, caches, miss))
    }

    /// Counts `n` walks that were [steady](Regime::steady), but for their references.
    pub fn count_steady(&mut self, n: u64) {
        self.counts.now.l1_misses += n;
        self.counts.now.tlb_misses_4k += n;
        self.counts.now.walks += n;
    }

    /// Moves the walk caches and counts the references of a walk that is [steady](Regime::steady).
    #[inline]
    pub fn walk_steady<M: Memory>(&mut self, miss: &Steady<'_>, memory: &mut M) {
        let Regime { tables, host, caches, counts, .. } = self;
        let hw = &mut Hardware { caches: &mut caches[miss.vcpu], memory, refs: &mut counts.refs };
        usual_mode!(tables, t => t.walk_steady(hw, miss, host), walk_steady_other(tables, hw, miss, host));
    }

    /// The vCPU's walk caches may lead to tables of another root, until they are flushed. At the `first` load
    /// they are empty, but for a stream with accesses before it.
    pub fn root_changes(&mut self, vcpu: usize, first: bool, guest: &GuestTables) {
        let empty = first && self.caches[vcpu].is_empty();
        self.clean[vcpu] = empty.then(|| each_mode!(&self.tables, t => t.replaced(guest)));
    }

    /// Tables that are kept for a mode that the VM has left lose what the host has unmapped.
    #[inline]
    fn tell_kept(&mut self) {
        if let Some(kept) = &mut self.kept {
            for gfns in self.host.take_unmapped().into_iter().flatten() {
                each_mode!(kept, t => t.host_unmapped(gfns.clone()));
            }
        }
    }

    /// The flushes of a vCPU's TLB reach its walk caches.
    pub fn flush_caches(&mut self, vcpu: usize, guest: &GuestTables) {
        let caches = &mut self.caches[vcpu];
        each_mode!(&self.tables, t => t.flush_caches(caches));
        self.clean[vcpu] = Some(each_mode!(&self.tables, t => t.replaced(guest)));
    }

    /// True if the hypervisor flushes at CR3 and CR4 writes: see [`PagingMode::flushes_by_exit`].
    pub fn flushes_by_exit(&self) -> bool {
        each_mode!(&self.tables, t => t.flushes_by_exit())
    }

    /// The TLB flush that the hypervisor asked for since the last call, or that came with
    /// an exit of `vcpu` where TLB entries do not survive exits.
    #[inline]
    pub fn take_flush(&mut self, vcpu: usize) -> Flush {
        let asked = usual_mode!(&mut self.tables, t => t.take_flush(), take_flush_other(&mut self.tables));
        if !self.flushes_at_exit {
            return asked;
        }
        let fills = if self.tagged { 0 } else { self.counts.now.outer_fills };
        let exits = self.counts.now.all_exits() + fills;
        let exited = std::mem::replace(&mut self.exits_seen, exits) != exits;
        if asked == Flush::None && exited { Flush::Vcpu(vcpu as u16) } else { asked }
    }

    /// The exits to the outer hypervisor that belong to these counts, if there is one: each exit to the inner
    /// one passes it, and so do that one's entries into the guest.
    #[inline]
    pub fn outer_exits(&self, counts: &Sample, profile: &Profile) -> u64 {
        if !self.config.mode.has_outer_exits() {
            return 0;
        }
        let passed = counts.all_exits() * (1 + profile.cpu.entry_exits.unwrap_or(1));
        passed + counts.outer_fills + counts.outer_stores + counts.outer_flushes
    }

    /// Adds what follows from counts and tables together: what an outer host that has backed nothing before
    /// backs for the guest's hypervisor, and the first uses of pages that were mapped from the start.
    pub fn add_derived(&self, counts: &mut Sample) {
        let outer = self.outer_backed(counts);
        (counts.outer_frames_backed, counts.outer_huge_frames_backed) = match self.config.outer_page() {
            PageSize::Size4K => (outer, 0),
            _ => (0, outer),
        };
        let now = self.first_used();
        let used = |size: usize| now[size] - self.before.first_used[size];
        counts.frames_first_used = used(0);
        counts.huge_frames_first_used = used(1) + 512 * used(2);
    }

    /// [`PagingMode::first_used`] of all tables that the VM has had.
    fn first_used(&self) -> [u64; 3] {
        let mut used = self.dropped_used;
        for tables in std::iter::once(&self.tables).chain(&self.kept) {
            let of = each_mode!(tables, t => t.first_used());
            used.iter_mut().zip(of).for_each(|(used, n)| *used += n);
        }
        used
    }

    /// Pages that an outer host that has just started has backed since the counts were 0. The guest's
    /// hypervisor, which has just started too, takes pages from its free memory in the order of their
    /// addresses, for its guest and for its tables.
    fn outer_backed(&self, counts: &Sample) -> u64 {
        if self.vm != VmState::Started || !self.config.mode.has_outer() {
            return 0;
        }
        let backed = |small: u64, large: u64| match self.config.outer_page() {
            PageSize::Size4K => small + 512 * large,
            _ => small.div_ceil(512) + large,
        };
        let Before { frames, huge_frames, tables, .. } = self.before;
        let most_tables = each_mode!(&self.tables, t => t.most_tables());
        backed(frames + counts.frames_backed + most_tables, huge_frames + counts.huge_frames_backed)
            - backed(frames + tables, huge_frames)
    }

    /// Sets the counts to 0. Tables and caches stay.
    pub fn reset_counts(&mut self) {
        self.before = Before {
            frames: self.before.frames + self.counts.now.frames_backed,
            huge_frames: self.before.huge_frames + self.counts.now.huge_frames_backed,
            tables: each_mode!(&self.tables, t => t.most_tables()),
            first_used: self.first_used(),
        };
        let mut log = self.counts.log.take();
        log.iter_mut().for_each(|log| log.restart());
        self.counts = Counts { log, ..Counts::default() };
        self.exits_seen = 0;
        self.host.restart();
    }

    /// The hypervisor's tables map what the host holds, as far as they can without the guest's tables.
    pub fn map_all(&mut self) {
        each_mode!(&mut self.tables, t => t.map_all(&mut self.host));
    }

    /// A VM in shadow mode keeps nested tables that map what the host holds.
    pub fn keep_mapped(&mut self, setup: &Setup<'_>) {
        if self.config.mode != Paging::Shadow {
            return;
        }
        let mut kept = Tables::new(Paging::Nested, &self.host, setup);
        each_mode!(&mut kept, t => t.map_all(&mut self.host));
        self.kept = Some(kept);
        self.host.note_unmapped(true);
    }

    /// The host takes back the pages behind these guest frames: entries that map them go, those of kept
    /// tables too, and with them whatever walk caches hold. True if TLBs must be flushed, which is the
    /// caller's to do. No effect without a hypervisor, and on a region that must stay contiguous.
    pub fn take_back(&mut self, gfns: Range<u64>, taking: Taking) -> bool {
        if !each_mode!(&self.tables, t => t.can_switch()) {
            return false;
        }
        let mut dropped = false;
        for gfns in self.host.take_back(gfns, taking) {
            dropped |= each_mode!(&mut self.tables, t => t.host_unmapped(gfns.clone()));
            if let Some(kept) = &mut self.kept {
                each_mode!(kept, t => t.host_unmapped(gfns));
            }
        }
        self.flush_all_caches(dropped)
    }

    /// The host looks which pages the guest has used since its last look. True if TLBs must be flushed, as
    /// after [`Regime::take_back`]: an entry there would hide the next use
    /// (`kvm_mmu_notifier_clear_flush_young`).
    pub fn look(&mut self) -> bool {
        if !each_mode!(&self.tables, t => t.can_switch()) {
            return false;
        }
        let Regime { host, tables, kept, .. } = self;
        let young = host.look(|gfns| {
            let kept = kept.as_mut().is_some_and(|kept| each_mode!(kept, t => t.clear_young(gfns.clone())));
            each_mode!(tables, t => t.clear_young(gfns)) || kept
        });
        self.flush_all_caches(young)
    }

    /// Flushes the walk caches of every vCPU if it has to.
    fn flush_all_caches(&mut self, flush: bool) -> bool {
        if flush {
            self.caches.iter_mut().for_each(WalkCache::flush_all);
        }
        flush
    }

    /// The pages that the guest has not used for longest: see [`HostMemory::oldest`]. None that cannot be
    /// taken back.
    pub fn oldest(&mut self, most: usize) -> Vec<Range<u64>> {
        if each_mode!(&self.tables, t => t.can_switch()) { self.host.oldest(most) } else { Vec::new() }
    }

    /// See [`HostMemory::note_swapped_in`].
    pub fn note_swapped_in(&mut self) {
        self.host.note_swapped_in();
    }

    /// See [`HostMemory::came_back`].
    #[inline]
    pub fn came_back(&mut self, frame: u64) -> bool {
        self.host.came_back(frame)
    }

    /// See [`HostMemory::transfer`]. No effect without a hypervisor.
    pub fn transfer(&mut self, gpa: Gpa, write: bool) -> bool {
        each_mode!(&self.tables, t => t.can_switch()) && self.host.transfer(gpa, write)
    }

    /// What is behind a frame that the host could take back; none without a hypervisor.
    pub fn backing(&self, gpa: Gpa) -> Option<Backing> {
        each_mode!(&self.tables, t => t.can_switch()).then(|| self.host.backing(gpa))
    }

    /// See [`HostMemory::swapped_in`].
    pub fn swapped_in(&self) -> u64 {
        self.host.swapped_in()
    }

    /// See [`HostMemory::split`].
    pub fn split_pages(&self) -> u64 {
        self.host.split()
    }

    /// Begins a new interval.
    pub fn begin_interval(&mut self) {
        each_mode!(&mut self.tables, t => t.begin_interval());
    }

    /// Entries used in this interval that were there before it, by age.
    pub fn reuse(&self) -> Vec<Reuse> {
        each_mode!(&self.tables, t => t.reuse())
    }

    /// A page stayed in the TLB over the whole interval: see [`PagingMode::use_page`].
    pub fn use_page(&mut self, vcpu: usize, root: Gpa, gva: Gva, guest: &GuestTables) {
        each_mode!(&mut self.tables, t => t.use_page(vcpu, root, gva, guest));
    }

    /// Cycles of the exit that fills an entry after a cold start.
    pub fn cold_exit_cycles(&self, exit: &ExitCosts) -> u64 {
        each_mode!(&self.tables, t => t.cold_exit_cycles(exit))
    }

    /// Reads the mode's leaf entries of these frames: see [`PagingMode::read_ahead`].
    pub fn read_ahead(&self, frames: &[u64]) -> u64 {
        each_mode!(&self.tables, t => t.read_ahead(frames))
    }

    /// The host-physical address of `gpa`. Without a hypervisor both are the same.
    #[inline]
    pub fn hpa(&self, gpa: Gpa) -> Hpa {
        each_mode!(&self.tables, t => t.hpa(&self.host, gpa))
    }

    /// See [`HostMemory::epoch`].
    #[inline]
    pub fn host_epoch(&self) -> u64 {
        self.host.epoch()
    }

    /// What decides on which node the memory at `gpa` lies.
    #[inline]
    pub fn page(&self, gpa: Gpa) -> Page {
        each_mode!(&self.tables, t => t.page(&self.host, gpa))
    }

    /// Level, first address and maker of every nested table; none in other modes.
    pub fn nested_tables(&self) -> Vec<(u8, Gpa, Made)> {
        if let Tables::Nested(t) = &self.tables { t.tables_made() } else { Vec::new() }
    }

    /// True if walks make references with a host level.
    #[inline]
    pub fn reads_host_tables(&self) -> bool {
        each_mode!(&self.tables, t => t.reads_host_tables())
    }

    /// Goes on in mode `to`. TLBs and walk caches are the caller's to flush. The host's memory
    /// stays; a VM without a hypervisor cannot switch. True if it goes on in that mode.
    pub fn switch(&mut self, to: Paging, keep: bool, setup: &Setup<'_>) -> bool {
        if !each_mode!(&self.tables, t => t.can_switch()) {
            return false;
        }
        let mut entered = match self.kept.take() {
            Some(mut tables) => {
                each_mode!(&mut tables, t => t.resume());
                tables
            }
            None => Tables::new(to, &self.host, setup),
        };
        for (vcpu, cr3) in self.loaded.iter().enumerate() {
            if let Some(cr3) = cr3 {
                each_mode!(&mut entered, t => t.initial_cr3(vcpu, *cr3, setup.guest));
            }
        }
        each_mode!(&mut entered, t => t.take_flush()); // the switch flushes everything
        let left = std::mem::replace(&mut self.tables, entered);
        if keep && each_mode!(&left, t => t.can_be_kept()) {
            self.kept = Some(left);
        } else {
            self.counts.now.shadow_pages_zapped += each_mode!(&left, t => t.tables());
            let used = each_mode!(&left, t => t.first_used());
            self.dropped_used.iter_mut().zip(used).for_each(|(dropped, n)| *dropped += n);
        }
        self.clean.fill(None);
        self.host.note_unmapped(self.kept.is_some());
        self.config.mode = to;
        self.counts.now.mode_switches += 1;
        true
    }
}

/// [`PagingMode::walk`] of the modes that are not [usual](usual_mode).
#[cold]
#[inline(never)]
fn walk_other<M: Memory>(
    tables: &mut Tables,
    cpu: &mut Walker<'_, M>,
    miss: &Miss,
    guest: &mut GuestTables,
) -> Option<Entry> {
    each_mode!(tables, t => t.walk(cpu, miss, guest))
}

/// [`PagingMode::replaced`] of the others.
#[cold]
#[inline(never)]
fn replaced_other(tables: &Tables, guest: &GuestTables) -> u64 {
    each_mode!(tables, t => t.replaced(guest))
}

/// [`PagingMode::steady`] of the others.
#[inline(never)]
fn steady_other(tables: &mut Tables, caches: &WalkCache, miss: &Steady<'_>) -> Option<bool> {
    each_mode!(tables, t => t.steady(caches, miss))
}

/// [`PagingMode::walk_steady`] of the others.
#[inline(never)]
fn walk_steady_other<M: Memory>(
    tables: &mut Tables,
    hw: &mut Hardware<'_, M>,
    miss: &Steady<'_>,
    host: &HostMemory,
) {
    each_mode!(tables, t => t.walk_steady(hw, miss, host));
}

/// [`PagingMode::take_flush`] of the others.
#[cold]
#[inline(never)]
fn take_flush_other(tables: &mut Tables) -> Flush {
    each_mode!(tables, t => t.take_flush())
}
