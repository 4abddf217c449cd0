// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Probes: a bounded try of the other mode, kept only if the guest gets on faster in it.
//!
//! A host without a PMU knows too little for most policies. What counts is the guest's own progress, if its
//! reporter tells it: steps per second. A prober measures the rate in the VM's mode, has the VM switched for
//! a short time, and measures again. Each probe that brings nothing doubles the time to the next, because a
//! probe costs two switches and the time in a worse mode.

use bifold_live::Observation;
use bifold_policy::{Decision, Mode};

/// Most doublings of the time between probes.
const MOST_DOUBLINGS: u32 = 5;

/// What a probe may cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probing {
    /// Seconds between two probes.
    pub every_s: f64,
    /// Seconds of progress that are compared, in either mode.
    pub length_s: f64,
    /// Gain for which the other mode is kept, in percent.
    pub least_gain_percent: f64,
}

/// Steps in a time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Rate {
    steps: f64,
    seconds: f64,
}

impl Rate {
    fn add(&mut self, interval: &Observation) {
        if let Some(steps) = interval.progress {
            self.steps += steps as f64;
            self.seconds += interval.seconds;
        }
    }

    fn per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.steps / self.seconds } else { 0.0 }
    }
}

/// The mode that a probe tries: KVM can switch a VM to this one alone.
fn other(mode: Mode) -> Option<Mode> {
    mode.switchable().map(|mode| mode.other().into())
}

/// What a prober does.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Doing {
    /// Finds a VM away from its own mode.
    Found,
    /// Waits for the next probe.
    Rests,
    /// Measures in the mode in which the VM is to stay, before a probe.
    Measures(Rate),
    /// Has asked for the other mode, or has `arrived` there and measures; `home` is the mode before.
    Tries { home: Mode, arrived: bool, there: Rate, at_home: f64 },
    /// Has asked for the mode before the probe.
    Returns { home: Mode },
}

/// The probes of a VM.
pub struct Prober {
    how: Probing,
    doing: Doing,
    /// Seconds in what it does now.
    since: f64,
    /// Probes in a row that brought nothing.
    failed: u32,
}

impl Prober {
    /// A prober that begins with a rest; of a VM that is away from its own mode, by bringing the VM back. A
    /// probe may have been cut short there.
    pub fn new(how: Probing, away: bool) -> Prober {
        let doing = if away { Doing::Found } else { Doing::Rests };
        Prober { how, doing, since: 0.0, failed: 0 }
    }

    /// Whether it brings the VM back.
    pub fn returns(&self) -> bool {
        matches!(self.doing, Doing::Returns { .. })
    }

    /// Takes the next interval in one mode. Returns the mode that is wanted, if there is something to decide.
    pub fn interval(&mut self, interval: &Observation) -> Option<Decision> {
        let mode = interval.mode?;
        self.since += interval.seconds;
        match self.doing {
            Doing::Found => {
                let home = other(mode)?;
                self.start(Doing::Returns { home });
                Some(Decision { mode: home, why: "the VM was found in another mode than its own.".into() })
            }
            Doing::Rests => self.rest(mode),
            Doing::Measures(rate) => self.measure(mode, rate, interval),
            Doing::Tries { home, arrived, there, at_home } if mode != home => {
                // Waiting for the switch is no part of the probe.
                if !arrived {
                    self.since = interval.seconds;
                }
                self.compare(home, there, at_home, mode, interval)
            }
            // Limits or KVM delay the switch, or somebody switched back.
            Doing::Tries { home, .. } if self.since > 3.0 * self.how.length_s => {
                self.rest_after_failure(home, "the switch for a probe did not come")
            }
            Doing::Tries { home, .. } => {
                Some(Decision { mode: other(home)?, why: "probes the other mode.".into() })
            }
            Doing::Returns { home } if mode != home => {
                Some(Decision { mode: home, why: "ends a probe that brought nothing.".into() })
            }
            Doing::Returns { .. } => self.start(Doing::Rests),
        }
    }

    fn start(&mut self, doing: Doing) -> Option<Decision> {
        (self.doing, self.since) = (doing, 0.0);
        None
    }

    fn rest(&mut self, mode: Mode) -> Option<Decision> {
        let length = self.how.every_s * f64::from(1u32 << self.failed.min(MOST_DOUBLINGS));
        if self.since < length - self.how.length_s {
            return None;
        }
        self.start(Doing::Measures(Rate::default()));
        Some(Decision {
            mode,
            why: format!("measures the guest's progress for {} s before a probe.", self.how.length_s),
        })
    }

    fn measure(&mut self, mode: Mode, mut rate: Rate, interval: &Observation) -> Option<Decision> {
        rate.add(interval);
        self.doing = Doing::Measures(rate);
        if self.since < self.how.length_s {
            return None;
        }
        let other = other(mode)?;
        if rate.steps == 0.0 {
            return self.rest_after_failure(mode, "the guest reports no progress");
        }
        self.start(Doing::Tries {
            home: mode,
            arrived: false,
            there: Rate::default(),
            at_home: rate.per_second(),
        });
        let why = format!("probes the other mode: {:.3} steps/s in {} mode.", rate.per_second(), mode.name());
        Some(Decision { mode: other, why })
    }

