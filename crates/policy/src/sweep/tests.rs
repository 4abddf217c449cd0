// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sweeps over timelines made by hand.

use super::*;
use crate::timeline::{About, Runs, StaticRun, SwitchCosts};
use crate::{Mode, Timeline, VmKind};
use bifold_mmu::PageSize;
use bifold_model::Sample;

fn timeline(n: usize) -> Timeline {
    let run = |shadow: bool| {
        let sample = |j: usize| {
            let walking = (j / 25) % 2 == 0;
            let cost = if walking == shadow { 200_000 } else { 2_000_000 };
            Sample {
                instructions: 10_000_000,
                tlb_misses_4k: if walking { 200_000 } else { 1000 },
                guest_page_faults: if walking { 1 } else { 9000 },
                walk_cycles: if walking { cost } else { 10_000 },
                vmm_cycles: if walking { 10_000 } else { cost },
                ..Sample::default()
            }
        };
        StaticRun { samples: (0..n).map(sample).collect(), reuse: vec![Vec::new(); n] }
    };
    Timeline {
        about: About {
            program: "by hand".into(),
            profile: "none".into(),
            frequency_hz: 1_000_000_000,
            base_cpi: 1.0,
            vcpus: 1,
            guest_frames: 4096,
            interval_cycles: 10_000_000,
            ..About::default()
        },
        costs: SwitchCosts {
            switch: 20_000,
            hidden_fault: 2800,
            violation: 2600,
            make_page: 900,
            zap_page: 900,
        },
        pages: vec![Runs {
            host_page: PageSize::Size4K,
            modes: [(Mode::Shadow, run(true)), (Mode::Nested, run(false))].into(),
        }],
        switched: Vec::new(),
    }
}

fn prepared() -> Vec<Prepared> {
    [("a", 100), ("b", 160)]
        .map(|(n, len)| Prepared::new(n, Track::new(&timeline(len), VmKind::default()).unwrap(), 100.0))
        .into()
}

fn axes(texts: &[&str]) -> Vec<Axis> {
    texts.iter().map(|t| Axis::parse(t).unwrap()).collect()
}

#[test]
fn axes_are_ranges_or_lists() {
    let values = |t: &str| Axis::parse(t).unwrap().values;
    let floats = |v: &[f64]| v.iter().copied().map(Value::Float).collect::<Vec<_>>();
    assert_eq!(values("k=1:3:3"), floats(&[1.0, 2.0, 3.0]));
    assert_eq!(values("k=1:100:2:log"), floats(&[1.0, 100.0]));
    assert_eq!(values("k=1,2.5,sum"), [Value::Integer(1), Value::Float(2.5), Value::String("sum".into())]);
    for (text, told) in [
        ("k", "no `=`"),
        ("=1", "no key"),
        ("k=", "no value"),
        ("k=1:2:1", "STEPS is not 2"),
        ("k=0:2:5:log", "log needs ends above 0"),
        ("k=x:2:5", "`x` is no number"),
    ] {
        let e = Axis::parse(text).unwrap_err().to_string();
        assert!(e.contains(told), "{e}");
    }
}

#[test]
fn settings_are_all_combinations_in_range_and_the_others_are_counted() {
    let base = Named::load("rpms-shipped").unwrap();
    let s = settings(&base, &axes(&["t_low=2,6", "t_high=4,8", "dynamic.step=1:3:2", "n=3"])).unwrap();
    // A level below the lower one is refused, for each step.
    assert_eq!((s.named.len(), s.skipped), (6, 2));
    assert!(s.why.unwrap().contains("t_low"));
    assert_eq!(s.named[0].name, "rpms-shipped t_low=2.0 t_high=4.0 dynamic.step=1.0 n=3");
    let text = toml::to_string(&s.named[5].spec).unwrap();
    assert!(
        text.contains("t_low = 6.0") && text.contains("t_high = 8.0") && text.contains("step = 3.0"),
        "{text}"
    );
}

#[test]
fn unknown_parameters_and_grids_out_of_range_are_told() {
    let base = Named::load("dsp").unwrap();
    let told = |a: &str| settings(&base, &axes(&[a])).unwrap_err().to_string();
    assert!(told("tlb=1").contains("no parameter `tlb`: there are"));
    assert!(told("policy=rpms").contains("no parameter `policy`"));
    assert!(told("interval_s.x=1").contains("`interval_s` has no parameters of its own"));
    assert!(told("tlb_miss_lower=11,12").contains("none of 2 settings is in range: tlb_miss_lower = 11"));
}

#[test]
fn a_sweep_says_what_replays_say_and_the_order_of_settings_does_not_matter() {
    let programs = prepared();
    let scale = Scale::both(100.0);
    let base = Named::load("work-function").unwrap();
    let s = settings(&base, &axes(&["interval_s=1:20:20", "switch_factor=0.5,1,2"])).unwrap().named;
    let rows = sweep(&s, &programs, scale, Some(Estimator::fitted()), &|_| ());
    let mut back: Vec<Named> = s.clone();
    back.reverse();
    let mut reversed = sweep(&back, &programs, scale, Some(Estimator::fitted()), &|_| ());
    reversed.reverse();
    for (i, row) in rows.iter().enumerate() {
        assert_eq!(row.scores, reversed[i].scores);
        for (score, p) in row.scores.iter().zip(&programs) {
            let worst = [Mode::Shadow, Mode::Nested].map(|start| {
                let setup = Setup { start, scale, estimator: Some(Estimator::fitted()) };
                replay(&p.track, &s[i].spec, &setup, false).cycles / p.oracle[start]
            });
            assert_eq!(score.to_oracle, worst[0].max(worst[1]));
            assert!(score.to_oracle >= 1.0);
        }
    }
    let chosen = best(&rows, None).unwrap();
    assert!(rows.iter().all(|r| r.total(None).oracle_gap_percent >= chosen.total(None).oracle_gap_percent));
}

#[test]
fn leaving_a_program_out_leaves_out_its_score() {
    let score = |to_oracle, to_static| Score { to_oracle, to_static, switches: 3 };
    let row = SettingScores { setting: 0, scores: vec![score(1.5, 1.2), score(1.1, 0.9)] };
    let t = row.total(Some(0));
    assert!((t.oracle_gap_percent - 10.0).abs() < 1e-9 && (t.worst_static_gap_percent + 10.0).abs() < 1e-9);
    assert_eq!((t.switches, row.total(None).switches), (3, 6));
    assert!((row.total(None).oracle_gap_percent - 100.0 * ((1.5f64 * 1.1).sqrt() - 1.0)).abs() < 1e-9);
}
