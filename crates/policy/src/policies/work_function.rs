// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The work-function algorithm: paging modes as a metrical task system.
//!
//! Published (Borodin, Linial, Saks 1992): in a system of n states that have costs, with a cost to move
//! between them, an algorithm that follows the work functions pays at most 2n - 1 times as much as the best
//! sequence of states that knows the future. No deterministic algorithm does better.
//!
//! Ours: its use for paging modes. The work function of a mode is the cost of the cheapest sequence of modes
//! so far that ends in this mode. The VM leaves a mode when another mode's work function pins this mode's:
//! when the cheapest sequence that ends here would come from there. An interval costs the cycles in walks and
//! exits, as counted for this mode, and as [`View::others`] has them for the other modes; without the latter
//! the VM stays. The first interval after a switch contains the switch's cost, which the work functions
//! already have; it is subtracted (down to 0). There is no threshold to set. [`WorkFunctions`] proves the
//! bound for two modes, for an algorithm that decides after an interval and for switch costs that differ by
//! direction.

use super::{num, positive};
use crate::{Counters, Log, Mode, Other, ParameterError, Parameters, PerMode, Policy, View};
use serde::{Deserialize, Serialize};

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkFunction {
    /// Interval in seconds.
    pub interval_s: f64,
    /// Factor on the costs of switches (the bound is for 1).
    pub switch_factor: f64,
}

impl Parameters for WorkFunction {
    fn check(&self) -> Result<(), ParameterError> {
        positive("switch_factor", self.switch_factor)
    }

    fn needs_other(&self) -> bool {
        true
    }

    fn needs(&self) -> Counters {
        Counters::WALK_CYCLES.and(Counters::VMM_CYCLES)
    }

    fn policy(&self, _start: Mode) -> Box<dyn Policy> {
        Box::new(State { p: *self, w: WorkFunctions::default(), switched: None, others: Vec::new() })
    }
}

/// The work functions w of all modes, less that of the VM's mode.
///
/// In mode A, with `away` = d(A,B) and `back` = d(B,A) for each other mode B: before the first interval
/// w(A) = 0 and w(B) = `away`. After each, each mode's cost is added to its w, and then w(A) is cut to at
/// most w(B) + `back`, w(B) to at most w(A) + `away`. So w(A) - w(B) is cut to `-away..=back`; A is left if
/// it was at or above `back` before the cut (and A cost more than B in that interval, which follows unless
/// costs of switches change or are all 0). Among several such B the VM goes to the one that cuts w(A) most. A
/// switch between two other modes counts as two, by way of A: a view has no more. If B's cost of an interval
/// is unknown, the interval leaves w(A) - w(B) as it was.
///
/// # The bound for two modes
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
/// A phase in B is alike, with q. As w(B) = w(A) - q when A is left, and w(B) = w(A) + p when B is, a
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
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkFunctions(PerMode<f64>);

/// The other mode that a decision was about: the one that the VM goes to, or else would go to first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rival {
    /// The other mode and its costs.
    pub other: Other,
    /// w(own) - w(other) before the interval, and with the interval's costs before the cut.
    pub gap: [f64; 2],
}

impl Rival {
    /// By how much w(own) is above what pins it.
    fn above(&self) -> f64 {
        self.gap[1] - self.other.back_cycles
    }
}

impl WorkFunctions {
    /// w(own) - w(other) for a VM in `mode`; -`away` before the first interval.
    pub fn gap(&self, mode: Mode, other: &Other) -> f64 {
        let w = |mode| self.0.get(mode).copied();
        w(other.mode).map_or(-other.there_cycles, |there| w(mode).unwrap_or(0.0) - there)
    }

