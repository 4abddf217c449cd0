// SPDX-License-Identifier: Apache-2.0 OR MIT
//! VMs that switch: what stays as it was, and what a switch costs, in closed form.

use crate::guest::{FRAMES, Guest, ops};
use crate::random::cases;
use crate::reference::WRITE;
use crate::stream::{NESTED_4K, Stream, profile};
use bifold_mmu::PageSize;
use bifold_model::ages::{bounds, bucket};
use bifold_model::{Config, Model, Options, Outcome, Paging, Profile, Sample, SwitchedOutcome, Switching};
use bifold_trace::Event::{Cr3, Insns, Load, Store};
use proptest::prelude::*;

fn switching(start: Paging, host_page: PageSize, keep_nested: bool) -> Switching {
    Switching { name: "test".into(), host_page, start, keep_nested }
}

/// Runs `words` with a VM that is in `modes[i]` in interval i, the last one for the rest.
fn run(
    profile: &Profile,
    cpus: usize,
    seconds: f64,
    words: &[u64],
    vms: &[(Switching, Vec<Paging>)],
) -> Outcome {
    run_configs(&Config::ALL, profile, cpus, seconds, words, vms)
}

/// As [`run`], with these static configurations.
fn run_configs(
    configs: &[Config],
    profile: &Profile,
    cpus: usize,
    seconds: f64,
    words: &[u64],
    vms: &[(Switching, Vec<Paging>)],
) -> Outcome {
    let options = Options {
        configs: configs.to_vec(),
        guest_frames: FRAMES,
        vcpus: cpus,
        interval_seconds: seconds,
        ..Options::default()
    };
    let mut model = Model::new(profile, options);
    for (switching, modes) in vms {
        let modes = modes.clone();
        let decide = move |i: usize, _: &Sample, mode| modes.get(i + 1).copied().unwrap_or(mode);
        model.add_switching(switching.clone(), Box::new(decide));
    }
    model.consume(words).unwrap();
    model.finish()
}

