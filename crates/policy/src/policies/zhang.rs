// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Zhang: M of the last N samples must agree (Zhang 2017).
//!
//! Published: the structure. Each sample votes for a mode, and a switch needs M votes for the other mode
//! among the last N samples, so that neither an odd sample nor a workload at the edge makes a VM flap.
//!
//! Ours: all parameters, and the rule of a vote. TLB misses and guest page faults per 1000 instructions,
//! which the guest causes itself and which are the same in both modes, are each divided by their threshold.
//! The larger quotient votes if it is above 1: TLB misses for shadow, page faults for nested. Otherwise, and
//! if both are equal, the sample votes for neither. A switch forgets all votes, so that a mode lasts at least
//! M intervals. Samples without instructions do not vote.

use super::pair::{Pair, Rule};
use super::{num, positive, within};
use crate::{Counters, Log, ParameterError, Parameters, Policy, View};
use bifold_mmu::Mode;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Parameters; frequencies are events per 1000 instructions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Zhang {
    /// Interval in seconds.
    pub interval_s: f64,
    /// Number of samples that are remembered.
    pub n: usize,
    /// Number of votes for the other mode that lead to a switch, 1 to n.
    pub m: usize,
    /// TLB misses per 1000 instructions above which a sample votes for shadow.
    pub tlb_miss_threshold: f64,
    /// Guest page faults per 1000 instructions above which a sample votes for nested.
    pub page_fault_threshold: f64,
}

impl Parameters for Zhang {
    fn check(&self) -> Result<(), ParameterError> {
        within("n", self.n as f64, 1.0, 1000.0)?;
        within("m", self.m as f64, 1.0, self.n as f64)?;
        positive("tlb_miss_threshold", self.tlb_miss_threshold)?;
        positive("page_fault_threshold", self.page_fault_threshold)
    }

    fn needs(&self) -> Counters {
        Counters::INSTRUCTIONS.and(Counters::TLB_MISSES).and(Counters::PAGE_FAULTS)
    }

    fn policy(&self, _start: crate::Mode) -> Box<dyn Policy> {
        Box::new(Pair(State { p: *self, votes: VecDeque::with_capacity(self.n) }))
    }
}

struct State {
    p: Zhang,
    votes: VecDeque<Option<Mode>>,
}

impl Rule for State {
    fn decide(&mut self, mode: Mode, view: &View, log: &mut Log) -> Mode {
        if view.sample.instructions == 0 {
            log.say(|| format!("Stay in {}: no instructions, so no vote.", mode.name()));
            return mode;
        }
        let (tlb, faults) = (view.tlb_misses_per_1000(), view.page_faults_per_1000());
        let for_shadow = tlb / self.p.tlb_miss_threshold;
        let for_nested = faults / self.p.page_fault_threshold;
        let vote = if for_shadow > 1.0 && for_shadow > for_nested {
            Some(Mode::Shadow)
        } else if for_nested > 1.0 && for_nested > for_shadow {
            Some(Mode::Nested)
        } else {
            None
        };
        if self.votes.len() == self.p.n {
            self.votes.pop_front();
        }
        self.votes.push_back(vote);
        let against = self.votes.iter().filter(|v| **v == Some(mode.other())).count();
        let of = self.votes.len();
        let next = if against >= self.p.m { mode.other() } else { mode };
        if next != mode {
            self.votes.clear();
        }
        log.say(|| {
            let voted = vote.map_or("neither", Mode::name);
            let (what, other) = (if next == mode { "Stay in" } else { "Switch to" }, mode.other().name());
            format!(
                "{what} {}: {} TLB misses (threshold {}) and {} page faults (threshold {}) per 1000 \
                 instructions vote for {voted}. {against} of the last {of} samples vote for {other}; from {} \
                 it switches.",
                next.name(),
                num(tlb),
                num(self.p.tlb_miss_threshold),
                num(faults),
                num(self.p.page_fault_threshold),
                self.p.m
            )
        });
        next
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Run, TestInterval, refused};
    use super::*;
    use Mode::{Nested, Shadow};

    const MISSES: (f64, f64) = (10.0, 0.0);
    const FAULTS: (f64, f64) = (0.0, 1.0);
    const FEW: (f64, f64) = (2.0, 0.01);

    fn run(start: Mode, frequencies: &[(f64, f64)]) -> Vec<Mode> {
        let mut run = Run::new("zhang", start);
        frequencies.iter().map(|f| run.step(TestInterval::frequencies(f.0, f.1))).collect()
    }

    #[test]
    fn four_votes_of_the_last_five_switch_and_three_do_not() {
        assert_eq!(run(Nested, &[MISSES; 4]), [Nested, Nested, Nested, Shadow]);
        assert_eq!(run(Shadow, &[FAULTS; 4]), [Shadow, Shadow, Shadow, Nested]);
        assert_eq!(run(Nested, &[MISSES, MISSES, FEW, MISSES, MISSES])[4], Shadow);
        assert_eq!(run(Nested, &[MISSES, MISSES, FEW, MISSES, FAULTS, MISSES, FEW, MISSES]), [Nested; 8]);
    }

    #[test]
    fn votes_are_forgotten_with_a_switch_and_votes_for_the_mode_it_is_in_change_nothing() {
        let modes = run(Shadow, &[FAULTS, FAULTS, FAULTS, FAULTS, MISSES, MISSES, MISSES, MISSES]);
        assert_eq!(modes, [Shadow, Shadow, Shadow, Nested, Nested, Nested, Nested, Shadow]);
        assert_eq!(run(Shadow, &[MISSES; 20]), [Shadow; 20]);
    }

    #[test]
    fn the_larger_quotient_votes_and_a_tie_votes_for_neither() {
        for (frequencies, voted) in
            [((4.0, 0.019), "shadow"), ((4.0, 0.021), "nested"), ((4.0, 0.02), "neither"), (FEW, "neither")]
        {
            let mut run = Run::new("zhang", Nested);
            run.step(TestInterval::frequencies(frequencies.0, frequencies.1));
            assert!(run.said.contains(&format!("vote for {voted}.")), "{}", run.said);
        }
    }

    #[test]
    fn samples_without_instructions_do_not_vote() {
        let mut run = Run::new("zhang", Nested);
        run.steps(3, TestInterval::frequencies(10.0, 0.0));
        assert_eq!(run.steps(9, TestInterval::nothing()), [Nested; 9]);
        assert_eq!(run.step(TestInterval::frequencies(10.0, 0.0)), Shadow);
    }

    #[test]
    fn more_votes_than_samples_and_none_are_refused() {
        for (key, value, told) in [
            ("m", "6", "m = 6 is not in 1..=5"),
            ("m", "0", "m = 0 is not in 1..=5"),
            ("n", "0", "n = 0 is not in 1..=1000"),
            ("tlb_miss_threshold", "inf", "tlb_miss_threshold = inf is not above 0 and finite"),
        ] {
            let e = refused("zhang", key, value);
            assert!(e.contains(told), "{e}");
        }
    }
}
