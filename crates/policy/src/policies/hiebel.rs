// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hiebel: a contextual bandit with random profiling (Hiebel, Brown, Wang; ICPP 2018).
//!
//! Published: choosing a paging mode is a contextual bandit, which shows only the reward of the chosen mode.
//! Page faults and TLB misses are the context. Running with modes chosen at random (random profiling) shows
//! each mode's reward in a context; the authors construct a policy from such a profile off line.
//!
//! Ours: the policy learns on line, epsilon-greedy. The context is the bin of TLB misses and the bin of page
//! faults per 1000 instructions, which the guest causes itself and which are therefore nearly the same in
//! both modes. For each context and mode, the policy keeps a recency-weighted mean of the cycles per
//! instruction; the reward is its negative. The first decisions are random. After them, the policy tries the
//! other mode with probability epsilon, and otherwise takes the better mode if that promises a margin. A mode
//! that was never tried in a context is no better. The policy ignores the intervals right after a switch, and
//! those without instructions or cycles. Random numbers come from a seeded PCG.

use super::pair::{Pair, Rule};
use super::{num, positive, settling, within};
use crate::{Counters, Log, ParameterError, Parameters, Policy, View};
use bifold_mmu::Mode;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};

/// Parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hiebel {
    /// Interval in seconds.
    pub interval_s: f64,
    /// Ends of the bins of TLB misses per 1000 instructions, rising.
    pub tlb_miss_bounds: Vec<f64>,
    /// Ends of the bins of page faults per 1000 instructions, rising.
    pub page_fault_bounds: Vec<f64>,
    /// Number of decisions at the start that choose at random.
    pub profile_decisions: u32,
    /// Probability (0 to 1) of trying the other mode, afterwards.
    pub epsilon: f64,
    /// Weight (above 0, up to 1) of a new interval in the mean.
    pub rate: f64,
    /// Share (0 to 1) by which the other mode's CPI must be lower.
    pub margin: f64,
    /// Number of intervals after a switch that are ignored.
    pub settle_intervals: u32,
    /// Seed of the random choices.
    pub seed: u64,
}

fn rising(name: &str, bounds: &[f64]) -> Result<(), ParameterError> {
    for b in bounds {
        positive(&format!("an entry of {name}"), *b)?;
    }
    within(&format!("the length of {name}"), bounds.len() as f64, 0.0, 100.0)?;
    match bounds.windows(2).find(|w| w[0] >= w[1]) {
        Some(w) => Err(ParameterError::Falls(name.into(), w[0], w[1])),
        None => Ok(()),
    }
}

impl Parameters for Hiebel {
    fn check(&self) -> Result<(), ParameterError> {
        rising("tlb_miss_bounds", &self.tlb_miss_bounds)?;
        rising("page_fault_bounds", &self.page_fault_bounds)?;
        within("profile_decisions", self.profile_decisions.into(), 0.0, 1e6)?;
        within("epsilon", self.epsilon, 0.0, 1.0)?;
        positive("rate", self.rate)?;
        within("rate", self.rate, 0.0, 1.0)?;
        within("margin", self.margin, 0.0, 1.0)?;
        within("settle_intervals", self.settle_intervals.into(), 0.0, 1000.0)
    }

    fn needs(&self) -> Counters {
        Counters::INSTRUCTIONS.and(Counters::TLB_MISSES).and(Counters::PAGE_FAULTS)
    }

    fn policy(&self, _start: crate::Mode) -> Box<dyn Policy> {
        let contexts = (self.tlb_miss_bounds.len() + 1) * (self.page_fault_bounds.len() + 1);
        Box::new(Pair(State {
            p: self.clone(),
            cpi: vec![[None; 2]; contexts],
            rng: Pcg64::seed_from_u64(self.seed),
            profiling: self.profile_decisions,
            settling: 0,
        }))
    }
}

