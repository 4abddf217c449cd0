// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Direct paging, as Xen's paravirtual guests have it (Barham et al., SOSP 2003): the guest's tables hold the
//! machine's addresses, and the hardware walks them alone. The guest may read its tables and not write them;
//! the hypervisor checks each change, which comes by a hypercall.
//!
//! How many hypercalls there are follows Linux (`arch/x86/xen/mmu_pv.c`, `multicalls.c`, 6.1):
//!
//! - A store to an entry above level 1 is one call (`xen_set_pmd` and its like: no loop over such entries is
//!   in lazy MMU mode).
//! - Stores to one table of level 1 that follow each other on a vCPU are one call for up to 32 entries
//!   (`MC_BATCH`): Linux is in lazy MMU mode while it goes through a table of level 1 (`zap_pte_range`,
//!   `copy_pte_range`, `change_pte_range`). Another table, a page fault, a load of CR3, INVLPG, a write to
//!   CR4 or a walk that reads an entry of the table ends the batch. So the one entry that a page fault sets
//!   is a call of its own (`xen_set_pte`).
//! - A page that becomes a table is pinned, which checks its entries; one that ceases to be a table is
//!   unpinned. Up to 32 that follow each other are one call (`xen_pgd_pin`, `xen_pgd_unpin`).
//! - Loads of CR3 and INVLPG are one call each (`MMUEXT_NEW_BASEPTR`, `MMUEXT_INVLPG_LOCAL`), and a write to
//!   CR4 is an exit, as any privileged instruction. A read of CR3 costs no exit (`xen_read_cr3`).
//! - A page fault enters the hypervisor, which hands it to the guest.
//!
//! The domain's memory is there before it starts: no access violates anything, and where it lies is as for
//! [`OffsetPaging`].
//!
//! Left out: system calls, which enter the hypervisor in 64-bit mode, where user and kernel have roots of
//! their own; that the kernel's pages are not global there; and that the kernel fills the tables of a new
//! process before they are pinned, where the stream has stores to such tables.

use super::{Cr4Write, OffsetPaging, PagingMode, Setup, Stored, Vm, Walker};
use crate::access::{Miss, Steady};
use crate::guest::GuestTables;
use crate::host::HostMemory;
use crate::memory::{Hardware, Memory};
use crate::page::Page;
use bifold_mmu::{Entry, Gpa, Gva, Hpa, WalkCache};

/// `MC_BATCH`.
const MOST: u64 = 32;

/// What the next operation may be added to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Batch {
    #[default]
    Ended,
    /// So many stores to the table of level 1 in this frame.
    Stores(u64, u64),
    /// So many tables pinned or unpinned.
    Pins(u64),
}

/// Direct paging.
#[derive(Debug)]
pub struct DirectPaging {
    own: OffsetPaging,
    /// Per vCPU.
    batches: Vec<Batch>,
}

impl DirectPaging {
    fn end(&mut self, vcpu: usize) {
        self.batches[vcpu] = Batch::Ended;
    }

    /// One operation more: begins a call unless it goes on with `batch`, which then becomes one longer.
    fn operation(
        &mut self,
        vm: &mut Vm<'_>,
        vcpu: usize,
        alone: Batch,
        longer: impl Fn(Batch) -> Option<Batch>,
    ) {
        let batch = &mut self.batches[vcpu];
        *batch = match longer(*batch) {
            Some(longer) => longer,
            None => {
                vm.counts.now.exits_hypercall += 1;
                alone
            }
        };
    }
}

/// Entries that are present among a table's words.
fn present(words: &[u64; 512], guest: &GuestTables) -> u64 {
    let format = guest.format();
    let per_word = 8 >> format.entry_shift;
    let bits = 64 / per_word;
    let is_present = |word: u64, i: u32| word >> (bits * i) & format.present != 0;
    words.iter().map(|&word| (0..per_word).filter(|&i| is_present(word, i)).count() as u64).sum()
}

impl PagingMode for DirectPaging {
    fn new(host: &HostMemory, setup: &Setup<'_>) -> Self {
        DirectPaging { own: OffsetPaging::new(host, setup), batches: vec![Batch::Ended; setup.vcpus] }
    }

