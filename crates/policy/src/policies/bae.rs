// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bae: two thresholds that learn from each switch (Bae, Lange, Dinda; ICAC 2011).
//!
//! Published: the structure. Under nested paging, many TLB misses lead to a switch to shadow. Under shadow
//! paging, many exits for paging lead to a switch to nested. After a switch, the cycles per instruction (CPI)
//! tell whether it was right, and the threshold that led to the switch moves.
//!
//! Ours: all parameters. Both metrics are per 1000 instructions. Thresholds move by factors within bounds: up
//! after a switch that raised the CPI, down after a switch that lowered it. The CPI before is that of the
//! interval that led to the switch. The CPI after is that of the first interval after `settle_intervals`, in
//! which nothing is decided. All exits in a sample are for paging. Intervals without instructions or cycles
//! are ignored.

use super::pair::{Pair, Rule};
use super::{num, positive, settling, within};
use crate::{Counters, Log, ParameterError, Parameters, Policy, View};
use bifold_mmu::Mode;
use serde::{Deserialize, Serialize};

/// Parameters; frequencies are events per 1000 instructions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bae {
    /// Interval in seconds.
    pub interval_s: f64,
    /// TLB misses per 1000 instructions above which the policy leaves nested mode, at the start.
    pub tlb_miss_start: f64,
    /// Exits per 1000 instructions above which the policy leaves shadow mode, at the start.
    pub exit_start: f64,
    /// Lowest threshold on TLB misses.
    pub tlb_miss_min: f64,
    /// Highest threshold on TLB misses.
    pub tlb_miss_max: f64,
    /// Lowest threshold on exits.
    pub exit_min: f64,
    /// Highest threshold on exits.
    pub exit_max: f64,
    /// Factor on a threshold after a switch that raised the CPI.
    pub raise: f64,
    /// Divisor of a threshold after a switch that lowered the CPI.
    pub lower: f64,
    /// Relative change of the CPI (0 to 1) up to which no threshold moves.
    pub cpi_tolerance: f64,
    /// Number of intervals after a switch that are ignored.
    pub settle_intervals: u32,
}

impl Bae {
    /// Lowest and highest threshold for leaving `mode`.
    fn range(&self, mode: Mode) -> (f64, f64) {
        match mode {
            Mode::Shadow => (self.exit_min, self.exit_max),
            Mode::Nested => (self.tlb_miss_min, self.tlb_miss_max),
        }
    }
}

impl Parameters for Bae {
    fn check(&self) -> Result<(), ParameterError> {
        positive("tlb_miss_min", self.tlb_miss_min)?;
        positive("tlb_miss_max", self.tlb_miss_max)?;
        positive("exit_min", self.exit_min)?;
        positive("exit_max", self.exit_max)?;
        within("tlb_miss_start", self.tlb_miss_start, self.tlb_miss_min, self.tlb_miss_max)?;
        within("exit_start", self.exit_start, self.exit_min, self.exit_max)?;
        within("raise", self.raise, 1.0, 100.0)?;
        within("lower", self.lower, 1.0, 100.0)?;
        within("cpi_tolerance", self.cpi_tolerance, 0.0, 1.0)?;
        within("settle_intervals", self.settle_intervals.into(), 0.0, 1000.0)
    }

    fn needs(&self) -> Counters {
        Counters::INSTRUCTIONS.and(Counters::TLB_MISSES).and(Counters::EXITS)
    }

    fn policy(&self, _start: crate::Mode) -> Box<dyn Policy> {
        let thresholds = [self.exit_start, self.tlb_miss_start];
        Box::new(Pair(State { p: *self, thresholds, settling: 0, cpi_before: None }))
    }
}

struct State {
    p: Bae,
    /// Threshold of each mode, above which the policy leaves the mode.
    thresholds: [f64; 2],
    settling: u32,
    /// CPI of the interval that led to the last switch, until that switch is judged.
    cpi_before: Option<f64>,
}

impl State {
    /// Judges the last switch, which led to `mode`, and moves the threshold that led to it.
    fn learn(&mut self, mode: Mode, cpi: f64, log: &mut Log) {
        let Some(before) = self.cpi_before.take() else { return };
        let left = mode.other();
        let (min, max) = self.p.range(left);
        let t = &mut self.thresholds[left as usize];
        let old = *t;
        if cpi > before * (1.0 + self.p.cpi_tolerance) {
            *t = (old * self.p.raise).min(max);
        } else if cpi < before * (1.0 - self.p.cpi_tolerance) {
            *t = (old / self.p.lower).max(min);
        }
        let new = *t;
        log.say(|| {
            format!(
                "Cycles per instruction went from {} to {} with the switch, so the threshold for leaving {} \
                 goes from {} to {} (up to {} % of change it stays).",
                num(before),
                num(cpi),
                left.name(),
                num(old),
                num(new),
                num(100.0 * self.p.cpi_tolerance)
            )
        });
    }
}

