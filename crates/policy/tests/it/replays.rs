// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replays against sums made by hand.

use crate::made::{COSTS, IDEAL, Interval, any_timeline, reuse, timeline};
use bifold_model::VmState;
use bifold_policy::timeline::SwitchCosts;
use bifold_policy::{Estimator, Mode, Named, Scale, Setup, Timeline, Track, VmKind, forced, oracle, replay};
use proptest::prelude::*;

const N: Mode = Mode::Nested;
const S: Mode = Mode::Shadow;

/// A long-lived VM that keeps its nested tables.
fn track(intervals: &[Interval]) -> Track {
    track_of(intervals, VmState::LongLived, true)
}

fn track_of(intervals: &[Interval], state: VmState, keep_nested: bool) -> Track {
    let mut t = timeline(intervals);
    t.about.vm = state;
    Track::new(&t, VmKind { keep_nested, ..VmKind::default() }).unwrap()
}

fn vms() -> impl Strategy<Value = VmKind> {
    any::<bool>().prop_map(|keep_nested| VmKind { keep_nested, ..VmKind::default() })
}

#[test]
fn a_vm_that_stays_pays_its_static_cost_and_nothing_else() {
    let t = track(&vec![Interval { shadow: [10, 20], nested: [300, 4], ..Interval::default() }; 5]);
    let r = forced(&t, &[S; 5], S, 1.0);
    assert_eq!((r.extra_cycles, r.switch_cycles, r.switches), (150.0, 0.0, 0));
    assert_eq!(forced(&t, &[N; 5], N, 1.0).cycles, 5.0 * (IDEAL as f64 + 304.0));
    assert_eq!(t.static_cycles(S), 5.0 * (IDEAL as f64 + 30.0));
}

#[test]
fn entries_last_used_before_the_switch_are_cold_and_younger_ones_are_not() {
    // In every interval: 3 blocks used in the one before, 5 two before, 7 four before.
    let cells = vec![reuse(0, 0, 3, 1), reuse(1, 1, 5, 0), reuse(3, 3, 7, 2)];
    let t = track(&vec![Interval { reuse: [cells, Vec::new()], ..Interval::default() }; 8]);
    let exits: Vec<f64> = (2..8).map(|j| t.cold(S, j, 2, 0).exits).collect();
    assert_eq!(exits, [15.0, 12.0, 7.0, 7.0, 0.0, 0.0]);
    let r = forced(&t, &[N, N, S, S, S, S, S, S], N, 1.0);
    let tables = 3.0 + 2.0 + 2.0 + 2.0;
    let fill = 41.0 * COSTS.hidden_fault as f64 + tables * COSTS.make_page as f64;
    assert_eq!(r.switch_cycles, COSTS.switch as f64 + fill);
    assert_eq!(forced(&t, &[N, N, S, S, S, S, S, S], N, 100.0).switch_cycles, r.switch_cycles / 100.0);
}

#[test]
fn leaving_shadow_drops_the_pages_in_use() {
    let made = |n| Interval { shadow_pages: [n, 0], ..Interval::default() };
    let t = track(&[made(7), made(5), made(0), made(0)]);
    let r = forced(&t, &[S, S, N, N], S, 1.0);
    assert_eq!(r.switch_cycles, (COSTS.switch + 12 * COSTS.zap_page) as f64);
    // Entered at 1, only what was made since is there.
    let r = forced(&t, &[N, S, N, N], N, 1.0);
    assert_eq!(r.switch_cycles, (2 * COSTS.switch + 5 * COSTS.zap_page) as f64);
}

#[test]
fn nested_tables_kept_lack_what_was_made_in_shadow_mode_and_dropped_ones_lack_all() {
    // Interval 4 uses 2 entries made one interval before, and 30 made four before, all used last in 3.
    let mut intervals = vec![Interval::default(); 5];
    intervals[4].reuse[1] = vec![reuse(0, 0, 2, 0), reuse(0, 3, 30, 0)];
    let cold = |state, keep_nested| {
        let t = track_of(&intervals, state, keep_nested);
        // Shadow from 2 to 4: what was made in 3 is missing.
        t.cold(N, 4, 4, 2).exits
    };
    for state in [VmState::Started, VmState::Restored, VmState::RestoredUffd] {
        assert_eq!([cold(state, true), cold(state, false)], [2.0, 32.0]);
    }
    assert_eq!([cold(VmState::LongLived, true), cold(VmState::LongLived, false)], [0.0, 32.0]);
    let t = track_of(&intervals, VmState::Started, false);
    let r = forced(&t, &[N, N, S, S, N], N, 1.0);
    let tables = 5120 / 512;
    let sum = 2 * COSTS.switch + tables * COSTS.zap_page + 32 * COSTS.violation;
    assert_eq!(r.switch_cycles, sum as f64);
}

