// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One VM under a rule: its policy decides, the rule's limits allow or delay.
//!
//! A pilot sees intervals alone and measures time by their lengths. The daemon's pilots and those of a replay
//! over the daemon's recording therefore come to the same decisions.

use crate::config::{Config, Decides, Limits, Rule};
use crate::probe::Prober;
use bifold_live::Observation;
use bifold_live::follow::{Followed, Follower};
use bifold_policy::{Counters, Decision, Mode, UnknownCounter};
use std::collections::VecDeque;

/// Seconds of the window in which switches are counted.
const HOUR: f64 = 3600.0;

/// The switches of a VM, by the daemon and by others, as its intervals report them. They stay when the VM's
/// rule changes.
#[derive(Debug, Clone, Default)]
pub struct Switches {
    /// Seconds since the first interval.
    clock: f64,
    /// Ends of intervals with switches in the last hour, and numbers of switches.
    hour: VecDeque<(f64, u64)>,
    last: Option<f64>,
    /// The daemon has switched the VM, and no interval since tells of that.
    unseen: bool,
}

impl Switches {
    /// For a VM that an earlier daemon has switched: the time is not known, so the switch counts as of just
    /// now.
    pub fn just_now() -> Switches {
        Switches { last: Some(0.0), ..Switches::default() }
    }

    /// Notes a switch by the daemon. It counts even if the next interval does not tell of a switch, as after
    /// a moment in which the VM could not be read.
    pub fn by_daemon(&mut self) {
        self.unseen = true;
    }

    /// Takes the VM's next interval.
    pub fn interval(&mut self, interval: &Observation) {
        self.clock += interval.seconds.max(0.0);
        let known = Counters::of(&["mode_switches"]).less(interval.measured.known) == Counters::NONE;
        let told = if known { interval.measured.sample.mode_switches } else { 0 };
        let switches = told.max(std::mem::take(&mut self.unseen).into());
        if switches > 0 {
            // A switch happened at some time of its interval: the latest counts.
            self.last = Some(self.clock);
            self.hour.push_back((self.clock, switches));
        }
        while self.hour.front().is_some_and(|(at, _)| self.clock - at > HOUR) {
            self.hour.pop_front();
        }
    }

    /// Number of switches in the last hour.
    pub fn in_hour(&self) -> u64 {
        self.hour.iter().fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }

    /// Seconds since the last switch; infinite if none was seen.
    fn stayed(&self) -> f64 {
        self.last.map_or(f64::INFINITY, |at| self.clock - at)
    }
}

/// A VM's policy and limits.
pub struct Pilot {
    decides: Decider,
    limits: Limits,
}

/// What decides over a VM, with its memory.
enum Decider {
    Policy(Box<Follower>),
    Probes(Prober),
}

impl Decider {
    fn interval(&mut self, interval: &Observation) -> Option<Decision> {
        match self {
            Decider::Policy(follower) => match follower.interval(interval) {
                Followed::Decided(decision) => Some(decision),
                Followed::LeftOut | Followed::NotDue => None,
            },
            Decider::Probes(prober) => prober.interval(interval),
        }
    }
}

/// A decision, and what becomes of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The VM's mode.
    pub now: Mode,
    /// What the policy wants.
    pub decision: Decision,
    /// Whether the limits allow that.
    pub verdict: Verdict,
}

/// What becomes of a decision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// The VM is in the mode that the policy wants.
    Stay,
    /// The VM may be switched.
    Switch,
    /// The VM has not been long enough in its mode.
    TooEarly {
        /// Seconds until the least stay is over.
        left_s: f64,
    },
    /// The VM has been switched as often as an hour allows.
    TooMany {
        /// Switches in the last hour.
        switches: u64,
    },
}

impl Verdict {
    /// One word for files and tables.
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Stay => "stay",
            Verdict::Switch => "switch",
            Verdict::TooEarly { .. } => "too-early",
            Verdict::TooMany { .. } => "too-many",
        }
    }
}

impl Pilot {
    /// A pilot for a VM of this rule; `None` if the rule is for memory alone. `away`: the VM's mode is the
    /// daemon's doing.
    pub fn new(rule: &Rule, config: &Config, away: bool) -> Option<Pilot> {
        let decides = match rule.decides.as_ref()? {
            Decides::Policy(named) => {
                let follower = Follower::new(&named.spec, Some(&config.estimator), config.interval_s);
                Decider::Policy(Box::new(follower))
            }
            Decides::Probes(how) => Decider::Probes(Prober::new(*how, away)),
        };
        Some(Pilot { decides, limits: rule.limits })
    }

    /// Takes the VM's next interval, which `switches` has seen. Returns the decision, if one is due.
    pub fn interval(&mut self, interval: &Observation, switches: &Switches) -> Option<Choice> {
        if switches.stayed() < self.limits.blackout_s {
            return None;
        }
        let decision = self.decides.interval(interval)?;
        // A policy decides over intervals in one mode only.
        let now = interval.mode?;
        let verdict = if decision.mode == now { Verdict::Stay } else { self.limited(switches) };
        Some(Choice { now, decision, verdict })
    }

