// SPDX-License-Identifier: Apache-2.0 OR MIT
use super::*;
use crate::{Measured, Observation};
use bifold_policy::Mode;
use proptest::prelude::*;

const KNOWN: Counters = Counters::INSTRUCTIONS
    .and(Counters::WALK_CYCLES)
    .and(Counters::VMM_CYCLES)
    .and(Counters::PAGE_FAULTS)
    .and(Counters::TLB_MISSES);

/// What a step costs a made-up guest.
#[derive(Clone, Copy)]
struct Work {
    steps: u64,
    instructions: u64,
    /// In shadow and in nested mode.
    cycles: [u64; 2],
    faults: u64,
}

const WORK: Work = Work { steps: 100, instructions: 1000, cycles: [2000, 1500], faults: 3 };

fn interval(n: usize, mode: Option<Mode>, work: Work) -> RecordedInterval {
    let cycles = mode.map_or(9999, |m| work.cycles[usize::from(m == Mode::Nested)]);
    let sample = Sample {
        instructions: work.instructions * work.steps,
        walk_cycles: cycles / 10 * work.steps,
        guest_page_faults: work.faults * work.steps,
        ..Sample::default()
    };
    let measured =
        Measured { sample, known: KNOWN, cycles: Some((cycles * work.steps) as f64), load: Some(1.0) };
    let seen = Observation { seconds: 1.0, mode, measured, progress: Some(work.steps) };
    RecordedInterval { time: n as f64, seen }
}

/// A VM with an interval a second; the letters are modes, `-` a switch.
fn vm(modes: &str, work: impl Fn(usize) -> Work) -> RecordedVm {
    let mode = |c| match c {
        's' => Some(Mode::Shadow),
        'n' => Some(Mode::Nested),
        _ => None,
    };
    let intervals = modes.chars().enumerate().map(|(n, c)| interval(n, mode(c), work(n))).collect();
    RecordedVm { vm: "9-7".into(), name: "web".into(), intervals, starts: Vec::new() }
}

/// Values of shadow and nested mode.
fn both<T>([shadow, nested]: [T; 2]) -> PerMode<T> {
    [(Mode::Shadow, shadow), (Mode::Nested, nested)].into()
}

const PROBE: &str = "nnnnnnnn-ssssssss-nnnnnnnn";

/// The only reason why this VM has no pair.
fn why(vm: &RecordedVm) -> Why {
    let found = pairs(vm);
    assert_eq!((found.pairs.len(), found.left_out.all()), (0, 1), "{}", found.left_out);
    REASONS.into_iter().map(|(why, _)| why).find(|why| found.left_out.of(*why) == 1).unwrap()
}

#[test]
fn a_probe_gives_both_modes_costs_for_the_same_steps() {
    // The guest gets on twice as fast in shadow mode.
    let vm = vm(PROBE, |n| Work { steps: if (9..17).contains(&n) { 200 } else { 100 }, ..WORK });
    let found = pairs(&vm);
    assert_eq!((found.pairs.len(), found.left_out.all()), (1, 0));
    let p = &found.pairs[0];
    assert_eq!((&p.cycles, p.time), (&both([200_000.0, 150_000.0]), 16.0));
    assert_eq!(p.samples.map(|_, s| s.walk_cycles), both([20_000, 15_000]));
    assert_eq!(p.samples.map(|_, s| s.instructions), both([100_000; 2]));
    assert_eq!(p.known, both([KNOWN; 2]));
}

#[test]
fn cold_intervals_are_in_no_pair() {
    let mut vm = vm(PROBE, |_| WORK);
    let clean = pairs(&vm);
    for n in [0, 8, 9, 17, 18] {
        vm.intervals[n].seen.measured.cycles = Some(1e9);
        vm.intervals[n].seen.measured.sample.walk_cycles = 1 << 30;
    }
    assert_eq!(pairs(&vm), clean);
    vm.intervals[10].seen.measured.cycles = Some(1e9);
    assert_ne!(pairs(&vm), clean);
}

#[test]
fn a_steady_drift_cancels_out() {
    let drifting = |n: usize| Work { cycles: [20_000 + 20 * n as u64, 15_000 + 15 * n as u64], ..WORK };
    let p = &pairs(&vm(PROBE, drifting)).pairs[0];
    assert!((p.cycles[Mode::Shadow] / p.cycles[Mode::Nested] - 4.0 / 3.0).abs() < 2e-3, "{p:?}");
}

