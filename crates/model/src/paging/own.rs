// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Modes whose hardware walks the guest's own tables alone.
//!
//! Native paging has no hypervisor, and nothing exits. In offset paging, the guest's memory is one contiguous
//! region of the host's: the hardware checks each guest-physical address against the region's limit and adds
//! its base, as it does for a segment. No access violates anything, because the region is there before the
//! guest starts.
//!
//! The direct segments of Basu et al. (ISCA 2013) and of Gandhi et al. (MICRO 2014, "VMM direct") are this
//! design. With several guest nodes, each has a region of its own.
//!
//! Left out: TLB entries beyond the guest's page size, and what keeping such a region contiguous costs the
//! host.

use super::{Cr4Write, PagingMode, Setup, Vm, Walker, walk_1d, walk_1d_steady};
use crate::access::{Miss, Steady};
use crate::guest::GuestTables;
use crate::host::HostMemory;
use crate::memory::{Hardware, Memory};
use crate::page::Page;
use bifold_mmu::{Entry, Gpa, Gva, Hpa, Start, WalkCache};

/// No tables beside the guest's. The guest's memory begins at `BASE` of the machine's; with 0 it is the
/// machine's.
#[derive(Debug)]
pub struct Own<const BASE: u64>;

/// Native paging.
pub type NativePaging = Own<0>;
/// Offset paging. Any frame will do for the region's first: data caches see it, and nothing else.
pub type OffsetPaging = Own<{ 1 << 40 }>;

/// What decides on which node the memory at `gpa` lies.
#[inline]
fn page_at<const BASE: u64>(gpa: Gpa) -> Page {
    if BASE == 0 { Page::Machine(gpa) } else { Page::Region(gpa) }
}

#[inline]
fn walk<const BASE: u64, M: Memory>(
    cpu: &mut Walker<'_, M>,
    gva: Gva,
    root: Gpa,
    guest: &GuestTables,
    read: impl Fn(u64) -> u64,
) {
    let format = guest.format();
    let Ok(top) = guest.start(root, gva) else {
        cpu.begin_walk();
        return;
    };
    let root = Start { table: top.table.wrapping_add(BASE), ..top };
    let back = |at: u64| at.wrapping_sub(BASE);
    let page = |at| page_at::<BASE>(Gpa(back(at)));
    walk_1d(cpu, format, root, gva, |_, at| moved::<BASE>(format, read(back(at))), page);
}

/// A guest's entry that points to a table, as the walk sees it: the base is added to the table's address.
#[inline]
fn moved<const BASE: u64>(format: &bifold_mmu::Format, entry: u64) -> u64 {
    if entry & format.present == 0 { entry } else { entry.wrapping_add(BASE) }
}

impl<const BASE: u64> PagingMode for Own<BASE> {
    fn new(_: &HostMemory, _: &Setup<'_>) -> Self {
        Own
    }

    #[inline]
    fn walk<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        miss: &Miss,
        guest: &mut GuestTables,
    ) -> Option<Entry> {
        walk::<BASE, M>(cpu, miss.gva, miss.root, guest, |at| miss.read(guest, at));
        Some(miss.guest_entry(guest))
    }

    #[inline]
    fn steady(&mut self, _: &WalkCache, miss: &Steady<'_>) -> Option<bool> {
        Some(miss.writable)
    }

    #[inline]
    fn walk_steady<M: Memory>(&mut self, hw: &mut Hardware<'_, M>, miss: &Steady<'_>, _: &HostMemory) {
        // Caches hold addresses as the hardware has them.
        let table = |level| miss.path.table(level).wrapping_add(BASE);
        let page = |at: u64| page_at::<BASE>(Gpa(at.wrapping_sub(BASE)));
        walk_1d_steady(hw, miss.format, miss.gva, table, page);
    }

    fn walk_to_fault<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        _: usize,
        gva: Gva,
        root: Gpa,
        guest: &GuestTables,
    ) {
        walk::<BASE, M>(cpu, gva, root, guest, |at| guest.read(Gpa(at)));
    }

    fn load_registers<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        _: usize,
        root: Gpa,
        guest: &GuestTables,
    ) {
        let at = GuestTables::root_table(root);
        let (mut hw, _) = cpu.parts();
        hw.touch(guest.format().depth(), 0, || Hpa(at.0.wrapping_add(BASE)), || page_at::<BASE>(at));
    }

    fn write_cr4(&mut self, vm: &mut Vm<'_>, _: usize, write: Cr4Write, _: &GuestTables) {
        vm.counts.now.exits_cr4_write += u64::from(BASE != 0 && write.exits(true));
    }

    fn can_switch(&self) -> bool {
        false
    }

    #[inline]
    fn hpa(&self, _: &HostMemory, gpa: Gpa) -> Hpa {
        Hpa(gpa.0.wrapping_add(BASE))
    }

    fn page(&self, _: &HostMemory, gpa: Gpa) -> Page {
        page_at::<BASE>(gpa)
    }
}
