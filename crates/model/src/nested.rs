// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nested paging: the host's tables for GPA -> HPA and the two-dimensional walk.
//!
//! The tables are real radix tables in the format of AMD's nested tables, of 4 levels or 5. EPT has other
//! bits and the same references. The tables fill lazily: a frame without an entry ends the walk in a
//! violation, the host backs the frame, and the whole walk starts again. References to guest tables count as
//! writes, as both vendors treat them (Intel SDM vol. 3C 29.3.3 with EPT A/D bits; AMD APM vol. 2 15.25.6).
//! KVM's TDP MMU maps one frame per violation and prefetches none (Linux 6.1 `kvm_tdp_mmu_map`).

mod host;

use crate::access::Steady;
use crate::ages::{Ages, Reuse};
use crate::guest::GuestTables;
use crate::host::HostMemory;
use crate::memory::{Hardware, Memory};
use crate::page::{Made, Makers, Page};
use crate::walk_2d::{
    self, NestedSpace, Violation, base, table_of, tables_are_steady, walk_2d, walk_2d_steady, walk_host,
    walk_host_steady, walk_mapped,
};
use bifold_mmu::format::MOST_LEVELS;
use bifold_mmu::{Format, Gpa, Gva, Hpa, PageSize, Start, Step, Walk, WalkCache, walk};

/// Software-available bits of a leaf entry: the interval of its last use, from 1 on; 0 of an entry that no
/// walk has used.
const EPOCH_SHIFT: u32 = 52;
const EPOCH_MASK: u64 = 0x7ff << EPOCH_SHIFT;

/// The nested tables of one VM.
#[derive(Debug, Clone)]
pub struct Nested {
    format: &'static Format,
    /// Entries by level, in the order of the addresses they map.
    levels: [Vec<u64>; MOST_LEVELS],
    /// Size of the host's pages, of the largest ones if some are split.
    page: PageSize,
    /// There are entries for smaller pages.
    split: bool,
    epoch: u64,
    /// Entries used for the first time in this interval that were there before it.
    ages: Ages,
    /// By level: entries that [`Nested::map_all`] made and that a walk used since.
    pub first_used: [u64; 3],
    /// See [`Nested::young`].
    young: u64,
    /// By level, per leaf entry: the intervals of its last use and of its making, from 1 on; 0 of what was
    /// mapped from the start.
    used_made: [Vec<[u32; 2]>; 3],
    /// Two bits per leaf entry for a page of the largest size, [`READY`] and [`READY_WRITE`].
    ready: Vec<u64>,
    /// Walks read the entries of the guest's root that other modes have in registers.
    reads_root: bool,
    /// Who made each table, if the host's memory remembers who touched its pages.
    makers: Option<Makers>,
}

/// The entry maps its page, its accessed bit is set, its use in this interval is noted, and the tables above
/// lead to it: walks need not read it. Most walks are over entries that have not changed since the last one,
/// and these bits stay in the machine's cache where the entries do not.
const READY: u64 = 1;
/// The entry is ready, and its page may be written. A ready entry without this bit maps the zero page.
const READY_WRITE: u64 = 2;
/// Above every number of a page: the level of one that is smaller than the largest.
const SIZE_SHIFT: u32 = 48;
/// Entries per word of [`Nested::ready`].
const PER_WORD: usize = 32;

