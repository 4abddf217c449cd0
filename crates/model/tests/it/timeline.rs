// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The timeline: intervals are the whole run, cut; cold starts are counted by what an
//! interval uses.

use crate::guest::{Guest, ops};
use crate::random::{cases, model};
use crate::reference::WRITE;
use crate::stream::{NATIVE, NESTED_2M, NESTED_4K, Stream, profile};
use bifold_model::{Config, Sample};
use bifold_trace::Event::{self, Cr3, Insns, Load, Store};
use proptest::prelude::*;

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn intervals_sum_to_the_total_for_every_counter(
        ops in ops(1500), name in prop_oneof![Just("i5-7600"), Just("phenom2-x3-720")]
    ) {
        let mut guest = Guest::new(2);
        guest.run(&ops);
        let outcome = model(&profile(name, &[]), &Config::ALL, 2, &guest.words);
        prop_assert!(outcome.interval_starts.windows(2).all(|s| s[0] < s[1]), "{:?}", outcome.interval_starts);
        prop_assert_eq!(outcome.interval_starts[0], 0);
        for c in &outcome.configs {
            prop_assert_eq!(c.intervals.len(), outcome.interval_starts.len());
            let mut sum = [0; Sample::COUNTERS.len()];
            for i in &c.intervals {
                for (sum, v) in sum.iter_mut().zip(i.values()) { *sum += v; }
            }
            for ((counter, sum), total) in Sample::COUNTERS.iter().zip(sum).zip(c.total.values()) {
                prop_assert_eq!(sum, total, "{} of {}", counter.name, c.config.name());
            }
            prop_assert_eq!(c.refs.iter().map(|r| r[0]).sum::<u64>(), c.total.guest_refs);
            prop_assert_eq!(c.refs.iter().flat_map(|r| &r[1..]).sum::<u64>(), c.total.host_refs);
        }
    }
}

const VA: u64 = 0x40_4060_0000;
const PAGES: u64 = 100;

/// Two intervals of the same loads and stores over PAGES pages in two leaf tables, the
/// TLB emptied between them.
fn twice(profile: &str, overrides: &[&str], config: Config, second: u64) -> Vec<Sample> {
    let mut stream = Stream::new();
    let root = stream.table(4);
    let page = |i: u64| VA + ((i % 2) << 21) + ((i / 2) << 12);
    for i in 0..PAGES {
        stream.map(root, page(i), 1, (0x1_0000 + i) << 12 | WRITE);
    }
    let touch = |n: u64| (0..n).map(move |i| if i % 3 == 0 { Store(page(i)) } else { Load(page(i)) });
    let mut events: Vec<Event<'_>> = touch(PAGES).collect();
    events.extend([Insns(2_000_000), Cr3(root << 12)]);
    events.extend(touch(second));
    events.push(Insns(10));
    let outcome =
        stream.start(root).and(&events).run_all(&self::profile(profile, overrides), &[config], 0.001);
    assert_eq!(outcome.interval_starts, [0, 2_000_000]);
    outcome.configs[0].intervals.clone()
}

#[test]
fn a_cold_start_of_nested_costs_an_exit_for_every_warm_frame_used_tables_included() {
    let none = ["walk_cache.variant=none"];
    for n in [1, 7, PAGES] {
        let i = twice("geometry-g", &none, NESTED_4K, n);
        // Root, two tables above, and the one or two leaf tables that were read.
        let tables = 3 + n.min(2);
        assert_eq!((i[0].cold_exits, i[1].cold_exits), (0, n + tables));
        assert_eq!(i[1].cold_cycles, (n + tables) * 2600);
        assert_eq!(i[1].exits_violation, 0);
    }
}

#[test]
fn a_cold_start_of_nested_on_2_mb_pages_costs_an_exit_for_every_region_used() {
    let i = twice("geometry-g", &["walk_cache.variant=none"], NESTED_2M, PAGES);
    assert_eq!(i[0].huge_frames_backed, 2, "tables in one region, data in another");
    assert_eq!((i[0].cold_exits, i[1].cold_exits), (0, 2));
}

#[test]
fn a_cold_start_of_native_costs_nothing() {
    let i = twice("geometry-g", &[], NATIVE, PAGES);
    assert_eq!((i[0].cold_exits, i[1].cold_exits), (0, 0));
}

/// Loads of 7 pages in each of two intervals.
fn kept(between: impl Fn(u64) -> Vec<Event<'static>>) -> u64 {
    let mut stream = Stream::new();
    let root = stream.table(4);
    for i in 0..7 {
        stream.map(root, VA + (i << 12), 1, (0x1_0000 + i) << 12);
    }
    let loads = || (0..7).map(|i| Load(VA + (i << 12)));
    let mut events: Vec<Event<'_>> = loads().chain([Insns(2_000_000)]).collect();
    events.extend(between(root << 12));
    events.extend(loads().chain([Insns(10)]));
    let outcome = stream.start(root).and(&events).run_all(&profile("geometry-g", &[]), &[NESTED_4K], 0.001);
    outcome.configs[0].intervals[1].cold_exits
}

#[test]
fn a_cold_start_of_nested_counts_frames_that_the_nested_tlb_kept() {
    assert_eq!(kept(|root| vec![Cr3(root)]), 7 + 4);
}

#[test]
fn a_cold_start_of_nested_counts_frames_that_stayed_in_the_tlb() {
    assert_eq!(kept(|_| vec![]), 7 + 4);
}

#[test]
fn a_frame_first_used_in_the_interval_is_no_further_exit_of_its_cold_start() {
    let i = twice("geometry-g", &["walk_cache.variant=none"], NESTED_4K, 1);
    assert!(i[0].exits_violation > 0);
    assert_eq!(i[0].cold_exits, 0);
}
