// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An access of the guest that a paging mode has to translate, and the TLB flush that a
//! hypervisor may ask for on the way.

use crate::guest::{GuestTables, Leaf, Path};
use bifold_mmu::{Entry, Format, Gpa, Gva};

/// The kind of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessKind {
    /// A load.
    Read,
    /// A store by an instruction that KVM classes as one that writes page tables.
    Write,
    /// A store by any other instruction.
    WriteOther,
    /// An instruction fetch.
    Fetch,
}

impl AccessKind {
    /// True for both kinds of store.
    #[inline]
    pub fn writes(self) -> bool {
        matches!(self, AccessKind::Write | AccessKind::WriteOther)
    }
}

/// Where a vCPU's access faults in tables of the hypervisor.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// The vCPU that made the access.
    pub vcpu: usize,
    /// The address that the tables translate.
    pub gva: Gva,
    /// The access's kind.
    pub kind: AccessKind,
}

/// An access that missed the TLB, or lacked permission there.
#[derive(Debug, Clone, Copy)]
pub struct Miss {
    /// The vCPU that made the access.
    pub vcpu: usize,
    /// The address.
    pub gva: Gva,
    /// The access's kind.
    pub kind: AccessKind,
    /// The guest's entry for the address. A store has set its dirty bit already.
    pub leaf: Leaf,
    /// The guest's root table.
    pub root: Gpa,
}

impl Miss {
    /// The fault of the access, where the hypervisor's tables do not map it.
    pub fn fault(&self) -> Fault {
        Fault { vcpu: self.vcpu, gva: self.gva, kind: self.kind }
    }

    /// The guest's entry at `at`. The leaf is known already, and mostly the only one that is not in
    /// the machine's cache. (A walk cache may lead to another leaf: an old table's.)
    #[inline]
    pub fn read(&self, guest: &GuestTables, at: u64) -> u64 {
        if at == self.leaf.step.at { self.leaf.step.entry } else { guest.read(Gpa(at)) }
    }

    /// The TLB entry that the guest's own tables allow.
    #[inline]
    pub fn guest_entry(&self, guest: &GuestTables) -> Entry {
        let format = guest.format();
        let dirty = self.leaf.step.entry & format.dirty != 0;
        Entry {
            size: self.leaf.size,
            page: self.leaf.size,
            writable: self.leaf.writable && dirty,
            global: self.leaf.step.entry & format.global != 0,
        }
    }
}

/// A TLB miss of data whose guest translation is known: a 4 KB page that is not global, with its accessed bit
/// set, and for a store writable and dirty.
#[derive(Debug, Clone, Copy)]
pub struct Steady<'a> {
    /// The vCPU that made the access.
    pub vcpu: usize,
    /// The address.
    pub gva: Gva,
    /// The access is a store.
    pub write: bool,
    /// The guest's tables on the way.
    pub path: Path<'a>,
    /// The guest's entries and its dirty bit allow writes.
    pub writable: bool,
    /// The guest's format.
    pub format: &'static Format,
}

impl Steady<'_> {
    /// The guest-physical address.
    #[inline(always)]
    pub fn gpa(&self) -> Gpa {
        Gpa(self.path.entry & self.format.address | self.gva.0 & 0xfff)
    }
}

/// The TLBs that a hypervisor asked to flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Flush {
    /// No TLB.
    #[default]
    None,
    /// One vCPU's TLB, global entries included (`KVM_REQ_TLB_FLUSH_CURRENT`, `_GUEST`).
    Vcpu(u16),
    /// Every vCPU's TLB (`kvm_flush_remote_tlbs`).
    All,
}
