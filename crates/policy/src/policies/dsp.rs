// SPDX-License-Identifier: Apache-2.0 OR MIT
//! DSP: eight rules over TLB misses and page faults (Wang et al., VEE 2011).
//!
//! Published: the thresholds (Table 2), the rules and their order (the first that applies decides), and a
//! history of three samples. TLB misses speak for shadow paging, page faults for nested. If neither is
//! extreme, their ratio P/T decides, but only if this interval's ratio and the historic ratio agree.
//!
//! Ours, where the text is silent: rules 1 to 3 use the interval that just ended, which is also in the
//! history. The historic P/T is the average page-fault frequency divided by the average TLB-miss frequency.
//! An average of three ratios would be dominated by an interval with hardly a TLB miss, and infinite with one
//! that has none. With fewer than three samples, the average is over all of them. An interval without
//! instructions changes nothing and is not remembered. A P/T exactly at a bound lies between the bounds.

use super::pair::{Pair, Rule};
use super::{below, num, positive, within};
use crate::{Counters, Log, ParameterError, Parameters, Policy, View};
use bifold_mmu::Mode;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Parameters; frequencies are events per 1000 retired instructions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dsp {
    /// Interval in seconds.
    pub interval_s: f64,
    /// Page faults per 1000 instructions above which there are many.
    pub page_fault_upper: f64,
    /// Page faults per 1000 instructions below which there are few.
    pub page_fault_lower: f64,
    /// TLB misses per 1000 instructions above which there are many.
    pub tlb_miss_upper: f64,
    /// TLB misses per 1000 instructions below which there are few.
    pub tlb_miss_lower: f64,
    /// Page faults per TLB miss above which nested paging is better.
    pub p_to_t_upper: f64,
    /// Page faults per TLB miss below which shadow paging is better.
    pub p_to_t_lower: f64,
    /// Share of its upper bound (0 to 1) below which rules 1 and 2 want the other frequency.
    pub near_upper_fraction: f64,
    /// Number of samples in the historic frequencies, with the newest.
    pub history_samples: usize,
}

impl Parameters for Dsp {
    fn check(&self) -> Result<(), ParameterError> {
        positive("page_fault_upper", self.page_fault_upper)?;
        positive("tlb_miss_upper", self.tlb_miss_upper)?;
        positive("p_to_t_upper", self.p_to_t_upper)?;
        within("page_fault_lower", self.page_fault_lower, 0.0, f64::MAX)?;
        within("tlb_miss_lower", self.tlb_miss_lower, 0.0, f64::MAX)?;
        within("p_to_t_lower", self.p_to_t_lower, 0.0, f64::MAX)?;
        below(("page_fault_lower", self.page_fault_lower), ("page_fault_upper", self.page_fault_upper))?;
        below(("tlb_miss_lower", self.tlb_miss_lower), ("tlb_miss_upper", self.tlb_miss_upper))?;
        below(("p_to_t_lower", self.p_to_t_lower), ("p_to_t_upper", self.p_to_t_upper))?;
        within("near_upper_fraction", self.near_upper_fraction, 0.0, 1.0)?;
        within("history_samples", self.history_samples as f64, 1.0, 1000.0)
    }

    fn needs(&self) -> Counters {
        Counters::INSTRUCTIONS.and(Counters::TLB_MISSES).and(Counters::PAGE_FAULTS)
    }

    fn policy(&self, _start: crate::Mode) -> Box<dyn Policy> {
        Box::new(Pair(State { p: *self, history: VecDeque::with_capacity(self.history_samples) }))
    }
}

struct State {
    p: Dsp,
    /// TLB-miss and page-fault frequencies of the last intervals.
    history: VecDeque<(f64, f64)>,
}

/// The frequencies and ratios of one interval and of the history.
struct Frequencies {
    tlb: f64,
    faults: f64,
    historic_tlb: f64,
    /// Page faults per TLB miss: this interval's and the historic one (where there are misses).
    now: f64,
    historic: f64,
}

