// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Agile paging: references by the level at which a walk leaves the shadow tables, and the ends of its
//! policy. With everything in nested mode it is nested paging, with everything in shadow mode it is shadow
//! paging.

use crate::guest::{FRAMES, Guest, ops};
use crate::reference::{LARGE, Tables, WRITE};
use crate::stream::{Stream, profile};
use bifold_model::{Config, ConfigOutcome, Model, Options, Profile, Sample};
use bifold_trace::Event::{self, Cr3, Insns, Load, PtStore, Store};
use proptest::prelude::*;

const VA: u64 = 0x40_4060_7008;
/// Where a guest maps its tables.
const TABLES: u64 = 0x80_0000_0000;
const NO_CACHES: &str = "walk_cache.variant=none";
const SHADOW_FIRST: &str = "agile.start=shadow";

/// References of a walk where the table of level `nested` on the way was written twice, or none was, and the
/// guest maps the address by an entry of level `leaf`.
fn walk(config: &str, depth: u8, nested: Option<u8>, leaf: u8, set: &[&str]) -> u64 {
    let config = Config::from_name(config).unwrap();
    let profile = profile("geometry-g", &[&[NO_CACHES], set].concat());
    let mut stream = Stream::of(Tables::Long(depth));
    let root = stream.table(depth);
    let mut tables = vec![root];
    stream.map(root, VA, leaf, if leaf == 1 { 0x1_2345 << 12 } else { 0x2_0000 << 12 | LARGE } | WRITE);
    // Tables were made from the root down.
    tables.extend((leaf..depth).map(|i| root + u64::from(i - leaf) + 1));
    for (i, table) in tables.iter().enumerate() {
        stream.map(root, TABLES + ((i as u64) << 12), 1, table << 12 | WRITE);
    }
    let mut stream = stream.start(root).and(&[Load(VA)]);
    if let Some(level) = nested {
        let at = TABLES + (u64::from(depth - level) << 12) + 0xff8;
        stream = stream.and(&[Store(at), Store(at)]);
    }
    let warm = stream.and(&[Load(VA), Cr3(root << 12)]);
    let refs = |c: &ConfigOutcome| c.refs.iter().flatten().sum::<u64>();
    let (before, after) = (warm.run(&profile, config), warm.clone().and(&[Load(VA)]).run(&profile, config));
    assert_eq!(after.total.walks - before.total.walks, 1);
    assert_eq!(after.total.all_exits(), before.total.all_exits(), "the page is warm");
    refs(&after) - refs(&before)
}

#[test]
fn a_walk_makes_4_references_in_shadow_and_4_more_for_each_level_in_nested_mode() {
    let of = |nested| walk("agile-4k", 4, nested, 1, &[SHADOW_FIRST]);
    assert_eq!(of(None), 4);
    assert_eq!([1, 2, 3, 4].map(|level| of(Some(level))), [8, 12, 16, 20]);
    assert_eq!(walk("agile-4k", 4, None, 1, &[]), 24, "the hypervisor has not seen the address space");
}

#[test]
fn so_it_is_with_5_levels_and_with_pages_of_2_mb_on_either_side() {
    let five = |nested| walk("agile-4k", 5, nested, 1, &[SHADOW_FIRST]);
    assert_eq!(five(None), 5);
    assert_eq!([1, 2, 3, 4, 5].map(|level| five(Some(level))), [9, 13, 17, 21, 25]);
    // Nested walks of 3 references.
    let host = |nested| walk("agile-2m", 4, nested, 1, &[SHADOW_FIRST]);
    assert_eq!(host(None), 4);
    assert_eq!([1, 2, 3, 4].map(|level| host(Some(level))), [7, 10, 13, 16]);
    assert_eq!(walk("agile-2m", 4, None, 1, &[]), 19);
    // The guest's walk is a step shorter.
    let guest = |nested| walk("agile-4k", 4, nested, 2, &[SHADOW_FIRST]);
    assert_eq!([2, 3, 4].map(|level| guest(Some(level))), [7, 11, 15]);
    assert_eq!(walk("agile-4k", 4, None, 2, &[]), 19);
    let both = |nested| walk("agile-2m", 4, nested, 2, &[SHADOW_FIRST]);
    assert_eq!((both(None), both(Some(2)), walk("agile-2m", 4, None, 2, &[])), (3, 6, 15));
}

