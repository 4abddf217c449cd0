// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RPMS: a level between two thresholds of overhead (Marmanis, NTUA 2020).
//!
//! Published: a level C from -N to N. In shadow mode, an interval with an overhead above T_high adds 1, and
//! an interval below T_low subtracts 1; in nested mode the signs swap. C = N switches to nested, C = -N to
//! shadow. The two intervals after a switch are ignored. Overhead is the share of cycles in the hypervisor
//! and in walks. Variants: fixed thresholds; dynamic thresholds (T_high per mode, moved after a switch by the
//! instructions per cycle, IPC, before and after); a single metric (the hypervisor's share in shadow mode,
//! the walks' share in nested mode).
//!
//! Where the text is silent, the code published with it (`rpms.sh`) decides. C saturates, and a switch does
//! not reset C, so that the way back takes up to 2N intervals. The IPC before is that of the interval that
//! led to the switch; the IPC after is that of the last ignored interval. The step is 2 times the larger IPC
//! over the smaller. Ours: an interval without cycles changes nothing, and an IPC of 0 moves no threshold.

use super::pair::{Pair, Rule};
use super::{num, positive, settling, within};
use crate::{Counters, Log, ParameterError, Parameters, Policy, View};
use bifold_mmu::Mode;
use serde::{Deserialize, Serialize};

/// The overhead that is compared with the thresholds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// The hypervisor's and the walks' share of cycles, in both modes.
    Sum,
    /// The hypervisor's share in shadow, the walks' share in nested.
    Single,
}

/// How T_high moves after a switch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dynamic {
    /// IPC after over IPC before above which the threshold that led to the switch is lowered.
    pub f_high: f64,
    /// IPC after over IPC before below which it is raised.
    pub f_low: f64,
    /// Percent of cycles by which it moves, times the larger IPC over the smaller.
    pub step: f64,
    /// Percent of cycles above which it is not raised. (It is never lowered below T_low.)
    pub t_high_max: f64,
}

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rpms {
    /// Interval in seconds.
    pub interval_s: f64,
    /// The level runs from -n to n.
    pub n: u32,
    /// Percent of cycles below which the mode is good.
    pub t_low: f64,
    /// Percent of cycles above which it is bad: for both modes, at the start.
    pub t_high: f64,
    /// Number of intervals after a switch that are ignored.
    pub blackout_intervals: u32,
    /// The overhead to compare.
    pub metric: Metric,
    /// Share of an interval during which vCPUs ran (0 to 1) below which the interval is ignored.
    pub min_load: f64,
    /// Parameters of dynamic thresholds; none for fixed thresholds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic: Option<Dynamic>,
}

impl Parameters for Rpms {
    fn check(&self) -> Result<(), ParameterError> {
        within("n", self.n.into(), 1.0, 1000.0)?;
        within("t_low", self.t_low, 0.0, 100.0)?;
        within("t_high", self.t_high, 0.0, 100.0)?;
        // Equal is allowed: a published variant has 3 and 3.
        if self.t_low > self.t_high {
            return Err(ParameterError::Levels(self.t_low, self.t_high));
        }
        within("blackout_intervals", self.blackout_intervals.into(), 0.0, 1000.0)?;
        within("min_load", self.min_load, 0.0, 1.0)?;
        if let Some(d) = &self.dynamic {
            within("dynamic.f_high", d.f_high, 1.0, 100.0)?;
            within("dynamic.f_low", d.f_low, 0.0, 1.0)?;
            positive("dynamic.step", d.step)?;
            within("dynamic.t_high_max", d.t_high_max, self.t_high, 100.0)?;
            within("blackout_intervals (of dynamic)", self.blackout_intervals.into(), 1.0, 1000.0)?;
        }
        Ok(())
    }

    fn needs(&self) -> Counters {
        let shares = Counters::WALK_CYCLES.and(Counters::VMM_CYCLES);
        // Instructions per cycle move the thresholds.
        if self.dynamic.is_some() { shares.and(Counters::INSTRUCTIONS) } else { shares }
    }

    fn policy(&self, _start: crate::Mode) -> Box<dyn Policy> {
        Box::new(Pair(State { p: *self, level: 0, t_high: [self.t_high; 2], blackout: 0, ipc_before: 0.0 }))
    }
}

struct State {
    p: Rpms,
    /// From -n (shadow) to n (nested).
    level: i64,
    /// Percent, per mode.
    t_high: [f64; 2],
    /// Number of intervals still to be ignored.
    blackout: u32,
    /// Instructions per cycle of the last interval that was not ignored.
    ipc_before: f64,
}

impl State {
    fn overhead(&self, mode: Mode, view: &View) -> (f64, &'static str) {
        match (self.p.metric, mode) {
            (Metric::Sum, _) => (view.walk_percent() + view.vmm_percent(), "Walks and hypervisor take"),
            (Metric::Single, Mode::Shadow) => (view.vmm_percent(), "The hypervisor takes"),
            (Metric::Single, Mode::Nested) => (view.walk_percent(), "Walks take"),
        }
    }