impl Nested {
    /// Empty tables of `format` over `host`.
    pub fn new(host: &HostMemory, format: &'static Format) -> Self {
        let frames = host.frames();
        let levels = [1, 2, 3, 4, 5u8].map(|level| {
            let has_tables = (host.page_size().level()..=format.depth()).contains(&level);
            let covered = if has_tables { (frames >> (9 * (level - 1))) + 1 } else { 0 };
            vec![0; (covered as usize).next_multiple_of(512)]
        });
        let leaves = levels[usize::from(host.page_size().level()) - 1].len();
        let mut used_made = [const { Vec::new() }; 3];
        used_made[usize::from(host.page_size().level()) - 1] = vec![[0; 2]; leaves];
        let ready = vec![0; leaves / PER_WORD];
        // The first vCPU to run makes the root.
        let makers = host.remembers_first().then(|| Makers::of_root(format.depth()));
        Nested {
            format,
            levels,
            page: host.page_size(),
            split: false,
            epoch: 1 << EPOCH_SHIFT,
            ages: Ages::from_1(),
            first_used: [0; 3],
            young: 0,
            used_made,
            ready,
            reads_root: false,
            makers,
        }
    }

    /// The hardware is AMD's, whose walks of PAE guests read the root's entry from memory. A load of CR3
    /// reads nothing (APM vol. 2, 15.25.10).
    pub fn that_reads_roots(self, reads_root: bool) -> Self {
        Nested { reads_root, ..self }
    }

    /// Where walks of `gva` begin; none where the root's entry, in a register, is not present.
    #[inline]
    pub fn top(&self, guest: &GuestTables, root: Gpa, gva: Gva) -> Option<Start> {
        if self.reads_root {
            return Some(Start { level: guest.format().depth(), table: GuestTables::root_table(root).0 });
        }
        guest.start(root, gva).ok()
    }

    fn root(&self) -> Start {
        Start { level: self.format.depth(), table: base(self.format.depth()) }
    }

    /// What decides on which node the table lies that has an entry at `at`.
    fn table(&self, level: u8, at: u64) -> Page {
        let made = |m: &Makers| m.of(level, (at - base(level)) >> 12);
        Page::Table(self.makers.as_ref().map(made).unwrap_or_default())
    }

    /// Level, first address and maker of every table, if the host's memory remembers who touched its pages.
    pub fn tables_made(&self) -> Vec<(u8, Gpa, Made)> {
        let all = self.makers.iter().flat_map(Makers::all);
        all.map(|(level, number, made)| (level, Gpa(number << (12 + 9 * level)), made)).collect()
    }

    #[inline]
    fn read(&self, level: u8, at: u64) -> u64 {
        self.levels[usize::from(level) - 1].get(((at - base(level)) >> 3) as usize).copied().unwrap_or(0)
    }

    /// The leaf entry of guest frame `gfn`.
    #[inline]
    pub fn peek(&self, gfn: u64) -> u64 {
        self.leaf(Gpa::from_frame(gfn)).entry
    }

    /// The entry at which a walk of `gpa` ends. Below the largest pages, only those of a split page have
    /// tables.
    #[inline]
    fn leaf(&self, gpa: Gpa) -> Step {
        let mut level = self.page.level();
        loop {
            let at = base(level) + (gpa.0 >> (12 + 9 * (level - 1)) << 3);
            let entry = self.read(level, at);
            if level == 1 || entry & self.format.present == 0 || self.format.is_leaf(level, entry) {
                return Step { level, at, entry };
            }
            level -= 1;
        }
    }

    /// [`Nested::peek`] where a walk will read the entry.
    #[inline]
    pub fn read_ahead(&self, gfn: u64) -> u64 {
        if self.ready(Gpa::from_frame(gfn)) == 0 { self.peek(gfn) } else { 0 }
    }

    /// Begins a new interval: every entry counts as unused.
    pub fn begin_interval(&mut self) {
        self.ages.begin_interval();
        self.young = 0;
        let next = (self.epoch >> EPOCH_SHIFT) % 0x7ff + 1;
        self.epoch = next << EPOCH_SHIFT;
        self.ready.fill(0);
    }

    /// The bits of the entry that maps `gpa`: 0, [`READY`], or that and [`READY_WRITE`].
    #[inline]
    fn ready(&self, gpa: Gpa) -> u64 {
        let i = (gpa.0 >> self.page.shift()) as usize;
        self.ready.get(i / PER_WORD).map_or(0, |word| word >> (2 * (i % PER_WORD)) & 3)
    }

