// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A second opinion on a stream: keeps the guest's tables as the events tell,
//! walks them at every self-check, and refuses what the format rules out.

use std::collections::{BTreeSet, HashMap};

use bifold_trace::{Event, Stats, TableFormat, decode};

const AD: u64 = 0x60;
const ADDR: u64 = 0x000f_ffff_ffff_f000;

#[derive(Default, Debug)]
pub struct Summary {
    pub checks: u64,
    pub highest_gpa: u64,
    pub wrong: Vec<(u64, u64, Option<u64>)>,
    pub accesses: u64,
    pub instructions: u64,
    pub faults: u64,
    pub pt_stores: u64,
    pub tables: u64,
    /// Levels of these.
    pub levels: BTreeSet<u8>,
    pub retired: u64,
    pub cr3_loads: u64,
    pub vcpus: Vec<u64>,
    pub markers: Vec<u64>,
    pub stats: Option<Stats>,
    pub stopped: bool,
}

/// The guest's tables after the events so far.
#[derive(Default)]
pub struct Replay {
    pub summary: Summary,
    format: TableFormat,
    tables: HashMap<u64, (u8, Box<[u64; 512]>)>,
    cr3: HashMap<u64, u64>,
    vcpu: u64,
}

/// The table an entry of a table of this level points to.
fn child(format: TableFormat, entry: u64, level: u8) -> Option<u64> {
    let large = level == 2 || level == 3 && format.is_long();
    let leaf = level == 1 || large && entry & 0x80 != 0;
    (entry & 1 != 0 && !leaf).then_some((entry & ADDR) >> 12)
}

/// The entries in a word: two in 32-bit mode without PAE.
fn entries_of(format: TableFormat, word: u64) -> Vec<u64> {
    if format == TableFormat::TwoLevel { vec![word & 0xffff_ffff, word >> 32] } else { vec![word] }
}

impl Replay {
    pub fn of(format: TableFormat) -> Replay {
        Replay { format, ..Replay::default() }
    }

    /// Physical address of the root that CR3 names.
    fn root(&self, cr3: u64) -> u64 {
        if self.format == TableFormat::Pae { cr3 & 0xffff_ffe0 } else { cr3 & ADDR }
    }

    fn walk(&self, gva: u64) -> Option<u64> {
        let mut at = self.root(*self.cr3.get(&self.vcpu)?);
        let mut level = self.format.levels();
        let (bits, bytes) = if self.format == TableFormat::TwoLevel { (10, 4) } else { (9, 8) };
        loop {
            let shift = 12 + bits * (u32::from(level) - 1);
            let (l, words) = self.tables.get(&(at >> 12))?;
            assert_eq!(*l, level, "table {at:#x}");
            let offset = (at & 0xfff) + (gva >> shift & ((1 << bits) - 1)) * bytes;
            let entries = entries_of(self.format, words[(offset >> 3) as usize]);
            let entry = entries[(offset & 7) as usize / bytes as usize];
            if entry & 1 == 0 {
                return None;
            }
            match child(self.format, entry, level) {
                Some(next) => at = next << 12,
                None => {
                    let below = (1u64 << shift) - 1;
                    return Some((entry & ADDR & !below) | (gva & below));
                }
            }
            level -= 1;
        }
    }

    /// The entries of a table that point somewhere: of a frame with PAE's roots those of roots in use.
    fn pointers(&self, level: u8, words: &[u64; 512]) -> Vec<u64> {
        if self.format == TableFormat::Pae && level == 3 {
            return Vec::new();
        }
        words.iter().flat_map(|w| entries_of(self.format, *w)).collect()
    }
}

impl Replay {
    /// Follows some of the stream, whole events.
    pub fn feed(&mut self, words: &[u64]) {
        let mut at = 0;
        while at < words.len() {
            let (event, n) = decode(&words[at..], at).unwrap();
            self.event(event);
            at += n;
        }
    }