    fn compare(
        &mut self,
        home: Mode,
        mut there: Rate,
        at_home: f64,
        mode: Mode,
        interval: &Observation,
    ) -> Option<Decision> {
        there.add(interval);
        self.doing = Doing::Tries { home, arrived: true, there, at_home };
        if self.since < self.how.length_s {
            return None;
        }
        let gain = 100.0 * (there.per_second() / at_home - 1.0);
        let figures = format!(
            "{:.3} steps/s in {} mode, {at_home:.3} in {} mode",
            there.per_second(),
            mode.name(),
            home.name()
        );
        if gain >= self.how.least_gain_percent && gain.is_finite() {
            self.failed = 0;
            self.start(Doing::Rests);
            return Some(Decision { mode, why: format!("the probe brought {gain:.1} %: {figures}.") });
        }
        self.failed += 1;
        self.start(Doing::Returns { home });
        Some(Decision {
            mode: home,
            why: format!(
                "the probe brought {gain:.1} %, {} % are needed: {figures}.",
                self.how.least_gain_percent
            ),
        })
    }

    fn rest_after_failure(&mut self, mode: Mode, why: &str) -> Option<Decision> {
        self.failed += 1;
        self.start(Doing::Rests);
        Some(Decision { mode, why: format!("no probe: {why}.") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifold_live::Measured;
    use bifold_model::Sample;
    use bifold_policy::Counters;

    const HOW: Probing = Probing { every_s: 60.0, length_s: 5.0, least_gain_percent: 3.0 };

    /// A VM that obeys, and gets on at these rates in shadow and nested paging; returns its mode at each
    /// second.
    fn obeys(prober: &mut Prober, seconds: usize, rates: impl Fn(usize) -> [Option<u64>; 2]) -> Vec<Mode> {
        let (mut mode, mut next, mut modes) = (Mode::Nested, Mode::Nested, Vec::new());
        for n in 0..seconds {
            // The interval in which the VM is switched has no mode.
            let whole = mode == next;
            mode = next;
            let measured =
                Measured { sample: Sample::default(), known: Counters::NONE, cycles: None, load: None };
            let interval = Observation {
                seconds: 1.0,
                mode: whole.then_some(mode),
                measured,
                progress: rates(n)[usize::from(mode == Mode::Nested)],
            };
            next = prober.interval(&interval).map_or(next, |d| d.mode);
            modes.push(mode);
        }
        modes
    }

    fn in_shadow(modes: &[Mode]) -> usize {
        modes.iter().filter(|m| **m == Mode::Shadow).count()
    }

    #[test]
    fn the_faster_mode_is_kept() {
        let modes = obeys(&mut Prober::new(HOW, false), 100, |_| [Some(110), Some(100)]);
        assert_eq!(in_shadow(&modes[..60]), 0);
        assert_eq!(in_shadow(&modes[62..]), 38, "{modes:?}");
    }

    #[test]
    fn a_probe_that_brings_nothing_is_short_and_the_next_comes_later() {
        for slower in [102, 100, 50, 0] {
            let modes = obeys(&mut Prober::new(HOW, false), 500, |_| [Some(slower), Some(100)]);
            let starts: Vec<usize> =
                (1..500).filter(|n| modes[*n] == Mode::Shadow && modes[n - 1] == Mode::Nested).collect();
            assert_eq!(starts.len(), 3, "{starts:?}");
            assert!(starts[2] - starts[1] > starts[1] - starts[0], "{starts:?}");
            assert!(in_shadow(&modes) <= 3 * 8, "{}", in_shadow(&modes));
        }
    }

    #[test]
    fn a_vm_that_is_found_away_comes_back_first() {
        let modes = obeys(&mut Prober::new(HOW, true), 10, |_| [Some(5); 2]);
        assert_eq!(modes[1..], [Mode::Shadow; 9], "its own mode is the other one");
    }

    #[test]
    fn without_progress_nothing_is_tried() {
        for nothing in [None, Some(0)] {
            let modes = obeys(&mut Prober::new(HOW, false), 1000, |_| [nothing, nothing]);
            assert_eq!(in_shadow(&modes), 0);
        }
        // The reporter falls silent during the probe.
        let modes =
            obeys(&mut Prober::new(HOW, false), 100, |n| if n < 61 { [Some(5); 2] } else { [None; 2] });
        assert!((1..10).contains(&in_shadow(&modes)), "{modes:?}");
    }

    #[test]
    fn a_mode_that_turns_bad_is_left_at_a_later_probe() {
        let modes = obeys(&mut Prober::new(HOW, false), 400, |n| {
            if n < 120 { [Some(200), Some(100)] } else { [Some(50), Some(100)] }
        });
        assert_eq!((modes[110], modes[300]), (Mode::Shadow, Mode::Nested), "{modes:?}");
    }
}