fn plain(s: &Sample) -> Sample {
    Sample { cold_exits: 0, cold_cycles: 0, ..*s }
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn a_vm_that_never_switches_costs_what_its_static_configuration_does(
        ops in ops(1200), cpus in 1usize..3, large in any::<bool>(), keep in any::<bool>()
    ) {
        let mut guest = Guest::new(cpus);
        guest.run(&ops);
        let host_page = if large { PageSize::Size2M } else { PageSize::Size4K };
        let vms = [Paging::Shadow, Paging::Nested].map(|m| (switching(m, host_page, keep), vec![m]));
        let outcome = run(&profile("i5-7600", &[]), cpus, 1e-6, &guest.words, &vms);
        for s in &outcome.switched {
            let config = Config::new(s.switching.start, host_page);
            let fixed = outcome.configs.iter().find(|c| c.config == config).unwrap();
            let fixed: Vec<Sample> = fixed.intervals.iter().map(plain).collect();
            prop_assert_eq!(&s.intervals, &fixed);
            prop_assert!(s.modes.iter().all(|m| *m == s.switching.start));
        }
    }

    #[test]
    fn vms_that_switch_change_nothing_for_the_others_and_do_as_they_are_told(
        ops in ops(1200), cpus in 1usize..3, keep in any::<bool>(), turns in proptest::collection::vec(any::<bool>(), 1..60)
    ) {
        let mut guest = Guest::new(cpus);
        guest.run(&ops);
        let profile = profile("i5-7600", &[]);
        let modes: Vec<Paging> = [false].iter().chain(&turns)
            .map(|t| if *t { Paging::Shadow } else { Paging::Nested }).collect();
        let vms = [(switching(Paging::Nested, PageSize::Size4K, keep), modes.clone()),
                   (switching(Paging::Nested, PageSize::Size2M, keep), modes.clone())];
        let with = run(&profile, cpus, 1e-6, &guest.words, &vms);
        let without = run(&profile, cpus, 1e-6, &guest.words, &[]);
        prop_assert_eq!(&with.configs, &without.configs);
        for s in &with.switched {
            for (i, mode) in s.modes.iter().enumerate() {
                prop_assert_eq!(*mode, *modes.get(i).or(modes.last()).unwrap());
                let switched = i > 0 && s.modes[i - 1] != *mode;
                prop_assert_eq!(s.intervals[i].mode_switches, u64::from(switched));
                // Each mode has exits of its own only.
                match mode {
                    Paging::Shadow => prop_assert_eq!(s.intervals[i].exits_violation, 0),
                    _ => prop_assert_eq!(s.intervals[i].exits_hidden_fault + s.intervals[i].exits_cr3_write, 0),
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(24))]

    /// More configurations than a TLB entry has bits for: several groups.
    #[test]
    fn each_of_twelve_configurations_counts_what_it_counts_alone(
        ops in ops(1200), cpus in 1usize..3, which in 0usize..2,
        turns in proptest::collection::vec(proptest::collection::vec(any::<bool>(), 0..20), 7)
    ) {
        let mut guest = Guest::new(cpus);
        guest.run(&ops);
        let profile = profile(["i5-7600", "phenom2-x3-720"][which], &[]);
        let mode = |shadow: bool| if shadow { Paging::Shadow } else { Paging::Nested };
        let vms: Vec<(Switching, Vec<Paging>)> = turns.iter().enumerate().map(|(i, turns)| {
            let host_page = [PageSize::Size4K, PageSize::Size2M][i / 2 % 2];
            let vm = switching(mode(i % 2 == 0), host_page, i % 3 == 0);
            let modes = [vm.start].into_iter().chain(turns.iter().map(|&t| mode(t))).collect();
            (vm, modes)
        }).collect();
        let mut configs = Config::ALL;
        configs.reverse();
        let all = run_configs(&configs, &profile, cpus, 1e-6, &guest.words, &vms);
        prop_assert_eq!(all.configs.len() + all.switched.len(), 12);
        for (config, in_company) in configs.iter().zip(&all.configs) {
            let alone = run_configs(&[*config], &profile, cpus, 1e-6, &guest.words, &[]);
            prop_assert_eq!(&alone.configs[0], in_company, "{}", config.name());
        }
        for (i, vm) in vms.iter().enumerate() {
            let alone = run_configs(&[], &profile, cpus, 1e-6, &guest.words, std::slice::from_ref(vm));
            prop_assert_eq!(&alone.switched[0], &all.switched[i], "{:?}", vm);
        }
    }
}

const VA: u64 = 0x40_4060_0000;
const PAGES: u64 = 100;

/// Four intervals that each store to the same PAGES pages of two leaf tables, the TLB emptied between.
fn four_intervals(modes: [Paging; 4], keep_nested: bool) -> (Outcome, SwitchedOutcome) {
    let mut stream = Stream::new();
    let root = stream.table(4);
    let page = |i: u64| VA + ((i % 2) << 21) + ((i / 2) << 12);
    // Accessed and dirty already, so that a shadow entry is writable from the start.
    for i in 0..PAGES {
        stream.map(root, page(i), 1, (0x1_0000 + i) << 12 | WRITE | 0x60);
    }
    let mut events = Vec::new();
    for _ in modes {
        events.extend((0..PAGES).map(|i| Store(page(i))));
        events.extend([Insns(2_000_000), Cr3(root << 12)]);
    }
    let vms = [(switching(modes[0], PageSize::Size4K, keep_nested), modes.to_vec())];
    let stream = stream.start(root).and(&events);
    let outcome = run(&profile("geometry-g", &["walk_cache.variant=none"]), 1, 0.001, &stream.words, &vms);
    let mut switched = outcome.switched[0].clone();
    switched.intervals.truncate(4); // the last CR3 load is a fifth
    (outcome, switched)
}

const N: Paging = Paging::Nested;
const S: Paging = Paging::Shadow;

#[test]
fn nested_tables_kept_over_a_stay_in_shadow_cost_no_violation_afterwards() {
    let (_, s) = four_intervals([N, S, N, N], true);
    assert_eq!(s.intervals.iter().map(|i| i.exits_violation).collect::<Vec<_>>(), [PAGES + 5, 0, 0, 0]);
}

#[test]
fn nested_tables_dropped_cost_every_frame_used_again_but_no_backing() {
    let (_, s) = four_intervals([N, S, N, N], false);
    assert_eq!(
        s.intervals.iter().map(|i| i.exits_violation).collect::<Vec<_>>(),
        [PAGES + 5, 0, PAGES + 5, 0]
    );
    assert_eq!(s.intervals[2].frames_backed, 0);
}

#[test]
fn frames_first_used_in_shadow_mode_are_missing_in_the_nested_tables_that_were_kept() {
    let (_, s) = four_intervals([S, N, N, N], true);
    assert_eq!(s.intervals[1].exits_violation, PAGES + 5);
    assert_eq!(s.intervals[1].frames_backed, 5, "the guest's tables, which shadow paging does not touch");
}

#[test]
fn every_stay_in_shadow_begins_with_empty_tables_and_ends_with_them_dropped() {
    let (outcome, s) = four_intervals([S, N, S, N], true);
    let blocks = 2 * (PAGES / 2).div_ceil(8);
    // At first the host backs page by page, and prefetch finds no neighbour.
    assert_eq!(s.intervals[0].exits_hidden_fault, PAGES);
    // What the static run says a cold start would bring is what it brought.
    let fixed = outcome.configs.iter().find(|c| c.config.name() == "shadow-4k").unwrap();
    assert_eq!(fixed.intervals[2].cold_exits, s.intervals[2].exits_hidden_fault);
    assert_eq!(fixed.intervals[2].cold_exits, blocks);
    for i in [1, 3] {
        assert_eq!(s.intervals[i].shadow_pages_zapped, 5, "root, two above, two leaf tables");
    }
}

#[test]
fn a_switch_costs_what_the_profile_says_and_the_tables_it_drops() {
    let (_, s) = four_intervals([S, S, S, N], true);
    let i = s.intervals[3];
    assert_eq!(i.vmm_cycles, 20_000 + 5 * 900 + i.exits_violation * 2600 + i.frames_backed * 1500);
}

#[test]
fn ages_tell_how_long_an_entry_was_not_used() {
    // Pages 0..10 in intervals 0 and 3, pages 10..20 in all.
    let mut stream = Stream::new();
    let root = stream.table(4);
    for i in 0..20 {
        stream.map(root, VA + (i << 12), 1, (0x1_0000 + i) << 12);
    }
    let mut events = Vec::new();
    for interval in 0..4 {
        let first = if interval % 3 == 0 { 0 } else { 10 };
        events.extend((first..20).map(|i| Load(VA + (i << 12))));
        events.extend([Insns(2_000_000), Cr3(root << 12)]);
    }
    let outcome = stream.start(root).and(&events).run_all(
        &profile("geometry-g", &["walk_cache.variant=none"]),
        &[NESTED_4K],
        0.001,
    );
    let old: Vec<_> = outcome.configs[0].reuse[3].iter().map(|r| (r.last, r.made, r.exits)).collect();
    // The four tables and ten pages were used in the interval before, ten pages three before.
    assert_eq!(old, [(bucket(1), bucket(3), 14), (bucket(3), bucket(3), 10)]);
    assert_eq!(bounds(bucket(3)), (3, 4));
}
