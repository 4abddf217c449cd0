// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is claimed of policies over the suite's timelines, which are in the repository. The claims hold in
//! long-lived VMs and in VMs that have just started, where first touches are a part of each mode's cost and
//! the modes differ by less.

use bifold_policy::evaluate::{Evaluation, Input, Options, PolicyRuns, Program, evaluate};
use bifold_policy::{Estimator, Mode, Named, Scale, Timeline, VmKind, replay_check};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Programs of the suite and their groups: 1 and 2 were tuned on, 3 was held out.
static PROGRAMS: LazyLock<Vec<(Input, i64)>> = LazyLock::new(|| {
    let suite = std::fs::read_to_string(root().join("evidence/suite/suite.toml")).unwrap();
    let suite: toml::Table = suite.parse().unwrap();
    let read = |(name, program): (&String, &toml::Value)| {
        let path = root().join(format!("evidence/timelines/{name}.timeline"));
        let input = Input { name: name.clone(), timeline: Timeline::read(&path).unwrap() };
        assert_eq!(input.timeline.about.profile, "i5-7600");
        (input, program["group"].as_integer().unwrap())
    };
    suite.iter().map(read).collect()
});

fn of_groups(groups: &[i64], estimator: Option<&Estimator>) -> Evaluation {
    let inputs: Vec<Input> =
        PROGRAMS.iter().filter(|(_, g)| groups.contains(g)).map(|(i, _)| i.clone()).collect();
    let options = Options { vm: VmKind::default(), scale: Scale::both(100.0), estimator };
    evaluate(&inputs, &Named::policies(), &options).unwrap()
}

static ALL: LazyLock<Evaluation> = LazyLock::new(|| of_groups(&[1, 2, 3], Some(Estimator::fitted())));

fn program(name: &str) -> &'static Program {
    ALL.programs.iter().find(|p| p.name == name).unwrap()
}

fn row<'a>(p: &'a Program, policy: &str) -> &'a PolicyRuns {
    p.rows.iter().find(|r| r.policy == policy).unwrap()
}

const OURS: [&str; 2] = ["experts", "regret"];
const RPMS: [&str; 5] = ["rpms-fixed-3", "rpms-fixed-20", "rpms-dynamic", "rpms-single", "rpms-shipped"];

#[test]
fn the_suite_has_thirty_programs_in_thirds_and_some_with_a_hundred_decisions_of_every_policy() {
    for group in 1..=3 {
        assert_eq!(PROGRAMS.iter().filter(|p| p.1 == group).count(), 10);
    }
    let many = |p: &&Program| p.rows.iter().all(|r| r.runs.values().all(|f| f.decisions >= 100));
    assert!(ALL.programs.iter().filter(many).count() >= 3);
}

#[test]
fn of_others_only_the_work_function_is_as_near_to_the_oracle_as_experts_and_on_the_programs_held_out_alone() {
    for groups in [&[1, 2][..], &[3], &[1, 2, 3]] {
        let e = of_groups(groups, Some(Estimator::fitted()));
        let gap = |name: &str| e.policies.iter().find(|s| s.policy == name).unwrap().oracle_gap_percent;
        for other in e.policies.iter().filter(|s| !OURS.contains(&s.policy.as_str())) {
            let allowed = if groups == [3] && other.policy == "work-function" { 0.1 } else { 0.0 };
            assert!(
                gap("experts") < other.oracle_gap_percent + allowed,
                "{} on groups {groups:?}",
                other.policy
            );
        }
    }
}

#[test]
fn no_policy_beats_the_oracle() {
    for p in &ALL.programs {
        for r in &p.rows {
            assert!(r.runs.values().all(|f| f.oracle_gap_percent >= -1e-7), "{} on {}", r.policy, p.name);
        }
    }
}

#[test]
fn rpms_oscillates_on_mcf_at_a_loss_and_ours_gain() {
    let mcf = program("mcf");
    for policy in ["rpms-fixed-3", "rpms-fixed-20", "rpms-dynamic", "rpms-shipped"] {
        assert!(row(mcf, policy).worse().switches >= 7, "{policy}");
        assert!(row(mcf, policy).worse().static_gap_percent > 3.0, "{policy}");
    }
    // The variant made for mcf does not.
    assert!(row(mcf, "rpms-single").runs.values().all(|f| f.switches <= 2));
    for policy in OURS {
        // The oracle gains 3.1 %.
        let worse = row(mcf, policy).worse();
        assert!(worse.static_gap_percent < -2.0 && worse.oracle_gap_percent < 1.0, "{policy}");
    }
}

#[test]
fn where_little_is_lost_rpms_never_leaves_the_costlier_mode_and_ours_do() {
    for name in ["hmmer", "povray"] {
        let p = program(name);
        assert!(p.static_percent[Mode::Shadow] > p.static_percent[Mode::Nested]);
        for policy in RPMS {
            assert_eq!(row(p, policy).runs[Mode::Shadow].switches, 0, "{policy} on {name}");
        }
        // Below a tenth of a point, a switch is not worth its risk.
        let differ = p.static_percent[Mode::Shadow] - p.static_percent[Mode::Nested] > 0.1;
        for policy in OURS.into_iter().filter(|_| differ) {
            assert!(
                row(p, policy).runs[Mode::Shadow].shares.of_mode(Mode::Shadow) < 0.5,
                "{policy} on {name}"
            );
        }
    }
}

#[test]
fn dedup_is_too_short_for_rpms_and_costs_ours_only_the_first_interval() {
    let p = program("dedup");
    let first_interval = row(p, "always-nested").worse().static_gap_percent;
    for policy in RPMS {
        assert!(row(p, policy).worse().static_gap_percent > 2.0 * first_interval, "{policy}");
    }
    for policy in OURS {
        assert!(row(p, policy).worse().static_gap_percent < first_interval + 0.05, "{policy}");
    }
}

#[test]
fn replays_are_within_two_percent_of_what_really_switched_on_every_program() {
    for (input, _) in PROGRAMS.iter() {
        let checks = replay_check::checks(&input.timeline);
        assert!(checks.len() >= 4, "{}", input.name);
        for c in checks {
            assert!(c.passed(), "{}: {c:?}", input.name);
            assert!(c.cycles > 0.0 && (c.name != "toggle" || c.switches >= 4));
        }
    }
}

#[test]
fn knowing_the_other_modes_cost_changes_little_where_estimates_are_good() {
    let known = of_groups(&[1, 2, 3], None);
    let gap = |e: &Evaluation, policy: &str| {
        e.policies.iter().find(|s| s.policy == policy).unwrap().oracle_gap_percent
    };
    for policy in ["experts", "regret", "work-function"] {
        let (estimated, known) = (gap(&ALL, policy), gap(&known, policy));
        assert!((estimated - known).abs() < 0.5, "{policy}: {estimated} estimated, {known} known");
    }
}