    fn event(&mut self, event: Event) {
        let mut s = std::mem::take(&mut self.summary);
        let r = self;
        assert!(!s.stopped, "events after the stop marker");
        match event {
            Event::Load(_)
            | Event::LoadDependent(_)
            | Event::LoadBeforeChain(_)
            | Event::Store(_)
            | Event::StoreOther(_) => s.accesses += 1,
            Event::Insns(n) => s.instructions += n,
            Event::Vcpu(v) => {
                r.vcpu = v;
                if !s.vcpus.contains(&v) {
                    s.vcpus.push(v);
                }
            }
            Event::Cr3(v) => {
                s.cr3_loads += 1;
                let root = r.root(v) >> 12;
                let level = r.tables.get(&root).map(|t| t.0);
                assert_eq!(level, Some(r.format.levels()), "root {root:#x} unknown");
                r.cr3.insert(r.vcpu, v);
            }
            Event::Table { gfn, level, entries } => {
                s.tables += 1;
                s.levels.insert(level);
                for c in r.pointers(level, entries).iter().filter_map(|e| child(r.format, *e, level)) {
                    assert!(r.tables.contains_key(&c), "child {c:#x} of {gfn:#x} unknown");
                }
                let before = r.tables.insert(gfn, (level, Box::new(*entries)));
                // Each of PAE's roots in a frame describes the frame.
                let again = r.format == TableFormat::Pae && level == 3;
                assert!(before.is_none() || again, "table {gfn:#x} described twice");
            }
            Event::Retire { gfn } => {
                s.retired += 1;
                assert!(r.tables.remove(&gfn).is_some(), "retired {gfn:#x} was no table");
            }
            Event::PtStore { gpa, old, new } => {
                s.pt_stores += 1;
                let (level, entries) = r.tables.get_mut(&(gpa >> 12)).expect("a known table");
                let (level, entry) = (*level, &mut entries[(gpa >> 3 & 511) as usize]);
                let set = if r.format == TableFormat::TwoLevel { AD << 32 | AD } else { AD };
                assert_eq!(*entry & !set, old & !set, "old value at {gpa:#x}");
                *entry = new;
                for c in entries_of(r.format, new).iter().filter_map(|e| child(r.format, *e, level)) {
                    assert!(r.tables.contains_key(&c), "child {c:#x} linked at {gpa:#x} unknown");
                }
            }
            Event::Check { gva, gpa } => {
                s.checks += 1;
                s.highest_gpa = s.highest_gpa.max(gpa);
                let walked = r.walk(gva);
                if walked != Some(gpa) {
                    s.wrong.push((gva, gpa, walked));
                }
            }
            Event::Fault { .. } => s.faults += 1,
            Event::Stats(stats) => s.stats = Some(stats),
            Event::Marker(m) => {
                s.markers.push(m);
                s.stopped = m == bifold_trace::event::marker::STOP;
            }
            _ => {}
        }
        r.summary = s;
    }
}

/// Follows the whole stream.
pub fn replay(words: &[u64]) -> Summary {
    let mut r = Replay::default();
    r.feed(words);
    r.summary
}

/// What must hold of every complete capture.
pub fn assert_sound(words: &[u64]) -> Summary {
    sound(replay(words))
}

/// The same of a stream replayed piece by piece.
pub fn sound(s: Summary) -> Summary {
    let stats = s.stats.expect("the stream ends with the plugin's counters");
    assert!(s.stopped);
    assert_eq!(s.wrong, [], "of {} checks", s.checks);
    assert_eq!((stats.cr3_mismatches, stats.translation_mismatches, stats.table_mismatches), (0, 0, 0));
    assert_eq!(stats.accesses, s.accesses);
    assert_eq!(stats.instructions, s.instructions);
    assert!(s.checks > 0 && stats.cr3_checks > 0 && stats.table_checks > 0);
    s
}