#[test]
fn a_long_lived_vm_whose_nested_tables_were_dropped_misses_what_it_uses_for_the_first_time() {
    // Interval j uses an entry for the first time. The entry is as old as the interval before the first.
    let first_use = |j: u8| Interval { reuse: [Vec::new(), vec![reuse(j, j, 1, 0)]], ..Interval::default() };
    let intervals: Vec<Interval> = (0..4).map(first_use).collect();
    let cold = |keep_nested| {
        let t = track_of(&intervals, VmState::LongLived, keep_nested);
        (1..4).map(|j| t.cold(N, j, 1, 0).cycles).sum::<f64>()
    };
    assert_eq!([cold(true), cold(false)], [0.0, 3.0 * COSTS.violation as f64]);
}

#[test]
fn nothing_is_subtracted_from_what_a_vm_that_never_switches_costs_in_any_state() {
    let i = Interval { nested: [100, 4500], violations: 1, ..Interval::default() };
    for state in VmState::ALL {
        let t = track_of(std::slice::from_ref(&i), state, true);
        assert_eq!((t.state, t.extra(N, 0), t.samples[N][0].exits_violation), (state, 4600.0, 1));
    }
}

#[test]
fn a_policy_decides_at_its_own_pace_and_never_sees_the_future() {
    let t = track(&vec![Interval { shadow: [0, 9], ..Interval::default() }; 23]);
    let toggle = Named::parse("t", "policy = \"toggle\"\ninterval_s = 5.0").unwrap();
    let setup = Setup { start: N, scale: Scale::both(100.0), estimator: None };
    let r = replay(&t, &toggle.spec, &setup, true);
    // 10 ms intervals stand for a second: a decision every five.
    assert_eq!((r.decisions, r.switches), (4, 4));
    assert_eq!(r.explained.iter().map(|(j, _)| *j).collect::<Vec<_>>(), [4, 9, 14, 19]);
    let modes: Vec<Mode> = (0..23).map(|j| if (j / 5) % 2 == 0 { N } else { S }).collect();
    assert_eq!(r.modes, modes);
}

/// The built-in coefficients, with switches that cost nothing.
fn free_switches() -> Estimator {
    let fitted = Estimator::fitted().clone();
    let no_rebuild = |from: bifold_policy::estimate::FromMode| bifold_policy::estimate::FromMode {
        rebuild: Default::default(),
        ..from
    };
    Estimator { switch: 0.0, shadow: no_rebuild(fitted.shadow), nested: no_rebuild(fitted.nested) }
}

/// Phases of some intervals each: what the guest does, in words that policies look at. Where
/// switching costs nothing if `free`.
fn phases(free: bool) -> impl Strategy<Value = Timeline> {
    // TLB misses and page faults per 1000 instructions, as programs have them.
    let rates = (prop_oneof![Just(0.0), 0.0..0.2, 1.0..30.0], prop_oneof![Just(0.0), 0.0..0.02, 0.05..1.0]);
    let phase = (rates, 1usize..25).prop_map(|((misses, faults), n)| vec![(misses, faults); n]);
    prop::collection::vec(phase, 4..12).prop_map(move |phases| {
        let rates: Vec<(f64, f64)> = phases.into_iter().flatten().collect();
        let mut t = timeline(&vec![Interval::default(); rates.len()]);
        if free {
            t.costs = SwitchCosts { switch: 0, hidden_fault: 0, violation: 0, make_page: 0, zap_page: 0 };
        }
        for (j, (misses, faults)) in rates.into_iter().enumerate() {
            let count = |rate: f64| (rate * IDEAL as f64 / 1000.0) as u64;
            let (misses, faults) = (count(misses), count(faults));
            for (mode, run) in t.pages[0].modes.iter_mut() {
                let s = &mut run.samples[j];
                (s.tlb_misses_4k, s.guest_page_faults) = (misses, faults);
                if mode == S {
                    (s.walk_cycles, s.vmm_cycles, s.exits_guest_fault) = (misses * 20, faults * 7000, faults);
                } else {
                    s.walk_cycles = misses * 50;
                }
            }
            if !free {
                t.pages[0].modes[S].reuse[j] = vec![reuse((j % 20) as u8, 20, 50, 1)];
            }
        }
        t
    })
}

/// Every counter from interval `from` on, doubled: two vCPUs that do the same where one did.
fn doubled(t: &Timeline, from: usize) -> Timeline {
    let mut t = t.clone();
    for (_, run) in t.pages.iter_mut().flat_map(|p| p.modes.iter_mut()) {
        for s in &mut run.samples[from..] {
            let one = *s;
            s.add(&one);
        }
    }
    t
}