    /// Number `i` of the leaf entries has these bits from now on.
    fn set_ready(&mut self, i: usize, bits: u64) {
        if self.ready.len() <= i / PER_WORD {
            self.ready.resize(i / PER_WORD + 1, 0);
        }
        let (word, shift) = (&mut self.ready[i / PER_WORD], 2 * (i % PER_WORD));
        *word = *word & !(3 << shift) | bits << shift;
    }

    /// Entries used in this interval that were there before it: the violations that empty
    /// tables at its beginning, or at an earlier one's, would have added.
    pub fn reuse(&self) -> Vec<Reuse> {
        self.ages.counted()
    }

    /// Number of entries that were there before this interval and that walks have used in it.
    pub fn young(&self) -> u64 {
        self.young
    }

    /// A walk ends at this entry: the hardware sets its accessed bit.
    #[inline]
    fn mark_used(&mut self, step: Step) {
        self.young += u64::from(step.entry & EPOCH_MASK != self.epoch);
        self.note_used(Step { entry: step.entry | self.format.accessed, ..step }, step.entry);
    }

    /// Notes that the entry of `step`, which was `old`, is used in this interval.
    #[inline]
    fn note_used(&mut self, step: Step, old: u64) {
        let i = ((step.at - base(step.level)) >> 3) as usize;
        if step.level == self.page.level() && step.entry & self.format.accessed != 0 {
            let writable = step.entry & self.format.write != 0;
            self.set_ready(i, READY | if writable { READY_WRITE } else { 0 });
        }
        let now = (step.entry & !EPOCH_MASK) | self.epoch;
        if now != old {
            let level = usize::from(step.level) - 1;
            self.levels[level][i] = now;
            if old & EPOCH_MASK != self.epoch {
                self.first_used[level] += u64::from(old & EPOCH_MASK == 0);
                let [used, made] = &mut self.used_made[level][i];
                self.ages.used(*used, *made);
                *used = self.ages.now;
            }
        }
    }

    /// Marks the entry that maps `gpa` as used by a walk, if there is one.
    #[inline]
    fn use_frame(&mut self, gpa: Gpa) {
        let step = self.leaf(gpa);
        if step.entry & self.format.present != 0 {
            self.mark_used(step);
        }
    }

    /// Notes a use of the entry that maps `gpa`, if there is one, though no walk read it.
    fn note_frame(&mut self, gpa: Gpa) {
        let step = self.leaf(gpa);
        if step.entry & self.format.present != 0 {
            self.note_used(step, step.entry);
        }
    }

    /// Notes what a walk of `gva` would read as used, without walking.
    pub fn use_path(&mut self, guest: &GuestTables, start: Start, gva: Gva) {
        let format = guest.format();
        let end = walk::<std::convert::Infallible>(format, start, gva.0, |_, at| {
            self.note_frame(Gpa(at));
            Ok(guest.read(Gpa(at)))
        });
        if let Ok(Walk::Leaf(step)) = end {
            let offset = gva.0 & ((1 << format.level(step.level).shift) - 1);
            self.note_frame(Gpa(format.target(step.level, step.entry) | offset));
        }
    }

    /// The first of the guest's tables on the way from `start` to `gva` that is not mapped, if any. The host
    /// address of the one at `start` may be `known`.
    pub fn unmapped_table(
        &self,
        guest: &GuestTables,
        start: Start,
        known: bool,
        gva: Gva,
    ) -> Option<Violation> {
        let format = guest.format();
        let end = walk(format, start, gva.0, |level, at| {
            if !(known && level == start.level) && self.peek(at >> 12) & self.format.write == 0 {
                return Err(Violation { gpa: Gpa(at), write: true });
            }
            Ok(guest.read(Gpa(at)))
        });
        end.err()
    }

