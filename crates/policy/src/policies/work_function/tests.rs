// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bound of the work-function algorithm against any costs and against adversaries.

use super::super::testing::{Run, TestInterval, refused};
use super::*;
use bifold_mmu::Mode::{self, Nested, Shadow};
use proptest::prelude::*;

/// Costs of one interval, per mode.
type Pair = [f64; 2];

/// Costs of an interval in the VM's mode and the other, and of switches.
#[derive(Clone, Copy)]
struct Costs {
    own: f64,
    other: f64,
    away: f64,
    back: f64,
}

/// Costs of leaving each mode.
#[derive(Debug, Clone, Copy)]
struct Switches([f64; 2]);

impl Switches {
    fn leaving(&self, mode: Mode) -> f64 {
        self.0[mode as usize]
    }
}

/// A policy over abstract costs.
trait Decide {
    fn next(&mut self, mode: Mode, costs: Costs) -> Mode;
}

impl Decide for WorkFunctions {
    fn next(&mut self, mode: Mode, c: Costs) -> Mode {
        let other = of_other(mode, c.other, c.away, c.back);
        self.add(mode.into(), c.own, &[other]).0.switchable().unwrap()
    }
}

fn of_other(mode: Mode, extra_cycles: f64, there_cycles: f64, back_cycles: f64) -> Other {
    Other { mode: mode.other().into(), extra_cycles, there_cycles, back_cycles }
}

impl<F: FnMut(Mode, Costs) -> Mode> Decide for F {
    fn next(&mut self, mode: Mode, costs: Costs) -> Mode {
        self(mode, costs)
    }
}

/// What `policy` pays for `n` intervals whose costs `charge` names, knowing mode and policy; and the
/// costs.
fn pay<P: Decide>(
    mut policy: P,
    start: Mode,
    d: Switches,
    n: usize,
    mut charge: impl FnMut(Mode, &P, usize) -> Pair,
) -> (f64, Vec<Pair>) {
    let (mut mode, mut paid, mut costs) = (start, 0.0, Vec::new());
    for i in 0..n {
        let pair = charge(mode, &policy, i);
        let other = mode.other();
        let (away, back) = (d.leaving(mode), d.leaving(other));
        let c = Costs { own: pair[mode as usize], other: pair[other as usize], away, back };
        paid += c.own;
        let next = policy.next(mode, c);
        if next != mode {
            paid += away;
        }
        mode = next;
        costs.push(pair);
    }
    (paid, costs)
}

/// The least cost of any sequence of modes: from the last interval backwards.
fn optimum(start: Mode, d: Switches, costs: &[Pair]) -> f64 {
    let mut from = [0.0; 2];
    for pair in costs.iter().rev() {
        let stay = [pair[0] + from[0], pair[1] + from[1]];
        from = [stay[0].min(d.0[0] + stay[1]), stay[1].min(d.0[1] + stay[0])];
    }
    from[start as usize]
}

/// The optimum by trying all sequences.
fn optimum_of_all(start: Mode, d: Switches, costs: &[Pair]) -> f64 {
    (0..1u32 << costs.len())
        .map(|bits| {
            let (mut mode, mut paid) = (start, 0.0);
            for (i, pair) in costs.iter().enumerate() {
                let next = Mode::BOTH[(bits >> i & 1) as usize];
                paid += pair[next as usize] + if next == mode { 0.0 } else { d.leaving(mode) };
                mode = next;
            }
            paid
        })
        .fold(f64::INFINITY, f64::min)
}

fn bound(start: Mode, d: Switches, costs: &[Pair], optimum: f64) -> f64 {
    let (p, q) = (d.leaving(start), d.leaving(start.other()));
    let c = costs.iter().map(|x| (x[0] - x[1]).abs()).fold(0.0, f64::max);
    (3.0 + 2.0 * c / (p + q)) * optimum + (1.0 + c / (p + q)) * (q - p).max(0.0)
}

fn holds(start: Mode, d: Switches, paid: f64, costs: &[Pair]) -> bool {
    paid <= bound(start, d, costs, optimum(start, d, costs)) * (1.0 + 1e-9)
}

/// Small charges to the mode it is in, and one of `spike` where the next would make it leave.
fn adversary(d: Switches, small: f64, spike: f64) -> impl FnMut(Mode, &WorkFunctions, usize) -> Pair {
    move |mode, policy, _| {
        let (away, back) = (d.leaving(mode), d.leaving(mode.other()));
        let mut pair = [0.0; 2];
        pair[mode as usize] = if policy.gap(mode.into(), &of_other(mode, 0.0, away, back)) + small >= back {
            spike
        } else {
            small
        };
        pair
    }
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Shadow), Just(Nested)]
}

