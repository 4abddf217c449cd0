// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A small guest kernel that writes event streams: three address spaces of mixed page
//! sizes with a shared global kernel half, on up to four CPUs. It touches only what its tables
//! allow, and flushes what it must: an entry changed so that it allows less, or
//! maps something else, is invalidated on every CPU before the next access.

use crate::reference::{ACCESSED, ADDRESS, DIRTY, GLOBAL, LARGE, PRESENT, Tables, WRITE};
use bifold_trace::Event;
use proptest::prelude::*;
use std::collections::HashMap;

pub const FRAMES: u64 = 1 << 18;
const CR4_PGE: u64 = 1 << 7;

/// Where a guest has what.
struct Layout {
    direct_map: u64,
    text: u64,
    shared: u64,
    /// Stretches of 2 MB that hold 4 KB pages or one large page, under tables of their own and of others.
    stretches: [u64; 6],
    /// The largest pages.
    largest: u64,
    largest_level: u8,
}

const LONG: Layout = Layout {
    direct_map: 0xffff_8880_0000_0000,
    text: 0xffff_ffff_8100_0000,
    shared: 0x60_0000_0000,
    stretches: [
        0x40_0000_0000,
        0x40_0020_0000,
        0x40_4000_0000,
        0x80_0000_0000,
        0x7f00_0020_0000,
        0x60_0000_0000,
    ],
    largest: 0x50_0000_0000,
    largest_level: 3,
};

/// In 32-bit mode. The first two stretches are halves of 4 MB, and no PAE guest has a table for the second
/// gigabyte at first.
const SHORT: Layout = Layout {
    direct_map: 0x8000_0000,
    text: 0xf100_0000,
    shared: 0x2000_0000,
    stretches: [0x4000_0000, 0x4020_0000, 0x4060_0000, 0x5000_0000, 0x7f20_0000, 0x2000_0000],
    largest: 0x7000_0000,
    largest_level: 2,
};

/// One thing for the guest to do; numbers are taken modulo what there is.
#[derive(Debug, Clone, Copy)]
pub enum Op {
    Access {
        kind: u8,
        place: u16,
        page: u16,
    },
    Map {
        place: u16,
        page: u16,
        frame: u16,
        flags: u8,
    },
    Unmap {
        place: u16,
        page: u16,
    },
    /// The kernel sets or clears accessed and dirty bits itself.
    Bits {
        place: u16,
        page: u16,
        flags: u8,
    },
    /// A stretch of 4 KB pages becomes a large page or the reverse.
    Convert {
        place: u16,
        frame: u16,
    },
    Root(u8),
    Cpu(u8),
    Global,
    Invlpg {
        place: u16,
        page: u16,
    },
    Fault {
        place: u16,
        page: u16,
    },
    Insns(u16),
    /// Loads or stores of lines around the border of two 4 KB pages.
    Stream {
        kind: u8,
        place: u16,
        page: u16,
    },
}

pub fn ops(most: usize) -> impl Strategy<Value = Vec<Op>> {
    let (place, page, frame) = (any::<u16>(), any::<u16>(), any::<u16>());
    let op = prop_oneof![
        60 => (any::<u8>(), place, page).prop_map(|(kind, place, page)| Op::Access { kind, place, page }),
        6 => (place, page, frame, any::<u8>())
            .prop_map(|(place, page, frame, flags)| Op::Map { place, page, frame, flags }),
        3 => (place, page).prop_map(|(place, page)| Op::Unmap { place, page }),
        3 => (place, page, any::<u8>()).prop_map(|(place, page, flags)| Op::Bits { place, page, flags }),
        2 => (place, frame).prop_map(|(place, frame)| Op::Convert { place, frame }),
        3 => any::<u8>().prop_map(Op::Root),
        3 => any::<u8>().prop_map(Op::Cpu),
        1 => Just(Op::Global),
        3 => (place, page).prop_map(|(place, page)| Op::Invlpg { place, page }),
        2 => (place, page).prop_map(|(place, page)| Op::Fault { place, page }),
        1 => any::<u16>().prop_map(Op::Insns),
        2 => (any::<u8>(), place, page).prop_map(|(kind, place, page)| Op::Stream { kind, place, page }),
    ];
    proptest::collection::vec(op, 1..most)
}