    /// Translates `gpa`, for the walk step of guest level `guest`.
    #[inline(always)]
    fn translate<M: Memory>(
        &mut self,
        hw: &mut Hardware<'_, M>,
        gpa: Gpa,
        write: bool,
        guest: u8,
    ) -> Result<(), Violation> {
        let ready = self.ready(gpa);
        if ready & if write { READY_WRITE } else { READY } == 0 || !hw.caches.has_host_steps() {
            return self.translate_any(hw, gpa, write, guest);
        }
        self.translate_ready(hw, gpa, (write, ready & READY_WRITE != 0), guest);
        Ok(())
    }

    /// The references of the walk to a ready entry, and what it leaves in the walk caches: where
    /// the tables lie, and so every entry but the leaf, follows from the address.
    #[inline(always)]
    fn walk_ready<M: Memory>(&self, hw: &mut Hardware<'_, M>, gpa: Gpa, guest: u8) {
        let levels = (self.page.level(), self.format.depth());
        walk_host_steady(
            hw,
            levels,
            gpa,
            guest,
            |level| table_of(level, gpa),
            |level, at| self.table(level, at),
        );
    }

    /// See [`PagingMode::steady`](crate::paging::PagingMode::steady).
    #[inline]
    pub fn steady(&self, caches: &WalkCache, miss: &Steady<'_>) -> Option<bool> {
        let ready = self.ready(miss.gpa());
        if ready & if miss.write { READY_WRITE } else { READY } == 0 {
            return None;
        }
        let is_ready = |level| self.ready(Gpa(miss.path.table(level))) & READY_WRITE != 0;
        tables_are_steady(caches, miss, is_ready).then_some(miss.writable && ready & READY_WRITE != 0)
    }

    /// See [`PagingMode::walk_steady`](crate::paging::PagingMode::walk_steady).
    #[inline]
    pub fn walk_steady<M: Memory>(&mut self, hw: &mut Hardware<'_, M>, miss: &Steady<'_>, host: &HostMemory) {
        let page = (miss.gpa(), miss.write);
        walk_2d_steady(&mut self.over(host), hw, miss.format, miss.gva, |level| miss.path.table(level), page);
    }

    /// [`Nested::translate`] of a page whose entry is ready for it, and may be written if `writable`, with
    /// walk caches that have host steps.
    #[inline(always)]
    fn translate_ready<M: Memory>(
        &self,
        hw: &mut Hardware<'_, M>,
        gpa: Gpa,
        (write, writable): (bool, bool),
        guest: u8,
    ) {
        if !hw.caches.nested_step(gpa.0 >> self.page.shift(), write, writable) {
            self.walk_ready(hw, gpa, guest);
        }
    }

    /// [`Nested::translate`] of any page, with any walk caches.
    #[inline(never)]
    fn translate_any<M: Memory>(
        &mut self,
        hw: &mut Hardware<'_, M>,
        gpa: Gpa,
        write: bool,
        guest: u8,
    ) -> Result<(), Violation> {
        let page = self.nested_page(gpa);
        let ready = self.ready(gpa);
        if hw.caches.nested_lookup(page, write) {
            if ready == 0 {
                self.use_frame(gpa);
            }
            return Ok(());
        }
        if ready & if write { READY_WRITE } else { READY } != 0 {
            self.walk_ready_any(hw, gpa, guest);
            hw.caches.nested_fill(page, write, ready & READY_WRITE != 0);
            return Ok(());
        }
        let (read, table) = (|level, at| self.read(level, at), |level, at| self.table(level, at));
        let end = walk_host(hw, self.format, self.root(), (gpa, guest), read, table);
        match end {
            Walk::Leaf(step) if !write || step.entry & self.format.write != 0 => {
                self.mark_used(step);
                hw.caches.nested_fill(page, write, step.entry & self.format.write != 0);
                Ok(())
            }
            _ => Err(Violation { gpa, write }),
        }
    }