/// The outcome of a configuration over a random guest, with intervals of so many seconds.
fn outcome(
    profile: &Profile,
    config: &str,
    cpus: usize,
    words: &[u64],
    interval_seconds: f64,
) -> ConfigOutcome {
    let configs = vec![Config::from_name(config).unwrap()];
    let options =
        Options { configs, guest_frames: FRAMES, vcpus: cpus, interval_seconds, ..Options::default() };
    let mut model = Model::new(profile, options);
    model.consume(words).unwrap();
    model.finish().configs.remove(0)
}

proptest! {
    #![proptest_config(crate::random::cases(64))]

    #[test]
    fn with_everything_in_nested_mode_it_is_nested_paging(
        which in 0..crate::random::PROFILES, variant in 0usize..12, cpus in 1usize..3, large in any::<bool>(), ops in ops(1500)
    ) {
        let profile = crate::random::profile(which, variant);
        let mut guest = Guest::new(cpus);
        guest.run(&ops);
        let size = if large { "2m" } else { "4k" };
        let of = |mode| outcome(&profile, &format!("{mode}-{size}"), cpus, &guest.words, 1e3);
        let (agile, nested) = (of("agile"), of("nested"));
        prop_assert_eq!(agile.total, nested.total);
        prop_assert_eq!(agile.refs, nested.refs);
    }

    #[test]
    fn with_everything_in_shadow_mode_it_is_shadow_paging(
        which in 0..crate::random::PROFILES, variant in 0usize..12, cpus in 1usize..3, large in any::<bool>(), ops in ops(1500)
    ) {
        let profile = crate::random::profile(which, variant);
        let mut all = profile.clone();
        (all.agile.writes, all.agile.start) = (0, bifold_model::AgileStart::Shadow);
        let mut guest = Guest::new(cpus);
        guest.run(&ops);
        let size = if large { "2m" } else { "4k" };
        let agile = outcome(&all, &format!("agile-{size}"), cpus, &guest.words, 1e-6);
        let shadow = outcome(&profile, &format!("shadow-{size}"), cpus, &guest.words, 1e-6);
        prop_assert_eq!(agile.total, shadow.total);
        prop_assert_eq!(agile.refs, shadow.refs);
        prop_assert_eq!(agile.intervals, shadow.intervals);
    }
}

const TABLE: u64 = TABLES + 0xff8;

/// A guest that begins in shadow mode, with the address of [`VA`]'s entry, whose table is mapped at
/// [`TABLES`].
fn one_table() -> (Stream, u64) {
    let mut stream = Stream::new();
    let root = stream.table(4);
    let at = stream.map(root, VA, 1, 0x1_2345 << 12 | WRITE);
    stream.map(root, TABLES, 1, at >> 12 << 12 | WRITE);
    (stream.start(root).and(&[Load(VA), Load(TABLES)]), at)
}

