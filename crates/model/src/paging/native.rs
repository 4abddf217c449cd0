// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Native paging: no hypervisor. The hardware walks the guest's own tables, and nothing exits.

use super::{PagingMode, Setup, Walker, walk_1d, walk_1d_steady};
use crate::access::{Miss, Steady};
use crate::ages::Reuse;
use crate::guest::GuestTables;
use crate::host::HostMemory;
use crate::memory::{Memory, Refs};
use crate::page::Page;
use crate::profile::ExitCosts;
use bifold_mmu::{Entry, Gpa, Gva, Hpa, Start, WalkCache};
use std::ops::Range;

/// Native paging: no tables beside the guest's.
#[derive(Debug)]
pub struct NativePaging;

#[inline]
fn walk<M: Memory>(
    cpu: &mut Walker<'_, M>,
    gva: Gva,
    root: Gpa,
    guest: &GuestTables,
    read: impl FnMut(u8, u64) -> u64,
) {
    let format = guest.format();
    let root = Start { level: format.depth(), table: root.0 };
    walk_1d(cpu, format, root, gva, read, |at| Page::Machine(Gpa(at)));
}

impl PagingMode for NativePaging {
    fn new(_: &HostMemory, _: &Setup<'_>) -> Self {
        NativePaging
    }

    #[inline]
    fn walk<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        miss: &Miss,
        guest: &mut GuestTables,
    ) -> Option<Entry> {
        walk(cpu, miss.gva, miss.root, guest, |_, at| miss.read(guest, at));
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
        walk(cpu, gva, root, guest, |_, at| guest.read(Gpa(at)));
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
        Hpa(gpa.0)
    }

    fn page(&self, _: &HostMemory, gpa: Gpa) -> Page {
        Page::Machine(gpa)
    }

    fn tables(&self) -> u64 {
        0
    }
}
