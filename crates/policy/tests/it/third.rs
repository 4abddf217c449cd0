// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A third mode. Its costs are made up, and it is offset mode by name alone: no policy has a line about it.

use crate::made::{IDEAL, Interval, any_timeline, interval, timeline};
use bifold_model::Sample;
use bifold_policy::evaluate::{Evaluation, Input, Options, evaluate};
use bifold_policy::timeline::StaticRun;
use bifold_policy::{Estimator, Mode, Named, Scale, Setup, Timeline, Track, VmKind, forced, oracle, replay};
use proptest::prelude::*;
use std::path::Path;

const MODES: [Mode; 3] = [Mode::Shadow, Mode::Nested, Mode::Offset];
/// The policies that go by the modes' costs.
const BY_COSTS: [&str; 3] = ["work-function", "regret", "experts"];

/// A timeline of two modes, and the third's walk cycles.
fn with_third(mut t: Timeline, walks: impl Fn(usize) -> u64) -> Timeline {
    let sample = |j| Sample { instructions: IDEAL, walk_cycles: walks(j), ..Sample::default() };
    let n = t.intervals();
    let run = StaticRun { samples: (0..n).map(sample).collect(), reuse: vec![Vec::new(); n] };
    t.pages[0].modes.insert(Mode::Offset, run);
    t
}

/// Shadow mode is cheapest in the first hundred intervals, the third mode in the second, nested mode in the
/// last.
fn thirds() -> Timeline {
    let cost = |cheap: bool| [if cheap { IDEAL / 50 } else { IDEAL / 2 }, 0];
    let interval =
        |j: usize| Interval { shadow: cost(j < 100), nested: cost(j >= 200), ..Interval::default() };
    let two = timeline(&(0..300).map(interval).collect::<Vec<_>>());
    with_third(two, |j| cost((100..200).contains(&j))[0])
}

fn evaluated(timeline: Timeline, named: &[Named], estimator: Option<&Estimator>) -> Evaluation {
    let options = Options { vm: VmKind::default(), scale: Scale::both(100.0), estimator };
    evaluate(&[Input { name: "thirds".into(), timeline }], named, &options).unwrap()
}

#[test]
fn the_oracle_and_policies_that_go_by_costs_follow_the_cheapest_of_three_modes() {
    let track = Track::new(&thirds(), VmKind::default()).unwrap();
    for start in MODES {
        let best = oracle(&track, start, 100.0);
        let share =
            |range: std::ops::Range<usize>, mode| best.modes[range].iter().filter(|m| **m == mode).count();
        assert_eq!(
            (share(0..100, Mode::Shadow), share(100..200, Mode::Offset), share(200..300, Mode::Nested)),
            (100, 100, 100)
        );
        assert_eq!(best.switches, if start == Mode::Shadow { 2 } else { 3 });
        for name in BY_COSTS {
            let spec = Named::load(name).unwrap().spec;
            let run =
                replay(&track, &spec, &Setup { start, scale: Scale::both(100.0), estimator: None }, true);
            for (mode, range) in MODES.into_iter().zip([5..100, 205..300, 105..200]) {
                assert!(run.modes[range].iter().all(|m| *m == mode), "{name} from {start:?} in {mode:?}");
            }
            let why = &run.explained[102].1.why;
            assert!(run.explained.iter().any(|(_, d)| d.why.contains("offset")), "{name}: {why}");
        }
    }
}