    /// Moves the threshold of the mode that was left, after the last ignored interval.
    fn learn(&mut self, mode: Mode, view: &View, log: &mut Log) {
        let Some(d) = self.p.dynamic else { return };
        let (before, after) = (self.ipc_before, view.ipc());
        if before <= 0.0 || after <= 0.0 {
            log.say(|| "T_high stays: no instructions per cycle to compare.".into());
            return;
        }
        let left = mode.other();
        let t = &mut self.t_high[left as usize];
        let old = *t;
        if after > d.f_high * before {
            *t = (old - d.step * after / before).max(self.p.t_low);
        } else if after < d.f_low * before {
            *t = (old + d.step * before / after).min(d.t_high_max);
        }
        let new = *t;
        log.say(|| {
            format!(
                "Instructions per cycle went from {} to {}: T_high of {} goes from {} % to {} % \
                 (lowered above a ratio of {}, raised below {}).",
                num(before),
                num(after),
                left.name(),
                num(old),
                num(new),
                num(d.f_high),
                num(d.f_low)
            )
        });
    }
}

impl Rule for State {
    fn decide(&mut self, mode: Mode, view: &View, log: &mut Log) -> Mode {
        if view.cycles <= 0.0 {
            log.say(|| format!("Stay in {}: the guest was idle.", mode.name()));
            return mode;
        }
        if settling(&mut self.blackout, mode, log) {
            if self.blackout == 0 {
                self.learn(mode, view, log);
            }
            return mode;
        }
        if view.load < self.p.min_load {
            let (load, min) = (100.0 * view.load, 100.0 * self.p.min_load);
            log.say(|| {
                format!(
                    "Stay in {}: interval ignored, as vCPUs ran {} % of the time, below {} %.",
                    mode.name(),
                    num(load),
                    num(min)
                )
            });
            return mode;
        }
        self.ipc_before = view.ipc();
        let (overhead, what) = self.overhead(mode, view);
        let (t_low, t_high) = (self.p.t_low, self.t_high[mode as usize]);
        let n = i64::from(self.p.n);
        // Up leads away from shadow, down away from nested.
        let (away, target) = match mode {
            Mode::Shadow => (1, n),
            Mode::Nested => (-1, -n),
        };
        let step = if overhead > t_high {
            away
        } else if overhead < t_low {
            -away
        } else {
            0
        };
        let before = self.level;
        self.level = (before + step).clamp(-n, n);
        let next = if step == away && self.level == target { mode.other() } else { mode };
        if next != mode {
            self.blackout = self.p.blackout_intervals;
        }
        let level = self.level;
        log.say(|| {
            let moved = if level == before {
                format!("so the level stays {level}")
            } else {
                format!("so the level goes from {before} to {level}")
            };
            let where_ = if overhead > t_high {
                format!("above T_high = {} %", num(t_high))
            } else if overhead < t_low {
                format!("below T_low = {} %", num(t_low))
            } else {
                format!("from T_low = {} % to T_high = {} %", num(t_low), num(t_high))
            };
            let verdict = if next != mode {
                format!("Switch to {}: {} % or less would have kept the mode.", next.name(), num(t_high))
            } else {
                let more = (target - level).abs();
                format!("Stay in {}: {more} more above T_high would switch at level {target}.", mode.name())
            };
            format!("{what} {} % of cycles, {where_}, {moved}. {verdict}", num(overhead))
        });
        next
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Run, TestInterval, refused};
    use super::*;
    use Mode::{Nested, Shadow};

    const BAD: fn() -> TestInterval = || TestInterval::percents(20.0, 20.0);
    const GOOD: fn() -> TestInterval = || TestInterval::percents(1.0, 1.0);
    const BETWEEN: fn() -> TestInterval = || TestInterval::percents(5.0, 5.0);

    #[test]
    fn four_bad_intervals_in_a_row_switch_and_the_next_two_are_not_looked_at() {
        let mut run = Run::new("rpms-fixed-20", Shadow);
        assert_eq!(run.steps(4, BAD()), [Shadow, Shadow, Shadow, Nested]);
        // Two of blackout, then from level 4 down to -4.
        assert_eq!(run.steps(9, BAD()), [Nested; 9]);
        assert!(run.said.contains("the level goes from -2 to -3"), "{}", run.said);
        assert!(run.said.contains("1 more above T_high would switch at level -4"), "{}", run.said);
        assert_eq!(run.step(BAD()), Shadow);
    }

    #[test]
    fn good_intervals_move_the_level_away_from_the_switch_and_it_saturates() {
        let mut run = Run::new("rpms-fixed-20", Shadow);
        run.steps(100, GOOD());
        assert!(run.said.contains("the level stays -4"), "{}", run.said);
        assert_eq!(run.steps(7, BAD()), [Shadow; 7]);
        assert_eq!(run.step(BAD()), Nested);
        let mut run = Run::new("rpms-fixed-20", Nested);
        run.steps(100, GOOD());
        assert!(run.said.contains("the level stays 4"), "{}", run.said);
    }