impl Rule for State {
    fn decide(&mut self, mode: Mode, view: &View, log: &mut Log) -> Mode {
        if settling(&mut self.settling, mode, log) {
            return mode;
        }
        if view.sample.instructions == 0 || view.cycles <= 0.0 {
            log.say(|| format!("Stay in {}: no instructions or no cycles to judge by.", mode.name()));
            return mode;
        }
        let cpi = 1.0 / view.ipc();
        self.learn(mode, cpi, log);
        let (value, what) = match mode {
            Mode::Shadow => (view.exits_per_1000(), "exits"),
            Mode::Nested => (view.tlb_misses_per_1000(), "TLB misses"),
        };
        let threshold = self.thresholds[mode as usize];
        let next = if value > threshold { mode.other() } else { mode };
        if next != mode {
            self.settling = self.p.settle_intervals;
            self.cpi_before = Some(cpi);
        }
        log.say(|| {
            let (value, threshold) = (num(value), num(threshold));
            if next == mode {
                format!(
                    "Stay in {}: {value} {what} per 1000 instructions; above {threshold} it switches.",
                    mode.name()
                )
            } else {
                format!(
                    "Switch to {}: {value} {what} per 1000 instructions; at {threshold} or fewer it stays.",
                    next.name()
                )
            }
        });
        next
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Run, TestInterval, refused};
    use super::*;
    use Mode::{Nested, Shadow};

    /// TLB misses and exits per 1000 instructions, and cycles per instruction.
    fn seen(tlb: f64, exits: f64, cpi: f64) -> TestInterval {
        let mut s = TestInterval::frequencies(tlb, 0.0);
        s.sample.exits_hidden_fault = (exits * s.sample.instructions as f64 / 1000.0).round() as u64;
        s.cycles = cpi * s.sample.instructions as f64;
        s
    }

    #[test]
    fn tlb_misses_leave_nested_and_exits_leave_shadow_above_the_threshold() {
        let step = |start, tlb, exits| Run::new("bae", start).step(seen(tlb, exits, 1.0));
        assert_eq!([step(Nested, 2.0, 9.0), step(Nested, 2.001, 0.0)], [Nested, Shadow]);
        assert_eq!([step(Shadow, 99.0, 0.01), step(Shadow, 0.0, 0.01001)], [Shadow, Nested]);
    }

    /// The explanation after a switch from `start` whose CPI went from 1 to this.
    fn learnt(start: Mode, cpi: f64) -> String {
        let mut run = Run::new("bae", start);
        assert_eq!(run.step(seen(50.0, 0.5, 1.0)), start.other());
        // The first interval settles: neither its CPI nor its misses and exits are looked at.
        assert_eq!(run.step(seen(50.0, 0.5, 99.0)), start.other());
        assert_eq!(run.step(seen(0.0, 0.0, cpi)), start.other());
        run.said
    }

    #[test]
    fn the_threshold_that_led_to_a_switch_moves_with_the_cpi() {
        for (start, cpi, told) in [
            (Nested, 1.1, "leaving nested goes from 2 to 3 "),
            (Nested, 0.9, "leaving nested goes from 2 to 1.67 "),
            (Nested, 1.01, "leaving nested goes from 2 to 2 "),
            (Shadow, 1.1, "leaving shadow goes from 0.01 to 0.015 "),
            (Shadow, 0.9, "leaving shadow goes from 0.01 to 0.00833 "),
        ] {
            let said = learnt(start, cpi);
            assert!(said.contains(told), "{said}");
        }
    }

    #[test]
    fn thresholds_stay_within_their_bounds() {
        for (cpi_in_shadow, bounds) in [(2.0, [0.0005, 100.0]), (0.5, [1.0, 0.1])] {
            let mut policy = State {
                p: toml::from_str(&include_str!("../../params/bae.toml").replace("policy = \"bae\"", ""))
                    .unwrap(),
                thresholds: [0.01, 2.0],
                settling: 0,
                cpi_before: None,
            };
            let mut mode = Nested;
            for _ in 0..200 {
                let mut s = seen(200.0, 2.0, if mode == Shadow { cpi_in_shadow } else { 1.0 });
                mode = policy.decide(mode, &s.view(mode), &mut Log::off());
            }
            assert_eq!(policy.thresholds, bounds);
        }
    }

    #[test]
    fn intervals_without_instructions_are_ignored() {
        for start in Mode::BOTH {
            let mut run = Run::new("bae", start);
            assert_eq!(run.steps(5, TestInterval::nothing()), [start; 5]);
            assert_eq!(run.step(seen(50.0, 0.5, 1.0)), start.other());
            assert_eq!(run.steps(5, TestInterval::nothing()), [start.other(); 5]);
            run.step(seen(0.0, 0.0, 1.5));
            assert!(run.said.contains("went from 1 to 1.5"), "{}", run.said);
        }
    }

    #[test]
    fn contradictions_are_refused() {
        for (key, value, told) in [
            ("tlb_miss_start", "0.05", "tlb_miss_start = 0.05 is not in 0.1..=100"),
            ("exit_min", "nan", "exit_min = NaN is not above 0"),
            ("exit_max", "0.001", "exit_start = 0.01 is not in 0.0005..=0.001"),
            ("raise", "0.9", "raise = 0.9 is not in 1..=100"),
            ("cpi_tolerance", "-0.1", "cpi_tolerance = -0.1 is not in 0..=1"),
        ] {
            let e = refused("bae", key, value);
            assert!(e.contains(told), "{e}");
        }
    }
}
