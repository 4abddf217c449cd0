// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The paging modes. A mode is a file here that implements [`PagingMode`]: what happens on a
//! TLB miss, on a privileged instruction, at an interval's end and at a switch.
//!
//! [`Tables`] holds the tables of any mode, and [`each_mode!`] calls a hook of the mode it
//! holds: the one place that matches on modes. Every call is a direct one.

mod agile;
mod below;
mod cr4;
mod direct;
mod nested;
mod nested_on_nested;
mod own;
mod shadow;

use crate::access::{Flush, Miss, Steady};
use crate::ages::Reuse;
use crate::counts::Counts;
use crate::guest::GuestTables;
use crate::host::{Frames, HostMemory};
use crate::memory::{Hardware, Memory};
use crate::page::Page;
use crate::profile::{ExitCosts, Virtualization};
use crate::{Config, KvmVersion, Paging, Profile, VmState};
use bifold_mmu::{Dimension, Entry, Format, Gpa, Gva, Hpa, PageSize, Start, Walk, WalkCache, walk};
use std::convert::Infallible;
use std::ops::Range;

pub use agile::AgilePaging;
use below::{Below, Machine, Outer};
pub use cr4::Cr4Write;
pub use direct::DirectPaging;
pub use nested::NestedPaging;
pub use nested_on_nested::NestedOnNested;
pub use own::{NativePaging, OffsetPaging};
pub use shadow::{Pvm, ShadowOnNested, ShadowPaging};

/// What a guest does to a page that is a table, or becomes one.
#[derive(Debug, Clone, Copy)]
pub enum Stored<'a> {
    /// Stores an entry.
    Entry(Gpa),
    /// The page becomes a table with these words.
    Table(u64, &'a [u64; 512]),
    /// The table is used for something else.
    Retired(u64),
}

/// What a mode works on beside its own tables.
#[derive(Debug)]
pub struct Vm<'a> {
    /// The host's memory behind the guest. Without a hypervisor it stays unused.
    pub host: &'a mut HostMemory,
    /// The configuration's counts.
    pub counts: &'a mut Counts,
}

/// The hardware of one vCPU that walks, and the VM whose memory and counts its walks and exits change.
#[derive(Debug)]
pub struct Walker<'a, M> {
    /// The vCPU's walk caches.
    pub caches: &'a mut WalkCache,
    /// TLB entries survive exits (`cpu.tlb_tagged` of the profile).
    pub tagged: bool,
    /// The memory that walks refer to.
    pub memory: &'a mut M,
    /// The VM.
    pub vm: Vm<'a>,
}

impl<M: Memory> Walker<'_, M> {
    /// Counts the beginning of a walk, and returns what the walk uses, and the host's memory.
    #[inline(always)]
    fn begin_walk(&mut self) -> (Hardware<'_, M>, &HostMemory) {
        self.vm.counts.now.walks += 1;
        self.parts()
    }

    /// What [`Walker::begin_walk`] returns, without a walk.
    #[inline(always)]
    fn parts(&mut self) -> (Hardware<'_, M>, &HostMemory) {
        (Hardware { caches: self.caches, memory: self.memory, refs: &mut self.vm.counts.refs }, self.vm.host)
    }
}

/// Facts that a mode needs for its empty tables.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    /// The guest's own tables.
    pub guest: &'a GuestTables,
    /// The format of nested tables.
    pub nested: &'static Format,
    /// Number of vCPUs.
    pub vcpus: usize,
    /// The KVM whose rules the hypervisor follows.
    pub kvm: KvmVersion,
    /// Whose extension the hardware has.
    pub virtualization: Virtualization,
    /// How long the host has run.
    pub frames: Frames,
    /// The machine's profile.
    pub profile: &'a Profile,
    /// Whether the host's memory remembers for which vCPU each page was backed and each table made.
    pub placed: bool,
    /// What the host holds of the guest's memory at the start.
    pub vm: VmState,
    /// Size of the pages with which an outer hypervisor backs the memory of the guest's.
    pub outer_page: PageSize,
}

impl Setup<'_> {
    /// The facts for this configuration.
    pub fn of(self, config: Config) -> Self {
        Setup { outer_page: config.outer_page(), ..self }
    }

    /// The host's memory behind a guest of `frames` 4 KB frames, none of it backed yet.
    pub fn host(&self, page: PageSize, frames: u64, seed: u64) -> HostMemory {
        let host = HostMemory::new(page, frames, self.frames, seed).of_version(self.kvm).of_state(self.vm);
        if self.placed { host.remember_first() } else { host }
    }
}