    // Not inlined, here and below, so that the loops of other modes stay as they are.
    #[inline(never)]
    fn walk<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        miss: &Miss,
        guest: &mut GuestTables,
    ) -> Option<Entry> {
        if matches!(self.batches[miss.vcpu], Batch::Stores(table, _) if table == miss.leaf.step.at >> 12) {
            self.end(miss.vcpu);
        }
        self.own.walk(cpu, miss, guest)
    }

    #[inline(never)]
    fn steady(&mut self, caches: &WalkCache, miss: &Steady<'_>) -> Option<bool> {
        let ends =
            matches!(self.batches[miss.vcpu], Batch::Stores(table, _) if table == miss.path.table(1) >> 12);
        if ends { None } else { self.own.steady(caches, miss) }
    }

    #[inline(never)]
    fn walk_steady<M: Memory>(&mut self, hw: &mut Hardware<'_, M>, miss: &Steady<'_>, host: &HostMemory) {
        self.own.walk_steady(hw, miss, host);
    }

    fn walk_to_fault<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        vcpu: usize,
        gva: Gva,
        root: Gpa,
        guest: &GuestTables,
    ) {
        self.own.walk_to_fault(cpu, vcpu, gva, root, guest);
    }

    fn load_registers<M: Memory>(
        &mut self,
        cpu: &mut Walker<'_, M>,
        vcpu: usize,
        root: Gpa,
        guest: &GuestTables,
    ) {
        self.own.load_registers(cpu, vcpu, root, guest);
    }

    fn guest_fault(
        &mut self,
        vm: &mut Vm<'_>,
        vcpu: usize,
        _: Gva,
        error: u64,
        _: &GuestTables,
    ) -> Option<bool> {
        self.end(vcpu);
        vm.counts.now.exits_guest_fault += 1;
        Some(error & 1 != 0)
    }

    fn load_cr3(&mut self, vm: &mut Vm<'_>, vcpu: usize, _: u64, _: &GuestTables) {
        self.end(vcpu);
        vm.counts.now.exits_cr3_write += 1;
    }

    fn write_cr4(&mut self, vm: &mut Vm<'_>, vcpu: usize, _: Cr4Write, _: &GuestTables) {
        self.end(vcpu);
        vm.counts.now.exits_cr4_write += 1;
    }

    fn invlpg(&mut self, vm: &mut Vm<'_>, vcpu: usize, _: Gva, _: &GuestTables) {
        self.end(vcpu);
        vm.counts.now.exits_invlpg += 1;
    }

    fn hears_stores(&self) -> bool {
        true
    }

    fn stored(&mut self, vm: &mut Vm<'_>, vcpu: usize, store: Stored<'_>, guest: &GuestTables) {
        match store {
            Stored::Entry(at) => {
                let table = at.frame();
                let Some(level) = guest.level(table) else { return };
                vm.counts.now.hypercall_entries += 1;
                let alone = if level == 1 { Batch::Stores(table, 1) } else { Batch::Ended };
                self.operation(vm, vcpu, alone, |batch| match batch {
                    Batch::Stores(of, n) if of == table && n < MOST => Some(Batch::Stores(of, n + 1)),
                    _ => None,
                });
            }
            Stored::Table(..) | Stored::Retired(_) => {
                if let Stored::Table(_, words) = store {
                    vm.counts.now.hypercall_entries += present(words, guest);
                }
                self.operation(vm, vcpu, Batch::Pins(1), |batch| match batch {
                    Batch::Pins(n) if n < MOST => Some(Batch::Pins(n + 1)),
                    _ => None,
                });
            }
        }
    }

    /// The kernel is made for the one interface.
    fn can_switch(&self) -> bool {
        false
    }

    #[inline]
    fn hpa(&self, host: &HostMemory, gpa: Gpa) -> Hpa {
        self.own.hpa(host, gpa)
    }

    fn page(&self, host: &HostMemory, gpa: Gpa) -> Page {
        self.own.page(host, gpa)
    }
}