    #[test]
    fn between_the_thresholds_the_level_stays_and_a_threshold_itself_is_between() {
        let mut run = Run::new("rpms-fixed-20", Nested);
        run.steps(3, BAD());
        for seen in [BETWEEN(), TestInterval::percents(20.0, 0.0), TestInterval::percents(3.0, 0.0)] {
            run.step(seen);
            assert!(run.said.contains("the level stays -3"), "{}", run.said);
        }
        assert_eq!(run.step(BAD()), Shadow);
    }

    #[test]
    fn the_published_thresholds_decide_alike_except_between_3_and_20_percent() {
        let at_10 = |name| Run::new(name, Shadow).steps(4, BETWEEN())[3];
        assert_eq!((at_10("rpms-fixed-3"), at_10("rpms-fixed-20")), (Nested, Shadow));
    }

    #[test]
    fn a_single_metric_looks_at_what_the_other_mode_would_spare() {
        let (walks, exits) = (TestInterval::percents(50.0, 0.0), TestInterval::percents(0.0, 50.0));
        let after = |name, start, seen| Run::new(name, start).steps(4, seen)[3];
        assert_eq!(after("rpms-single", Shadow, walks), Shadow);
        assert_eq!(after("rpms-single", Shadow, exits), Nested);
        assert_eq!(after("rpms-single", Nested, walks), Shadow);
        assert_eq!(after("rpms-single", Nested, exits), Nested);
        assert_eq!(after("rpms-fixed-20", Shadow, walks), Nested);
        assert_eq!(after("rpms-fixed-20", Nested, exits), Shadow);
    }

    /// What is said of T_high after a switch with this IPC before and after.
    fn moved(name: &str, start: Mode, before: f64, after: f64) -> String {
        let mut run = Run::new(name, start);
        run.steps(4, BAD().ipc(before));
        assert_eq!(run.mode, start.other());
        run.step(BAD().ipc(before * 7.0)); // the first interval of the blackout tells nothing
        run.step(BAD().ipc(after));
        run.said
    }

    #[test]
    fn the_threshold_that_led_to_a_good_switch_is_lowered_and_to_a_bad_one_raised() {
        let said = moved("rpms-dynamic", Shadow, 1.0, 1.5);
        assert!(said.contains("T_high of shadow goes from 12 % to 9 %"), "{said}");
        let said = moved("rpms-dynamic", Nested, 1.0, 0.5);
        assert!(said.contains("T_high of nested goes from 12 % to 16 %"), "{said}");
        let said = moved("rpms-dynamic", Nested, 1.0, 1.05);
        assert!(said.contains("T_high of nested goes from 12 % to 12 %"), "{said}");
        let said = moved("rpms-dynamic", Nested, 0.0, 1.0);
        assert!(said.contains("T_high stays"), "{said}");
    }

    #[test]
    fn the_threshold_stays_between_t_low_and_its_maximum() {
        let said = moved("rpms-shipped", Shadow, 0.1, 1.0);
        assert!(said.contains("from 9 % to 2 %"), "{said}");
        let said = moved("rpms-shipped", Shadow, 1.0, 0.01);
        assert!(said.contains("from 9 % to 100 %"), "{said}");
    }

    #[test]
    fn the_shipped_code_ignores_intervals_with_little_load() {
        let mut run = Run::new("rpms-shipped", Shadow);
        run.steps(3, BAD());
        assert_eq!(run.step(TestInterval { load: 0.59, ..BAD() }), Shadow);
        assert!(run.said.contains("ran 59 % of the time, below 60 %"), "{}", run.said);
        assert_eq!(run.step(TestInterval { load: 0.6, ..BAD() }), Nested);
    }

    #[test]
    fn intervals_without_cycles_change_nothing() {
        let mut run = Run::new("rpms-dynamic", Nested);
        run.steps(3, BAD());
        assert_eq!(run.steps(50, TestInterval::nothing()), [Nested; 50]);
        assert_eq!(run.step(BAD()), Shadow);
        assert_eq!(run.steps(2, TestInterval::nothing()), [Shadow; 2]);
    }

    #[test]
    fn contradictions_are_refused() {
        for (key, value, told) in [
            ("t_low", "12.5", "t_low = 12.5 is above t_high = 12"),
            ("n", "0", "n = 0 is not in 1..=1000"),
            ("t_high", "nan", "t_high = NaN is not in 0..=100"),
            ("min_load", "60.0", "min_load = 60 is not in 0..=1"),
            ("dynamic.f_low", "1.2", "dynamic.f_low = 1.2 is not in 0..=1"),
            ("dynamic.step", "0.0", "dynamic.step = 0 is not above 0"),
            ("dynamic.t_high_max", "11.0", "dynamic.t_high_max = 11 is not in 12..=100"),
            ("metric", "\"both\"", "unknown variant"),
            ("dynamic.jump", "1.0", "unknown field"),
        ] {
            let e = refused("rpms-dynamic", key, value);
            assert!(e.contains(told), "{e}");
        }
    }
}
