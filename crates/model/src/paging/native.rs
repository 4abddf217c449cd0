// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Native paging: no hypervisor. The hardware walks the guest's own tables, and nothing exits.

use super::{PagingMode, Setup, Walker, walk_1d};
use crate::access::{Flush, Miss};
use crate::ages::Reuse;
use crate::counts::Counts;
use crate::guest::GuestTables;
use crate::host::HostMemory;
use crate::profile::ExitCosts;
use bifold_mmu::{Entry, Gpa, Gva, Start, WalkCache};
use std::ops::Range;

/// Native paging: no tables beside the guest's.
#[derive(Debug)]
pub struct NativePaging;

#[inline]
fn walk(cpu: &mut Walker<'_>, gva: Gva, root: Gpa, guest: &GuestTables) {
    cpu.counts.now.walks += 1;
    let format = guest.format();
    let root = Start { level: format.depth(), table: root.0 };
    walk_1d(cpu.caches, format, root, gva, &mut cpu.counts.refs, |at| guest.read(Gpa(at)));
}

impl PagingMode for NativePaging {
    fn new(_: HostMemory, _: &Setup<'_>) -> Self {
        NativePaging
    }

    #[inline]
    fn walk(&mut self, cpu: &mut Walker<'_>, miss: &Miss, guest: &mut GuestTables) -> Option<Entry> {
        walk(cpu, miss.gva, miss.root, guest);
        Some(miss.guest_entry(guest))
    }

    fn walk_to_fault(&mut self, cpu: &mut Walker<'_>, _: usize, gva: Gva, root: Gpa, guest: &GuestTables) {
        walk(cpu, gva, root, guest);
    }

    fn permission_fault(&mut self, _: &mut Counts, _: Gva, _: Gpa, _: &GuestTables) {}

    fn guest_fault(&mut self, _: &mut Counts, _: usize, _: Gva, _: u64, _: &GuestTables) -> Option<bool> {
        None
    }

    fn flush_caches(&self, caches: &mut WalkCache) {
        caches.flush_guest();
    }

    fn flushes_by_exit(&self) -> bool {
        false
    }

    #[inline]
    fn take_flush(&mut self) -> Flush {
        Flush::None
    }

    fn initial_cr3(&mut self, _: usize, _: u64) {}

    fn load_cr3(&mut self, _: &mut Counts, _: usize, _: u64, _: &GuestTables) {}

    fn read_cr3(&mut self, _: &mut Counts, _: usize) {}

    fn write_cr4(&mut self, _: &mut Counts, _: usize, _: bool, _: bool, _: &GuestTables) {}

    fn invlpg(&mut self, _: &mut Counts, _: usize, _: Gva, _: &GuestTables) {}

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

    fn read_ahead(&self, _: &[u64]) -> u64 {
        0
    }

    fn reads_host_tables(&self) -> bool {
        false
    }

    fn host(&self) -> Option<&HostMemory> {
        None
    }

    fn tables(&self) -> u64 {
        0
    }

    fn can_be_kept(&self) -> bool {
        false
    }

    fn resume(&mut self, _: HostMemory) {}
}
