// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plans over recorded guests: beside an exact simulation, and what every policy must keep.

use bifold_reclaim::{
    About, MemoryTimeline, MemoryUse, Plan, PlanError, PolicyName, ReferenceKind, Setting, plan,
};
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use std::num::NonZeroU64;

const FRAMES: u64 = 2048;
const REFERENCES: u64 = 5000;

/// A guest of phases: in each interval it uses `frames` frames from `start` on, in a loop or at random.
fn record(phases: &[(u64, u64, bool)], seconds: f64) -> MemoryTimeline {
    let mut random = Pcg64::seed_from_u64(7);
    let about = About { guest_frames: FRAMES, ..About::default() };
    let length = NonZeroU64::new(REFERENCES).expect("not 0");
    let mut uses = MemoryUse::<64>::new(FRAMES, length, 0).expect("few frames");
    for (i, &(start, frames, looping)) in (1u64..).zip(phases) {
        for at in 0..REFERENCES {
            let frame = start + if looping { at % frames } else { random.random_range(0..frames) };
            uses.reference(frame, ReferenceKind::Data, at % 3 == 0);
        }
        uses.ran(i * REFERENCES);
    }
    MemoryTimeline::of(about, &uses, seconds / REFERENCES as f64)
}

fn setting(host_frames: u64) -> Setting {
    Setting { host_frames, floor_frames: 64, refault_s: 1e-4, step_s: None, time_scale: 100.0 }
}

fn of(plan: &Plan, name: PolicyName) -> u64 {
    plan.policies.iter().find(|p| p.name == name.name()).expect("it is in the plan").refaults
}

/// Two guests that need much by turns, and one that ends.
fn turns() -> Vec<(String, MemoryTimeline)> {
    let phases = |odd: usize| {
        (0..40)
            .map(|i| if (i / 8 + odd) % 2 == 0 { (0, 1200, true) } else { (1200, 150, false) })
            .collect::<Vec<_>>()
    };
    vec![
        ("a".into(), record(&phases(0), 0.1)),
        ("b".into(), record(&phases(1), 0.1)),
        ("c".into(), record(&[(0, 600, false); 10], 0.1)),
    ]
}

#[test]
fn policies_that_know_more_lose_less_on_guests_that_take_turns() {
    let plan = plan(&turns(), &PolicyName::ALL, &setting(2200)).expect("a plan");
    let [equal, curves, oracle] =
        [PolicyName::Equal, PolicyName::Curves, PolicyName::Oracle].map(|n| of(&plan, n));
    // A loop over 1200 frames never fits in a third of the host.
    assert!(equal > 100_000, "{equal}");
    assert!(curves < equal / 4, "{curves} of {equal}");
    assert!(oracle < curves, "{oracle} below {curves}");
    for policy in &plan.policies {
        assert_eq!(policy.refaults, policy.guests.iter().map(|g| g.refaults).sum::<u64>(), "{}", policy.name);
        assert!(policy.refaults_while_growing <= policy.refaults + 2);
        assert!(policy.guests.iter().map(|g| g.mean_frames).sum::<u64>() <= 2200 + 3);
    }
    let equal = &plan.policies[0];
    assert_eq!(equal.worst.as_ref().and_then(|w| w.ratio), Some(1.0));
    let costliest = equal.costliest.as_ref().expect("refaults");
    assert!(
        ["a", "b"].contains(&costliest.guest.as_str()) && costliest.reason.contains("used 1200"),
        "{costliest:?}"
    );
}

#[test]
fn all_memory_means_no_refault() {
    let plan = plan(&turns(), &PolicyName::ALL, &setting(10 * FRAMES)).expect("a plan");
    for policy in plan.policies.iter().filter(|p| p.name != "feedback") {
        assert_eq!((policy.refaults, &policy.worst, &policy.costliest), (0, &None, &None), "{}", policy.name);
    }
}

#[test]
fn hosts_that_are_too_small_and_clocks_that_are_too_fine_are_refused() {
    let guests = turns();
    let error = plan(&guests, &[], &setting(191)).unwrap_err();
    assert_eq!(error, PlanError::HostTooSmall { host_frames: 191, floors: 192 });
    assert!(plan(&guests, &[], &setting(192)).is_ok());
    let fine = Setting { step_s: Some(1e-6), ..setting(1000) };
    assert!(matches!(plan(&guests, &[], &fine).unwrap_err(), PlanError::TooManySteps { .. }));
    assert_eq!(plan(&[], &[], &setting(1000)).unwrap_err(), PlanError::NoGuest);
}

#[test]
fn intervals_of_different_lengths_meet_on_one_clock() {
    let guests = |seconds: [f64; 2]| {
        let phases = [(0, 500, false); 12];
        [("a".to_string(), record(&phases, seconds[0])), ("b".to_string(), record(&phases, seconds[1]))]
    };
    let same = plan(&guests([0.1, 0.1]), &[PolicyName::Equal], &setting(600)).expect("a plan");
    let other = plan(&guests([0.1, 0.25]), &[PolicyName::Equal], &setting(600)).expect("a plan");
    // Sixteen steps in the longest interval.
    assert_eq!(same.steps, 192);
    assert!((same.step_seconds - 0.1 / 16.0).abs() < 1e-12);
    assert_eq!((other.step_seconds, other.steps), (0.25 / 16.0, 192));
    let [a, b] = [&same, &other].map(|p| p.policies[0].refaults as f64);
    assert!((a - b).abs() < 0.05 * a, "{a} and {b}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn every_policy_stays_within_the_host_and_between_the_bounds(
        phases in prop::collection::vec(
            prop::collection::vec((0u64..1000, 1u64..1000, any::<bool>()), 1..12), 1..4),
        host in 200u64..6000,
    ) {
        let guests: Vec<_> = phases.iter().enumerate().map(|(i, p)| (i.to_string(), record(p, 0.1 + i as f64 / 20.0))).collect();
        let plan = plan(&guests, &PolicyName::ALL, &setting(host)).expect("a plan");
        for policy in &plan.policies {
            for (guest, (_, timeline)) in policy.guests.iter().zip(&guests) {
                // Never more than at the floor, and never less than with all memory.
                let most: f64 = (0..timeline.intervals.len()).map(|i| timeline.curve(i).misses(64.0) - timeline.intervals[i].first as f64).sum();
                prop_assert!(guest.refaults as f64 <= most + 1.0 + 0.02 * most, "{}: {} of {most}", policy.name, guest.refaults);
                prop_assert!((64..=FRAMES).contains(&guest.mean_frames) && guest.least_frames >= 64);
            }
            prop_assert!(policy.guests.iter().map(|g| g.mean_frames).sum::<u64>() <= host + guests.len() as u64);
        }
        let again = bifold_reclaim::plan(&guests, &PolicyName::ALL, &setting(host)).expect("a plan");
        prop_assert_eq!(plan, again);
    }
}