#[test]
fn a_phase_change_at_a_switch_is_no_pair() {
    let dear = Work { cycles: [4000, 3000], ..WORK };
    let change = |at: usize| vm(PROBE, move |n| if n < at { WORK } else { dear });
    assert_eq!(why(&change(9)), Why::Drift);
    assert_eq!(why(&change(13)), Why::Drift);
    // A policy that follows the phases switches there and back with them.
    for other in [Work { instructions: 1300, ..dear }, Work { faults: 30, ..dear }] {
        let during = vm(PROBE, |n| if (8..17).contains(&n) { other } else { WORK });
        assert_eq!(why(&during), Why::OtherWork);
    }
    // Two phases that cost the same per step, and the middle has both.
    let same_cost = Work { instructions: 1300, ..WORK };
    assert_eq!(why(&vm(PROBE, |n| if n < 13 { WORK } else { same_cost })), Why::OtherWork);
}

#[test]
fn what_lacks_figures_or_time_is_no_pair() {
    let mut without = vm(PROBE, |_| WORK);
    without.intervals[9..17].iter_mut().for_each(|i| i.seen.progress = None);
    assert_eq!(why(&without), Why::NoProgress);
    let mut without = vm(PROBE, |_| WORK);
    without.intervals.iter_mut().for_each(|i| i.seen.measured.cycles = None);
    assert_eq!(why(&without), Why::NoCycles);
    assert_eq!(why(&vm("nnnn-ss-nnnn", |_| WORK)), Why::Short);
    assert_eq!(why(&vm(PROBE, |_| Work { steps: 2, ..WORK })), Why::Short);
}

#[test]
fn a_stay_is_no_try() {
    let long = format!("nnnn-{}-nnnn", "s".repeat(61));
    for modes in [&long, "nnnnnnnn-ssssssss"] {
        let found = pairs(&vm(modes, |_| WORK));
        assert_eq!((found.pairs.len(), found.left_out.all()), (0, 0));
    }
}

#[test]
fn one_interval_without_progress_does_not_spoil_a_pair() {
    let mut vm = vm(PROBE, |_| WORK);
    vm.intervals[12].seen.progress = None;
    vm.intervals[13].seen.measured.known = KNOWN.less(Counters::PAGE_FAULTS);
    let p = &pairs(&vm).pairs[0];
    assert_eq!(p.known, both([KNOWN.less(Counters::PAGE_FAULTS), KNOWN]));
    assert_eq!(p.samples.map(|_, s| s.guest_page_faults), both([0, 300]), "an unknown count is 0");
}

#[test]
fn intervals_before_a_gap_belong_to_another_time() {
    let mut vm = vm(PROBE, |_| WORK);
    vm.intervals[9..].iter_mut().for_each(|i| i.time += 3600.0);
    let found = pairs(&vm);
    assert_eq!((found.pairs.len(), found.left_out.all()), (0, 0));
}

#[test]
fn reasons_are_in_the_order_of_their_numbers_and_name_the_bounds() {
    assert!(REASONS.iter().enumerate().all(|(n, (why, _))| *why as usize == n));
    assert_eq!(LeftOut::default().to_string(), "none");
    let told = LeftOut([0, 0, 2, 3, 0, 0]).to_string();
    for figure in [LEAST_S, LEAST_STEPS, (100.0 * (AGREE - 1.0)).round()] {
        assert!(told.contains(&format!("{figure}")), "{told}");
    }
}

proptest! {
    #[test]
    fn any_recording_has_pairs_within_bounds_or_none(
        all in proptest::collection::vec(
            (0..3usize, proptest::option::weighted(0.9, 0..=1u64 << 53), proptest::option::weighted(0.9, prop_oneof![
                Just(0.0), 1.0..1e6f64, 0.0..1e308f64,
            ]), prop_oneof![Just(1.0), 0.0..1e300f64], 0..=1u64 << 53),
            0..60,
        ),
        stays in 1..8usize,
    ) {
        let modes = [None, Some(Mode::Shadow), Some(Mode::Nested)];
        let intervals = all.iter().enumerate().map(|(n, (_, progress, cycles, seconds, count))| RecordedInterval {
            time: n as f64,
            seen: Observation {
                seconds: *seconds,
                mode: modes[all[n - n % stays].0],
                measured: Measured {
                    sample: Sample::from_values([*count; Sample::COUNTERS.len()]),
                    known: if count % 7 == 0 { KNOWN } else { Counters::ALL },
                    cycles: *cycles,
                    load: None,
                },
                progress: *progress,
            },
        });
        let intervals = intervals.collect();
        let vm = RecordedVm { vm: "9-7".into(), name: "web".into(), intervals, starts: Vec::new() };
        for p in pairs(&vm).pairs {
            prop_assert!(p.cycles.values().all(|c| (1.0..=MOST).contains(c)));
            prop_assert!(p.samples.values().all(|s| s.values().iter().all(|v| *v as f64 <= MOST)));
        }
    }
}
