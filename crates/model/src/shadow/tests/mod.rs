// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest in miniature: page tables reached through a direct map, a hardware
//! walker without TLB, and the shadow MMU under test.

mod invariants;
mod pages;
mod properties;
mod roots;
mod short;
mod tables;
mod versions;

use super::spte::SWITCH;
use super::{Fixed, Rules, Shadow};
use crate::access::{AccessKind, Fault, Flush};
use crate::guest::GuestTables;
use crate::host::HostMemory;
use crate::shadow::World;
use crate::{KvmVersion, Sample};
use bifold_mmu::format::{Format, X86_64_4_LEVEL};
use bifold_mmu::{Gpa, Gva, PageSize, Walk, walk};

pub(super) const P: u64 = 1;
pub(super) const W: u64 = 2;
pub(super) const U: u64 = 4;
pub(super) const A: u64 = 1 << 5;
pub(super) const D: u64 = 1 << 6;
pub(super) const PS: u64 = 1 << 7;
pub(super) const NX: u64 = 1 << 63;
/// A page that a process has written.
pub(super) const PAGE: u64 = P | W | U | A | D;
/// A link to a lower table, as Linux makes them.
pub(super) const TABLE: u64 = P | W | U | A | D;

/// Where a kernel in 64-bit mode sees all memory.
pub(super) const DIRECT: u64 = 0xffff_8880_0000_0000;
/// The same in 32-bit mode: an address that follows from bit 31.
const DIRECT_32: u64 = 0x8000_0000;
/// Where a process keeps its pages: the start of a leaf table's reach.
pub(super) const USER: u64 = 0x4000_0000;
/// 64 MB.
pub(super) const FRAMES: u64 = 1 << 14;
/// First frame given to tables; those below are for pages.
const TABLES: u64 = 0x2000;

pub(super) struct Machine {
    pub guest: GuestTables,
    pub host: HostMemory,
    pub shadow: Shadow,
    pub out: Sample,
    pub root: u64,
    /// What each vCPU has in CR3.
    pub loaded: [u64; 2],
    /// Where the kernel sees all memory.
    pub direct: u64,
    next: u64,
}

impl Machine {
    /// A warm host (every frame backed) with pages of `host_page`; the direct map in pages of
    /// `direct`; one process root, loaded on vCPU 0.
    pub fn with(format: &'static Format, host: HostMemory, direct: PageSize) -> Machine {
        let shadow = Shadow::new(format, FRAMES, 2, KvmVersion::default());
        let mut m = Machine {
            guest: GuestTables::new(format),
            host,
            shadow,
            out: Sample::default(),
            root: 0,
            loaded: [0; 2],
            direct: if format.is_long() { DIRECT } else { DIRECT_32 },
            next: TABLES,
        };
        m.root = m.table(format.depth());
        let nx = if format.entry_shift == 3 { NX } else { 0 };
        for gpa in (0..FRAMES << 12).step_by(1 << format.level(direct.level()).shift) {
            m.map(m.root, m.direct + gpa, gpa | P | W | A | D | nx, direct);
        }
        m.start(0);
        m.shadow.take_flush();
        m
    }

    /// The vCPU has the first root from the start.
    pub fn start(&mut self, vcpu: usize) {
        let cr3 = self.root << 12;
        self.loaded[vcpu] = cr3;
        self.guest.load_registers(vcpu, self.guest.root(vcpu, cr3));
        self.shadow.set_initial_cr3(vcpu, cr3, &self.guest);
    }

