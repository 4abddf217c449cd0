// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A small guest kernel that writes event streams: three address spaces of mixed page
//! sizes with a shared global kernel half, on up to four CPUs. It touches only what its tables
//! allow, and flushes what it must: an entry changed so that it allows less, or
//! maps something else, is invalidated on every CPU before the next access.

use crate::reference::{ACCESSED, ADDRESS, DIRTY, GLOBAL, LARGE, PRESENT, WRITE};
use bifold_trace::Event;
use proptest::prelude::*;
use std::collections::HashMap;

pub const FRAMES: u64 = 1 << 18;
const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
const TEXT: u64 = 0xffff_ffff_8100_0000;
const SHARED: u64 = 0x60_0000_0000;
/// Stretches of 2 MB that hold 4 KB pages or one large page, under tables of their own and of others.
const STRETCHES: [u64; 6] =
    [0x40_0000_0000, 0x40_0020_0000, 0x40_4000_0000, 0x80_0000_0000, 0x7f00_0020_0000, SHARED];
const GIGABYTES: u64 = 0x50_0000_0000;
const CR4_PGE: u64 = 1 << 7;

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
    tables: HashMap<u64, (u8, Box<[u64; 512]>)>,
    free: Vec<u64>,
    next: u64,
    roots: [u64; 3],
    /// Per CPU: which root it runs on, and CR4.
    on: [usize; 4],
    cr4: [u64; 4],
    cpu: usize,
    cpus: usize,
    depth: u8,
}

fn index(va: u64, level: u8) -> usize {
    (va >> (3 + 9 * u32::from(level))) as usize & 511
}

impl Guest {
    pub fn new(cpus: usize) -> Guest {
        Guest::with_depth(cpus, 4)
    }

