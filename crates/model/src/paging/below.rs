// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What lies below a hypervisor: the machine, or an outer hypervisor in whose virtual machine the hypervisor
//! runs.
//!
//! A hypervisor in a virtual machine keeps its tables in memory that the outer hypervisor's nested tables
//! map. No walk of the guest ends in those tables: the outer one has backed and mapped that memory before, or
//! it did so when the inner hypervisor cleared the page that it gave the guest or made a table of
//! ([`Regime::add_derived`](crate::regime::Regime::add_derived) counts that). The outer tables are not
//! stored: where each of their entries lies follows from the address that it maps.

use super::{Setup, Walker, walk_1d, walk_1d_steady};
use crate::access::Steady;
use crate::memory::{Hardware, Memory};
use crate::page::{Made, Page};
use crate::walk_2d::{
    self, NestedSpace, Violation, base, table_of, walk_2d, walk_2d_steady, walk_host_steady, walk_mapped,
};
use bifold_mmu::{Format, Gpa, Gva, Hpa, PageSize, Start, Walk};
use std::fmt::Debug;

/// What lies below a hypervisor.
pub trait Below: Debug {
    /// True if there is an outer hypervisor, which the exits of the guest pass.
    const EXITS: bool;
    /// True if the addresses of the hypervisor's tables and pages are translated below.
    const TRANSLATES: bool;

    /// What lies below a hypervisor.
    fn new(setup: &Setup<'_>) -> Self;

    /// The hardware's walk of the hypervisor's tables, of a format, from `top` on: [`walk_1d`], with what it
    /// takes to translate their addresses.
    fn walk<M: Memory>(
        &self,
        cpu: &mut Walker<'_, M>,
        top: (&'static Format, Start),
        gva: Gva,
        read: impl FnMut(u8, u64) -> u64,
        page: impl Fn(u64) -> Page,
    ) -> Walk;

    /// The walk where it is steady: see [`PagingMode::walk_steady`](super::PagingMode::walk_steady). `table`
    /// returns the table of a level, and `leaf` the address of the page.
    fn walk_steady<M: Memory>(
        &self,
        hw: &mut Hardware<'_, M>,
        miss: &Steady<'_>,
        table: impl Fn(u8) -> u64,
        leaf: impl FnOnce() -> Gpa,
        page: impl Fn(u64) -> Page,
    );

    /// The size of the TLB entry for a page of the hypervisor's of this size.
    fn size(&self, of: PageSize) -> PageSize;
}

/// The machine itself.
#[derive(Debug)]
pub struct Machine;

impl Below for Machine {
    const EXITS: bool = false;
    const TRANSLATES: bool = false;

    fn new(_: &Setup<'_>) -> Self {
        Machine
    }

    #[inline]
    fn walk<M: Memory>(
        &self,
        cpu: &mut Walker<'_, M>,
        (format, root): (&'static Format, Start),
        gva: Gva,
        read: impl FnMut(u8, u64) -> u64,
        page: impl Fn(u64) -> Page,
    ) -> Walk {
        walk_1d(cpu, format, root, gva, read, page)
    }

    #[inline(always)]
    fn walk_steady<M: Memory>(
        &self,
        hw: &mut Hardware<'_, M>,
        miss: &Steady<'_>,
        table: impl Fn(u8) -> u64,
        _: impl FnOnce() -> Gpa,
        page: impl Fn(u64) -> Page,
    ) {
        walk_1d_steady(hw, miss.format, miss.gva, table, page);
    }

    #[inline]
    fn size(&self, of: PageSize) -> PageSize {
        of
    }
}

/// An outer hypervisor's nested tables, which map all memory. `EXITS`: the exits of the guest go through the
/// outer hypervisor, as those of hardware virtualization do.
#[derive(Debug)]
pub struct Outer<const EXITS: bool> {
    format: &'static Format,
    page: PageSize,
}

impl<const EXITS: bool> NestedSpace for &Outer<EXITS> {
    fn translate<M: Memory>(
        &mut self,
        hw: &mut Hardware<'_, M>,
        gpa: Gpa,
        _: bool,
        guest: u8,
    ) -> Result<(), Violation> {
        let page = gpa.0 >> self.page.shift();
        if !hw.caches.nested_lookup(page, false) {
            let depth = self.format.depth();
            let root = Start { level: depth, table: base(depth) };
            walk_mapped(hw, root, self.page.level(), gpa, guest, |_, _| Page::Table(Made::default()));
            hw.caches.nested_fill(page, false, true);
        }
        Ok(())
    }

    #[inline(always)]
    fn translate_steady<M: Memory>(&mut self, hw: &mut Hardware<'_, M>, gpa: Gpa, _: bool, guest: u8) {
        if !hw.caches.nested_step(gpa.0 >> self.page.shift(), false, true) {
            let levels = (self.page.level(), self.format.depth());
            let page = |_, _| Page::Table(Made::default());
            walk_host_steady(hw, levels, gpa, guest, |level| table_of(level, gpa), page);
        }
    }

    /// The inner hypervisor's memory lies where that of a hypervisor on the machine would.
    fn hpa(&self, gpa: Gpa) -> Hpa {
        Hpa(gpa.0)
    }

    fn page(&self, _: Gpa) -> Page {
        Page::Table(Made::default())
    }

    fn level_at(&self, _: Gpa) -> u8 {
        self.page.level()
    }
}

impl<const EXITS: bool> Below for Outer<EXITS> {
    const EXITS: bool = EXITS;
    const TRANSLATES: bool = true;

    fn new(setup: &Setup<'_>) -> Self {
        Outer { format: setup.nested, page: setup.outer_page }
    }

    fn walk<M: Memory>(
        &self,
        cpu: &mut Walker<'_, M>,
        (format, root): (&'static Format, Start),
        gva: Gva,
        read: impl FnMut(u8, u64) -> u64,
        _: impl Fn(u64) -> Page,
    ) -> Walk {
        let (mut hw, _) = cpu.begin_walk();
        let first = walk_2d::first(hw.caches, format, root, gva);
        match walk_2d(&mut &*self, &mut hw, format, first, (gva, false), read) {
            Ok(end) => end,
            Err(Violation { gpa, .. }) => unreachable!("the outer tables map all, {gpa:?} too"),
        }
    }

    fn walk_steady<M: Memory>(
        &self,
        hw: &mut Hardware<'_, M>,
        miss: &Steady<'_>,
        table: impl Fn(u8) -> u64,
        leaf: impl FnOnce() -> Gpa,
        _: impl Fn(u64) -> Page,
    ) {
        walk_2d_steady(&mut &*self, hw, miss.format, miss.gva, table, (leaf(), miss.write));
    }

    fn size(&self, of: PageSize) -> PageSize {
        of.min(self.page)
    }
}
