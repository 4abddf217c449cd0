// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures of policies over timelines made by hand.

use super::*;
use crate::timeline::{About, Runs, StaticRun, SwitchCosts};
use bifold_model::Sample;
use bifold_model::ages::Reuse;
use proptest::prelude::*;

const CYCLES: u64 = 1_000_000;

fn sample(walks: u64, exits: u64) -> Sample {
    Sample { instructions: CYCLES, walk_cycles: walks, vmm_cycles: exits, ..Sample::default() }
}

/// Both modes' samples, entries of the last interval that were used in each, and free switches.
fn timeline(shadow: Vec<Sample>, nested: Vec<Sample>, reuse: Vec<Vec<Reuse>>) -> Timeline {
    let run = |samples: Vec<Sample>| StaticRun { reuse: reuse.clone(), samples };
    Timeline {
        about: About {
            program: "by hand".into(),
            profile: "none".into(),
            frequency_hz: 100 * CYCLES,
            base_cpi: 1.0,
            vcpus: 1,
            guest_frames: 4096,
            interval_cycles: CYCLES,
            ..About::default()
        },
        costs: SwitchCosts {
            switch: 1000,
            hidden_fault: 2000,
            violation: 2000,
            make_page: 500,
            zap_page: 100,
        },
        pages: vec![Runs {
            host_page: PageSize::Size4K,
            modes: [(Mode::Shadow, run(shadow)), (Mode::Nested, run(nested))].into(),
        }],
        switched: Vec::new(),
    }
}

/// Nested paging is costly in the first half, shadow paging in the second.
fn halves(n: usize) -> Input {
    let cost = |costly: bool| sample(if costly { CYCLES / 2 } else { CYCLES / 20 }, 0);
    let shadow = (0..n).map(|j| cost(j >= n / 2)).collect();
    let nested = (0..n).map(|j| cost(j < n / 2)).collect();
    Input { name: "halves".into(), timeline: timeline(shadow, nested, vec![Vec::new(); n]) }
}

fn options(vm: VmKind) -> Options<'static> {
    Options { vm, scale: Scale::both(100.0), estimator: Some(Estimator::fitted()) }
}

fn percents(e: &Evaluation) -> Vec<String> {
    let of = |r: &PolicyRuns| {
        let f = r.worse();
        format!(
            "{} {:.2} {:.2} {}",
            r.policy,
            f.static_gap_percent,
            f.shares.of_mode(Mode::Shadow),
            f.switches
        )
    };
    e.programs[0].rows.iter().map(of).collect()
}

#[test]
fn the_worse_start_counts_and_gaps_are_to_a_vm_that_never_switches() {
    let named = ["always-shadow", "always-nested"].map(|n| Named::load(n).unwrap());
    let e = evaluate(&[halves(10)], &named, &options(VmKind::default())).unwrap();
    let p = &e.programs[0];
    assert!(p.static_percent.values().all(|s| (s - 27.5).abs() < 0.01), "{:?}", p.static_percent);
    // Started in the other mode, each pays one interval of that and one switch.
    assert_eq!(percents(&e), ["always-shadow 3.53 0.90 1", "always-nested 0.00 0.00 0"]);
    assert_eq!(p.rows[0].worse_start, Mode::Nested);
    // The oracle pays 5 % throughout: in the mode that is cheap, with one switch or two.
    assert_eq!(p.oracle.values().map(|o| o.switches).collect::<Vec<_>>(), [1, 2]);
    assert!((p.oracle[Mode::Shadow].overhead_percent - 5.0).abs() < 0.01, "{:?}", p.oracle);
    assert_eq!((p.ideal_s, p.intervals), (0.1, 10));
}

#[test]
fn a_summary_has_the_geometric_mean_the_worst_program_and_the_number_within_1_percent() {
    let named = [Named::load("always-nested").unwrap()];
    let flat = |name: &str, shadow, nested| Input {
        name: name.into(),
        timeline: timeline(vec![sample(shadow, 0); 8], vec![sample(nested, 0); 8], vec![Vec::new(); 8]),
    };
    let inputs = [flat("good", 300_000, 0), flat("bad", 0, 440_000)];
    let e = evaluate(&inputs, &named, &options(VmKind { keep_nested: true, ..VmKind::default() })).unwrap();
    let s = &e.policies[0];
    // 1.0375 and 1.44: the root of their product is 1.2223.
    assert_eq!(s.worst_program, "bad");
    assert!((s.worst_static_gap_percent - 44.0).abs() < 0.01, "{s:?}");
    assert!((s.oracle_gap_percent - 22.23).abs() < 0.1, "{s:?}");
    assert_eq!((s.within, s.needs_other), (0, false), "3.75 % is lost in the interval before the switch");
}