    /// A guest whose tables have 4 levels or 5.
    pub fn with_depth(cpus: usize, depth: u8) -> Guest {
        let mut g = Guest {
            depth,
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
        g.roots = [0; 3].map(|_| g.new_table(depth, [0; 512]));
        let [first, others @ ..] = g.roots;
        // Before the first CR3 load, stores are the boot code's: the tables are described afresh.
        g.plant(first, DIRECT_MAP, 3, WRITE | LARGE | GLOBAL | ACCESSED | DIRTY);
        for n in 0..16 {
            g.plant(first, TEXT + (n << 12), 1, ((0x8000 + n) << 12) | GLOBAL | ACCESSED);
        }
        g.plant(first, TEXT + (1 << 21), 2, (0x8200 << 12) | WRITE | LARGE | GLOBAL);
        g.plant(first, SHARED, 1, (0x9000 << 12) | WRITE);
        for root in others {
            // An entry of a fifth level would share all of the user's half.
            for va in [DIRECT_MAP, TEXT, SHARED].into_iter().filter(|va| depth == 4 || *va != SHARED) {
                let entry = g.tables[&first].1[index(va, depth)];
                g.tables.get_mut(&root).unwrap().1[index(va, depth)] = entry;
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
            g.emit(Event::Cr3(first << 12));
        }
        g.emit(Event::Vcpu(0));
        g
    }

    fn emit(&mut self, event: Event<'_>) {
        event.encode(&mut self.words);
    }

    fn describe(&mut self, gfn: u64) {
        let (level, entries) = self.tables[&gfn].clone();
        self.emit(Event::Table { gfn, level, entries: &entries });
    }

    fn new_table(&mut self, level: u8, entries: [u64; 512]) -> u64 {
        let gfn = self.free.pop().unwrap_or(self.next);
        self.next = self.next.max(gfn + 1);
        self.tables.insert(gfn, (level, Box::new(entries)));
        gfn
    }

    /// Boot: writes an entry without events.
    fn plant(&mut self, root: u64, va: u64, level: u8, entry: u64) {
        let mut gfn = root;
        for l in (level + 1..=self.depth).rev() {
            let i = index(va, l);
            if self.tables[&gfn].1[i] & PRESENT == 0 {
                let child = self.new_table(l - 1, [0; 512]);
                self.tables.get_mut(&gfn).unwrap().1[i] = child << 12 | PRESENT | WRITE | ACCESSED;
            }
            gfn = (self.tables[&gfn].1[i] & ADDRESS) >> 12;
        }
        self.tables.get_mut(&gfn).unwrap().1[index(va, level)] = entry | PRESENT;
    }

    /// Table and level of the entry at which a walk ends, and the entry.
    fn find(&self, va: u64) -> (u64, u8, u64) {
        let mut gfn = self.roots[self.on[self.cpu]];
        for level in (1..=self.depth).rev() {
            let entry = self.tables[&gfn].1[index(va, level)];
            if entry & PRESENT == 0 || level == 1 || entry & LARGE != 0 {
                return (gfn, level, entry);
            }
            gfn = (entry & ADDRESS) >> 12;
        }
        unreachable!()
    }

    /// The kernel stores a table entry, through its direct map.
    fn store(&mut self, gfn: u64, i: usize, new: u64) {
        let gpa = (gfn << 12) + 8 * i as u64;
        let old = std::mem::replace(&mut self.tables.get_mut(&gfn).unwrap().1[i], new);
        self.emit(Event::Store(DIRECT_MAP + gpa));
        self.emit(Event::PtStore { gpa, old, new });
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
            self.store(gfn, index(va, at), (old & !mask & !DIRTY) | (entry & mask));
            return self.shoot_down(va);
        }
        if at < level {
            return;
        }
        let mut gfn = gfn;
        for l in (level + 1..=at).rev() {
            let child = self.new_table(l - 1, [0; 512]);
            self.describe(child);
            self.store(gfn, index(va, l), child << 12 | PRESENT | WRITE);
            gfn = child;
        }
        self.store(gfn, index(va, level), entry);
    }

    /// Address, its natural level, and flags its leaf must have.
    fn place(place: u16, page: u16) -> (u64, u8, u64) {
        let offset = (u64::from(page) * 0x9e8) & 0xff8;
        let n = u64::from(place);
        match n % 16 {
            k @ 0..=9 => (STRETCHES[k as usize % 6] + ((u64::from(page) % 96) << 12) + offset, 1, 0),
            10 => (GIGABYTES + ((n / 16 % 3) << 30) + u64::from(page) * 0x1003 * 8 + offset, 3, 0),
            11 => (DIRECT_MAP + u64::from(page) * 0x3007 * 8 % (FRAMES << 12), 3, GLOBAL),
            12 => (TEXT + (1 << 21) + u64::from(page) * 24, 2, GLOBAL),
            _ => (TEXT + ((u64::from(page) % 16) << 12) + offset, 1, GLOBAL),
        }
    }

    fn frame(level: u8, frame: u16) -> u64 {
        let large = if level > 1 { LARGE } else { 0 };
        let gfn = match level {
            1 => 0x1_0000 + u64::from(frame) % 0x400,
            2 => 0x2_0000 + (u64::from(frame) % 16) * 512,
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
                let (va, level, global) = Guest::place(place, page);
                if global == 0 {
                    let bits = u64::from(flags) & (WRITE | ACCESSED | DIRTY);
                    self.map(va, level, Guest::frame(level, frame) | bits | PRESENT);
                }
            }
            Op::Unmap { place, page } => {
                let (va, _, global) = Guest::place(place, page);
                let (gfn, level, entry) = self.find(va);
                if global == 0 && entry & PRESENT != 0 {
                    self.store(gfn, index(va, level), 0);
                    self.shoot_down(va);
                }
            }
            Op::Bits { place, page, flags } => {
                let (va, _, _) = Guest::place(place, page);
                let (gfn, level, entry) = self.find(va);
                if entry & PRESENT != 0 && va < DIRECT_MAP {
                    let bits = u64::from(flags) & (ACCESSED | DIRTY);
                    self.store(gfn, index(va, level), (entry & !(ACCESSED | DIRTY)) | bits);
                    if bits != ACCESSED | DIRTY {
                        self.shoot_down(va);
                    }
                }
            }
            Op::Convert { place, frame } => self.convert(STRETCHES[usize::from(place) % 6], frame),
            Op::Root(r) => {
                let r = usize::from(r) % 3;
                self.on[self.cpu] = r;
                self.emit(Event::Cr3Read);
                self.emit(Event::Cr3(self.roots[r] << 12));
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
            Op::Invlpg { place, page } => self.emit(Event::Invlpg(Guest::place(place, page).0)),
            Op::Fault { place, page } => {
                let va = Guest::place(place, page).0;
                let error = self.find(va).2 & PRESENT;
                self.emit(Event::Fault { gva: va, error });
            }
            Op::Insns(n) => self.emit(Event::Insns(u64::from(n))),
            Op::Stream { kind, place, page } => {
                // Pages of the stretches, which may be large.
                let (va, ..) = Guest::place(place % 10, page);
                let border = (va & !0xfff) + 0x1000;
                let mut lines = [border - 0x80, border - 0x40, border, border + 0x40];
                if kind & 4 != 0 {
                    lines.reverse();
                }
                for va in lines {
                    self.access_to(kind % 2, va, 1, Guest::frame(1, place ^ (va >> 12) as u16));
                }
            }
        }
    }

    fn convert(&mut self, va: u64, frame: u16) {
        let (_, level, entry) = self.find(va);
        if level == 2 && entry & PRESENT != 0 {
            // Split: the same frames, in a table.
            let mut entries = [0; 512];
            for (i, e) in entries.iter_mut().enumerate() {
                *e = (entry & !LARGE) + ((i as u64) << 12);
            }
            let (gfn, ..) = self.find(va);
            let child = self.new_table(1, entries);
            self.describe(child);
            self.store(gfn, index(va, 2), child << 12 | PRESENT | WRITE);
            self.shoot_down(va);
        } else if level == 1 {
            let (table, ..) = self.find(va);
            let mut gfn = self.roots[self.on[self.cpu]];
            for l in (3..=self.depth).rev() {
                gfn = (self.tables[&gfn].1[index(va, l)] & ADDRESS) >> 12;
            }
            self.store(gfn, index(va, 2), Guest::frame(2, frame) | PRESENT | WRITE);
            // As Linux does it, page by page: each may be held on its own.
            for page in 0..512 {
                self.shoot_down(va + (page << 12));
            }
            self.tables.remove(&table);
            self.free.push(table);
            self.emit(Event::Retire { gfn: table });
        }
    }

    fn access(&mut self, kind: u8, place: u16, page: u16) {
        let (va, natural, _) = Guest::place(place, page);
        self.access_to(kind, va, natural, Guest::frame(natural, place ^ page));
    }

    /// An access, and what comes before if the tables do not allow it: `frame` is mapped by an entry of the level `natural`.
    fn access_to(&mut self, kind: u8, va: u64, natural: u8, frame: u64) {
        let write = matches!(kind % 4, 1 | 2);
        let (_, _, entry) = self.find(va);
        if entry & PRESENT == 0 {
            self.emit(Event::Fault { gva: va, error: u64::from(write) << 1 });
            let writable = if kind & 0x40 != 0 || write { WRITE } else { 0 };
            self.map(va, natural, frame | PRESENT | writable | ACCESSED);
        } else if write && entry & WRITE == 0 {
            if va >= DIRECT_MAP {
                return;
            }
            self.emit(Event::Fault { gva: va, error: 3 });
            let (gfn, level, _) = self.find(va);
            // More is allowed than before: no flush is needed.
            self.store(gfn, index(va, level), entry | WRITE | ACCESSED | DIRTY);
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