/// Costs of switches, one of them often 0, never both.
fn switches() -> impl Strategy<Value = Switches> {
    prop_oneof![
        (1u32..1000, 1u32..1000).prop_map(|(a, b)| Switches([a.into(), b.into()])),
        (1u32..1000).prop_map(|a| Switches([a.into(), 0.0])),
        (1u32..1000).prop_map(|b| Switches([0.0, b.into()])),
    ]
}

/// Costs of one interval: often 0 in one mode, sometimes far above the costs of switches.
fn pair() -> impl Strategy<Value = Pair> {
    let cost = prop_oneof![4 => Just(0u32), 4 => 0u32..100, 2 => 0u32..1000, 1 => 0u32..100_000];
    (cost.clone(), cost).prop_map(|(a, b)| [a.into(), b.into()])
}

proptest! {
    #[test]
    fn the_optimum_is_the_least_of_all_sequences(
        start in mode(), d in switches(), costs in prop::collection::vec(pair(), 0..9),
    ) {
        prop_assert_eq!(optimum(start, d, &costs), optimum_of_all(start, d, &costs));
    }

    /// In a VM that stays in one of three modes, against the definition: the cheapest way to each mode.
    #[test]
    fn work_functions_of_three_modes_are_the_costs_of_the_cheapest_ways(
        ways in prop::array::uniform2((0u32..1000, 0u32..1000)),
        costs in prop::collection::vec((0u32..500, prop::array::uniform2(prop::option::of(0u32..500))), 1..50),
    ) {
        use crate::Mode::{Nested, Offset, Shadow};
        let mut functions = WorkFunctions::default();
        let (mut w, mut seen) = ([0.0; 3], [false; 2]);
        for (own, others) in costs {
            for i in (0..2).filter(|i| others[*i].is_some()) {
                if !std::mem::replace(&mut seen[i], true) {
                    w[i + 1] = w[0] + f64::from(ways[i].0);
                }
            }
            let known = [Shadow, Offset].into_iter().zip(ways).zip(others);
            let known: Vec<Other> = known
                .filter_map(|((mode, (there, back)), cost)| Some(Other {
                    mode,
                    extra_cycles: cost?.into(),
                    there_cycles: there.into(),
                    back_cycles: back.into(),
                }))
                .collect();
            functions.add(Nested, own.into(), &known);
            // A mode of unknown cost takes the VM's cost: the difference stays.
            w[0] += f64::from(own);
            (0..2).for_each(|i| w[i + 1] += f64::from(others[i].unwrap_or(own)));
            let back = |i: usize| w[i + 1] + f64::from(ways[i].1);
            let pins = (0..2).filter(|i| others[*i].is_some()).map(back);
            w[0] = pins.fold(w[0], f64::min);
            for i in (0..2).filter(|i| others[*i].is_some()) {
                w[i + 1] = w[i + 1].min(w[0] + f64::from(ways[i].0));
            }
            for other in &known {
                let of_other = w[if other.mode == Shadow { 1 } else { 2 }];
                prop_assert_eq!(functions.gap(Nested, other), w[0] - of_other);
            }
        }
    }

    #[test]
    fn the_bound_holds_for_any_costs(
        start in mode(), d in switches(), costs in prop::collection::vec(pair(), 0..200),
    ) {
        let (paid, _) = pay(WorkFunctions::default(), start, d, costs.len(), |_, _, i| costs[i]);
        prop_assert!(holds(start, d, paid, &costs), "{paid} against {}", optimum(start, d, &costs));
    }

    #[test]
    fn the_bound_holds_against_who_charges_the_mode_it_is_in(
        start in mode(), d in switches(), charges in prop::collection::vec((1u32..2000, 0u32..50), 1..200),
    ) {
        let (paid, costs) = pay(WorkFunctions::default(), start, d, charges.len(), |mode, _, i| {
            let mut pair = [f64::from(charges[i].1); 2];
            pair[mode as usize] += f64::from(charges[i].0);
            pair
        });
        prop_assert!(holds(start, d, paid, &costs), "{paid} against {}", optimum(start, d, &costs));
    }

    #[test]
    fn the_bound_holds_at_every_length_against_spikes(
        start in mode(), d in switches(), n in 1usize..300, spike in 1u32..100_000,
    ) {
        let small = (d.0[0] + d.0[1]) / 16.0;
        let (paid, costs) = pay(WorkFunctions::default(), start, d, n, adversary(d, small, spike.into()));
        prop_assert!(holds(start, d, paid, &costs), "{paid} against {}", optimum(start, d, &costs));
    }
}

