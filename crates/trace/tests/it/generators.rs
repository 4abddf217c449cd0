// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Generated streams are what they say: exact addresses, tables that translate.

use bifold_trace::event::{kind, marker};
use bifold_trace::{Event, Generator, decode};
use std::collections::HashMap;
use std::convert::Infallible;

const PRESENT: u64 = 1;
const WRITE: u64 = 2;
const USER: u64 = 4;
const LARGE: u64 = 0x80;
const FRAME: u64 = 0x000f_ffff_ffff_f000;

/// Guest tables, replayed from the stream alone.
#[derive(Default)]
struct Replay {
    tables: HashMap<u64, (u8, Box<[u64; 512]>)>,
    cr3: u64,
    frames: u64,
    accesses: u64,
    instructions: u64,
    kinds: HashMap<&'static str, u64>,
}

impl Replay {
    /// The GPA of `va` and the rights on the way to it.
    fn translate(&self, va: u64) -> Option<(u64, u64)> {
        let (mut gfn, mut rights) = (self.cr3 >> 12, WRITE | USER);
        for level in (1..=4u8).rev() {
            let (its_level, entries) = self.tables.get(&gfn)?;
            assert_eq!(*its_level, level, "level of table {gfn:#x}");
            let shift = 3 + 9 * u32::from(level);
            let e = entries[(va >> shift & 511) as usize];
            rights &= e;
            if e & PRESENT == 0 {
                return None;
            }
            if level == 1 || e & LARGE != 0 {
                let inside = (1 << shift) - 1;
                return Some(((e & FRAME & !inside) | (va & inside), rights));
            }
            gfn = (e & FRAME) >> 12;
        }
        unreachable!("level 1 returns")
    }

    /// Every table below this one that an entry points to has been described.
    fn assert_complete(&self, gfn: u64) {
        let (level, entries) = &self.tables[&gfn];
        for e in entries.iter().filter(|&e| *level > 1 && e & PRESENT != 0 && e & LARGE == 0) {
            self.assert_complete((e & FRAME) >> 12);
        }
    }

    fn access(&mut self, name: &'static str, va: u64, needs: u64) {
        let user = if va < 1 << 47 { USER } else { 0 };
        let (gpa, rights) = self.translate(va).unwrap_or_else(|| panic!("{name} {va:#x} has no translation"));
        assert_eq!(rights & (needs | user), needs | user, "rights of {name} {va:#x}");
        assert!(gpa >> 12 < self.frames, "{name} {va:#x} beyond memory");
        self.accesses += u64::from(name != "fetch");
        *self.kinds.entry(name).or_default() += 1;
    }

    fn event(&mut self, e: Event<'_>) {
        let name = match e {
            Event::Load(va) => return self.access("load", va, 0),
            Event::LoadDependent(va) => return self.access("load-dependent", va, 0),
            Event::LoadBeforeChain(va) => return self.access("load-before-chain", va, 0),
            Event::Store(va) => return self.access("store", va, WRITE),
            Event::StoreOther(va) => return self.access("store-other", va, WRITE),
            Event::Fetch(va) => return self.access("fetch", va, 0),
            Event::Insns(n) => {
                self.instructions += n;
                "insns"
            }
            Event::Cr3(v) => {
                self.cr3 = v;
                self.assert_complete(v >> 12);
                "cr3"
            }
            Event::Table { gfn, level, entries } => {
                let new = self.tables.insert(gfn, (level, Box::new(*entries))).is_none();
                assert!(new, "table {gfn:#x} described twice");
                "table"
            }
            Event::PtStore { gpa, old, new } => {
                let (level, entries) = self.tables.get_mut(&(gpa >> 12)).expect("a store to a known table");
                let slot = &mut entries[(gpa >> 3 & 511) as usize];
                assert_eq!(std::mem::replace(slot, new), old, "old entry at {gpa:#x}");
                if *level > 1 && new & PRESENT != 0 {
                    self.assert_complete((new & FRAME) >> 12);
                }
                "pt-store"
            }
            Event::Retire { gfn } => {
                assert_ne!(self.cr3 >> 12, gfn, "the root in use retired");
                self.tables.remove(&gfn).expect("a known table retired");
                "retire"
            }
            Event::Fault { gva, error } => {
                let rights = self.translate(gva).map(|t| t.1);
                assert_eq!(rights.is_some(), error & PRESENT != 0, "present bit of the fault at {gva:#x}");
                let lacks = rights.is_none_or(|r| error & WRITE != 0 && r & WRITE == 0);
                assert!(lacks, "fault at {gva:#x} without need");
                "fault"
            }
            Event::Invlpg(_) => "invlpg",
            Event::Cr3Read => "cr3-read",
            Event::Marker(marker::START | marker::STOP) => "marker",
            e => panic!("unexpected {e:?}"),
        };
        *self.kinds.entry(name).or_default() += 1;
    }
}

