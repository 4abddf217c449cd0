// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Direct paging: walks as the machine's, and hypercalls as a plain reading of the rules counts them.

use crate::guest::{Guest, ops};
use crate::random::{cases, format, formats, model_of, profile};
use crate::reference::{LARGE, Reference, WRITE};
use crate::stream::{Stream, profile as plain};
use bifold_model::{Config, ConfigOutcome, Sample};
use bifold_trace::Event::{self, Cr3, Cr4, Fault, Insns, Invlpg, Load, PtStore, Retire, Table};
use proptest::prelude::*;

const VA: u64 = 0x40_4060_7008;

fn direct() -> Config {
    Config::from_name("direct").unwrap()
}

#[test]
fn direct_paging_walks_as_the_machine_does() {
    for (level, references) in [(1, 4), (2, 3), (3, 2)] {
        let profile = plain("geometry-g", &["walk_cache.variant=none"]);
        let mut stream = Stream::new();
        let root = stream.table(4);
        stream.map(root, VA, level, if level == 1 { 0x1_2345 << 12 } else { LARGE } | WRITE);
        let warm = stream.start(root).and(&[Load(VA), Cr3(root << 12)]);
        let refs = |s: &Stream| s.run(&profile, direct()).refs.iter().flatten().sum::<u64>();
        assert_eq!(refs(&warm.clone().and(&[Load(VA)])) - refs(&warm), references);
    }
}

/// A guest with two tables of level 1 and one of level 2 that all map something.
fn guest() -> (Stream, [u64; 3]) {
    let mut stream = Stream::new();
    let root = stream.table(4);
    let a = stream.map(root, VA, 1, 0x1_2345 << 12 | WRITE);
    let b = stream.map(root, VA + (1 << 21), 1, 0x1_2346 << 12 | WRITE);
    let upper = stream.map(root, VA + (1 << 30), 2, 0x2_0000 << 12 | LARGE | WRITE);
    (stream.start(root), [a, b, upper])
}

fn added(stream: Stream, events: &[Event<'_>]) -> Sample {
    let run = |s: &Stream| s.run(&plain("geometry-g", &[]), direct()).total;
    let before = run(&stream);
    let after = run(&stream.and(events));
    Sample { cold_exits: 0, cold_cycles: 0, ..after }.since(&Sample {
        cold_exits: 0,
        cold_cycles: 0,
        ..before
    })
}

fn stores(at: u64, n: u64) -> Vec<Event<'static>> {
    (0..n).map(|i| PtStore { gpa: (at & !0xfff) + 8 * (256 + i), old: 0, new: 0 }).collect()
}

#[test]
fn stores_to_a_table_are_one_hypercall_for_up_to_32_entries() {
    let (stream, [a, b, upper]) = guest();
    for (n, calls) in [(1, 1), (32, 1), (33, 2), (65, 3)] {
        let s = added(stream.clone(), &stores(a, n));
        assert_eq!((s.exits_hypercall, s.hypercall_entries, s.all_exits()), (calls, n, calls));
    }
    let s = added(stream.clone(), &[stores(a, 3), stores(b, 3), stores(a, 3)].concat());
    assert_eq!((s.exits_hypercall, s.hypercall_entries), (3, 9), "another table ends a batch");
    let s = added(stream.clone(), &stores(upper, 3));
    assert_eq!((s.exits_hypercall, s.hypercall_entries), (3, 3), "no loop over upper entries is batched");
}

#[test]
fn what_reads_or_flushes_translations_ends_a_batch_and_other_events_do_not() {
    let (stream, [a, ..]) = guest();
    let root = stream.root;
    let not_present = Fault { gva: VA + 0x1000, error: 0 };
    let ends =
        [(not_present, 1), (Cr3(root), 1), (Invlpg(VA), 1), (Cr4(0x80), 0), (Load(VA), 0), (Insns(9), 0)];
    for (event, exits) in ends {
        // The first write to CR4 only tells its value, which this one changes.
        let stream = stream.clone().and(&[Cr4(0)]);
        let s = added(stream, &[stores(a, 2), vec![event], stores(a, 2)].concat());
        let calls = if event == Insns(9) { 1 } else { 2 };
        assert_eq!(s.exits_hypercall, calls, "{event:?}");
        let exits = if event == Cr4(0x80) { 1 } else { exits };
        assert_eq!(s.all_exits() - s.exits_hypercall, exits, "{event:?}");
    }
    // The page is in the TLB now: no walk reads the table.
    let s = added(stream.and(&[Load(VA)]), &[stores(a, 2), vec![Load(VA)], stores(a, 2)].concat());
    assert_eq!(s.exits_hypercall, 1);
}

#[test]
fn a_new_table_is_checked_entry_by_entry() {
    let (stream, _) = guest();
    let mut entries = [0; 512];
    entries[3] = 0x1_2345 << 12 | 1;
    entries[4] = 0x1_2346 << 12 | 1;
    entries[5] = 0x1_2347 << 12; // swapped out
    let tables: Vec<Event<'_>> =
        (0..33).map(|i| Table { gfn: 0x900 + i, level: 1, entries: &entries }).collect();
    let s = added(stream.clone(), &tables);
    assert_eq!((s.exits_hypercall, s.hypercall_entries), (2, 66));
    let s = added(stream.and(&tables), &[Invlpg(VA), Retire { gfn: 0x900 }, Retire { gfn: 0x901 }]);
    assert_eq!((s.exits_hypercall, s.hypercall_entries), (1, 0));
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn hypercalls_are_those_that_the_reference_counts(
        which in 0..crate::random::PROFILES, variant in 0usize..12, cpus in 1usize..3, tables in formats(), ops in ops(1500)
    ) {
        let profile = profile(which, variant);
        let mut guest = Guest::of(tables, cpus);
        guest.run(&ops);
        let got: ConfigOutcome = model_of(tables, &profile, &[direct()], cpus, &guest.words).configs.remove(0);
        let mut slow = Reference::new(&profile, direct(), crate::guest::FRAMES, cpus, 1).of(tables);
        slow.consume(&guest.words);
        let calls = &slow.hypercalls;
        prop_assert_eq!(format(tables).depth(), tables.depth());
        prop_assert_eq!(got.total.exits_hypercall, calls.calls);
        prop_assert_eq!(got.total.hypercall_entries, calls.entries);
        prop_assert_eq!(got.total.exits_guest_fault, calls.faults);
        prop_assert_eq!(got.total.exits_cr3_write, calls.roots);
        prop_assert_eq!(got.total.exits_invlpg, calls.invalidations);
        prop_assert_eq!(crate::reference::Counts::of(&got), slow.counts);
    }
}