pub struct Guest {
    pub words: Vec<u64>,
    format: Tables,
    layout: &'static Layout,
    /// Level and entries.
    tables: HashMap<u64, (u8, Vec<u64>)>,
    free: Vec<u64>,
    next: u64,
    roots: [u64; 3],
    /// Per CPU: which root it runs on, and CR4.
    on: [usize; 4],
    cr4: [u64; 4],
    cpu: usize,
    cpus: usize,
}

/// PAE's root tables are no pages of their own: they begin at this entry.
const PAE_ROOT: usize = 4;

impl Guest {
    pub fn new(cpus: usize) -> Guest {
        Guest::of(Tables::Long(4), cpus)
    }

    /// A guest with tables of this format.
    pub fn of(format: Tables, cpus: usize) -> Guest {
        let layout = if let Tables::Long(_) = format { &LONG } else { &SHORT };
        let depth = format.depth();
        let mut g = Guest {
            format,
            layout,
            words: Vec::new(),
            tables: HashMap::new(),
            free: Vec::new(),
            next: 0x100,
            roots: [0; 3],
            on: [0; 4],
            cr4: [CR4_PGE; 4],
            cpu: 0,
            cpus,
        };
        g.roots = [0; 3].map(|_| g.new_table(depth));
        let [first, others @ ..] = g.roots;
        // Before the first CR3 load, stores are the boot code's: the tables are described afresh.
        let large = 1 << format.shift(layout.largest_level);
        for gpa in (0..FRAMES << 12).step_by(large) {
            let bits = WRITE | LARGE | GLOBAL | ACCESSED | DIRTY;
            g.plant(first, layout.direct_map + gpa, layout.largest_level, gpa | bits);
        }
        for n in 0..16 {
            g.plant(first, layout.text + (n << 12), 1, ((0x8000 + n) << 12) | GLOBAL | ACCESSED);
        }
        // The roots of two levels have copies of this entry. All configurations share the guest's tables, and
        // a dirty bit that one sets in one copy would be seen by the others.
        let bits = if format == Tables::TwoLevels { ACCESSED | DIRTY } else { 0 };
        g.plant(first, g.large_text(), 2, (0x8400 << 12) | WRITE | LARGE | GLOBAL | bits);
        g.plant(first, layout.shared, 1, (0x9000 << 12) | WRITE);
        for root in others {
            g.tables.get_mut(&root).unwrap().1 = g.tables[&first].1.clone();
            if depth == 5 {
                // An entry of a fifth level would share all of the user's half.
                let i = g.index(layout.shared, 5);
                g.tables.get_mut(&root).unwrap().1[i] = 0;
            }
        }
        let mut gfns: Vec<u64> = g.tables.keys().copied().collect();
        gfns.sort_unstable_by_key(|gfn| (g.tables[gfn].0, *gfn));
        for gfn in gfns {
            g.describe(gfn);
        }
        for cpu in 0..cpus as u64 {
            g.emit(Event::Vcpu(cpu));
            g.emit(Event::Cr4(CR4_PGE));
            g.emit(Event::Cr3(g.cr3(0)));
        }
        g.emit(Event::Vcpu(0));
        g
    }

    fn emit(&mut self, event: Event<'_>) {
        event.encode(&mut self.words);
    }

    fn describe(&mut self, gfn: u64) {
        let (level, entries) = &self.tables[&gfn];
        let (level, words) = (*level, self.format.words(entries));
        self.emit(Event::Table { gfn, level, entries: &words });
    }

    /// The word at this offset of a table.
    fn word(&self, gfn: u64, offset: u64) -> u64 {
        self.format.words(&self.tables[&gfn].1)[offset as usize / 8]
    }