    pub fn world(&self) -> World<'_> {
        World { guest: &self.guest, host: &self.host }
    }

    pub fn new(host_page: PageSize, direct: PageSize) -> Machine {
        Machine::with(&X86_64_4_LEVEL, warm(host_page), direct)
    }

    /// The plain case: 4 KB everywhere.
    pub fn small() -> Machine {
        Machine::new(PageSize::Size4K, PageSize::Size4K)
    }

    /// A new, empty table that the shadow has not seen.
    pub fn table(&mut self, level: u8) -> u64 {
        self.next += 1;
        self.guest.add(self.next, level, &[0; 512]);
        self.next
    }

    /// A further address space with the kernel's half of the first.
    pub fn space(&mut self) -> u64 {
        let root = self.table(self.guest.format().depth());
        self.copy(self.root, root, true, 0);
        root
    }

    /// Copies the kernel's half of a root table, or the user's, with further bits in entries that are
    /// present.
    pub fn copy(&mut self, from: u64, to: u64, kernel: bool, bits: u64) {
        let format = self.guest.format();
        let half = format.level(format.depth()).mask.div_ceil(2);
        for i in if kernel { half..2 * half } else { 0..half } {
            let at = |gfn: u64| Gpa(gfn << 12 | i << format.entry_shift);
            let e = self.guest.read(at(from));
            self.guest.store(at(to), if e & P != 0 { e | bits } else { 0 });
        }
    }

    /// Sets the leaf entry for `gva` without a trace, making tables as needed.
    pub fn map(&mut self, root: u64, gva: u64, entry: u64, size: PageSize) -> u64 {
        let format = self.guest.format();
        let mut table = root;
        let mut level = format.depth();
        while level > size.level() {
            let at = table << 12 | format.offset(level, gva);
            if self.guest.read(Gpa(at)) & P == 0 {
                let child = self.table(level - 1);
                let user = if gva < self.direct { U } else { 0 };
                let bits = if level > format.root_level() { P } else { TABLE & !U | user };
                self.guest.store(Gpa(at), child << 12 | bits);
            }
            table = format.target(level, self.guest.read(Gpa(at))) >> 12;
            level -= 1;
        }
        let at = table << 12 | format.offset(level, gva);
        self.guest.store(Gpa(at), entry | if level > 1 { PS } else { 0 });
        at
    }

    /// Maps 4 KB user page number `n` of the process onto frame `n + 16`.
    pub fn user(&mut self, n: u64, bits: u64) -> u64 {
        self.map(self.root, USER + (n << 12), (n + 16) << 12 | bits, PageSize::Size4K)
    }

    /// The hardware's walk: the entry it ends at and its address, if present.
    pub fn walk(&self, vcpu: usize, gva: u64) -> Option<(u64, u64, u8)> {
        let root = self.shadow.root(vcpu, Gva(gva))?;
        let mut switched = None;
        let end = walk::<std::convert::Infallible>(self.shadow.format(), root, gva, |level, at| {
            let spte = self.shadow.spte(at);
            if spte & SWITCH != 0 {
                switched = Some((at, spte, level));
            }
            Ok(if switched.is_some() { 0 } else { spte })
        });
        match end {
            _ if switched.is_some() => switched,
            Ok(Walk::Leaf(s)) => Some((s.at, s.entry, s.level)),
            _ => None,
        }
    }

    /// Accesses `gva` until it goes through; returns the exits that took.
    pub fn on(&mut self, vcpu: usize, gva: u64, kind: AccessKind) -> u64 {
        let before = self.out.all_exits();
        // A write to the table that maps itself, by an instruction that writes no tables, is repeated until
        // agile paging has counted enough of them: an exit for the table's shadow and one for the write, each
        // time.
        let counted = self.shadow.subtrees.as_ref().map_or(0, |s| 2 * s.rules.writes);
        let most = 4 + counted;
        for _ in 0..=most {
            if self.leaves_shadow(vcpu, gva) {
                match self.nested(vcpu, gva, kind) {
                    true => return self.out.all_exits() - before,
                    false => continue,
                }
            }
            if let Some((at, spte, _)) = self.walk(vcpu, gva) {
                if !kind.writes() || spte & W != 0 {
                    self.shadow.used(at);
                    return self.out.all_exits() - before;
                }
            }
            let exits = self.out.all_exits();
            match self.shadow.fault(
                Fault { vcpu, gva: Gva(gva), kind },
                &mut self.guest,
                &mut self.host,
                &mut self.out,
            ) {
                Fixed::Retry => assert_eq!(self.out.all_exits(), exits + 1),
                Fixed::Emulated => {
                    assert_eq!(self.out.all_exits(), exits + 1);
                    return self.out.all_exits() - before;
                }
                Fixed::NotMapped => {
                    assert_eq!(self.out.all_exits(), exits);
                    return 0;
                }
            }
        }
        panic!("{kind:?} at {gva:#x} did not go through in {most} exits");
    }

    /// Agile paging: does the hardware's walk go on in the guest's tables?
    fn leaves_shadow(&self, vcpu: usize, gva: u64) -> bool {
        self.shadow.is_nested(self.loaded[vcpu] >> 12)
            || self.walk(vcpu, gva).is_some_and(|(_, spte, _)| spte & SWITCH != 0)
    }

    /// The access in the guest's tables, as far as it does not concern the nested ones. False if it is
    /// repeated.
    fn nested(&mut self, vcpu: usize, gva: u64, kind: AccessKind) -> bool {
        let root = self.guest.root(vcpu, self.loaded[vcpu]);
        let Ok(leaf) = self.guest.lookup(root, Gva(gva)) else { return true };
        if kind.writes() && !leaf.writable {
            return true;
        }
        self.guest.touch(&leaf, kind.writes());
        let gpa = leaf.gpa(Gva(gva));
        if !kind.writes() || !self.shadow.is_protected(gpa.frame()) {
            return true;
        }
        let exits = self.out.all_exits();
        let done = self.shadow.nested_write(
            vcpu,
            gpa,
            kind,
            World { guest: &self.guest, host: &self.host },
            &mut self.out,
        );
        assert_eq!(self.out.all_exits(), exits + 1);
        done
    }

    pub fn read(&mut self, gva: u64) -> u64 {
        self.on(0, gva, AccessKind::Read)
    }

    pub fn write(&mut self, gva: u64) -> u64 {
        self.on(0, gva, AccessKind::Write)
    }

    /// The kernel stores a page-table entry through its direct map.
    pub fn pt_store(&mut self, gpa: u64, entry: u64) -> u64 {
        let exits = self.write(self.direct + gpa);
        self.guest.store(Gpa(gpa), entry);
        exits
    }

    /// Makes the kernel's mapping of a shadowed leaf table present and read-only. A mere
    /// read would leave it writable and the table unsync: see the test of that.
    pub fn map_protected(&mut self, pte: u64) {
        self.read(self.direct + pte);
        self.load_cr3(self.root);
        assert_eq!(self.walk(0, self.direct + pte).unwrap().1 & W, 0);
    }

    pub fn load_cr3(&mut self, root: u64) {
        self.load_cr3_on(0, root);
    }

    pub fn load_cr3_on(&mut self, vcpu: usize, root: u64) {
        let cr3 = root << 12;
        self.loaded[vcpu] = cr3;
        self.guest.load_registers(vcpu, self.guest.root(vcpu, cr3));
        if self.shadow.is_nested(root) {
            return; // agile paging walks in nested mode
        }
        self.shadow.load_cr3(vcpu, cr3, World { guest: &self.guest, host: &self.host }, &mut self.out);
    }

    /// A full flush by CR4.PGE, off and on again.
    pub fn toggle_pge(&mut self) {
        for _ in 0..2 {
            self.shadow.write_cr4(0, true, World { guest: &self.guest, host: &self.host }, &mut self.out);
        }
    }

    pub fn invlpg(&mut self, gva: u64) {
        self.shadow.invlpg(0, Gva(gva), World { guest: &self.guest, host: &self.host }, &mut self.out);
    }

    /// Runs `f` and returns what it added to the sample.
    pub fn counted(&mut self, f: impl FnOnce(&mut Machine)) -> Sample {
        let before = self.out;
        f(self);
        self.out.since(&before)
    }
}

/// A host that has backed every frame.
pub(super) fn warm(page: PageSize) -> HostMemory {
    let mut host = HostMemory::new(page, FRAMES, Default::default(), 7);
    for gfn in 0..FRAMES {
        host.touch(Gpa::from_frame(gfn), true, 0);
    }
    host
}