#[test]
fn a_vm_that_was_not_captured_is_told() {
    let vm = VmKind { host_page: PageSize::Size2M, ..VmKind::default() };
    let e = evaluate(&[halves(4)], &Named::all(), &options(vm)).unwrap_err();
    assert_eq!(e.to_string(), "timeline halves has no 2 MB host pages: it was captured with 4 KB");
}

#[test]
fn timelines_of_vms_in_different_states_are_refused_and_both_are_named() {
    let of = |name: &str, vm| {
        let Input { mut timeline, .. } = halves(4);
        timeline.about.vm = vm;
        Input { name: name.into(), timeline }
    };
    let states =
        |inputs: &[Input]| evaluate(inputs, &Named::all(), &options(VmKind::default())).map(|e| e.vm);
    let (gcc, lbm) = (of("gcc", VmState::LongLived), of("lbm", VmState::Restored));
    assert_eq!(states(&[gcc.clone(), gcc.clone()]).unwrap(), VmState::LongLived);
    assert_eq!(states(std::slice::from_ref(&lbm)).unwrap(), VmState::Restored);
    assert_eq!(
        states(&[gcc.clone(), gcc, lbm]).unwrap_err().to_string(),
        "timeline gcc is of a VM in the state long-lived, and lbm of one in the state restored: give timelines of one state \
         (`bifold compare --vm STATE --timeline FILE` writes one)"
    );
}

#[test]
fn without_programs_or_policies_there_are_no_figures_and_no_failure() {
    let e = evaluate(&[], &Named::all(), &options(VmKind::default())).unwrap();
    assert!(e.policies.iter().all(|s| s.oracle_gap_percent == 0.0 && s.within == 0));
    assert!(evaluate(&[halves(4)], &[], &options(VmKind::default())).unwrap().policies.is_empty());
}

fn samples() -> impl Strategy<Value = Sample> {
    (0..CYCLES, 0..CYCLES, 0..400u64, 0..40u64, 0..40u64).prop_map(|(walks, exits, touches, made, zapped)| {
        Sample {
            exits_violation: touches,
            shadow_pages_made: made,
            shadow_pages_zapped: zapped,
            guest_page_faults: touches,
            tlb_misses_4k: walks / 40,
            ..sample(walks, exits + touches * 2000)
        }
    })
}

prop_compose! {
    fn timelines()(n in 1usize..40)(
        shadow in proptest::collection::vec(samples(), n),
        nested in proptest::collection::vec(samples(), n),
        ages in proptest::collection::vec(
            proptest::collection::vec((0u8..16, 0u8..16, 0u32..500, 0u32..50), 0..4), n),
    ) -> Timeline {
        let cell = |(last, more, exits, tables): (u8, u8, u32, u32)| Reuse { last, made: last + more, exits, tables };
        timeline(shadow, nested, ages.into_iter().map(|v| v.into_iter().map(cell).collect()).collect())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn no_policy_beats_the_oracle_from_the_same_start(
        mut timeline in timelines(), long_lived: bool, keep_nested: bool, known: bool, scale in 1.0f64..200.0,
    ) {
        timeline.about.vm = if long_lived { VmState::LongLived } else { VmState::Started };
        let vm = VmKind { host_page: PageSize::Size4K, keep_nested };
        let options = Options {
            vm,
            scale: Scale::both(scale),
            estimator: if known { None } else { Some(Estimator::fitted()) },
        };
        let e = evaluate(&[Input { name: "x".into(), timeline }], &Named::all(), &options).unwrap();
        let p = &e.programs[0];
        for row in &p.rows {
            for (run, oracle) in row.runs.values().zip(p.oracle.values()) {
                prop_assert!(
                    oracle.cycles <= run.cycles * (1.0 + 1e-9),
                    "{} costs {}, the oracle {}", row.policy, run.cycles, oracle.cycles
                );
            }
        }
        // From its own start a static mode is one of the oracle's choices.
        for (oracle, percent) in p.oracle.values().zip(p.static_percent.values()) {
            prop_assert!(oracle.overhead_percent <= percent + 1e-9);
        }
    }
}