    fn new_table(&mut self, level: u8) -> u64 {
        let gfn = self.free.pop().unwrap_or(self.next);
        self.next = self.next.max(gfn + 1);
        self.tables.insert(gfn, (level, vec![0; 4096 / self.format.entry_bytes() as usize]));
        gfn
    }

    /// Number of the entry for `va` in its page.
    fn index(&self, va: u64, level: u8) -> usize {
        let first = if self.format == Tables::Pae && level == 3 { PAE_ROOT } else { 0 };
        first + self.format.index(va, level) as usize
    }

    /// What CR3 has on the root with this number.
    fn cr3(&self, root: usize) -> u64 {
        let first = if self.format == Tables::Pae { PAE_ROOT as u64 } else { 0 };
        (self.roots[root] << 12) + 8 * first
    }

    /// A large page of the kernel's text.
    fn large_text(&self) -> u64 {
        self.layout.text + (1 << self.format.shift(2))
    }

    /// Boot: writes an entry without events.
    fn plant(&mut self, root: u64, va: u64, level: u8, entry: u64) {
        let mut gfn = root;
        for l in (level + 1..=self.format.depth()).rev() {
            let i = self.index(va, l);
            if self.tables[&gfn].1[i] & PRESENT == 0 {
                let child = self.new_table(l - 1);
                let accessed = if l > self.format.first() { 0 } else { ACCESSED };
                self.tables.get_mut(&gfn).unwrap().1[i] = self.format.link(child, l) | accessed;
            }
            gfn = (self.tables[&gfn].1[i] & ADDRESS) >> 12;
        }
        let i = self.index(va, level);
        self.tables.get_mut(&gfn).unwrap().1[i] = entry | PRESENT;
    }

    /// Table and level of the entry at which a walk ends, and the entry.
    fn find(&self, va: u64) -> (u64, u8, u64) {
        let mut gfn = self.roots[self.on[self.cpu]];
        for level in (1..=self.format.depth()).rev() {
            let entry = self.tables[&gfn].1[self.index(va, level)];
            if entry & PRESENT == 0 || level == 1 || entry & LARGE != 0 {
                return (gfn, level, entry);
            }
            gfn = (entry & ADDRESS) >> 12;
        }
        unreachable!()
    }

    /// The kernel stores a table entry, through its direct map.
    fn store(&mut self, gfn: u64, i: usize, new: u64) {
        let offset = self.format.entry_bytes() * i as u64;
        let old = self.word(gfn, offset & !7);
        self.tables.get_mut(&gfn).unwrap().1[i] = new;
        let (gpa, new) = ((gfn << 12) + (offset & !7), self.word(gfn, offset & !7));
        self.emit(Event::Store(self.layout.direct_map + (gfn << 12) + offset));
        self.emit(Event::PtStore { gpa, old, new });
        if self.tables[&gfn].0 == 3 && self.format == Tables::Pae {
            self.reload(gfn);
        }
    }

    /// CPUs that run on a root of PAE load its entries into their registers.
    fn reload(&mut self, root: u64) {
        for cpu in 0..self.cpus {
            if self.roots[self.on[cpu]] == root {
                self.emit(Event::Vcpu(cpu as u64));
                self.emit(Event::Cr3(self.cr3(self.on[cpu])));
            }
        }
        self.emit(Event::Vcpu(self.cpu as u64));
    }

    /// Invalidates on both CPUs.
    fn shoot_down(&mut self, va: u64) {
        for cpu in 0..self.cpus {
            self.emit(Event::Vcpu(cpu as u64));
            self.emit(Event::Invlpg(va));
        }
        self.emit(Event::Vcpu(self.cpu as u64));
    }