impl State {
    fn remember(&mut self, tlb: f64, faults: f64) -> Frequencies {
        if self.history.len() == self.p.history_samples {
            self.history.pop_front();
        }
        self.history.push_back((tlb, faults));
        let n = self.history.len() as f64;
        let historic_tlb = self.history.iter().map(|h| h.0).sum::<f64>() / n;
        let historic_faults = self.history.iter().map(|h| h.1).sum::<f64>() / n;
        Frequencies { tlb, faults, historic_tlb, now: faults / tlb, historic: historic_faults / historic_tlb }
    }

    /// The first rule that applies, and the mode that the rule names (none: stay).
    fn rule(&self, s: &Frequencies) -> (u8, Option<Mode>) {
        let p = &self.p;
        if s.tlb > p.tlb_miss_upper && s.faults < p.near_upper_fraction * p.page_fault_upper {
            (1, Some(Mode::Shadow))
        } else if s.faults > p.page_fault_upper && s.tlb < p.near_upper_fraction * p.tlb_miss_upper {
            (2, Some(Mode::Nested))
        } else if s.tlb < p.tlb_miss_lower && s.faults < p.page_fault_lower {
            (3, None)
        } else if s.tlb == 0.0 || s.historic_tlb == 0.0 {
            (4, Some(Mode::Nested))
        } else if s.now > p.p_to_t_upper && s.historic > p.p_to_t_upper {
            (5, Some(Mode::Nested))
        } else if s.now < p.p_to_t_lower && s.historic < p.p_to_t_lower {
            (6, Some(Mode::Shadow))
        } else if [s.now, s.historic].iter().all(|r| (p.p_to_t_lower..=p.p_to_t_upper).contains(r)) {
            (7, None)
        } else {
            (8, None)
        }
    }

    fn explain(&self, rule: u8, s: &Frequencies, mode: Mode, next: Mode) -> String {
        let p = &self.p;
        let (tlb, faults) = (num(s.tlb), num(s.faults));
        let (tlb_near, fault_near) =
            (num(p.near_upper_fraction * p.tlb_miss_upper), num(p.near_upper_fraction * p.page_fault_upper));
        let (upper, lower) = (num(p.p_to_t_upper), num(p.p_to_t_lower));
        let ratios =
            format!("page faults per TLB miss are {} now and {} historically", num(s.now), num(s.historic));
        let both = format!("Nested needs both above {upper}, shadow both below {lower}.");
        let why = match rule {
            1 => format!(
                "{tlb} TLB misses per 1000 instructions are above {}, {faults} page faults below {fault_near}. \
                 It would not apply at {} TLB misses or fewer, or from {fault_near} page faults.",
                num(p.tlb_miss_upper),
                num(p.tlb_miss_upper)
            ),
            2 => format!(
                "{faults} page faults per 1000 instructions are above {}, {tlb} TLB misses below {tlb_near}. \
                 It would not apply at {} page faults or fewer, or from {tlb_near} TLB misses.",
                num(p.page_fault_upper),
                num(p.page_fault_upper)
            ),
            3 => format!(
                "{tlb} TLB misses and {faults} page faults per 1000 instructions are below {} and {}, too few \
                 to matter. It would look further from {} TLB misses or {} page faults.",
                num(p.tlb_miss_lower),
                num(p.page_fault_lower),
                num(p.tlb_miss_lower),
                num(p.page_fault_lower)
            ),
            4 => format!(
                "no TLB misses, but {faults} page faults per 1000 instructions, at least {}. It would not apply \
                 with fewer page faults, or with a single TLB miss.",
                num(p.page_fault_lower)
            ),
            5 => format!("{ratios}, both above {upper}. It would not apply with either at {upper} or lower."),
            6 => {
                format!("{ratios}, both below {lower}. It would not apply with either at {lower} or higher.")
            }
            7 => format!("{ratios}, both from {lower} to {upper}. {both}"),
            _ => format!("{ratios}, and the two do not agree. {both}"),
        };
        let what = if next == mode { "stay in" } else { "switch to" };
        format!("Rule {rule}, {what} {}: {why}", next.name())
    }
}

impl Rule for State {
    fn decide(&mut self, mode: Mode, view: &View, log: &mut Log) -> Mode {
        if view.sample.instructions == 0 {
            log.say(|| format!("Stay in {}: no instructions, so no frequencies.", mode.name()));
            return mode;
        }
        let seen = self.remember(view.tlb_misses_per_1000(), view.page_faults_per_1000());
        let (rule, wanted) = self.rule(&seen);
        let next = wanted.unwrap_or(mode);
        log.say(|| self.explain(rule, &seen, mode, next));
        next
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Run, TestInterval, refused};
    use super::*;
    use Mode::{Nested, Shadow};