#[test]
fn the_adversary_comes_within_two_percent_of_the_bound() {
    for d in [Switches([1000.0, 1000.0]), Switches([10.0, 1990.0]), Switches([2000.0, 0.0])] {
        for start in Mode::BOTH {
            for spike in [1.0, 2000.0, 100_000.0] {
                let (paid, costs) =
                    pay(WorkFunctions::default(), start, d, 400_000, adversary(d, 1.0, spike));
                let optimum = optimum(start, d, &costs);
                let limit = 3.0 + 2.0 * spike / 2000.0;
                assert!(holds(start, d, paid, &costs));
                assert!(paid > 0.98 * limit * optimum, "{paid} of {limit} times {optimum}");
            }
        }
    }
}

#[test]
fn the_constant_is_reached_where_leaving_is_free() {
    let d = Switches([0.0, 1000.0]);
    let (paid, costs) = pay(WorkFunctions::default(), Shadow, d, 1000, adversary(d, 1.0, 5000.0));
    assert_eq!((paid, optimum(Shadow, d, &costs)), (999.0 + 5000.0, 0.0));
    assert!(holds(Shadow, d, paid, &costs));
}

#[test]
fn policies_that_switch_at_once_late_or_never_break_the_bound() {
    let d = Switches([1000.0, 1000.0]);
    let charge_own = |mode: Mode| if mode == Shadow { [1.0, 0.0] } else { [0.0, 1.0] };
    let at_once = |mode: Mode, c: Costs| if c.own > c.other { mode.other() } else { mode };
    let (paid, costs) = pay(at_once, Shadow, d, 50_000, |m, _, _| charge_own(m));
    assert!(!holds(Shadow, d, paid, &costs));
    let (paid, costs) = pay(|mode: Mode, _: Costs| mode, Shadow, d, 50_000, |m, _, _| charge_own(m));
    assert!(!holds(Shadow, d, paid, &costs));
    // Its own costs of switches taken at half and at double.
    for factor in [0.5, 2.0] {
        let mut inner = WorkFunctions::default();
        let skewed = move |mode: Mode, c: Costs| {
            inner.next(mode, Costs { away: factor * c.away, back: factor * c.back, ..c })
        };
        let (paid, costs) = pay(skewed, Shadow, d, 400_000, |m, _, _| charge_own(m));
        assert!(!holds(Shadow, d, paid, &costs), "{factor}");
    }
}

/// Walk cycles in this mode, the other's, and costs of going there and back.
fn seen(own: u64, other: f64, there: f64, back: f64) -> TestInterval {
    let mut s = TestInterval::default();
    s.sample.walk_cycles = own;
    s.other = Some(of_other(Nested, other, there, back));
    s
}

#[test]
fn a_mode_is_left_when_it_has_cost_both_switches_more_than_the_other() {
    for start in Mode::BOTH {
        let mut run = Run::new("work-function", start);
        assert_eq!(run.steps(3, seen(100, 0.0, 150.0, 250.0)), [start; 3]);
        assert!(run.said.contains("another 100 cycles of difference would switch it"), "{}", run.said);
        assert_eq!(run.step(seen(100, 0.0, 150.0, 250.0)), start.other());
        // The way back takes as much again; what the switch brought is not counted twice.
        assert_eq!(run.step(seen(250, 0.0, 250.0, 150.0)), start.other());
        assert!(run.said.starts_with("150 cycles of the switch are taken off"), "{}", run.said);
        assert_eq!(run.steps(2, seen(100, 0.0, 250.0, 150.0)), [start.other(); 2]);
        assert_eq!(run.step(seen(100, 0.0, 250.0, 150.0)), start);
    }
}

#[test]
fn it_stays_where_nothing_is_known_costs_nothing_or_is_no_number() {
    for start in Mode::BOTH {
        let mut run = Run::new("work-function", start);
        assert_eq!(run.steps(9, TestInterval::nothing()), [start; 9]);
        assert_eq!(run.steps(9, seen(0, 0.0, 0.0, 0.0)), [start; 9]);
        assert_eq!(run.steps(9, seen(7, f64::NAN, 0.0, 0.0)), [start; 9]);
        assert_eq!(run.step(seen(7, 6.0, 0.0, 0.0)), start.other());
    }
}

#[test]
fn a_factor_of_zero_or_less_is_refused() {
    let e = refused("work-function", "switch_factor", "0.0");
    assert!(e.contains("switch_factor = 0 is not above 0 and finite"), "{e}");
}