fn words(spec: &str) -> Vec<u64> {
    let mut all = Vec::new();
    let pushed: Result<(), Infallible> = Generator::parse(spec).unwrap().run(&mut |w| {
        all.extend_from_slice(w);
        Ok(())
    });
    pushed.unwrap();
    all
}

fn replay(spec: &str) -> Replay {
    let generator = Generator::parse(spec).unwrap();
    let mut r = Replay { frames: generator.guest_frames(), ..Replay::default() };
    let pushed: Result<(), Infallible> = generator.run(&mut |words| {
        let mut at = 0;
        while at < words.len() {
            let (e, n) = decode(&words[at..], at).expect("pieces are whole events");
            r.event(e);
            at += n;
        }
        Ok(())
    });
    pushed.unwrap();
    r
}

#[test]
fn accesses_are_known_before_a_run_to_a_tenth() {
    for spec in [
        "t:100k",
        "t-seq:100k",
        "t-4m:100k",
        "pointer-chase:100k",
        "fork-storm:10",
        "gups:100k",
        "gups-2m:100k",
    ] {
        let (said, had) = (Generator::parse(spec).unwrap().accesses(), replay(spec).accesses);
        assert!(said.abs_diff(had) * 10 <= had, "{spec}: {said}, not {had}");
    }
}

fn loads(spec: &str) -> Vec<u64> {
    let (words, mut out, mut at) = (words(spec), Vec::new(), 0);
    while at < words.len() {
        let (e, n) = decode(&words[at..], at).unwrap();
        if let Event::Load(va) | Event::LoadDependent(va) | Event::LoadBeforeChain(va) = e {
            out.push(va);
        }
        at += n;
    }
    out
}

/// Trace T as its definition reads, written independently of the generator.
fn independent(n: u64, f: impl Fn(u64, &mut dyn FnMut() -> u64) -> u64) -> Vec<u64> {
    let mut state = 42u64;
    let mut next = || {
        state = state.wrapping_add(0x9E3779B97F4A7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58476D1CE4E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D049BB133111EB);
        z ^ (z >> 31)
    };
    (0..n).map(|i| f(i, &mut next)).collect()
}

#[test]
fn t_and_its_parts_load_the_addresses_of_their_definition() {
    let odd = |i: u64| 0x2_0000_0000 + (((i >> 1) * 8) & 0x3FFF_FFFF);
    let t = independent(
        1_000_000,
        |i, next| {
            if i % 2 == 0 { 0x1_0000_0000 + ((next() >> 34) & !7) } else { odd(i) }
        },
    );
    assert_eq!(loads("t:1m"), t);
    assert_eq!(loads("t:12345"), t[..12345]);
    let seq = independent(300_000, |i, _| 0x2_0000_0000 + ((i * 8) & 0x3FFF_FFFF));
    assert_eq!(loads("t-seq:300k"), seq);
    let small = independent(300_001, |_, next| 0x1_0000_0000 + ((next() >> 42) & !7));
    assert_eq!(loads("t-4m:300001"), small);
}

/// Geometry G: 64 entries 4-way, then 1536 entries 12-way, LRU; misses of both.
fn misses(addresses: &[u64]) -> (u64, u64) {
    fn hit(set: &mut Vec<u64>, ways: usize, vpn: u64) -> bool {
        let found = set.iter().position(|&v| v == vpn);
        found.map(|i| set.remove(i));
        set.push(vpn);
        if set.len() > ways {
            set.remove(0);
        }
        found.is_some()
    }
    let (mut l1, mut l2) = (vec![Vec::new(); 16], vec![Vec::new(); 128]);
    let mut count = (0, 0);
    for vpn in addresses.iter().map(|a| a >> 12) {
        if !hit(&mut l1[vpn as usize % 16], 4, vpn) {
            count.0 += 1;
            count.1 += u64::from(!hit(&mut l2[vpn as usize % 128], 12, vpn));
        }
    }
    count
}