/// What `events` add to the counts of agile paging over 4 KB pages, with intervals of a millisecond.
fn added(stream: &Stream, events: &[Event<'_>], set: &[&str]) -> Sample {
    let run = |s: &Stream| {
        let configs = [Config::from_name("agile-4k").unwrap()];
        let total = s.run_all(&profile("geometry-g", set), &configs, 1e-3).configs.remove(0).total;
        Sample { cold_exits: 0, cold_cycles: 0, ..total }
    };
    let before = run(stream);
    run(&stream.clone().and(events)).since(&before)
}

/// More than a millisecond.
const INTERVAL: Event<'static> = Insns(50_000_000);

fn store(at: u64) -> [Event<'static>; 2] {
    [Store(TABLE), PtStore { gpa: at >> 12 << 12 | 0xff8, old: 0, new: 0 }]
}

#[test]
fn the_second_write_moves_a_table_and_the_third_is_free() {
    let (stream, at) = one_table();
    let write = store(at);
    let s = added(&stream, &write, &[SHADOW_FIRST]);
    assert_eq!((s.exits_emulated_write, s.all_exits()), (1, 1));
    let s = added(&stream, &[write, write].concat(), &[SHADOW_FIRST]);
    assert_eq!((s.exits_emulated_write, s.exits_unprotect, s.all_exits()), (1, 1, 2));
    assert_eq!(s.shadow_pages_zapped, 1);
    let s = added(&stream, &[write; 40].concat(), &[SHADOW_FIRST]);
    assert_eq!(s.all_exits(), 2);
    // In two intervals no write is a second one.
    let s = added(&stream, &[&write[..], &[INTERVAL], &write[..]].concat(), &[SHADOW_FIRST]);
    assert_eq!((s.exits_emulated_write, s.all_exits()), (2, 2));
    let s = added(&stream, &[write; 3].concat(), &[SHADOW_FIRST, "agile.writes=3"]);
    assert_eq!((s.exits_emulated_write, s.exits_unprotect), (2, 1));
}

#[test]
fn a_table_that_an_interval_does_not_write_is_shadowed_again() {
    let (stream, at) = one_table();
    let write = store(at);
    let moved = stream.and(&[write; 2].concat());
    let s = added(&moved, &[INTERVAL, Load(VA), INTERVAL, Load(VA)], &[SHADOW_FIRST]);
    assert_eq!(
        s.exits_hidden_fault, 0,
        "it was written in the first interval, and the TLB holds the page in the second"
    );
    // The third interval begins with a table that nothing has written for one.
    let s =
        added(&moved, &[INTERVAL, Load(VA), INTERVAL, Cr3(moved.root), Load(VA), Load(VA)], &[SHADOW_FIRST]);
    assert_eq!((s.exits_hidden_fault, s.shadow_pages_made), (1, 1));
    let s = added(
        &moved,
        &[&[INTERVAL, Load(VA)][..], &write, &[INTERVAL, Cr3(moved.root), Load(VA)]].concat(),
        &[SHADOW_FIRST],
    );
    assert_eq!(s.shadow_pages_made, 0, "it was written again");
}

#[test]
fn a_load_of_cr3_that_the_hardware_knows_does_not_exit() {
    let (stream, _) = one_table();
    let root = stream.root;
    let loads = [Cr3(root), Cr3(root), Cr3(root)];
    assert_eq!(added(&stream, &loads, &[SHADOW_FIRST]).exits_cr3_write, 3);
    assert_eq!(added(&stream, &loads, &[SHADOW_FIRST, "agile.cr3_cache=4"]).exits_cr3_write, 1);
    assert_eq!(added(&stream, &loads, &[]).exits_cr3_write, 0, "no address space is shadowed");
    let s = added(&stream, &[Event::Invlpg(VA), Event::Cr4(0), Event::Cr4(0x80)], &[SHADOW_FIRST]);
    assert_eq!(s.all_exits(), 0);
}

#[test]
fn hardware_that_sets_both_dirty_bits_needs_no_exit_for_a_clean_page() {
    // The page has been written by another entry, which is dirty.
    let mut stream = Stream::new();
    let root = stream.table(4);
    for at in [VA, VA + 0x1000] {
        stream.map(root, at, 1, 0x1_2345 << 12 | WRITE);
    }
    let stream = stream.start(root).and(&[Store(VA + 0x1000), Load(VA)]);
    let s = added(&stream, &[Store(VA)], &[SHADOW_FIRST]);
    assert_eq!((s.exits_permission, s.all_exits()), (1, 1));
    let s = added(&stream, &[Store(VA)], &[SHADOW_FIRST, "agile.sets_both=true"]);
    assert_eq!((s.all_exits(), s.walks), (0, 1), "the walk that sets the bit");
}

#[test]
fn a_page_fault_exits_where_its_walk_ends_in_the_shadow_tables() {
    let (stream, at) = one_table();
    let fault = Event::Fault { gva: VA + 0x1000, error: 0 };
    let s = added(&stream, &[fault], &[SHADOW_FIRST]);
    assert_eq!((s.exits_guest_fault, s.all_exits()), (1, 1));
    let s = added(&stream.and(&[store(at); 2].concat()), &[fault], &[SHADOW_FIRST]);
    assert_eq!((s.exits_violation, s.all_exits()), (0, 0), "the table is in nested mode");
}

/// A guest that begins in shadow mode and stores an entry of [`VA`]'s table before any walk comes to it.
fn written_first() -> Stream {
    let mut stream = Stream::new();
    let root = stream.table(4);
    let at = stream.map(root, VA, 1, 0x1_2345 << 12 | WRITE);
    stream.map(root, TABLES, 1, at >> 12 << 12 | WRITE);
    let entry = stream.entry(at);
    stream.start(root).and(&[PtStore { gpa: at, old: entry, new: entry }])
}

#[test]
fn a_table_that_was_written_before_its_first_walk_is_shadowed_by_that_walk_and_stays_so() {
    let stream = written_first().and(&[Load(VA), INTERVAL]);
    let s = added(&stream, &[Event::Fault { gva: VA + 0x1000, error: 0 }], &[SHADOW_FIRST]);
    assert_eq!((s.exits_guest_fault, s.all_exits()), (1, 1));
    // Without that walk it is in nested mode, where page faults do not exit. One exit switches.
    let stream = written_first().and(&[INTERVAL]);
    let s = added(&stream, &[Event::Fault { gva: VA + 0x1000, error: 0 }], &[SHADOW_FIRST]);
    assert_eq!((s.exits_hidden_fault, s.all_exits()), (1, 1));
}

#[test]
fn a_protection_fault_by_a_table_in_nested_mode_does_not_exit_once_the_entry_above_switches() {
    let stream = written_first().and(&[INTERVAL, Load(TABLES)]);
    let fault = Event::Fault { gva: VA, error: 3 };
    let s = added(&stream, &[fault], &[SHADOW_FIRST]);
    assert_eq!((s.exits_hidden_fault, s.all_exits()), (1, 1));
    let s = added(&stream, &[fault, fault], &[SHADOW_FIRST]);
    assert_eq!(s.all_exits(), 1);
}

/// Pages of a made program.
const PAGES: u64 = 4096;

/// What a made program does in each of its intervals.
#[derive(Debug, Clone, Copy)]
enum Does {
    /// So many accesses to other pages than the last ones.
    Misses(u64),
    /// So many stores to its leaf tables, each followed by an access to the page.
    Writes(u64),
    /// So many switches to another process and back.
    Switches(u64),
    /// Page faults, each of which stores an entry of a new page.
    Faults(u64),
}

/// A program with 16 leaf tables, whose intervals do what `does` says: the first half of the tables is
/// written, the second is read.
fn program(intervals: u64, does: impl Fn(u64) -> Vec<Does>) -> Stream {
    let va = |page: u64| VA + (page << 13 & !0xfff);
    let mut stream = Stream::new();
    let (root, other) = (stream.table(4), stream.table(4));
    let mut entries = Vec::new();
    for page in 0..PAGES {
        entries.push(stream.map(
            root,
            va(page),
            1,
            (0x1_0000 + page) << 12 | WRITE | crate::reference::DIRTY,
        ));
    }
    for i in 0..0x40 {
        stream.map(root, TABLES + (i << 12), 1, (0x100 + i) << 12 | WRITE);
    }
    stream.map(other, VA, 1, 0x1_0000 << 12 | WRITE);
    let mut stream = stream.start(root);
    let mut seed = 1u64;
    let mut random = move |most: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % most
    };
    for interval in 0..intervals {
        let mut events = Vec::new();
        for does in does(interval) {
            match does {
                Does::Misses(n) => (0..n).for_each(|_| events.push(Load(va(PAGES / 2 + random(PAGES / 2))))),
                Does::Writes(n) => {
                    for _ in 0..n {
                        let page = random(PAGES / 2);
                        let at = entries[page as usize];
                        let old = stream.entry(at);
                        events.push(Store(TABLES + (at - (0x100 << 12))));
                        events.push(PtStore { gpa: at, old, new: old });
                        events.push(Event::Invlpg(va(page)));
                        events.push(Load(va(page)));
                    }
                }
                Does::Switches(n) => {
                    for _ in 0..n {
                        events.extend([Cr3(other << 12), Load(VA), Cr3(root << 12), Load(va(PAGES - 1))]);
                    }
                }
                Does::Faults(n) => {
                    for _ in 0..n {
                        let page = random(PAGES / 2);
                        let at = entries[page as usize];
                        let old = stream.entry(at);
                        let table = TABLES + (at - (0x100 << 12));
                        events.extend([
                            Store(table),
                            PtStore { gpa: at, old, new: 0 },
                            Event::Invlpg(va(page)),
                        ]);
                        events.push(Event::Fault { gva: va(page), error: 0 });
                        events.extend([Store(table), PtStore { gpa: at, old: 0, new: old }, Load(va(page))]);
                    }
                }
            }
        }
        events.push(INTERVAL);
        stream = stream.and(&events);
    }
    stream
}

