// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nested paging: the host's tables for GPA -> HPA and the two-dimensional walk.
//!
//! The tables are real radix tables in the 4-level format (AMD's nested tables;
//! EPT differs in its bits, not in its references). They fill lazily: a frame
//! they do not map ends the walk in a violation, the host backs the frame and the
//! whole walk starts again. References of the guest-table dimension count as
//! writes, as both vendors treat them (Intel SDM vol. 3C 29.3.3 with EPT A/D bits;
//! AMD APM vol. 2 15.25.6). KVM's TDP MMU maps one frame per violation and
//! prefetches none (Linux 6.1 `kvm_tdp_mmu_map`).

use crate::guest::GuestTables;
use crate::host::{Backing, HostMemory};
use bifold_mmu::format::X86_64_4_LEVEL as HOST;
use bifold_mmu::{Dimension, Gpa, Gva, PageSize, Start, Step, Tag, Walk, WalkCache, walk};

/// References by walk step: `[guest level][host level]`; host level 0 is the guest
/// table itself, guest level 0 the data's own nested walk.
pub type Refs = [[u64; 6]; 6];

/// Host-physical addresses of table pages; above every frame that backs guest memory.
const TABLES: u64 = 1 << 41;
/// Software-available bits of a leaf entry: the interval of its last use.
const EPOCH_SHIFT: u32 = 52;
const EPOCH_MASK: u64 = 0x7ff << EPOCH_SHIFT;

/// A frame that the nested tables do not map as needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation {
    /// The guest-physical address.
    pub gpa: Gpa,
    /// For a write.
    pub write: bool,
}

/// The nested tables of one VM, and the host memory behind them.
#[derive(Debug, Clone)]
pub struct Nested {
    tables: Vec<[u64; 512]>,
    host: HostMemory,
    epoch: u64,
    /// Entries used for the first time in this interval that were there before it.
    warm_used: u64,
}

impl Nested {
    /// Empty tables over `host`.
    pub fn new(host: HostMemory) -> Self {
        Nested { tables: vec![[0; 512]], host, epoch: 1 << EPOCH_SHIFT, warm_used: 0 }
    }

    fn root(&self) -> Start {
        Start { level: HOST.depth(), table: TABLES }
    }

    /// The host's memory.
    pub fn host(&self) -> &HostMemory {
        &self.host
    }

    #[inline]
    fn entry(&mut self, at: u64) -> &mut u64 {
        let offset = at - TABLES;
        &mut self.tables[(offset >> 12) as usize][(offset >> 3) as usize & 511]
    }

    /// Begins a new interval: every entry counts as unused.
    pub fn begin_interval(&mut self) {
        self.warm_used = 0;
        let next = (self.epoch >> EPOCH_SHIFT) % 0x7ff + 1;
        self.epoch = next << EPOCH_SHIFT;
    }

    /// Violations that empty tables at the interval's beginning would have added.
    pub fn cold_exits(&self) -> u64 {
        self.warm_used
    }

    #[inline]
    fn mark_used(&mut self, at: u64, entry: u64) {
        if entry & EPOCH_MASK != self.epoch {
            self.warm_used += 1;
            let epoch = self.epoch;
            let e = self.entry(at);
            *e = (*e & !EPOCH_MASK) | epoch;
        }
    }

    /// Translates `gpa`, counting the references into row `row` of `refs`.
    #[inline]
    fn translate(
        &mut self,
        caches: &mut WalkCache,
        gpa: Gpa,
        write: bool,
        row: usize,
        refs: &mut Refs,
    ) -> Result<(), Violation> {
        let page = gpa.0 >> self.host.page_size().shift();
        if caches.nested_lookup(page, write) {
            return Ok(());
        }
        let start = caches.start(Dimension::Host, gpa.0, self.root());
        let end = walk(&HOST, start, gpa.0, |level, at| {
            let held = level > 1 && caches.holds(Dimension::Host, level, at);
            if !held {
                refs[row][usize::from(level)] += 1;
            }
            let entry = *self.entry(at);
            if level > 1 && !held && entry & HOST.present != 0 && !HOST.is_leaf(level, entry) {
                caches.fill(Dimension::Host, level, gpa.0, at, HOST.target(level, entry));
            }
            Ok::<u64, Violation>(entry)
        })?;
        match end {
            Walk::Leaf(Step { at, entry, .. }) if !write || entry & HOST.write != 0 => {
                self.mark_used(at, entry);
                caches.nested_fill(page, entry & HOST.write != 0);
                Ok(())
            }
            _ => Err(Violation { gpa, write }),
        }
    }

    /// The two-dimensional walk of `gva`: the guest's tables, each of their entries
    /// behind a nested walk, and the nested walk of the result (row 0).
    pub fn walk_2d(
        &mut self,
        caches: &mut WalkCache,
        guest: &GuestTables,
        root: Gpa,
        gva: Gva,
        write: bool,
        refs: &mut Refs,
    ) -> Result<Walk, Violation> {
        let format = guest.format();
        let top = Start { level: format.depth(), table: root.0 };
        let start = caches.start(Dimension::Guest, gva.0, top);
        // A virtually tagged hit gives the next table's host address as well.
        let mut known = caches.tag() == Tag::Virtual && start != top;
        let end = walk(format, start, gva.0, |level, at| {
            if !std::mem::take(&mut known) {
                self.translate(caches, Gpa(at), true, usize::from(level), refs)?;
            }
            // Computed only where the address matters: it costs a permutation.
            let at_host = if caches.tag() == Tag::Physical { self.host.hpa(Gpa(at)).0 } else { 0 };
            let held = level > 1 && caches.holds(Dimension::Guest, level, at_host);
            if !held {
                refs[usize::from(level)][0] += 1;
            }
            let entry = guest.read(Gpa(at));
            if level > 1 && !held && entry & format.present != 0 && !format.is_leaf(level, entry) {
                caches.fill(Dimension::Guest, level, gva.0, at_host, format.target(level, entry));
            }
            Ok(entry)
        })?;
        if let Walk::Leaf(Step { level, entry, .. }) = end {
            let offset = gva.0 & ((1 << format.level(level).shift) - 1);
            self.translate(caches, Gpa(format.target(level, entry) | offset), write, 0, refs)?;
        }
        Ok(end)
    }

    /// May a write to `gpa` use its mapping as it is?
    #[inline]
    pub fn writable(&self, gpa: Gpa) -> bool {
        self.host.backing(gpa) == Backing::Own
    }

    /// Handles a violation: backs the frame and maps it. True if the host had to back it.
    pub fn resolve(&mut self, v: Violation) -> bool {
        let backed = self.host.touch(v.gpa, v.write);
        let size = self.host.page_size();
        let mut table = 0usize;
        for level in (size.level() + 1..=HOST.depth()).rev() {
            let i = HOST.index(level, v.gpa.0) as usize;
            let entry = self.tables[table][i];
            table = if entry & HOST.present != 0 {
                ((HOST.target(level, entry) - TABLES) >> 12) as usize
            } else {
                self.tables.push([0; 512]);
                let new = self.tables.len() - 1;
                self.tables[table][i] = (TABLES + ((new as u64) << 12)) | HOST.present | HOST.write;
                new
            };
        }
        let page = Gpa(v.gpa.0 >> size.shift() << size.shift());
        let large = if size == PageSize::Size4K { 0 } else { HOST.page_size };
        let write = if self.writable(v.gpa) { HOST.write } else { 0 };
        self.tables[table][HOST.index(size.level(), v.gpa.0) as usize] =
            self.host.hpa(page).0 | HOST.present | write | large | self.epoch;
        backed
    }
}
