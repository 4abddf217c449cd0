// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's page tables, replayed from the event stream.
//!
//! A table enters with its 512 words ([`Event::Table`]), follows every store ([`Event::PtStore`])
//! and leaves when the guest uses the page for something else ([`Event::Retire`]). Walks read these
//! copies and not the guest's memory, because the guest has changed its memory meanwhile. Accessed
//! and dirty bits are set here as the CPU sets them; the stream leaves out the emulator's own
//! setting of these bits.
//!
//! A table of 4-byte entries is kept as two halves of 512 entries, each the low half of a word. A half maps
//! what a shadow page or a stretch of 2 MB maps.
//!
//! [`Event::Table`]: bifold_trace::Event::Table
//! [`Event::PtStore`]: bifold_trace::Event::PtStore
//! [`Event::Retire`]: bifold_trace::Event::Retire

use bifold_mmu::format::MOST_LEVELS;
use bifold_mmu::{Format, Gpa, Gva, PageSize, Start, Step, Walk, walk};
use std::collections::HashMap;

const NONE: u32 = u32::MAX;
/// Frames above this (64 GB) are looked up in a map instead of an array.
const DENSE_FRAMES: u64 = 1 << 24;

#[derive(Debug, Clone)]
struct Table {
    /// Physical address of the table, or of its second half.
    at: u64,
    level: u8,
    /// Frame of a table that was last seen to point here (its own frame for a root).
    parent: u64,
}

/// Where the leaf table of a 2 MB stretch of addresses is: saves most look-ups the
/// upper levels. Valid while no upper entry has changed since it was filed.
#[derive(Debug, Clone, Copy, Default)]
struct Stretch {
    root: u64,
    /// Address >> 21, plus 1: 0 stands for no stretch.
    number: u64,
    generation: u64,
    /// Slot of the level-1 table.
    slot: u32,
    writable: bool,
    /// The tables on the way there, by level less 1.
    tables: [u64; MOST_LEVELS],
}

/// The way of a walk to an entry of level 1.
#[derive(Debug, Clone, Copy)]
pub struct Path<'a> {
    tables: &'a [u64; MOST_LEVELS],
    /// The entry.
    pub entry: u64,
    /// The entries above allow writes.
    pub writable: bool,
}

impl Path<'_> {
    /// Address of the table of `level` on the way.
    #[inline(always)]
    pub fn table(&self, level: u8) -> u64 {
        self.tables[usize::from(level) - 1]
    }
}

const STRETCHES: usize = 4096;

/// A guest translation: the leaf entry that maps an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf {
    /// The entry, its level and its place.
    pub step: Step,
    /// Size of the page it maps, or of its [piece](Format::piece).
    pub size: PageSize,
    /// Start of that page or piece.
    pub page: Gpa,
    /// Writes are allowed at every level of the walk.
    pub writable: bool,
}

impl Leaf {
    /// Guest-physical address of `gva`, which the leaf maps.
    #[inline]
    pub fn gpa(&self, gva: Gva) -> Gpa {
        Gpa(self.page.0 | (gva.0 & ((1 << self.size.shift()) - 1)))
    }
}

/// The low half of a word, or for an odd number the high one: a 4-byte entry.
fn half_of(word: u64, number: usize) -> u64 {
    word >> (32 * (number & 1)) & 0xffff_ffff
}

#[inline]
fn stretch_index(root: Gpa, number: u64) -> usize {
    (number ^ root.0 >> 12) as usize & (STRETCHES - 1)
}

/// Where the number of a vCPU is in its root, if that has registers.
const VCPU_SHIFT: u32 = 52;

/// Every page-table page of the guest.
#[derive(Debug, Clone)]
pub struct GuestTables {
    format: &'static Format,
    tables: Vec<Table>,
    /// The tables' entries, by slot. A table of 4-byte entries has two slots, an even one and the next.
    entries: Vec<[u64; 512]>,
    /// First slots of tables that are gone.
    free: Vec<u32>,
    /// By vCPU, where the format has them.
    registers: Vec<[u64; 4]>,
    stretches: Vec<Stretch>,
    generation: u64,
    /// See [`GuestTables::replaced`].
    replaced: u64,
    index: Vec<u32>,
    sparse: HashMap<u64, u32>,
}