/// What every built-in policy does, from both starts, with the other mode's cost known and estimated.
fn decided(t: &Timeline, estimator: &Estimator) -> Vec<(String, usize, Vec<Mode>)> {
    let track = Track::new(t, VmKind::default()).unwrap();
    let mut all = Vec::new();
    for named in Named::all() {
        for start in [S, N] {
            for estimator in [None, Some(estimator)] {
                let scale = Scale::both(100.0);
                let r = replay(&track, &named.spec, &Setup { start, scale, estimator }, true);
                assert!(!r.explained.iter().any(|(_, d)| d.why.contains("NaN")), "{}", named.name);
                let every = scale.every(named.spec.interval_s(), track.interval_s);
                all.push((named.name.clone(), every, r.modes));
            }
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Policies go by rates and by ratios of costs, so a VM with twice the vCPUs is decided
    /// alike; and so it is where a vCPU comes midway, but by `experts`: what its rules have cost is
    /// in cycles, so that what two vCPUs paid counts twice what one did before. Nor does that
    /// hold where switching costs something, as its cost does not double.
    #[test]
    fn a_vcpu_added_midway_changes_no_decision(t in phases(true)) {
        let estimator = free_switches();
        let plain = decided(&t, &estimator);
        prop_assert_eq!(&decided(&doubled(&t, 0), &estimator), &plain);
        // Where an interval of every policy begins: one with both would be a mixture.
        let half = t.intervals() / 2 / 10 * 10;
        prop_assert!(plain.iter().all(|(_, every, _)| half % every == 0));
        for (a, b) in decided(&doubled(&t, half), &estimator).iter().zip(&plain) {
            if a.0 != "experts" {
                prop_assert_eq!(a, b);
            }
        }
    }

    /// What an interval without instructions says is nothing: a policy stays, but for `always`
    /// and `toggle`, which look at nothing.
    #[test]
    fn in_intervals_without_instructions_policies_stay(
        t in phases(true), paid in phases(false), at in any::<prop::sample::Index>(), n in 1usize..30,
    ) {
        let idle = |t: &Timeline| {
            let mut t = t.clone();
            let at = at.index(t.intervals() + 1);
            for (_, run) in t.pages.iter_mut().flat_map(|p| p.modes.iter_mut()) {
                run.samples.splice(at..at, vec![Default::default(); n]);
                run.reuse.splice(at..at, vec![Vec::new(); n]);
            }
            (t, at)
        };
        let (t, at) = idle(&t);
        for (name, every, modes) in decided(&t, &free_switches()) {
            // The first decision after interval j sees nothing but idle ones if `every` of them are behind.
            let stays = (at..at + n).filter(|j| (j + 1) % every == 0 && j + 1 >= at + every && j + 1 < modes.len());
            if !["always-shadow", "always-nested", "toggle"].contains(&name.as_str()) {
                for j in stays {
                    prop_assert_eq!(modes[j + 1], modes[j], "{} after {}", name, j);
                }
            }
        }
        decided(&idle(&paid).0, Estimator::fitted());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_replay_costs_what_its_modes_cost_when_forced(t in any_timeline(), vm in vms(), from_shadow in any::<bool>()) {
        let track = Track::new(&t, vm).unwrap();
        let start = if from_shadow { S } else { N };
        for named in Named::all() {
            for estimator in [None, Some(Estimator::fitted())] {
                let r = replay(&track, &named.spec, &Setup { start, scale: Scale::both(100.0), estimator }, false);
                let f = forced(&track, &r.modes, start, 100.0);
                prop_assert_eq!(r.cycles, f.cycles, "{}", named.name);
                prop_assert_eq!(r.switches, f.switches);
            }
        }
    }

    #[test]
    fn the_first_intervals_of_a_longer_run_are_decided_alike(t in any_timeline(), vm in vms(), cut in any::<prop::sample::Index>()) {
        let n = cut.index(t.intervals()) + 1;
        let mut short = t.clone();
        for (_, run) in short.pages.iter_mut().flat_map(|p| p.modes.iter_mut()) {
            run.samples.truncate(n);
            run.reuse.truncate(n);
        }
        let modes = |t| {
            let track = Track::new(t, vm).unwrap();
            let setup = Setup { start: N, scale: Scale::both(100.0), estimator: None };
            Named::all().iter().map(|named| replay(&track, &named.spec, &setup, false).modes).collect::<Vec<_>>()
        };
        for (whole, short) in modes(&t).iter().zip(modes(&short)) {
            prop_assert_eq!(&whole[..n], &short[..]);
        }
    }

    #[test]
    fn the_oracle_costs_what_its_modes_cost_where_its_bound_is_tight(t in any_timeline(), vm in vms()) {
        let track = Track::new(&t, vm).unwrap();
        for start in [S, N] {
            let o = oracle(&track, start, 10.0);
            let f = forced(&track, &o.modes, start, 10.0);
            prop_assert_eq!(o.switches, f.switches);
            let slack = if vm.keep_nested && track.state != VmState::LongLived { f.cycles } else { f.cycles * 1e-9 };
            prop_assert!(f.cycles >= o.cycles * (1.0 - 1e-9) && f.cycles <= o.cycles + slack);
        }
    }
}
