// SPDX-License-Identifier: Apache-2.0 OR MIT
//! KVM's shadow MMU (Linux 6.1, as in Debian's 6.1.192: `arch/x86/kvm/mmu` and
//! `x86.c`), event by event: the same shadow pages and entries, so the same exits.
//! Later kernels differ as [`KvmVersion`] says.
//!
//! `fault.rs` follows `FNAME(page_fault)`, prefetch and the emulator; `sync.rs` unsync pages and INVLPG;
//! `roots.rs` CR3 and CR4; `zap.rs` `kvm_mmu_prepare_zap_page`, the budget, write flooding; `backing.rs` what
//! the host does to frames; `pages.rs`, `spte.rs` and `settled.rs` hold pages, links and bits; `agile.rs` has
//! what agile paging adds.
//!
//! The shadow of a guest in 32-bit mode has the format of PAE, as KVM makes it on 64-bit hosts too.
//!
//! Left out: PCIDs; dirty logging; `nx_huge_pages` (CPUs with the iTLB multihit erratum); memory slots (a
//! frame beyond memory is a device's: mapped like any other, never prefetched);
//! execute and user permission of stale entries; the size of a store (KVM zaps a
//! non-leaf table at once for one that no entry has); faults while an event is
//! delivered; the exits by which other vCPUs are kicked out for a flush.

mod agile;
mod backing;
mod fault;
mod inside;
mod pages;
mod paths;
mod roots;
mod settled;
mod spte;
mod sync;
#[cfg(test)]
mod tests;
mod zap;

use crate::access::Flush;
use crate::ages::{Ages, Reuse};
use crate::guest::GuestTables;
use crate::host::{Given, HostMemory};
use crate::page::Page;
use crate::{KvmVersion, Sample};
pub use agile::Rules;
use agile::Subtrees;
use bifold_mmu::format::PAE;
use bifold_mmu::{Format, Gva, Start};
pub use inside::DirectStore;
use pages::{Pages, sptep_to_sp};
use paths::Paths;
use roots::Vcpu;
use std::collections::HashMap;

/// How [`Shadow::fault`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fixed {
    /// The guest repeats the access (which may exit again).
    Retry,
    /// The emulator has done the store: nothing is repeated, and the TLB not filled.
    Emulated,
    /// The guest's own tables do not map the address for this access. No exit was counted.
    NotMapped,
}

/// KVM_MEMSLOT_PAGES_TO_MMU_PAGES_RATIO and KVM_MIN_ALLOC_MMU_PAGES.
const PAGES_PER_MMU_PAGE: u64 = 50;
const MIN_ALLOC_MMU_PAGES: usize = 64;

/// Work done since the last exit was closed, to be added to its sample.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    made: u64,
    zapped: u64,
    syncs: u64,
    /// The page that the host gave for the exit: at most one.
    given: Option<Given>,
}

/// What shadow tables are composed of: the guest's tables, and the host's memory.
#[derive(Debug, Clone, Copy)]
pub struct World<'a> {
    /// The guest's tables.
    pub guest: &'a GuestTables,
    /// The memory behind the guest.
    pub host: &'a HostMemory,
}

/// The shadow MMU of one VM.
#[derive(Debug, Clone)]
pub struct Shadow {
    /// Of the shadow tables.
    format: &'static Format,
    /// Roots have four entries and are no shadow pages.
    has_pae_root: bool,
    /// The guest's entries have 4 bytes (`role.has_4_byte_gpte`).
    has_4_byte_gpte: bool,
    guest_frames: u64,
    kvm: KvmVersion,
    pages: Pages,
    paths: Paths,
    vcpus: Vec<Vcpu>,
    flush: Flush,
    work: Work,
    /// `invalid_list`: zapped pages not yet freed.
    invalid: Vec<usize>,
    /// KVM_REQ_MMU_FREE_OBSOLETE_ROOTS.
    obsolete_roots: bool,
    /// A table became unsync in the fault at hand.
    unsynced: bool,
    /// Per shadow page: the sptes used in this interval. A bit per aligned block of 8 sptes at
    /// level 1, a bit per spte above.
    touched: Vec<[u64; 8]>,
    /// Per shadow page: the interval of the last use of each aligned block of 8 sptes.
    used_in: Vec<[u32; 64]>,
    /// Per shadow page: the interval of the last use of the whole page.
    table_used_in: Vec<u32>,
    /// Per large spte, by id: the interval of the last use.
    large_used_in: HashMap<usize, u32>,
    ages: Ages,
    /// What agile paging adds; none under shadow paging.
    subtrees: Option<Box<Subtrees>>,
}