    /// The number under which the nested TLB files the page behind `gpa`. Those of a split page have numbers
    /// of their own.
    #[inline]
    fn nested_page(&self, gpa: Gpa) -> u64 {
        let level = if self.split { self.leaf(gpa).level } else { self.page.level() };
        let number = gpa.0 >> (12 + 9 * (level - 1));
        if level == self.page.level() { number } else { number | u64::from(level) << SIZE_SHIFT }
    }

    /// [`Nested::walk_ready`] with any walk caches.
    #[inline]
    fn walk_ready_any<M: Memory>(&self, hw: &mut Hardware<'_, M>, gpa: Gpa, guest: u8) {
        let table = |level, at| self.table(level, at);
        walk_mapped(hw, self.root(), self.page.level(), gpa, guest, table);
    }

    /// The tables as the second dimension of a walk, over the memory that they map.
    #[inline(always)]
    pub fn over<'a>(&'a mut self, host: &'a HostMemory) -> Over<'a> {
        Over { tables: self, host }
    }

    /// Reads the entries at `at` that a load of CR3 puts into registers, as one reference. Unlike those of
    /// walks, the read does not count as a write (Intel SDM vol. 3C, 29.3.5).
    pub fn load_registers<M: Memory>(
        &mut self,
        hw: &mut Hardware<'_, M>,
        format: &Format,
        at: Gpa,
        host: &HostMemory,
    ) -> Result<(), Violation> {
        if self.reads_root {
            return Ok(());
        }
        let level = format.depth();
        self.translate(hw, at, false, level)?;
        hw.touch(level, 0, || host.hpa(at), || host.page(at));
        Ok(())
    }

    /// May a write to `gpa` use its mapping as it is? A kept entry may not where the host's page has become
    /// writable meanwhile.
    #[inline]
    pub fn writable(&self, gpa: Gpa) -> bool {
        match self.ready(gpa) {
            0 => self.leaf(gpa).entry & self.format.write != 0,
            bits => bits & READY_WRITE != 0,
        }
    }
}

/// Nested tables over the host's memory.
#[derive(Debug)]
pub struct Over<'a> {
    tables: &'a mut Nested,
    host: &'a HostMemory,
}

impl Over<'_> {
    /// The two-dimensional walk of `gva` from `top`: the guest's tables, each of their entries
    /// behind a nested walk, and the nested walk of the result (guest level 0). `read` returns the
    /// guest's entry at an address.
    pub fn walk_2d<M: Memory>(
        &mut self,
        hw: &mut Hardware<'_, M>,
        format: &Format,
        top: Start,
        (gva, write): (Gva, bool),
        read: impl Fn(u64) -> u64,
    ) -> Result<Walk, Violation> {
        let first = walk_2d::first(hw.caches, format, top, gva);
        walk_2d(self, hw, format, first, (gva, write), |_, at| read(at))
    }
}

impl NestedSpace for Over<'_> {
    #[inline(always)]
    fn translate<M: Memory>(
        &mut self,
        hw: &mut Hardware<'_, M>,
        gpa: Gpa,
        write: bool,
        guest: u8,
    ) -> Result<(), Violation> {
        self.tables.translate(hw, gpa, write, guest)
    }

    #[inline(always)]
    fn translate_steady<M: Memory>(&mut self, hw: &mut Hardware<'_, M>, gpa: Gpa, write: bool, guest: u8) {
        let writable = write || self.tables.ready(gpa) & READY_WRITE != 0;
        self.tables.translate_ready(hw, gpa, (write, writable), guest);
    }

    #[inline(always)]
    fn hpa(&self, gpa: Gpa) -> Hpa {
        self.host.hpa(gpa)
    }

    #[inline(always)]
    fn page(&self, gpa: Gpa) -> Page {
        self.host.page(gpa)
    }

    #[inline(always)]
    fn level_at(&self, gpa: Gpa) -> u8 {
        self.host.size_at(gpa).level()
    }
}

#[cfg(test)]
mod tests;