    /// Maps `va` at `level`, making what tables are missing. A table in the way stays.
    fn map(&mut self, va: u64, level: u8, entry: u64) {
        let (gfn, at, old) = self.find(va);
        if old & PRESENT != 0 {
            // A leaf, of whatever size.
            let mask = if at == level { ADDRESS | WRITE | PRESENT } else { WRITE };
            self.store(gfn, self.index(va, at), (old & !mask & !DIRTY) | (entry & mask));
            return self.shoot_down(va);
        }
        if at < level {
            return;
        }
        let mut gfn = gfn;
        for l in (level + 1..=at).rev() {
            let child = self.new_table(l - 1);
            self.describe(child);
            self.store(gfn, self.index(va, l), self.format.link(child, l));
            gfn = child;
        }
        self.store(gfn, self.index(va, level), entry);
    }

    /// Address, its natural level, and flags its leaf must have.
    fn place(&self, place: u16, page: u16) -> (u64, u8, u64) {
        let layout = self.layout;
        let large = 1 << self.format.shift(layout.largest_level);
        let offset = (u64::from(page) * 0x9e8) & 0xff8;
        let n = u64::from(place);
        match n % 16 {
            k @ 0..=9 => (layout.stretches[k as usize % 6] + ((u64::from(page) % 96) << 12) + offset, 1, 0),
            10 => {
                let at = (n / 16 % 3) * large + u64::from(page) * 0x1003 * 8 % (4 * large) + offset;
                (layout.largest + at, layout.largest_level, 0)
            }
            11 => {
                let at = u64::from(page) * 0x3007 * 8 % (FRAMES << 12);
                (layout.direct_map + at, layout.largest_level, GLOBAL)
            }
            12 => (self.large_text() + u64::from(page) * 24 % (1 << self.format.shift(2)), 2, GLOBAL),
            _ => (layout.text + ((u64::from(page) % 16) << 12) + offset, 1, GLOBAL),
        }
    }

    fn frame(&self, level: u8, frame: u16) -> u64 {
        let large = if level > 1 { LARGE } else { 0 };
        let gfn = match level {
            1 => 0x1_0000 + u64::from(frame) % 0x400,
            2 => 0x2_0000 + ((u64::from(frame) % 16) << (self.format.shift(2) - 12)),
            _ => 0,
        };
        gfn << 12 | large
    }

    pub fn run(&mut self, ops: &[Op]) {
        ops.iter().for_each(|&op| self.op(op));
    }

    fn op(&mut self, op: Op) {
        match op {
            Op::Access { kind, place, page } => self.access(kind, place, page),
            Op::Map { place, page, frame, flags } => {
                let (va, level, global) = self.place(place, page);
                if global == 0 {
                    let bits = u64::from(flags) & (WRITE | ACCESSED | DIRTY);
                    self.map(va, level, self.frame(level, frame) | bits | PRESENT);
                }
            }
            Op::Unmap { place, page } => {
                let (va, _, global) = self.place(place, page);
                let (gfn, level, entry) = self.find(va);
                if global == 0 && entry & PRESENT != 0 {
                    self.store(gfn, self.index(va, level), 0);
                    self.shoot_down(va);
                }
            }
            Op::Bits { place, page, flags } => {
                let (va, _, _) = self.place(place, page);
                let (gfn, level, entry) = self.find(va);
                if entry & PRESENT != 0 && va < self.layout.direct_map {
                    let bits = u64::from(flags) & (ACCESSED | DIRTY);
                    self.store(gfn, self.index(va, level), (entry & !(ACCESSED | DIRTY)) | bits);
                    if bits != ACCESSED | DIRTY {
                        self.shoot_down(va);
                    }
                }
            }
            Op::Convert { place, frame } => {
                self.convert(self.layout.stretches[usize::from(place) % 6], frame)
            }
            Op::Root(r) => {
                let r = usize::from(r) % 3;
                self.on[self.cpu] = r;
                self.emit(Event::Cr3Read);
                self.emit(Event::Cr3(self.cr3(r)));
            }
            Op::Cpu(c) => {
                self.cpu = usize::from(c) % self.cpus;
                self.emit(Event::Vcpu(self.cpu as u64));
            }
            Op::Global => {
                for _ in 0..2 {
                    self.cr4[self.cpu] ^= CR4_PGE;
                    self.emit(Event::Cr4(self.cr4[self.cpu]));
                }
            }
            Op::Invlpg { place, page } => self.emit(Event::Invlpg(self.place(place, page).0)),
            Op::Fault { place, page } => {
                let va = self.place(place, page).0;
                let error = self.find(va).2 & PRESENT;
                self.emit(Event::Fault { gva: va, error });
            }
            Op::Insns(n) => self.emit(Event::Insns(u64::from(n))),
            Op::Stream { kind, place, page } => {
                // Pages of the stretches, which may be large.
                let (va, ..) = self.place(place % 10, page);
                let border = (va & !0xfff) + 0x1000;
                let mut lines = [border - 0x80, border - 0x40, border, border + 0x40];
                if kind & 4 != 0 {
                    lines.reverse();
                }
                for va in lines {
                    self.access_to(kind % 2, va, 1, self.frame(1, place ^ (va >> 12) as u16));
                }
            }
        }
    }