impl Shadow {
    /// The shadow MMU of a guest with `guest_frames` 4 KB frames and tables of the format
    /// `guest`. No vCPU has a root yet.
    pub fn new(guest: &'static Format, guest_frames: u64, vcpus: usize, kvm: KvmVersion) -> Shadow {
        // kvm_arch_commit_memory_region
        let budget = MIN_ALLOC_MMU_PAGES.max((guest_frames / PAGES_PER_MMU_PAGE) as usize);
        Shadow {
            format: if guest.is_long() { guest } else { &PAE },
            has_pae_root: !guest.is_long(),
            has_4_byte_gpte: guest.entry_shift == 2,
            guest_frames,
            kvm,
            pages: Pages::new(budget),
            paths: Paths::default(),
            vcpus: vec![Vcpu::default(); vcpus],
            flush: Flush::None,
            work: Work::default(),
            invalid: Vec::new(),
            obsolete_roots: false,
            unsynced: false,
            touched: vec![[0; 8]],
            used_in: vec![[0; 64]],
            table_used_in: vec![0],
            large_used_in: HashMap::new(),
            ages: Ages::default(),
            subtrees: None,
        }
    }

    /// The format of the shadow tables: that of the guest's, or PAE.
    pub fn format(&self) -> &'static Format {
        self.format
    }

    /// Shadow page where the vCPU's walks of `gva` begin: 0, which stays empty, before its first CR3, and
    /// where a root has no entry for the gigabyte.
    #[inline]
    fn root_slot(&self, vcpu: usize, gva: Gva) -> usize {
        let entry = if self.has_pae_root { gva.0 >> 30 & 3 } else { 0 };
        self.vcpus[vcpu].root.slots[entry as usize]
    }

    /// The shadow pages in which INVLPG looks for `gva`: below the current root and the cached ones.
    fn roots_of(&self, vcpu: usize, gva: Gva) -> impl Iterator<Item = usize> + use<> {
        let [a, b, c] = self.vcpus[vcpu].prev_roots.map(|root| root.slots[0]);
        [self.root_slot(vcpu, gva), a, b, c].into_iter().filter(|&slot| slot != 0)
    }

    /// Where the hardware starts the vCPU's walks of `gva`; an empty table before its first CR3. None where
    /// the root's entry is not present: the hardware has that entry in a register.
    #[inline]
    pub fn root(&self, vcpu: usize, gva: Gva) -> Option<Start> {
        let slot = self.root_slot(vcpu, gva);
        let start = Start { level: self.format.root_level(), table: Pages::hpa(slot) };
        (slot != 0 || !self.has_pae_root).then_some(start)
    }

    /// How often an entry that pointed to a shadow page ceased to.
    pub fn replaced(&self) -> u64 {
        self.pages.unlinked
    }

    /// The entry at (pseudo) host-physical address `at`, for the hardware walker.
    #[inline]
    pub fn spte(&self, at: u64) -> u64 {
        self.pages.at(at)
    }

    /// Is this the (pseudo) host-physical address of a shadow page?
    #[inline]
    pub fn has_at(&self, table: u64) -> bool {
        table >= pages::SHADOW_BASE
    }

    /// What decides on which node the table lies that has an entry at `at`.
    pub fn table(&self, at: u64) -> Page {
        Page::Table(self.pages.made(at))
    }

    /// The present and write bits of the level-1 entry at `at`, if a walk that ends there changes
    /// nothing: [`Shadow::used`] need not be called for it.
    #[inline]
    pub fn ready(&self, at: u64) -> Option<u64> {
        self.pages.ready(at)
    }

    /// The hardware's walk ended at this entry: sets its accessed bit (a sync flushes
    /// TLBs if it drops one) and notes its use for [`Shadow::reuse`].
    #[inline]
    pub fn used(&mut self, at: u64) {
        let id = Pages::id_at(at);
        let spte = self.pages.spte(id);
        if spte & spte::PRESENT == 0 {
            return;
        }
        if spte & spte::ACCESSED == 0 {
            self.pages.update(id, spte | spte::ACCESSED);
        }
        self.touch(id, false);
        self.pages.set_ready(id);
    }

    /// Notes that an spte (or its block) was used, or filled.
    #[inline]
    fn touch(&mut self, id: usize, filled: bool) {
        let slot = sptep_to_sp(id);
        let index = id & 511;
        let leaf_table = self.pages.page(slot).role.level == 1;
        let bit = if leaf_table { index >> 3 } else { index };
        let word = &mut self.touched[slot][bit >> 6];
        if *word & (1 << (bit & 63)) != 0 {
            return;
        }
        *word |= 1 << (bit & 63);
        let now = self.ages.now;
        let used_in = if leaf_table {
            &mut self.used_in[slot][bit]
        } else {
            self.large_used_in.entry(id).or_insert(now)
        };
        let last = std::mem::replace(used_in, now);
        if !filled {
            self.ages.used(last, last);
        }
        let table_last = std::mem::replace(&mut self.table_used_in[slot], now);
        if table_last != now {
            self.ages.table_used(table_last);
        }
    }

    /// An interval begins: forgets what was used in the last one.
    pub fn begin_interval(&mut self) {
        self.touched.fill([0; 8]);
        self.pages.none_ready();
        self.ages.begin_interval();
    }

    /// Blocks of 8 sptes that prefetch fills together, and large sptes, whose first use in
    /// this interval found them filled: the hidden faults that empty shadow tables at its
    /// beginning, or at an earlier one's, would have added. A lower bound, as prefetch may
    /// stop within a block.
    pub fn reuse(&self) -> Vec<Reuse> {
        self.ages.counted()
    }

    /// Shadow pages in use (`n_used_mmu_pages`).
    pub fn pages(&self) -> usize {
        self.pages.used
    }

    /// The most shadow pages that were in use at once.
    pub fn most_used(&self) -> usize {
        self.pages.most_used
    }

    /// The most shadow pages that may be in use (`n_max_mmu_pages`).
    pub fn max_pages(&self) -> usize {
        self.pages.max
    }

    /// Has a flush of this vCPU's TLB been asked for since they were last taken?
    #[inline]
    pub fn asks_to_flush(&self, vcpu: usize) -> bool {
        match self.flush {
            Flush::None => false,
            Flush::Vcpu(v) => usize::from(v) == vcpu,
            Flush::All => true,
        }
    }

    /// The flushes asked for since the last call.
    pub fn take_flush(&mut self) -> Flush {
        std::mem::take(&mut self.flush)
    }

    /// `kvm_flush_remote_tlbs`; without Hyper-V the ranged variant is the same.
    fn flush_remote_tlbs(&mut self) {
        self.flush = Flush::All;
    }

    /// Asks to flush every vCPU's TLB.
    pub fn flush_all(&mut self) {
        self.flush_remote_tlbs();
    }

    fn flush_tlb_current(&mut self, vcpu: usize) {
        self.flush = match self.flush {
            Flush::Vcpu(v) if usize::from(v) != vcpu => Flush::All,
            Flush::All => Flush::All,
            _ => Flush::Vcpu(vcpu as u16),
        };
    }

    /// A page fault that is the guest's own, with its error code: KVM reflects it into the guest. True if it
    /// takes [`Shadow::invalidate_gva`] as well: the present bit is set, and that of reserved bits is not.
    pub fn reflect(&mut self, vcpu: usize, gva: Gva, error: u64, world: World<'_>, out: &mut Sample) -> bool {
        const PRESENT: u64 = 1;
        const RESERVED: u64 = 1 << 3;
        out.exits_guest_fault += 1;
        let invalidates = error & (PRESENT | RESERVED) == PRESENT;
        if invalidates {
            self.invalidate_gva(vcpu, gva, world);
        }
        invalidates
    }

    /// `kvm_inject_emulated_page_fault` invalidates the address of a protection fault
    /// (present bit set, reserved bit clear) as INVLPG does, but in the current root
    /// only: lest the guest find the old entry again. No exit of its own.
    pub fn invalidate_gva(&mut self, vcpu: usize, gva: Gva, world: World<'_>) {
        let slot = self.root_slot(vcpu, gva);
        if slot != 0 {
            self.invlpg_root(slot, gva, world);
        }
    }

    /// MOV from CR3, which shadow paging intercepts.
    pub fn read_cr3(&mut self, _vcpu: usize, out: &mut Sample) {
        out.exits_cr3_read += 1;
    }

    /// What KVM does on the way back into the guest, and the sample of the work done.
    pub fn settle(&mut self, world: World<'_>, out: &mut Sample) {
        if self.obsolete_roots {
            self.free_obsolete_roots(world);
        }
        let work = std::mem::take(&mut self.work);
        out.shadow_pages_made += work.made;
        out.shadow_pages_zapped += work.zapped;
        out.syncs += work.syncs;
        if let Some(given) = work.given {
            out.add_given(given);
        }
    }
}