    fn limited(&self, switches: &Switches) -> Verdict {
        let in_hour = switches.in_hour();
        let most = self.limits.most_switches_per_hour;
        let too_many = match &self.decides {
            Decider::Policy(_) => in_hour >= most,
            // A probe needs the way back too, which is always allowed, as is giving a VM back.
            Decider::Probes(prober) => !prober.returns() && in_hour + 2 > most,
        };
        if too_many {
            return Verdict::TooMany { switches: in_hour };
        }
        // Lengths of intervals are not exact.
        match self.limits.min_stay_s - switches.stayed() {
            left_s if left_s > 1e-6 => Verdict::TooEarly { left_s },
            _ => Verdict::Switch,
        }
    }

    /// The counter that the policy waits for; `None` if the policy sees intervals.
    pub fn missing(&self) -> Option<UnknownCounter> {
        match &self.decides {
            Decider::Policy(follower) => follower.missing(),
            Decider::Probes(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifold_live::Measured;
    use bifold_model::Sample;
    use std::path::Path;

    /// A pilot, and the switches of its VM.
    struct Flight(Pilot, Switches);

    impl Flight {
        fn interval(&mut self, interval: &Observation) -> Option<Choice> {
            self.1.interval(interval);
            self.0.interval(interval, &self.1)
        }
    }

    fn pilot(text: &str) -> Flight {
        let config = Config::parse(text, Path::new("c.toml")).unwrap();
        Flight(Pilot::new(&config.rules[0], &config, false).unwrap(), Switches::default())
    }

    /// A second of a VM that would like to be in the other mode, for `dsp`.
    fn longing(mode: Mode, switches: u64) -> Observation {
        let (tlb_misses_4k, guest_page_faults) = match mode {
            Mode::Nested => (50 << 20, 0),
            _ => (0, 9 << 20),
        };
        let sample = Sample {
            instructions: 1 << 30,
            tlb_misses_4k,
            guest_page_faults,
            mode_switches: switches,
            ..Sample::default()
        };
        let measured = Measured { sample, known: Counters::ALL, cycles: Some(3e9), load: Some(1.0) };
        let mode = Some(mode).filter(|_| switches == 0);
        Observation { seconds: 1.0, mode, measured, progress: None }
    }

    /// Runs a VM that obeys; returns the seconds at whose ends the VM was switched.
    fn obeys(pilot: &mut Flight, seconds: usize) -> Vec<usize> {
        let (mut mode, mut switched, mut at) = (Mode::Nested, 0, Vec::new());
        for n in 0..seconds {
            let choice = pilot.interval(&longing(mode, std::mem::take(&mut switched)));
            if choice.is_some_and(|c| c.verdict == Verdict::Switch) {
                (mode, switched) = (if mode == Mode::Nested { Mode::Shadow } else { Mode::Nested }, 1);
                at.push(n);
            }
        }
        at
    }

    const DSP: &str = "[[vm]]\nname = \"web\"\npolicy = \"dsp\"\nparameters = { interval_s = 1 }\n";

    #[test]
    fn a_vm_stays_its_least_time_and_the_policy_does_not_see_the_blackout() {
        let at = obeys(&mut pilot(&format!("[limits]\nmin_stay_s = 10\nblackout_s = 2\n{DSP}")), 60);
        assert!(at.len() >= 4, "{at:?}");
        // The interval of the switch is one more.
        assert!(at.windows(2).all(|w| w[1] - w[0] == 11), "{at:?}");
        let mut quick = pilot(&format!("[limits]\nmin_stay_s = 0\nblackout_s = 0\n{DSP}"));
        assert!(obeys(&mut quick, 60).len() > 10);
    }

    #[test]
    fn no_hour_has_more_switches_than_allowed() {
        let text = format!("[limits]\nmin_stay_s = 0\nblackout_s = 0\nmost_switches_per_hour = 5\n{DSP}");
        let at = obeys(&mut pilot(&text), 3 * 3600);
        assert!(at.windows(6).all(|w| w[5] - w[0] > 3600), "{at:?}");
        assert_eq!(at.len(), 15, "{at:?}");
        let mut one = pilot(&text);
        for _ in 0..5 {
            one.interval(&longing(Mode::Nested, 1));
        }
        let told = (0..9).find_map(|_| one.interval(&longing(Mode::Nested, 0))).unwrap();
        assert_eq!(told.verdict, Verdict::TooMany { switches: 5 }, "switches by others count");
    }

    #[test]
    fn an_adopted_vm_is_not_switched_at_once() {
        let mut adopted = pilot(&format!("[limits]\nmin_stay_s = 30\n{DSP}"));
        adopted.1 = Switches::just_now();
        let at = obeys(&mut adopted, 40);
        assert_eq!(at, [29]);
    }

    #[test]
    fn a_counter_that_no_interval_has_is_told() {
        let mut pilot = pilot(DSP);
        let mut blind = longing(Mode::Nested, 0);
        blind.measured.known = Counters::ALL.less(Counters::PAGE_FAULTS);
        assert_eq!(pilot.interval(&blind), None);
        assert_eq!(pilot.0.missing().unwrap().counter, "guest_page_faults");
        pilot.interval(&longing(Mode::Nested, 0));
        assert_eq!(pilot.0.missing(), None);
    }
}