    fn convert(&mut self, va: u64, frame: u16) {
        if self.format == Tables::TwoLevels && va == self.layout.shared {
            return; // Each root has an entry of its own for the shared table.
        }
        let (_, level, entry) = self.find(va);
        if level == 2 && entry & PRESENT != 0 {
            // Split: the same frames, in a table.
            let (gfn, ..) = self.find(va);
            let child = self.new_table(1);
            for (i, e) in self.tables.get_mut(&child).unwrap().1.iter_mut().enumerate() {
                *e = (entry & !LARGE) + ((i as u64) << 12);
            }
            self.describe(child);
            self.store(gfn, self.index(va, 2), child << 12 | PRESENT | WRITE);
            self.shoot_down(va);
        } else if level == 1 {
            let (table, ..) = self.find(va);
            let mut gfn = self.roots[self.on[self.cpu]];
            for l in (3..=self.format.depth()).rev() {
                gfn = (self.tables[&gfn].1[self.index(va, l)] & ADDRESS) >> 12;
            }
            self.store(gfn, self.index(va, 2), self.frame(2, frame) | PRESENT | WRITE);
            // As Linux does it, page by page: each may be held on its own.
            let first = va >> self.format.shift(2) << self.format.shift(2);
            for page in 0..self.format.entries(1) {
                self.shoot_down(first + (page << 12));
            }
            self.tables.remove(&table);
            self.free.push(table);
            self.emit(Event::Retire { gfn: table });
        }
    }

    fn access(&mut self, kind: u8, place: u16, page: u16) {
        let (va, natural, _) = self.place(place, page);
        self.access_to(kind, va, natural, self.frame(natural, place ^ page));
    }

    /// An access, and what comes before if the tables do not allow it: `frame` is mapped by an entry of the
    /// level `natural`.
    fn access_to(&mut self, kind: u8, va: u64, natural: u8, frame: u64) {
        let write = matches!(kind % 4, 1 | 2);
        let (_, _, entry) = self.find(va);
        if entry & PRESENT == 0 {
            self.emit(Event::Fault { gva: va, error: u64::from(write) << 1 });
            let writable = if kind & 0x40 != 0 || write { WRITE } else { 0 };
            self.map(va, natural, frame | PRESENT | writable | ACCESSED);
        } else if write && entry & WRITE == 0 {
            if va >= self.layout.direct_map {
                return;
            }
            self.emit(Event::Fault { gva: va, error: 3 });
            let (gfn, level, _) = self.find(va);
            // More is allowed than before: no flush is needed.
            self.store(gfn, self.index(va, level), entry | WRITE | ACCESSED | DIRTY);
        }
        self.emit(match kind % 4 {
            0 if kind & 0x80 != 0 => Event::LoadDependent(va),
            0 if kind & 0x40 != 0 => Event::LoadBeforeChain(va),
            0 => Event::Load(va),
            1 => Event::Store(va),
            2 => Event::StoreOther(va),
            _ => Event::Fetch(va),
        });
    }
}
