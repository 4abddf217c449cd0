// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A second opinion on a stream: keeps the guest's tables as the events tell,
//! walks them at every self-check, and refuses what the format rules out.

use std::collections::HashMap;

use bifold_trace::{Event, Stats, decode};

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
    tables: HashMap<u64, (u8, Box<[u64; 512]>)>,
    cr3: HashMap<u64, u64>,
    vcpu: u64,
}

/// The table an entry of a table of this level points to.
fn child(entry: u64, level: u8) -> Option<u64> {
    let leaf = level == 1 || (level < 4 && entry & 0x80 != 0);
    (entry & 1 != 0 && !leaf).then_some((entry & ADDR) >> 12)
}

impl Replay {
    fn walk(&self, gva: u64) -> Option<u64> {
        let mut gfn = (self.cr3.get(&self.vcpu)? & ADDR) >> 12;
        let mut level = 4u8;
        loop {
            let shift = 12 + 9 * (u32::from(level) - 1);
            let (l, entries) = self.tables.get(&gfn)?;
            assert_eq!(*l, level, "table {gfn:#x}");
            let entry = entries[(gva >> shift & 511) as usize];
            if entry & 1 == 0 {
                return None;
            }
            match child(entry, level) {
                Some(next) => gfn = next,
                None => {
                    let below = (1u64 << shift) - 1;
                    return Some((entry & ADDR & !below) | (gva & below));
                }
            }
            level -= 1;
        }
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
                let root = (v & ADDR) >> 12;
                assert_eq!(r.tables.get(&root).map(|t| t.0), Some(4), "root {root:#x} unknown");
                r.cr3.insert(r.vcpu, v);
            }
            Event::Table { gfn, level, entries } => {
                s.tables += 1;
                for c in entries.iter().filter_map(|e| child(*e, level)) {
                    assert!(r.tables.contains_key(&c), "child {c:#x} of {gfn:#x} unknown");
                }
                let before = r.tables.insert(gfn, (level, Box::new(*entries)));
                assert!(before.is_none(), "table {gfn:#x} described twice");
            }
            Event::Retire { gfn } => {
                s.retired += 1;
                assert!(r.tables.remove(&gfn).is_some(), "retired {gfn:#x} was no table");
            }
            Event::PtStore { gpa, old, new } => {
                s.pt_stores += 1;
                let (level, entries) = r.tables.get_mut(&(gpa >> 12)).expect("a known table");
                let (level, entry) = (*level, &mut entries[(gpa >> 3 & 511) as usize]);
                assert_eq!(*entry & !AD, old & !AD, "old value at {gpa:#x}");
                *entry = new;
                if let Some(c) = child(new, level) {
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