#[test]
fn t_and_its_parts_miss_as_often_as_in_other_simulators() {
    assert_eq!(misses(&loads("t:1m")), (500_865, 498_076));
    assert_eq!(misses(&loads("t-seq:1m")), (1_954, 1_954));
    assert_eq!(misses(&loads("t-4m:1m")), (937_524, 1_024));
}

#[test]
fn t_has_tables_for_both_regions_and_one_instruction_per_load() {
    let r = replay("t:100001");
    assert_eq!((r.accesses, r.instructions), (100_001, 100_001));
    assert_eq!(r.kinds["load"], 100_001);
    // A root, a PDPT, one PD per GiB, 512 page tables each.
    assert_eq!(r.kinds["table"], 1 + 1 + 2 + 1024);
    let mut gpas: Vec<u64> = (0..1u64 << 18)
        .flat_map(|p| [0x1_0000_0000 + (p << 12), 0x2_0000_0000 + (p << 12)])
        .map(|va| r.translate(va).unwrap().0 >> 12)
        .collect();
    gpas.sort_unstable();
    gpas.dedup();
    assert_eq!(gpas.len(), 2 << 18);
    assert!(gpas.iter().all(|gfn| !r.tables.contains_key(gfn) && *gfn < r.frames));
}

#[test]
fn the_pointer_chase_translates_and_never_returns_within_a_cycle() {
    let r = replay("pointer-chase:200k");
    // A root; a PDPT and a PD each for code, data and stack; the page tables.
    assert_eq!(r.kinds["table"], 1 + 3 + 3 + 512 + 1 + 1);
    assert_eq!(r.instructions, 4 * 200_000 + 20 * 3125);
    assert_eq!((r.kinds["load-dependent"], r.kinds["load"]), (200_000, 2 * 3125));
    let mut data: Vec<u64> =
        loads("pointer-chase:200k").into_iter().filter(|a| a >> 30 == 0x7f00_0000_0000 >> 30).collect();
    assert_eq!(data.len(), 200_000);
    data.sort_unstable();
    data.dedup();
    assert_eq!(data.len(), 200_000);
}

#[test]
fn updates_of_a_table_translate_in_both_page_sizes() {
    let [small, large] = ["gups:20k@64m", "gups-2m:20k@64m"].map(replay);
    // A root; a PDPT and a PD for code and for data; code's page table; the table's own page tables.
    assert_eq!(small.kinds["table"], 1 + 2 + 2 + 1 + 32);
    assert_eq!(large.kinds["table"], 1 + 2 + 2 + 1);
    for r in [small, large] {
        assert_eq!((r.kinds["load"], r.kinds["store"], r.instructions), (20_000, 20_000, 160_000));
    }
}

#[test]
fn the_fork_storm_is_translated_by_its_own_tables_at_every_point() {
    let r = replay("fork-storm:30");
    println!("{:?}", r.kinds);
    // All of a child's tables go with it.
    let lasting = replay("fork-storm:1").tables.len();
    assert_eq!(r.tables.len(), lasting);
    assert_eq!(r.kinds["retire"] + lasting as u64, r.kinds["table"]);
    // To the child, back, and a flush on either side.
    assert_eq!(r.kinds["cr3"], 1 + 30 * 4);
    for name in ["fault", "invlpg", "pt-store"] {
        assert!(r.kinds[name] >= 30 * 10, "{name}: {}", r.kinds[name]);
    }
}

#[test]
fn the_same_generator_gives_the_same_words_and_stops_at_the_first_error() {
    assert_eq!(words("fork-storm:3"), words("fork-storm:3"));
    for (name, ..) in Generator::all() {
        let mut left = 3;
        let result = Generator::parse(name).unwrap().run(&mut |_| {
            left -= 1;
            if left == 0 { Err("enough") } else { Ok(()) }
        });
        assert_eq!((result, left), (Err("enough"), 0), "{name}");
        assert!(words(&format!("{name}:1")).iter().any(|w| w >> 57 == kind::CR3));
    }
}
