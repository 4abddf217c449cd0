// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Offset paging: the guest's memory is one contiguous region of the host's. The hardware checks each
//! guest-physical address against the region's limit and adds its base, as it does for a segment. So a walk
//! reads the guest's tables alone, and no access violates anything: the region is there before the guest starts.
//!
//! The direct segments of Basu et al. (ISCA 2013) and of Gandhi et al. (MICRO 2014, "VMM direct") are this design.
//! With several guest nodes, each has a region of its own.
//!
//! Left out: TLB entries beyond the guest's page size, and what keeping such a region contiguous costs the host.

use super::{Cr4Write, PagingMode, Setup, Vm, Walker, walk_1d, walk_1d_steady};
use crate::access::{Miss, Steady};
use crate::ages::Reuse;
use crate::guest::GuestTables;
use crate::host::HostMemory;
use crate::memory::{Memory, Refs};
use crate::page::Page;
use crate::profile::ExitCosts;
use bifold_mmu::{Entry, Gpa, Gva, Hpa, Start, WalkCache};
use std::ops::Range;

/// Where the region begins in the host's memory. Any frame will do: data caches see it, and nothing else.
const BASE: u64 = 1 << 40;

/// Offset paging: no tables beside the guest's.
#[derive(Debug)]
pub struct OffsetPaging;

#[inline]
fn walk<M: Memory>(
    cpu: &mut Walker<'_, M>,
    gva: Gva,
    root: Gpa,
    guest: &GuestTables,
    read: impl Fn(u64) -> u64,
) {
    let format = guest.format();
    let root = Start { level: format.depth(), table: root.0.wrapping_add(BASE) };
    let back = |at: u64| at.wrapping_sub(BASE);
    let page = |at| Page::Region(Gpa(back(at)));
    walk_1d(cpu, format, root, gva, |_, at| moved(format, read(back(at))), page);
}

/// A guest's entry that points to a table, as the walk sees it: the base is added to the table's address.
#[inline]
fn moved(format: &bifold_mmu::Format, entry: u64) -> u64 {
    if entry & format.present == 0 { entry } else { entry.wrapping_add(BASE) }
}

impl PagingMode for OffsetPaging {
    fn new(_: &HostMemory, _: &Setup<'_>) -> Self {
        OffsetPaging
    }

    #[inline]
    fn walk<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        miss: &Miss,
        guest: &mut GuestTables,
    ) -> Option<Entry> {
        walk(cpu, miss.gva, miss.root, guest, |at| miss.read(guest, at));
        Some(miss.guest_entry(guest))
    }

    #[inline]
    fn steady(&mut self, _: &WalkCache, miss: &Steady<'_>) -> Option<bool> {
        Some(miss.writable)
    }

    #[inline]
    fn walk_steady(&mut self, caches: &mut WalkCache, miss: &Steady<'_>, refs: &mut Refs) {
        walk_1d_steady(caches, miss.format, miss.gva, refs, |level| miss.path.table(level));
    }

    fn walk_to_fault<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        _: usize,
        gva: Gva,
        root: Gpa,
        guest: &GuestTables,
    ) {
        walk(cpu, gva, root, guest, |at| guest.read(Gpa(at)));
    }

    fn write_cr4(&mut self, vm: &mut Vm<'_>, _: usize, write: Cr4Write, _: &GuestTables) {
        vm.counts.now.exits_cr4_write += u64::from(write.exits(true));
    }

    fn host_unmapped(&mut self, _: Range<u64>) -> bool {
        false
    }

    fn begin_interval(&mut self) {}

    fn reuse(&self) -> Vec<Reuse> {
        Vec::new()
    }

    fn use_page(&mut self, _: usize, _: Gpa, _: Gva, _: &GuestTables) {}

    fn cold_exit_cycles(&self, _: &ExitCosts) -> u64 {
        0
    }

    fn can_switch(&self) -> bool {
        false
    }

    #[inline]
    fn hpa(&self, _: &HostMemory, gpa: Gpa) -> Hpa {
        Hpa(gpa.0.wrapping_add(BASE))
    }

    fn page(&self, _: &HostMemory, gpa: Gpa) -> Page {
        Page::Region(gpa)
    }

    fn tables(&self) -> u64 {
        0
    }
}