struct State {
    p: Hiebel,
    /// Mean cycles per instruction, per context and mode.
    cpi: Vec<[Option<f64>; 2]>,
    rng: Pcg64,
    /// Number of random decisions that are left.
    profiling: u32,
    settling: u32,
}

/// Number of the bin; a value at a bound is below it.
fn bin(bounds: &[f64], value: f64) -> usize {
    bounds.iter().filter(|b| value > **b).count()
}

/// How a decision was made.
enum Why {
    Profiling,
    Exploring,
    Greedy,
}

impl State {
    fn choose(&mut self, mode: Mode, means: [Option<f64>; 2]) -> (Mode, Why) {
        if self.profiling > 0 {
            self.profiling -= 1;
            return (Mode::BOTH[usize::from(self.rng.random_bool(0.5))], Why::Profiling);
        }
        if self.rng.random_bool(self.p.epsilon) {
            return (mode.other(), Why::Exploring);
        }
        match (means[mode as usize], means[mode.other() as usize]) {
            (Some(own), Some(other)) if other < own * (1.0 - self.p.margin) => (mode.other(), Why::Greedy),
            _ => (mode, Why::Greedy),
        }
    }
}

impl Rule for State {
    fn decide(&mut self, mode: Mode, view: &View, log: &mut Log) -> Mode {
        if settling(&mut self.settling, mode, log) {
            return mode;
        }
        if view.sample.instructions == 0 || view.cycles <= 0.0 {
            log.say(|| format!("Stay in {}: no instructions or no cycles to learn from.", mode.name()));
            return mode;
        }
        let (tlb, faults) = (view.tlb_misses_per_1000(), view.page_faults_per_1000());
        let fault_bins = self.p.page_fault_bounds.len() + 1;
        let bins = (bin(&self.p.tlb_miss_bounds, tlb), bin(&self.p.page_fault_bounds, faults));
        let context = bins.0 * fault_bins + bins.1;
        let cpi = 1.0 / view.ipc();
        let mean = &mut self.cpi[context][mode as usize];
        *mean = Some(mean.map_or(cpi, |old| old + self.p.rate * (cpi - old)));
        let means = self.cpi[context];
        let (next, why) = self.choose(mode, means);
        if next != mode {
            self.settling = self.p.settle_intervals;
        }
        log.say(|| {
            let known = |m: Mode| means[m as usize].map_or("unknown".into(), num);
            let own = means[mode as usize].unwrap_or(cpi);
            let below = num(own * (1.0 - self.p.margin));
            let reason = match why {
                Why::Profiling => format!("at random, as the first {} decisions", self.p.profile_decisions),
                Why::Exploring => format!("to try it, as {} % of decisions do", num(100.0 * self.p.epsilon)),
                Why::Greedy => format!("{} is taken with less than {below}", mode.other().name()),
            };
            format!(
                "{} {}: {reason}. With {} TLB misses (bin {}) and {} page faults (bin {}) per 1000 instructions, \
                 cycles per instruction are {} in shadow and {} in nested.",
                if next == mode { "Stay in" } else { "Switch to" },
                next.name(),
                num(tlb),
                bins.0,
                num(faults),
                bins.1,
                known(Mode::Shadow),
                known(Mode::Nested)
            )
        });
        next
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Run, TestInterval, refused};
    use super::*;
    use crate::{Named, Spec};
    use Mode::{Nested, Shadow};

    fn set(change: impl FnOnce(&mut Hiebel)) -> Named {
        let mut named = Named::load("hiebel").unwrap();
        let Spec::Hiebel(p) = &mut named.spec else { panic!() };
        change(p);
        named.checked().unwrap()
    }

    /// TLB misses per 1000 instructions, and cycles per instruction in shadow and nested.
    fn seen(run: &Run, tlb: f64, cpi: [f64; 2]) -> TestInterval {
        let mut s = TestInterval::frequencies(tlb, 0.0);
        s.cycles = cpi[run.mode as usize] * s.sample.instructions as f64;
        s
    }