#[test]
fn agile_paging_costs_at_most_its_lag_more_than_the_better_of_both() {
    use Does::{Faults, Misses, Switches, Writes};
    const INTERVALS: u64 = 60;
    type Program = (&'static str, fn(u64) -> Vec<Does>);
    let programs: [Program; 9] = [
        ("misses", |_| vec![Misses(20_000)]),
        ("few misses", |_| vec![Misses(50)]),
        ("writes", |_| vec![Writes(2_000)]),
        ("faults", |_| vec![Faults(1_000)]),
        ("misses and writes", |_| vec![Misses(20_000), Writes(2_000)]),
        ("misses and faults", |_| vec![Misses(20_000), Faults(500)]),
        ("switches", |_| vec![Switches(2_000)]),
        ("misses and switches", |_| vec![Misses(20_000), Switches(100)]),
        ("phases of misses and writes", |i| {
            if i / 10 % 2 == 0 { vec![Misses(20_000)] } else { vec![Writes(2_000)] }
        }),
    ];
    let profile = profile("i5-7600", &[]);
    // What it takes to fill the shadow tables of the pages that are read.
    let fill = (PAGES / 2 * profile.exit.hidden_fault.cycles) as f64;
    for (name, does) in programs {
        let stream = program(INTERVALS, does);
        let configs = ["nested-4k", "shadow-4k", "agile-4k"].map(|name| Config::from_name(name).unwrap());
        let outcome = stream.run_all(&profile, &configs, 1e-3);
        let [nested, shadow, agile] = &outcome.configs[..] else { unreachable!("three were asked for") };
        let cost = |c: &ConfigOutcome| c.total.extra_cycles() as f64;
        let best = cost(nested).min(cost(shadow));
        // The lag: nested walks until they have cost what it expects the filling to cost, a fault for four
        // entries, and then the interval of the filling. Where it never began, shadow paging can have saved
        // less than that.
        let most = agile.intervals[1..].iter().map(|s| s.vmm_cycles).max().unwrap_or(0) as f64;
        let lag = match (most > 0.0, cost(nested) < cost(shadow)) {
            (true, _) => fill / 4.0 + most,
            (false, true) => 0.0,
            (false, false) => fill,
        };
        println!(
            "{name:30} nested {:7.2} shadow {:7.2} agile {:7.2} lag {:6.2} million cycles",
            cost(nested) / 1e6,
            cost(shadow) / 1e6,
            cost(agile) / 1e6,
            lag / 1e6
        );
        assert!(cost(agile) <= 1.02 * best + lag, "{name}");
        if ["misses and writes", "misses and faults"].contains(&name) {
            assert!(
                cost(agile) < best,
                "{name}: the written tables are in nested mode, the others in shadow mode"
            );
        }
    }
}