#[test]
fn an_evaluation_has_the_third_mode_as_start_bound_and_share() {
    let all = Named::all();
    let e = evaluated(thirds(), &all, None);
    let p = &e.programs[0];
    assert_eq!(p.modes, MODES);
    assert!(p.static_percent.values().all(|percent| (percent - 34.0).abs() < 0.01), "{:?}", p.static_percent);
    for row in &p.rows {
        assert_eq!(row.runs.modes().collect::<Vec<_>>(), MODES);
        for (start, run) in row.runs.iter() {
            assert!(run.oracle_gap_percent >= -1e-7, "{} from {start:?}", row.policy);
            let shares: f64 = MODES.iter().map(|mode| run.shares.of_mode(*mode)).sum();
            assert!((shares - 1.0).abs() < 1e-9);
        }
    }
    let row = |name: &str| p.rows.iter().find(|r| r.policy == name).unwrap();
    for name in BY_COSTS {
        let worst = row(name).worse();
        assert!(worst.oracle_gap_percent < 3.0 && worst.static_gap_percent < -20.0, "{name}: {worst:?}");
        assert!((worst.shares.of_mode(Mode::Offset) - 1.0 / 3.0).abs() < 0.03, "{name}");
    }
    // A rule that was published for two modes says nothing of the third.
    for name in ["dsp", "rpms-shipped", "bae", "zhang", "kuang", "hiebel", "toggle"] {
        assert_eq!(row(name).runs[Mode::Offset].shares.of_mode(Mode::Offset), 1.0, "{name}");
        assert_eq!(row(name).runs[Mode::Nested].shares.of_mode(Mode::Offset), 0.0, "{name}");
    }
    let json = serde_json::to_value(&e).unwrap();
    assert_eq!(json["programs"][0]["modes"], serde_json::json!(["shadow", "nested", "offset"]));
    assert_eq!(json["programs"][0]["static_percent"].as_array().unwrap().len(), 3);
    let of_policy = |name: &str| e.policies.iter().position(|s| s.policy == name).unwrap();
    assert!(json["policies"][of_policy("experts")]["offset_share"].as_f64().unwrap() > 0.3);
}

#[test]
fn a_mode_without_recorded_or_estimated_costs_is_unknown_and_not_free() {
    let mut two = thirds();
    two.pages[0].modes.remove(Mode::Offset).unwrap();
    let always = Named::parse("always-offset", "policy = \"always\"\nmode = \"offset\"").unwrap();
    let named: Vec<Named> = Named::all().into_iter().chain([always]).collect();
    let recorded = evaluated(two, &named, None);
    assert_eq!(recorded.programs[0].modes, MODES[..2]);
    // The estimator was fitted to two modes.
    let estimated = evaluated(thirds(), &Named::all(), Some(Estimator::fitted()));
    for p in [&recorded.programs[0], &estimated.programs[0]] {
        for row in &p.rows {
            for start in [Mode::Shadow, Mode::Nested] {
                assert_eq!(row.runs[start].shares.of_mode(Mode::Offset), 0.0, "{}", row.policy);
            }
        }
    }
}

#[test]
fn a_file_has_the_third_mode_under_its_name() {
    let t = thirds();
    let bytes = t.to_bytes();
    assert_eq!(Timeline::from_bytes(&bytes, Path::new("x")).unwrap(), t);
    let json: serde_json::Value = serde_json::from_slice(&zstd::decode_all(&bytes[..]).unwrap()).unwrap();
    assert_eq!(json["pairs"][0]["offset"]["counters"]["intervals"], 300);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_three_modes_is_cheaper_than_the_oracles(
        intervals in prop::collection::vec(interval(), 1..6), walks in prop::collection::vec(0..IDEAL, 6),
        start in prop::sample::select(&MODES[..]), keep_nested: bool,
    ) {
        let t = with_third(timeline(&intervals), |j| walks[j]);
        let track = Track::new(&t, VmKind { keep_nested, ..VmKind::default() }).unwrap();
        let best = oracle(&track, start, 1.0);
        let n = intervals.len() as u32;
        let costs = (0..3usize.pow(n)).map(|code| {
            let modes: Vec<Mode> = (0..n).map(|j| MODES[code / 3usize.pow(j) % 3]).collect();
            forced(&track, &modes, start, 1.0).cycles
        });
        let least = costs.fold(f64::INFINITY, f64::min);
        prop_assert!((best.cycles / least - 1.0).abs() < 1e-9, "{} of {least}", best.cycles);
        prop_assert_eq!(forced(&track, &best.modes, start, 1.0).switches, best.switches);
    }

    #[test]
    fn a_mode_that_costs_more_than_both_others_changes_no_decision(t in any_timeline()) {
        let costly = with_third(t.clone(), |_| 100 * IDEAL);
        let [two, three] = [&t, &costly].map(|t| Track::new(t, VmKind::default()).unwrap());
        for name in BY_COSTS {
            let spec = Named::load(name).unwrap().spec;
            for start in [Mode::Shadow, Mode::Nested] {
                let setup = Setup { start, scale: Scale::both(100.0), estimator: None };
                let [a, b] = [&two, &three].map(|track| replay(track, &spec, &setup, false));
                prop_assert_eq!(a.modes, b.modes, "{}", name);
                prop_assert_eq!(a.cycles, b.cycles);
            }
        }
    }
}