    /// Two phases that take turns, with few TLB misses and with many: the modes.
    fn phases(named: &Named, n: usize) -> Vec<(bool, Mode)> {
        let mut run = Run::of(named, Nested);
        (0..n)
            .map(|i| {
                let many = i / 50 % 2 == 1;
                let s = if many { seen(&run, 20.0, [1.0, 1.5]) } else { seen(&run, 0.5, [1.2, 1.0]) };
                (many, run.step(s))
            })
            .collect()
    }

    #[test]
    fn it_learns_the_better_mode_of_each_context() {
        let modes = phases(&Named::load("hiebel").unwrap(), 4000);
        let late = &modes[2000..];
        let right = late.iter().filter(|(many, mode)| *many == (*mode == Shadow)).count();
        assert!(right > late.len() * 85 / 100, "{right} of {}", late.len());
    }

    #[test]
    fn the_same_seed_decides_alike_and_another_does_not() {
        let of = |seed| phases(&set(|p| p.seed = seed), 500);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn without_exploration_a_mode_not_tried_is_no_better() {
        let named = set(|p| (p.epsilon, p.profile_decisions) = (0.0, 0));
        for start in Mode::BOTH {
            let mut run = Run::of(&named, start);
            for _ in 0..100 {
                let s = seen(&run, 5.0, [9.0, 9.0]);
                assert_eq!(run.step(s), start);
            }
            assert!(run.said.contains("is taken with less than 8.82"), "{}", run.said);
            assert!(run.said.contains("unknown"), "{}", run.said);
        }
    }

    #[test]
    fn the_other_mode_must_promise_the_margin() {
        for (other, next) in [(0.99, Nested), (0.97, Shadow)] {
            let named = set(|p| (p.epsilon, p.profile_decisions) = (0.0, 0));
            let mut run = Run::of(&named, Shadow);
            // The VM is moved by hand, so that both modes are known.
            let s = seen(&run, 5.0, [other, 1.0]);
            run.step(s);
            run.mode = Nested;
            let s = seen(&run, 5.0, [other, 1.0]);
            assert_eq!(run.step(s), next, "{}", run.said);
        }
    }

    #[test]
    fn after_a_switch_an_interval_is_not_learnt_from() {
        let named = set(|p| (p.epsilon, p.profile_decisions) = (1.0, 0));
        let mut run = Run::of(&named, Shadow);
        let modes: Vec<_> = (0..4).map(|_| run.step(TestInterval::frequencies(5.0, 0.0))).collect();
        assert_eq!(modes, [Nested, Nested, Shadow, Shadow]);
    }

    #[test]
    fn intervals_without_instructions_draw_no_random_number() {
        let named = Named::load("hiebel").unwrap();
        let (mut a, mut b) = (Run::of(&named, Nested), Run::of(&named, Nested));
        b.steps(7, TestInterval::nothing());
        for _ in 0..300 {
            let (of_a, of_b) = (seen(&a, 5.0, [1.0, 1.1]), seen(&b, 5.0, [1.0, 1.1]));
            assert_eq!(a.step(of_a), b.step(of_b));
        }
    }

    #[test]
    fn bounds_that_fall_and_probabilities_above_1_are_refused() {
        for (key, value, told) in [
            ("tlb_miss_bounds", "[1.0, 1.0]", "tlb_miss_bounds does not rise from 1 to 1"),
            ("page_fault_bounds", "[nan]", "an entry of page_fault_bounds = NaN is not above 0"),
            ("epsilon", "1.5", "epsilon = 1.5 is not in 0..=1"),
            ("rate", "0.0", "rate = 0 is not above 0"),
            ("margin", "nan", "margin = NaN is not in 0..=1"),
        ] {
            let e = refused("hiebel", key, value);
            assert!(e.contains(told), "{e}");
        }
    }
}