impl GuestTables {
    /// No tables yet, of `format`.
    pub fn new(format: &'static Format) -> Self {
        GuestTables {
            format,
            tables: Vec::new(),
            entries: Vec::new(),
            free: Vec::new(),
            registers: Vec::new(),
            stretches: vec![Stretch::default(); STRETCHES],
            generation: 0,
            replaced: 0,
            index: Vec::new(),
            sparse: HashMap::new(),
        }
    }

    /// The tables' format.
    #[inline]
    pub fn format(&self) -> &'static Format {
        self.format
    }

    #[inline]
    fn slot(&self, gfn: u64) -> Option<usize> {
        let i = if gfn < DENSE_FRAMES {
            self.index.get(gfn as usize).copied().unwrap_or(NONE)
        } else {
            self.sparse.get(&gfn).copied().unwrap_or(NONE)
        };
        (i != NONE).then_some(i as usize)
    }

    fn set_slot(&mut self, gfn: u64, slot: u32) {
        if gfn < DENSE_FRAMES {
            if self.index.len() <= gfn as usize {
                self.index.resize((gfn as usize + 1).next_power_of_two(), NONE);
            }
            self.index[gfn as usize] = slot;
        } else if slot == NONE {
            self.sparse.remove(&gfn);
        } else {
            self.sparse.insert(gfn, slot);
        }
    }

    /// Slots of a table.
    #[inline]
    fn halves(&self) -> usize {
        if self.format.entry_shift == 2 { 2 } else { 1 }
    }

    /// The root of the vCPU with `cr3`. Where the format has registers, it tells which vCPU's.
    #[inline]
    pub fn root(&self, vcpu: usize, cr3: u64) -> Gpa {
        /// Bits 31 to 5 (Intel SDM vol. 3A, table 4-7).
        const PAE: u64 = 0xffff_ffe0;
        match self.format.registers {
            false => Gpa(cr3 & self.format.address),
            true => Gpa(cr3 & PAE | (vcpu as u64) << VCPU_SHIFT),
        }
    }

    /// Physical address of the table at a [root](GuestTables::root), which is read when CR3 is loaded.
    pub fn root_table(root: Gpa) -> Gpa {
        Gpa(root.0 & ((1 << VCPU_SHIFT) - 1))
    }

    /// The entries that a vCPU has in registers; not present until it has loaded some.
    pub fn registers(&self, vcpu: usize) -> [u64; 4] {
        self.registers.get(vcpu).copied().unwrap_or_default()
    }

    /// The vCPU loads its registers, if the format has them, from the table at its root.
    pub fn load_registers(&mut self, vcpu: usize, root: Gpa) {
        if !self.format.registers {
            return;
        }
        let at = GuestTables::root_table(root);
        let loaded = [0, 1, 2, 3].map(|i| self.read(Gpa(at.0 + (i << self.format.entry_shift))));
        if self.registers.len() <= vcpu {
            self.registers.resize(vcpu + 1, [0; 4]);
        }
        if std::mem::replace(&mut self.registers[vcpu], loaded) != loaded {
            self.generation += 1;
        }
    }

    /// Where the hardware's walk of `gva` begins, or the step at which it ends because the register's entry
    /// is not present.
    #[inline]
    pub fn start(&self, root: Gpa, gva: Gva) -> Result<Start, Step> {
        let level = self.format.depth();
        if self.format.registers {
            return self.start_below_register(root, gva);
        }
        Ok(Start { level, table: root.0 })
    }

    fn start_below_register(&self, root: Gpa, gva: Gva) -> Result<Start, Step> {
        let (format, level) = (self.format, self.format.depth());
        let entry = self.registers((root.0 >> VCPU_SHIFT) as usize)[format.index(level, gva.0) as usize];
        if entry & format.present == 0 {
            let at = GuestTables::root_table(root).0 + format.offset(level, gva.0);
            return Err(Step { level, at, entry });
        }
        Ok(Start { level: level - 1, table: format.target(level, entry) })
    }

    /// A page became a table, with these words.
    pub fn add(&mut self, gfn: u64, level: u8, words: &[u64; 512]) {
        self.generation += 1;
        let known = self.slot(gfn);
        let first = match known {
            Some(i) => {
                self.replaced += 1;
                i
            }
            None => {
                let i = self.free.pop().map_or(self.tables.len(), |i| i as usize);
                self.set_slot(gfn, i as u32);
                i
            }
        };
        let halves = self.halves();
        for half in 0..halves {
            let i = first + half;
            let parent = known.map_or(gfn, |_| self.tables[i].parent);
            let table = Table { at: gfn << 12 | (half as u64) << 11, level, parent };
            let entries = match halves {
                1 => *words,
                _ => std::array::from_fn(|e| half_of(words[(half << 9 | e) >> 1], e)),
            };
            if i == self.tables.len() {
                self.tables.push(table);
                self.entries.push(entries);
            } else {
                self.tables[i] = table;
                self.entries[i] = entries;
            }
            self.adopt(gfn, level, &entries);
        }
    }

    /// Notes `gfn` as the parent of the tables its entries point to.
    fn adopt(&mut self, gfn: u64, level: u8, entries: &[u64]) {
        if level == 1 {
            return;
        }
        for &entry in entries {
            if entry & self.format.present == 0 || self.format.is_leaf(level, entry) {
                continue;
            }
            if let Some(child) = self.slot(self.format.target(level, entry) >> 12) {
                self.tables[child].parent = gfn;
            }
        }
    }

    /// Frame of the root table above the table in frame `gfn`, if it is a table. One of
    /// them, where several address spaces share it.
    pub fn owner(&self, gfn: u64) -> Option<u64> {
        let mut at = self.slot(gfn)?;
        for _ in 0..self.format.depth() {
            let parent = self.tables[at].parent;
            match self.slot(parent) {
                Some(up) if up != at => at = up,
                _ => break,
            }
        }
        Some(self.tables[at].at >> 12)
    }

    /// A page is no table any more.
    pub fn retire(&mut self, gfn: u64) {
        if let Some(i) = self.slot(gfn) {
            self.generation += 1;
            self.replaced += 1;
            self.set_slot(gfn, NONE);
            self.free.push(i as u32);
        }
    }

    /// Level of the table in frame `gfn`, if it is one.
    pub fn level(&self, gfn: u64) -> Option<u8> {
        self.slot(gfn).map(|i| self.tables[i].level)
    }

    /// The entries of the table in frame `gfn`, if it is one; of 4-byte entries those of a half.
    #[inline]
    pub fn entries(&self, gfn: u64, half: u8) -> Option<&[u64; 512]> {
        self.slot(gfn).map(|i| &self.entries[i + usize::from(half)])
    }

    /// The entry at `at` of the table in slot `i`.
    #[inline]
    fn entry_mut(&mut self, i: usize, at: u64) -> &mut u64 {
        &mut self.entries.as_flattened_mut()[(i << 9) + self.format.number(at)]
    }

    /// The entry at `at`; 0 (not present) where there is no table.
    #[inline]
    pub fn read(&self, at: Gpa) -> u64 {
        match self.slot(at.frame()) {
            Some(i) => self.entries.as_flattened()[(i << 9) + self.format.number(at.0)],
            None => 0,
        }
    }

    /// The guest stored a word at `at`. Of two 4-byte entries in it, those that changed are stored.
    pub fn store_word(&mut self, at: Gpa, old: u64, new: u64) {
        if self.format.entry_shift == 3 {
            return self.store(at, new);
        }
        for i in [0, 1] {
            if half_of(old, i) != half_of(new, i) {
                self.store(Gpa((at.0 & !7) + 4 * i as u64), half_of(new, i));
            }
        }
    }

    /// The guest stored the entry `new` at `at`.
    pub fn store(&mut self, at: Gpa, new: u64) {
        if let Some(i) = self.slot(at.frame()) {
            let old = std::mem::replace(self.entry_mut(i, at.0), new);
            let level = self.tables[i].level;
            if level > 1 {
                self.generation += 1;
                let Format { present, page_size, address, .. } = *self.format;
                let moved = (old ^ new) & (present | page_size | address) != 0;
                self.replaced += u64::from(old & present != 0 && moved);
                self.adopt(at.frame(), level, &[new]);
            }
        }
    }

    /// Sets the accessed bit, and for a write the dirty bit, of a leaf, as the CPU does.
    #[inline]
    pub fn touch(&mut self, leaf: &Leaf, write: bool) {
        let bits = self.format.accessed | if write { self.format.dirty } else { 0 };
        if leaf.step.entry & bits == bits {
            return;
        }
        if let Some(i) = self.slot(leaf.step.at >> 12) {
            *self.entry_mut(i, leaf.step.at) = leaf.step.entry | bits;
        }
    }

    /// How often an entry above level 1 came to mean something else, and how often a table was replaced or
    /// ceased to be one: after that, a walk cache may lead to a table that the guest has left. Stores to a
    /// table of level 1 do not count, and no [path](GuestTables::path) leads through one.
    #[inline]
    pub fn replaced(&self) -> u64 {
        self.replaced
    }

    /// The way to the entry of level 1 for `gva` under the root table at `root`, if it is quickly found.
    #[inline]
    pub fn path(&self, root: Gpa, gva: Gva) -> Option<Path<'_>> {
        let number = (gva.0 >> 21) + 1;
        let st = &self.stretches[stretch_index(root, number)];
        if st.number != number || st.root != root.0 || st.generation != self.generation {
            return None;
        }
        let i = (gva.0 >> 12) as usize & 511;
        let entry = self.entries[st.slot as usize][i];
        Some(Path { tables: &st.tables, entry, writable: st.writable })
    }

    /// The leaf that maps `gva` under the root table at `root`, or the step at which the walk ended.
    #[inline]
    pub fn lookup(&mut self, root: Gpa, gva: Gva) -> Result<Leaf, Step> {
        let number = (gva.0 >> 21) + 1;
        let st = self.stretches[stretch_index(root, number)];
        if st.number == number && st.root == root.0 && st.generation == self.generation {
            let i = (gva.0 >> 12) as usize & 511;
            let entry = self.entries[st.slot as usize][i];
            let at = self.tables[st.slot as usize].at | (i as u64) << self.format.entry_shift;
            let step = Step { level: 1, at, entry };
            if entry & self.format.present == 0 {
                return Err(step);
            }
            return Ok(self.leaf(step, gva, st.writable && entry & self.format.write != 0));
        }
        self.lookup_from_root(root, gva)
    }

    #[inline]
    fn leaf(&self, step: Step, gva: Gva, writable: bool) -> Leaf {
        let size = PageSize::ALL[usize::from(step.level) - 1];
        Leaf { step, size, page: Gpa(self.format.piece(step.level, step.entry, gva.0)), writable }
    }

    fn lookup_from_root(&mut self, root: Gpa, gva: Gva) -> Result<Leaf, Step> {
        let mut writable = true;
        let mut above = true;
        let mut lasting = true;
        let mut tables = [0; MOST_LEVELS];
        let start = self.start(root, gva)?;
        let end = walk::<std::convert::Infallible>(self.format, start, gva.0, |level, at| {
            let entry = self.read(Gpa(at));
            writable &= entry & self.format.write != 0;
            tables[usize::from(level) - 1] = at & !0xfff;
            if level > 1 {
                above = writable;
                // A store to a table known as a leaf table starts no generation.
                lasting &= self.level(at >> 12) != Some(1);
            }
            Ok(entry)
        });
        let (step, found) = match end {
            Ok(Walk::Leaf(step)) => (step, true),
            Ok(Walk::NotPresent(step)) => (step, false),
            Err(never) => match never {},
        };
        if let (1, true, Some(slot)) = (step.level, lasting, self.slot(step.at >> 12)) {
            let number = (gva.0 >> 21) + 1;
            let slot = slot + (self.format.number(step.at) >> 9);
            self.stretches[stretch_index(root, number)] = Stretch {
                root: root.0,
                number,
                generation: self.generation,
                slot: slot as u32,
                writable: above,
                tables,
            };
        }
        if found { Ok(self.leaf(step, gva, writable)) } else { Err(step) }
    }

    /// Reads the leaf entry of `gva` if it is quickly found, so that it is in the
    /// machine's cache when it is needed: the frame it maps, or nothing.
    #[inline]
    pub fn peek(&self, root: Gpa, gva: Gva) -> Option<u64> {
        let number = (gva.0 >> 21) + 1;
        let st = &self.stretches[stretch_index(root, number)];
        (st.number == number && st.root == root.0 && st.generation == self.generation)
            .then(|| self.entries[st.slot as usize][(gva.0 >> 12) as usize & 511] >> 12 & 0xff_ffff_ffff)
    }

    /// Number of tables.
    pub fn len(&self) -> usize {
        self.tables.len() / self.halves() - self.free.len()
    }

    /// No tables at all?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests;