/// The hooks of a paging mode.
///
/// A hook that belongs to an instruction counts that instruction's exit, if there is one, in
/// `counts.now`; [`Regime`](crate::regime::Regime) logs it. A hook with a body here is that of
/// a mode whose guest changes its tables without exits, which the hypervisor need not follow, or that has no
/// tables beside the guest's.
pub trait PagingMode: Sized {
    /// Empty tables over `host`, which may hold some of the memory already.
    fn new(host: &HostMemory, setup: &Setup<'_>) -> Self;

    /// Translates an access that missed the TLB: walks, exits included, until the TLB may be
    /// filled. `None` if the access needs no TLB entry any more (its store was emulated), or
    /// the tables do not map the address.
    fn walk<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        miss: &Miss,
        guest: &mut GuestTables,
    ) -> Option<Entry>;

    /// Would [`PagingMode::walk`] take no exit and note nothing that is not noted already, apart from the
    /// walk caches? Then [`PagingMode::walk_steady`] does its work. Whether writes may go through the TLB
    /// entry, which is the guest's. May always say no. The caches have guest steps
    /// ([`WalkCache::has_guest_steps`]) and lead to no table that was left.
    fn steady(&mut self, caches: &WalkCache, miss: &Steady<'_>) -> Option<bool>;

    /// A walk that is [steady](PagingMode::steady).
    fn walk_steady<M: Memory>(&mut self, hw: &mut Hardware<'_, M>, miss: &Steady<'_>, host: &HostMemory);

    /// A number that grows whenever entries that the guest dimension of walk caches may hold come to point
    /// elsewhere.
    #[inline]
    fn replaced(&self, guest: &GuestTables) -> u64 {
        guest.replaced()
    }

    /// Walks for an access that the guest's tables do not map, up to the page fault.
    fn walk_to_fault<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        vcpu: usize,
        gva: Gva,
        root: Gpa,
        guest: &GuestTables,
    );

    /// The guest's own protection fault: its walk has read the guest's tables, but the page
    /// itself is not translated.
    fn permission_fault(
        &mut self,
        _vm: &mut Vm<'_>,
        _vcpu: usize,
        _gva: Gva,
        _root: Gpa,
        _guest: &GuestTables,
    ) {
    }

    /// A write to CR3 or CR4 makes the hardware read the entries of the guest's root that it keeps in
    /// registers ([`Format::registers`]). Under shadow paging the write exits, and the hypervisor reads them.
    fn load_registers<M: Memory>(
        &mut self,
        _cpu: &mut Walker<'_, M>,
        _vcpu: usize,
        _root: Gpa,
        _guest: &GuestTables,
    ) {
    }

    /// A page fault of the guest's own, with its error code, after its walk. Returns whether
    /// the mode's tables had an entry for the address, if the fault exits.
    fn guest_fault(
        &mut self,
        _vm: &mut Vm<'_>,
        _vcpu: usize,
        _gva: Gva,
        _error: u64,
        _guest: &GuestTables,
    ) -> Option<bool> {
        None
    }

    /// A flush reaches the walk caches of a vCPU. Entries of the host dimension survive the
    /// guest's flushes.
    fn flush_caches(&self, caches: &mut WalkCache) {
        caches.flush_guest();
    }

    /// True if the guest's CR3 and CR4 writes exit, so that the hypervisor flushes the TLB
    /// ([`PagingMode::take_flush`]). Else the write itself flushes the TLB.
    fn flushes_by_exit(&self) -> bool {
        false
    }

    /// The flush that the hypervisor asked for since the last call.
    #[inline]
    fn take_flush(&mut self) -> Flush {
        Flush::None
    }

    /// The CR3 that a vCPU has when the recording or the mode begins: no exit.
    fn initial_cr3(&mut self, _vcpu: usize, _value: u64, _guest: &GuestTables) {}

