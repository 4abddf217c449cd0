// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bits of shadow entries, access masks, roles, and KVM's walk of the guest's tables
//! (`FNAME(walk_addr_generic)`).
//!
//! An spte is an x86 entry that the hardware walker can read. Two of the bits that hardware ignores
//! hold what KVM keeps in such bits and what tells the reason of an exit. Reserved bits, memory
//! types and protection keys are left out: a guest with wrong ones fails before it is recorded.

use crate::guest::GuestTables;
use bifold_mmu::{Format, Gpa, Gva, Start};

pub(super) const PRESENT: u64 = 1;
pub(super) const WRITE: u64 = 1 << 1;
pub(super) const USER: u64 = 1 << 2;
pub(super) const ACCESSED: u64 = 1 << 5;
pub(super) const DIRTY: u64 = 1 << 6;
pub(super) const LARGE: u64 = 1 << 7;
/// `shadow_host_writable_mask`: the host maps the frame writable.
pub(super) const HOST_WRITABLE: u64 = 1 << 9;
/// The entry switches to nested paging: it holds the host address of the guest's table of the next level
/// (agile paging). It counts as a leaf, and is filed under the table's frame.
pub(super) const SWITCH: u64 = 1 << 10;
/// `kvm_mmu_page_get_access`: what the guest's entry allowed when the spte was made.
pub(super) const ACCESS_SHIFT: u32 = 52;
pub(super) const NX: u64 = 1 << 63;
pub(super) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// `ACC_EXEC_MASK`, `ACC_WRITE_MASK`, `ACC_USER_MASK`, `ACC_ALL`.
pub(super) const ACC_EXEC: u8 = 1;
pub(super) const ACC_WRITE: u8 = 2;
pub(super) const ACC_USER: u8 = 4;
pub(super) const ACC_ALL: u8 = 7;

/// The part of `kvm_mmu_page_role` that differs between pages of one guest:
/// CR0.WP, CR4.SMEP and the like never change under a running kernel. `access`
/// is what keeps the two views of a user table apart under KPTI, whose kernel
/// root maps the user half no-execute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Role {
    pub level: u8,
    pub direct: bool,
    pub access: u8,
    /// Which part of a table of 4-byte entries the page shadows: a half of a leaf table, a quarter of a page
    /// directory. 0 for other guests.
    pub quadrant: u8,
}

/// `FNAME(gpte_access)`.
#[inline]
pub(super) fn gpte_access(gpte: u64) -> u8 {
    ((gpte & (PRESENT | WRITE | USER)) as u8) ^ ((gpte >> 63) as u8)
}

/// `FNAME(protect_clean_gpte)`: a clean entry is shadowed read-only, so that the first
/// write faults and its dirty bit can be set.
#[inline]
pub(super) fn protect_clean(access: u8, gpte: u64) -> u8 {
    if gpte & DIRTY != 0 { access } else { access & !ACC_WRITE }
}

/// `struct guest_walker`: KVM's own walk of the guest's tables at a fault.
#[derive(Debug, Clone, Copy)]
pub(super) struct GuestWalker {
    /// Level of the leaf entry.
    pub level: u8,
    /// Frame of the table met at each level (index = level - 1).
    pub table_gfn: [u64; 5],
    /// Access allowed by the entries above each table: the role of its shadow page.
    pub pt_access: [u8; 5],
    /// Access allowed in all, after `protect_clean_gpte` unless writing.
    pub pte_access: u8,
    /// The same without `protect_clean_gpte`.
    pub access: u8,
    /// Frame that the address maps to.
    pub gfn: u64,
    /// `max_level`: that of the root table, below PAE's registers.
    max_level: u8,
}

impl GuestWalker {
    /// A walk at its root, of `level`.
    pub fn at(level: u8) -> GuestWalker {
        GuestWalker {
            level,
            table_gfn: [0; 5],
            pt_access: [0; 5],
            pte_access: ACC_ALL,
            access: ACC_ALL,
            gfn: 0,
            max_level: level,
        }
    }

    /// Walks; `None` if the guest's tables do not map `gva` for this access. Sets the
    /// leaf's accessed bit and for a write its dirty bit, as
    /// `FNAME(update_accessed_dirty_bits)` does (nothing reads those of upper levels).
    pub fn walk(guest: &mut GuestTables, root: Gpa, gva: Gva, write: bool) -> Option<GuestWalker> {
        let format: &'static Format = guest.format();
        let Start { level, mut table } = guest.start(root, gva).ok()?;
        let mut w = GuestWalker::at(level);
        let mut access = ACC_ALL;
        loop {
            let slot = usize::from(w.level) - 1;
            w.table_gfn[slot] = table >> 12;
            w.pt_access[slot] = access;
            let at = table + format.offset(w.level, gva.0);
            let pte = guest.read(Gpa(at));
            if pte & PRESENT == 0 {
                return None;
            }
            access &= gpte_access(pte);
            table = format.target(w.level, pte);
            if !format.is_leaf(w.level, pte) {
                w.level -= 1;
                continue;
            }
            if write && access & ACC_WRITE == 0 {
                return None;
            }
            let bits = ACCESSED | if write { DIRTY } else { 0 };
            if pte & bits != bits {
                guest.store(Gpa(at), pte | bits);
            }
            w.access = access;
            w.pte_access = if write { access } else { protect_clean(access, pte) };
            let offset = gva.0 & ((1 << format.level(w.level).shift) - 1);
            w.gfn = (table | offset) >> 12;
            return Some(w);
        }
    }

    /// `FNAME(is_self_change_mapping)`: a writable large page that holds one of the
    /// tables that map it is shadowed with 4 KB entries from the start.
    pub fn is_self_change_mapping(&self) -> bool {
        let mask = !(pages_per_hpage(self.level) - 1);
        self.pte_access & ACC_WRITE != 0
            && (self.level..=self.max_level)
                .any(|l| (self.gfn ^ self.table_gfn[usize::from(l) - 1]) & mask == 0)
    }
}

/// `KVM_PAGES_PER_HPAGE`: 4 KB frames that an spte of `level` maps.
#[inline]
pub(super) fn pages_per_hpage(level: u8) -> u64 {
    1 << (9 * (u32::from(level) - 1))
}
