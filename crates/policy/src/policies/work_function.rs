// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The work-function algorithm: two modes as a metrical task system.
//!
//! Published (Borodin, Linial, Saks 1992): where states cost and moving between them costs, an
//! algorithm that follows the work functions pays at most 2n - 1 times what the best sequence
//! of n states known in advance pays, and no deterministic one does better; here n = 2.
//!
//! Ours: its use for paging modes. The work function of a mode is what the cheapest sequence of
//! modes so far costs that ends in it. A mode is left when its work function is pinned by the
//! other's: when even a VM that has to end here had better have come from there. The costs
//! of an interval are the cycles in walks and exits, of this mode as counted, of the other
//! as [`View::other`] has it; without that it stays. From the first interval after a switch
//! the switch's cost is taken off (down to 0), which is counted in it but is in the work
//! functions already. No threshold is to be set; the bound, for an algorithm that decides after
//! an interval and over switch costs that differ by direction, is proven at [`TwoStates`].

use super::{num, positive};
use crate::{Counters, Log, Mode, Other, Parameters, Policy, View};
use serde::{Deserialize, Serialize};

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkFunction {
    /// Interval in seconds.
    pub interval_s: f64,
    /// The costs of switches are taken times this (the bound is for 1).
    pub switch_factor: f64,
}

impl Parameters for WorkFunction {
    fn check(&self) -> Result<(), String> {
        positive("switch_factor", self.switch_factor)
    }

    fn interval_s(&self) -> f64 {
        self.interval_s
    }

    fn needs_other(&self) -> bool {
        true
    }

    fn needs(&self) -> Counters {
        Counters::WALK_CYCLES.and(Counters::VMM_CYCLES)
    }

    fn policy(&self, _start: Mode) -> Box<dyn Policy> {
        Box::new(State { p: *self, states: TwoStates::default(), switched: None })
    }
}

/// What is paid, all in one unit (here: cycles), none negative.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Of the interval in the mode that the VM was in.
    pub own: f64,
    /// Of the same interval in the other mode.
    pub other: f64,
    /// Of switching from the VM's mode to the other.
    pub away: f64,
    /// Of switching from the other mode to the VM's.
    pub back: f64,
}

/// The work functions w of both modes, as far as they matter: g = w(shadow) - w(nested).
///
/// In mode A, with `away` = d(A,B) and `back` = d(B,A): before the first interval w(A) = 0 and
/// w(B) = `away`. After each, each mode's cost is added to its w, and then w(A) is cut to
/// at most w(B) + `back`, w(B) to at most w(A) + `away`. So w(A) - w(B) is cut to
/// `-away..=back`; A is left if it was at or above `back` before the cut (and A cost
/// more than B in that interval, which follows unless costs of switches change or are all 0).
///
/// # The bound
///
/// Let the costs of switches be fixed, p that of leaving the mode in which the VM starts, q that
/// of coming back, D = p + q > 0, and c the largest difference between the modes' costs
/// of one interval. Then, OPT being the least cost of any sequence of modes from the same start
/// (which may switch before the first interval; the policy cannot),
///
/// > ALG <= (3 + 2c/D) OPT + (1 + c/D) max(0, q - p).
///
/// Proof. w never falls, and OPT = min(w(A), w(B)) at the end. Call the start A. While ALG is in
/// A, w(A) grows by what ALG pays, except that in the interval which makes it leave, w(A) is cut
/// by the overshoot o <= c (w(A) - w(B) was below `back` before it). A phase in A takes
/// w(A) - w(B) from -p to q, so w(A) rises by at least D in it, and ALG pays that rise + o + p.
/// The same in B, with q. As w(B) = w(A) - q when A is left, and w(B) = w(A) + p when B is, a
/// cycle A, B, A costs ALG the rise of w(A) in the cycle + 2D + o1 + o2, at most 3 + 2c/D
/// times that rise, as it is at least D. So up to the last return to A (or the start; w(A) = W
/// then, w(B) = W + p) ALG <= (3 + 2c/D) W. Let u = OPT - W >= 0. What follows costs ALG T:
///
/// 1. If it ends in A, T is the rise of w(A). If OPT = w(A), T = u. If OPT = w(B), u >= p and
///    T <= u + q, at most (3 + 2c/D) u + max(0, q - 2p).
/// 2. If it ends in B, and OPT = w(B): w(B) was at least W + p when A was left, so u >= p, and
///    T = u + q + o + p <= u + D + c. As D + c = (2 + 2c/D) p + (1 + c/D)(q - p), this is at
///    most (3 + 2c/D) u + (1 + c/D) max(0, q - p).
/// 3. If it ends in B, and OPT = w(A): u >= D, and w(B) <= w(A) + p, so T <= u + D + p + o,
///    at most 3u + c.
///
/// The ratio cannot be lowered for this algorithm: one that charges the mode it is in, in small steps
/// up to just below `back` and then c at once, makes it pay 3 + 2c/D times OPT in the long run. Nor can
/// the constant: p = 0 and D charged in small steps, then c, make it pay D + c where OPT pays nothing.
///
/// If costs of switches change, those given last are taken; the bound is then not proven.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TwoStates {
    g: Option<f64>,
}