    /// Adds an interval that cost `own`, and returns the mode of the next. Costs that are not finite change
    /// nothing.
    pub fn add(&mut self, mode: Mode, own: f64, others: &[Other]) -> (Mode, Option<Rival>) {
        let rivals = || {
            let finite = others.iter().filter(|o| own.is_finite() && o.is_finite());
            finite.map(|o| {
                let (there_cycles, back_cycles) = (o.there_cycles.max(0.0), o.back_cycles.max(0.0));
                Other { there_cycles, back_cycles, ..*o }
            })
        };
        let of = |w: &Self, other: Other| {
            let before = w.gap(mode, &other);
            Rival { other, gap: [before, before + own - other.extra_cycles] }
        };
        let leads = |r: &Rival| r.above() >= 0.0 && own > r.other.extra_cycles;
        let first = |a: &Rival, b: &Rival| leads(a).cmp(&leads(b)).then(a.above().total_cmp(&b.above()));
        let Some(rival) = rivals().map(|o| of(self, o)).max_by(first) else { return (mode, None) };
        let most =
            rivals().map(|o| of(self, o)).max_by(|a, b| a.above().total_cmp(&b.above())).unwrap_or(rival);
        let cut = most.above().max(0.0);
        let of_mode = *self.0.or_insert(mode, 0.0);
        for (other, w) in self.0.iter_mut() {
            *w -= of_mode;
            if other != mode && !rivals().any(|o| o.mode == other) {
                *w += cut;
            }
        }
        for other in rivals() {
            let gap = of(self, other).gap[1];
            // The mode that cuts most is at its bound, whatever the subtraction rounds to.
            let gap = if other.mode == most.other.mode { gap } else { gap - cut };
            self.0.insert(other.mode, -gap.min(other.back_cycles).max(-other.there_cycles));
        }
        (if leads(&rival) { rival.other.mode } else { mode }, Some(rival))
    }
}

struct State {
    p: WorkFunction,
    w: WorkFunctions,
    /// The mode that the last decision switched to, and the expected cycles of that switch.
    switched: Option<(Mode, f64)>,
    /// The view's costs, with the factor on switches.
    others: Vec<Other>,
}

impl Policy for State {
    fn decide(&mut self, view: &View, log: &mut Log) -> Mode {
        let mode = view.mode;
        let factor = self.p.switch_factor;
        self.others.clear();
        self.others.extend(view.others.iter().filter(|o| o.is_finite()).map(|o| Other {
            there_cycles: factor * o.there_cycles,
            back_cycles: factor * o.back_cycles,
            ..*o
        }));
        if self.others.is_empty() {
            log.say(|| format!("Stay in {}: the cost of every other mode is unknown.", mode.name()));
            return mode;
        }
        let brought = match self.switched.take() {
            Some((to, cycles)) if to == mode => cycles.clamp(0.0, view.extra_cycles()),
            _ => 0.0,
        };
        let own_cycles = view.extra_cycles() - brought;
        let (next, rival) = self.w.add(mode, own_cycles, &self.others);
        let Some(Rival { other, gap: [before, gap] }) = rival else { return mode };
        if next != mode {
            self.switched = Some((next, view.switch_cycles(mode, next).unwrap_or(0.0)));
        }
        if brought > 0.0 {
            log.say(|| format!("{} cycles of the switch are taken off.", num(brought)));
        }
        log.say(|| {
            let (own, there) = (mode.name(), other.mode.name());
            let verdict = if next == mode {
                let missing = num((other.back_cycles - self.w.gap(mode, &other)).max(0.0));
                format!("Stay in {own}: another {missing} cycles of difference would switch it")
            } else {
                let spare = num((gap - other.back_cycles).max(0.0));
                format!("Switch to {there}: more than {spare} fewer cycles here would have kept {own}")
            };
            format!(
                "Walks and exits took {} cycles in {own} and would have taken {} in {there}. The work function \
                 of {own} less that of {there} goes from {} to {} cycles; at {} {own} is left. {verdict}.",
                num(own_cycles),
                num(other.extra_cycles),
                num(before),
                num(gap),
                num(other.back_cycles)
            )
        });
        next
    }
}

#[cfg(test)]
mod tests;