    /// MOV to CR3.
    fn load_cr3(&mut self, _vm: &mut Vm<'_>, _vcpu: usize, _value: u64, _guest: &GuestTables) {}

    /// MOV from CR3.
    fn read_cr3(&mut self, _vm: &mut Vm<'_>, _vcpu: usize) {}

    /// MOV to CR4.
    fn write_cr4(&mut self, _vm: &mut Vm<'_>, _vcpu: usize, _write: Cr4Write, _guest: &GuestTables) {}

    /// INVLPG.
    fn invlpg(&mut self, _vm: &mut Vm<'_>, _vcpu: usize, _gva: Gva, _guest: &GuestTables) {}

    /// True if the mode has to hear of the guest's stores to its tables ([`PagingMode::stored`]) beside those
    /// that exit.
    #[inline]
    fn hears_stores(&self) -> bool {
        false
    }

    /// The guest is about to change what is in a table's page.
    fn stored(&mut self, _vm: &mut Vm<'_>, _vcpu: usize, _store: Stored<'_>, _guest: &GuestTables) {}

    /// The host has unmapped these guest frames (`kvm_unmap_gfn_range`): drops their entries.
    /// True if there were any, so that TLBs must be flushed.
    fn host_unmapped(&mut self, _gfns: Range<u64>) -> bool {
        false
    }

    /// The host looks whether the guest used these frames since its last look (`kvm_age_gfn`): forgets their
    /// uses. True if there were any.
    fn clear_young(&mut self, _gfns: Range<u64>) -> bool {
        false
    }

    /// Maps all that the host holds without an exit. Shadow tables follow the guest's, so they stay as they
    /// are.
    fn map_all(&mut self, _host: &mut HostMemory) {}

    /// A new interval begins.
    fn begin_interval(&mut self) {}

    /// Entries used in this interval that were there before it, by age.
    fn reuse(&self) -> Vec<Reuse> {
        Vec::new()
    }

    /// Counts the entries that map `gva` as used in this interval: the page stayed in the TLB
    /// over the whole interval, and after a cold start a walk would read them.
    fn use_page(&mut self, _vcpu: usize, _root: Gpa, _gva: Gva, _guest: &GuestTables) {}

    /// Cycles of the exit that fills an entry after a cold start.
    fn cold_exit_cycles(&self, _exit: &ExitCosts) -> u64 {
        0
    }

    /// Reads the mode's own leaf entries of these guest frames, so that walks find them in the
    /// machine's cache. The result is the entries combined, and means nothing.
    #[inline]
    fn read_ahead(&self, _frames: &[u64]) -> u64 {
        0
    }

    /// True if walks make references with a host level.
    #[inline]
    fn reads_host_tables(&self) -> bool {
        false
    }

    /// False if there is no hypervisor that could go on in another mode.
    fn can_switch(&self) -> bool {
        true
    }

    /// The host-physical address of `gpa`. Without a hypervisor both are the same.
    #[inline]
    fn hpa(&self, host: &HostMemory, gpa: Gpa) -> Hpa {
        host.hpa(gpa)
    }

    /// What decides on which node the memory at `gpa` lies.
    #[inline]
    fn page(&self, host: &HostMemory, gpa: Gpa) -> Page {
        host.page(gpa)
    }

    /// Number of tables that have to be freed if all are dropped.
    fn tables(&self) -> u64 {
        0
    }

    /// The most tables that there were at once, for modes whose hypervisor runs in a virtual machine: pages
    /// of its memory.
    fn most_tables(&self) -> u64 {
        0
    }

    /// Pages that [`PagingMode::map_all`] mapped and that a walk used since, by size.
    fn first_used(&self) -> [u64; 3] {
        [0; 3]
    }

    /// True if the tables may be kept while the VM is in another mode.
    fn can_be_kept(&self) -> bool {
        false
    }

    /// Continues with tables that were kept while the VM was in another mode. The host's unmaps of that time
    /// were applied to them.
    fn resume(&mut self) {
        unreachable!("the tables of this mode are not kept");
    }
}

/// The tables of one VM, in any mode.
#[derive(Debug)]
pub enum Tables {
    /// The guest's own.
    Native(NativePaging),
    /// The guest's and the host's.
    Nested(Box<NestedPaging>),
    /// The tables that the hypervisor composed of both.
    Shadow(Box<ShadowPaging>),
    /// The guest's, in a contiguous region of the host's memory.
    Offset(OffsetPaging),
    /// The hypervisor's composed tables, then the guest's and the host's.
    Agile(Box<AgilePaging>),
    /// The guest's, which only the hypervisor may change.
    Direct(Box<DirectPaging>),
    /// Those of an inner hypervisor, and the outer one's.
    ShadowOnNested(Box<ShadowOnNested>),
    /// Both hypervisors', and those composed of them.
    NestedOnNested(Box<NestedOnNested>),
    /// As with [`Tables::ShadowOnNested`].
    Pvm(Box<Pvm>),
}

/// Calls `$hook` with `$t` bound to the tables of the mode that `$tables` holds.
macro_rules! each_mode {
    ($tables:expr, $t:ident => $hook:expr) => {
        match $tables {
            $crate::paging::Tables::Native($t) => $hook,
            $crate::paging::Tables::Nested($t) => $hook,
            $crate::paging::Tables::Shadow($t) => $hook,
            $crate::paging::Tables::Offset($t) => $hook,
            $crate::paging::Tables::Agile($t) => $hook,
            $crate::paging::Tables::Direct($t) => $hook,
            $crate::paging::Tables::ShadowOnNested($t) => $hook,
            $crate::paging::Tables::NestedOnNested($t) => $hook,
            $crate::paging::Tables::Pvm($t) => $hook,
        }
    };
}
pub(crate) use each_mode;

/// [`each_mode!`] for what every walk does, of the modes that are shown unnamed and offset paging. `$other`
/// does it for the others, out of line: their hooks in the same place made walks of all modes slower by a
/// twentieth.
macro_rules! usual_mode {
    ($tables:expr, $t:ident => $hook:expr, $other:expr) => {
        match $tables {
            $crate::paging::Tables::Native($t) => $hook,
            $crate::paging::Tables::Nested($t) => $hook,
            $crate::paging::Tables::Shadow($t) => $hook,
            $crate::paging::Tables::Offset($t) => $hook,
            _ => $other,
        }
    };
}
pub(crate) use usual_mode;

impl Tables {
    /// Empty tables of `mode` over `host`, which may hold some of the memory already.
    pub fn new(mode: Paging, host: &HostMemory, setup: &Setup<'_>) -> Tables {
        match mode {
            Paging::Native => Tables::Native(NativePaging::new(host, setup)),
            Paging::Nested => Tables::Nested(Box::new(NestedPaging::new(host, setup))),
            Paging::Shadow => Tables::Shadow(Box::new(ShadowPaging::new(host, setup))),
            Paging::Offset => Tables::Offset(OffsetPaging::new(host, setup)),
            Paging::Agile => Tables::Agile(Box::new(AgilePaging::new(host, setup))),
            Paging::Direct => Tables::Direct(Box::new(DirectPaging::new(host, setup))),
            Paging::ShadowOnNested => Tables::ShadowOnNested(Box::new(ShadowOnNested::new(host, setup))),
            Paging::NestedOnNested => Tables::NestedOnNested(Box::new(NestedOnNested::new(host, setup))),
            Paging::Pvm => Tables::Pvm(Box::new(Pvm::new(host, setup))),
        }
    }
}

/// The references of a steady walk of one dimension. `page` returns what decides on which node an entry lies.
#[inline(always)]
fn walk_1d_steady<M: Memory>(
    hw: &mut Hardware<'_, M>,
    format: &Format,
    gva: Gva,
    table: impl Fn(u8) -> u64,
    page: impl Fn(u64) -> Page,
) {
    let mut level = hw.caches.first_table(Dimension::Guest, (1, format.depth()), gva.0, &table);
    while level > 0 {
        let at = || table(level) | format.index(level, gva.0) << 3;
        hw.touch(level, 0, || Hpa(at()), || page(at()));
        level -= 1;
    }
}

/// A one-dimensional walk from `root`, of the guest's tables or of shadow tables. `read` returns
/// the entry of a level at a host-physical address, which without a hypervisor is the guest's own, and
/// `page` what decides on which node that address lies.
#[inline]
fn walk_1d<M: Memory>(
    cpu: &mut Walker<'_, M>,
    format: &Format,
    root: Start,
    gva: Gva,
    mut read: impl FnMut(u8, u64) -> u64,
    page: impl Fn(u64) -> Page,
) -> Walk {
    let (mut hw, _) = cpu.begin_walk();
    let cached_as = format.cached_as(gva.0);
    let start = hw.caches.start(Dimension::Guest, cached_as, root);
    let end = walk::<Infallible>(format, start, gva.0, |level, at| {
        let held = level > 1 && hw.caches.holds(Dimension::Guest, level, at);
        if !held {
            hw.touch(level, 0, || Hpa(at), || page(at));
        }
        let entry = read(level, at);
        if level > 1 && !held && entry & format.present != 0 && !format.is_leaf(level, entry) {
            hw.caches.fill(Dimension::Guest, level, cached_as, at, format.target(level, entry));
        }
        Ok(entry)
    });
    match end {
        Ok(w) => w,
        Err(never) => match never {},
    }
}