impl TwoStates {
    /// w(own) - w(other) for a VM in `mode`; -`away` before the first interval.
    pub fn gap(&self, mode: Mode, away: f64) -> f64 {
        match (self.g, mode) {
            (None, _) => -away,
            (Some(g), Mode::Shadow) => g,
            (Some(g), Mode::Nested) => -g,
        }
    }

    /// Adds an interval; the mode of the next. Costs that are not finite change nothing.
    pub fn add(&mut self, mode: Mode, c: Costs) -> Mode {
        if ![c.own, c.other, c.away, c.back].iter().all(|x| x.is_finite()) {
            return mode;
        }
        let (away, back) = (c.away.max(0.0), c.back.max(0.0));
        let gap = self.gap(mode, away) + c.own - c.other;
        let cut = gap.min(back).max(-away);
        self.g = Some(if mode == Mode::Shadow { cut } else { -cut });
        if gap >= back && c.own > c.other { mode.other() } else { mode }
    }
}

struct State {
    p: WorkFunction,
    states: TwoStates,
    /// The mode that the last decision switched to, and the cycles that the way there was to take.
    switched: Option<(Mode, f64)>,
}

impl Policy for State {
    fn decide(&mut self, view: &View, log: &mut Log) -> Mode {
        let mode = view.mode;
        let finite = |o: &Other| (o.extra_cycles + o.there_cycles + o.back_cycles).is_finite();
        let Some(other) = view.other.filter(finite) else {
            log.say(|| format!("Stay in {}: what the other mode would have cost is not known.", mode.name()));
            return mode;
        };
        let brought = match self.switched.take() {
            Some((to, cycles)) if to == mode => cycles.clamp(0.0, view.extra_cycles()),
            _ => 0.0,
        };
        let costs = Costs {
            own: view.extra_cycles() - brought,
            other: other.extra_cycles,
            away: self.p.switch_factor * other.there_cycles,
            back: self.p.switch_factor * other.back_cycles,
        };
        let before = self.states.gap(mode, costs.away);
        let next = self.states.add(mode, costs);
        if next != mode {
            self.switched = Some((next, other.there_cycles));
        }
        if brought > 0.0 {
            log.say(|| format!("{} cycles are taken off, which the switch brought.", num(brought)));
        }
        log.say(|| {
            let (own, there) = (mode.name(), mode.other().name());
            let gap = before + costs.own - costs.other;
            let verdict = if next == mode {
                let missing = num((costs.back - self.states.gap(mode, costs.away)).max(0.0));
                format!("Stay in {own}: another {missing} cycles of difference would switch it")
            } else {
                let spare = num((gap - costs.back).max(0.0));
                format!("Switch to {there}, which more than {spare} cycles less here would have prevented")
            };
            format!(
                "Walks and exits took {} cycles in {own} and would have taken {} in {there}. The work function \
                 of {own} less that of {there} goes from {} to {} cycles; at {} {own} is left. {verdict}.",
                num(costs.own),
                num(costs.other),
                num(before),
                num(gap),
                num(costs.back)
            )
        });
        next
    }
}

#[cfg(test)]
#[path = "work_function_tests.rs"]
mod tests;