    /// TLB-miss and page-fault frequency of the intervals, the rule that decides after the
    /// last, and the mode it asks for.
    type RuleExample = (&'static [(f64, f64)], u8, Option<Mode>);
    const RULES: &[RuleExample] = &[
        (&[(10.1, 0.39e-3)], 1, Some(Shadow)),
        (&[(7.9, 0.51e-3)], 2, Some(Nested)),
        (&[(0.09, 9e-6)], 3, None),
        (&[(0.0, 20e-6)], 4, Some(Nested)),
        (&[(1.0, 201e-7)], 5, Some(Nested)),
        (&[(1.0, 149e-7)], 6, Some(Shadow)),
        (&[(1.0, 180e-7)], 7, None),
        (&[(1.0, 140e-7), (1.0, 140e-7), (1.0, 300e-7)], 8, None),
    ];

    #[test]
    fn each_rule_applies_where_it_is_the_first_and_from_both_modes() {
        for (intervals, rule, wanted) in RULES {
            for start in Mode::BOTH {
                let mut run = Run::new("dsp", start);
                for (i, &(tlb, faults)) in intervals.iter().enumerate() {
                    run.mode = start;
                    let next = run.step(TestInterval::frequencies(tlb, faults));
                    if i + 1 == intervals.len() {
                        assert!(run.said.starts_with(&format!("Rule {rule},")), "{rule}: {}", run.said);
                        assert_eq!(next, wanted.unwrap_or(start), "{}", run.said);
                    }
                }
            }
        }
    }

    #[test]
    fn near_the_upper_bound_of_the_other_frequency_rules_1_and_2_leave_it_to_the_ratio() {
        let mut run = Run::new("dsp", Shadow);
        run.step(TestInterval::frequencies(11.0, 0.41e-3));
        assert!(run.said.starts_with("Rule 5, switch to nested"), "{}", run.said);
        let mut run = Run::new("dsp", Nested);
        run.step(TestInterval::frequencies(80.0, 0.6e-3));
        assert!(run.said.starts_with("Rule 6, switch to shadow"), "{}", run.said);
    }

    #[test]
    fn history_is_the_ratio_of_averages_over_three_samples() {
        let mut run = Run::new("dsp", Nested);
        run.step(TestInterval::frequencies(1.0, 100e-7));
        run.step(TestInterval::frequencies(3.0, 100e-7));
        run.step(TestInterval::frequencies(2.0, 400e-7));
        assert!(run.said.contains("2.00e-5 now and 1.00e-5"), "{}", run.said);
        run.step(TestInterval::frequencies(2.0, 100e-7));
        // 200 faults in 7 TLB misses: the first sample is forgotten.
        assert!(run.said.contains("5.00e-6 now and 8.57e-6"), "{}", run.said);
    }

    #[test]
    fn without_instructions_it_stays_and_remembers_nothing() {
        for start in Mode::BOTH {
            let mut run = Run::new("dsp", start);
            assert_eq!(run.step(TestInterval::nothing()), start);
            run.step(TestInterval::frequencies(1.0, 180e-7));
            assert!(run.said.contains("1.80e-5 now and 1.80e-5 historically"), "{}", run.said);
        }
    }

    #[test]
    fn bounds_in_the_wrong_order_and_values_out_of_range_are_refused() {
        for (key, value, told) in [
            ("page_fault_lower", "1.0", "page_fault_lower = 1 is not below page_fault_upper = 0.0005"),
            ("tlb_miss_lower", "10.0", "tlb_miss_lower = 10 is not below tlb_miss_upper = 10"),
            ("p_to_t_upper", "nan", "p_to_t_upper = NaN"),
            ("near_upper_fraction", "1.1", "near_upper_fraction = 1.1 is not in 0..=1"),
            ("history_samples", "0", "history_samples = 0 is not in 1..=1000"),
            ("interval_s", "0.0", "interval_s = 0 is not above 0"),
        ] {
            let e = refused("dsp", key, value);
            assert!(e.contains(told), "{e}");
        }
    }
}
