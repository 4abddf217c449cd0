// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The driver: feeds a policy, which decides at its own pace, the intervals of a replay or of a running VM.

use crate::counters::Counters;
use crate::estimate::Estimator;
use crate::{Log, Mode, Other, Policy, Spec, View};
use bifold_model::Sample;

/// Scale between a policy's time and the timeline's time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// Seconds of a policy per second of the timeline: a capture of seconds stands for a run of minutes. 1 is
    /// real time.
    pub time: f64,
    /// Divisor of the costs of switching, so that they keep their proportion to an interval.
    pub switch: f64,
}

impl Scale {
    /// Scales time and costs by the same factor.
    pub fn both(factor: f64) -> Scale {
        Scale { time: factor, switch: factor }
    }

    /// Number of intervals of `interval_s` seconds of the timeline per decision of a policy that decides
    /// every `policy_s` seconds.
    pub fn every(&self, policy_s: f64, interval_s: f64) -> usize {
        (policy_s / (interval_s * self.time)).round().max(1.0) as usize
    }
}

/// The source of samples: what it measures, and how often.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Source {
    /// Nominal length of an interval in seconds.
    pub interval_s: f64,
    /// Counters that the samples have. The other fields of a sample mean nothing.
    pub known: Counters,
}

impl Source {
    /// A simulation with intervals of this length: its samples have every counter.
    pub fn simulated(interval_s: f64) -> Source {
        Source { interval_s, known: Counters::ALL }
    }

    /// A simulation of a live host: its samples have every counter but those of waits.
    pub fn without_waits(interval_s: f64) -> Source {
        Source { interval_s, known: Counters::ALL.less(Counters::WAITS) }
    }
}

/// A policy needs a counter that the source of samples does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "policy {policy} needs the counter `{counter}`, which cannot be counted here: choose a policy that does not need the counter"
)]
pub struct UnknownCounter {
    /// The policy.
    pub policy: &'static str,
    /// The first counter that the source lacks.
    pub counter: &'static str,
}

/// An interval that has ended, as its source measured it.
#[derive(Debug, Clone, Copy)]
pub struct Interval<'a> {
    /// The mode in which the VM ran.
    pub mode: Mode,
    /// The interval's counts.
    pub sample: &'a Sample,
    /// All cycles: the guest's own work, walks and exits.
    pub cycles: f64,
    /// Share of the interval during which vCPUs ran, 0 to 1.
    pub load: f64,
    /// Real length of the interval, in seconds of the source.
    pub seconds: f64,
}

/// One decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The mode of the next interval.
    pub mode: Mode,
    /// The explanation, if explanations are on.
    pub why: String,
}

/// A policy, and the sums of what it sees at its next decision.
pub struct Driver {
    policy: Box<dyn Policy>,
    needs_other: bool,
    interval_s: f64,
    /// The source has [`Counters::WAITS`].
    waits: bool,
    every: usize,
    estimator: Option<Estimator>,
    switch_scale: f64,
    /// Since the last decision: time, time times load, counts, cycles, the other modes' costs.
    seconds: f64,
    ran: f64,
    sample: Sample,
    cycles: f64,
    others: Option<Vec<Other>>,
    /// The policy's explanations.
    pub log: Log,
}

impl Driver {
    /// A policy at the start of a VM in mode `start`. Without an estimator, the caller gives the other modes'
    /// costs to [`Driver::interval`].
    ///
    /// # Errors
    /// If the policy, or the estimator that it needs, reads a counter that the source does not have.
    pub fn new(
        spec: &Spec,
        start: Mode,
        source: Source,
        scale: Scale,
        estimator: Option<&Estimator>,
    ) -> Result<Driver, UnknownCounter> {
        let needs = match estimator {
            Some(estimator) if spec.needs_other() => spec.needs().and(estimator.needs()),
            _ => spec.needs(),
        };
        if let Some(counter) = needs.less(source.known).iter().next() {
            return Err(UnknownCounter { policy: spec.name(), counter: counter.name });
        }
        Ok(Driver {
            policy: spec.policy(start),
            needs_other: spec.needs_other(),
            interval_s: source.interval_s,
            waits: Counters::WAITS.less(source.known) == Counters::NONE,
            every: scale.every(spec.interval_s(), source.interval_s),
            estimator: estimator.cloned(),
            switch_scale: scale.switch,
            seconds: 0.0,
            ran: 0.0,
            sample: Sample::default(),
            cycles: 0.0,
            others: None,
            log: Log::off(),
        })
    }

    /// Number of intervals of nominal length per decision.
    pub fn every(&self) -> usize {
        self.every
    }

    /// Whether the next [`Driver::interval`] needs the other modes' costs from the caller.
    pub fn wants_others(&self) -> bool {
        self.needs_other && self.estimator.is_none()
    }

    /// Takes an interval that has ended, and returns the decision if one is due. `others` has the other
    /// modes' costs for this interval, and the costs of switching from here.
    ///
    /// A decision is due as soon as the nearest whole number of nominal intervals has passed since the last
    /// decision, into however many intervals the source divided that time.
    pub fn interval(&mut self, now: Interval, others: &[Other]) -> Option<Mode> {
        if self.every == 1 {
            return Some(self.decide(&now, others));
        }
        self.sample.add(now.sample);
        self.cycles += now.cycles;
        match &mut self.others {
            None => self.others = Some(others.into()),
            // Without one interval's cost, the cost of all is unknown.
            Some(sums) => sums.retain_mut(|sum| match others.iter().find(|o| o.mode == sum.mode) {
                Some(o) => {
                    *sum = Other { extra_cycles: sum.extra_cycles + o.extra_cycles, ..*o };
                    true
                }
                None => false,
            }),
        }
        self.seconds += now.seconds;
        self.ran += now.load * now.seconds;
        // Sums of lengths are not exact, so half an interval is allowed.
        if self.seconds < (self.every as f64 - 0.5) * self.interval_s {
            return None;
        }
        let (seconds, ran) = (std::mem::take(&mut self.seconds), std::mem::take(&mut self.ran));
        let (sample, cycles) = (std::mem::take(&mut self.sample), std::mem::take(&mut self.cycles));
        let others = self.others.take().unwrap_or_default();
        let all = Interval { mode: now.mode, sample: &sample, cycles, load: ran / seconds, seconds };
        Some(self.decide(&all, &others))
    }

    fn decide(&mut self, now: &Interval, known: &[Other]) -> Mode {
        let Interval { mode, sample, cycles, load, .. } = *now;
        let sample = &if self.waits { *sample } else { Counters::WAITS.zeroed(sample) };
        let estimated = match &self.estimator {
            Some(e) if self.needs_other => e.other(mode, sample, self.switch_scale),
            _ => None,
        };
        let others = if self.estimator.is_some() { estimated.as_slice() } else { known };
        self.policy.decide(&View { mode, sample, cycles, load, others }, &mut self.log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Named;

    fn interval(sample: &Sample, load: f64, seconds: f64) -> Interval<'_> {
        Interval { mode: Mode::Nested, sample, cycles: 1e6, load, seconds }
    }

    #[test]
    fn a_source_without_a_needed_counter_is_refused_by_name() {
        let scale = Scale::both(1.0);
        let refused = |policy: &str, known, estimator| {
            let spec = Named::load(policy).unwrap().spec;
            let source = Source { interval_s: 1.0, known };
            Driver::new(&spec, Mode::Nested, source, scale, estimator).err().map(|e| e.to_string())
        };
        let without = |names: &[&str]| Counters::ALL.less(Counters::of(names));
        assert_eq!(
            refused("dsp", without(&["guest_page_faults"]), None).unwrap(),
            "policy dsp needs the counter `guest_page_faults`, which cannot be counted here: choose a policy that \
             does not need the counter"
        );
        assert_eq!(refused("dsp", without(&["walk_cycles", "exits_unsync"]), None), None);
        assert_eq!(refused("always-nested", Counters::NONE, None), None);
        // What the estimator reads counts only where it is asked.
        let flushes = without(&["tlb_flushes"]);
        assert_eq!(refused("regret", flushes, None), None);
        let told = refused("regret", flushes, Some(Estimator::fitted()));
        assert!(
            told.as_ref().is_some_and(|t| t.contains("regret needs the counter `tlb_flushes`")),
            "{told:?}"
        );
        assert_eq!(refused("dsp", flushes, Some(Estimator::fitted())), None);
    }

    #[test]
    fn a_cost_that_is_unknown_in_one_interval_is_unknown_in_the_decisions_window() {
        let named =
            Named::parse("r", "policy = \"work-function\"\ninterval_s = 3.0\nswitch_factor = 1.0").unwrap();
        let mut driver =
            Driver::new(&named.spec, Mode::Nested, Source::simulated(1.0), Scale::both(1.0), None).unwrap();
        let sample = Sample { instructions: 1000, walk_cycles: 500_000, ..Sample::default() };
        let other = |mode| Other { mode, extra_cycles: 1.0, there_cycles: 9.0, back_cycles: 9.0 };
        let both = [other(Mode::Shadow), other(Mode::Offset)];
        let decided = |driver: &mut Driver, windows: [&[Other]; 3]| {
            let decisions = windows.map(|others| driver.interval(interval(&sample, 1.0, 1.0), others));
            decisions[2].unwrap()
        };
        assert_eq!(decided(&mut driver, [&both, &both[1..], &both]), Mode::Offset);
        assert_eq!(decided(&mut driver, [&both, &both[..1], &both]), Mode::Shadow);
        assert_eq!(decided(&mut driver, [&[], &both, &both]), Mode::Nested);
    }

    #[test]
    fn time_decides_when_it_is_time_and_load_is_weighted_by_it() {
        let sample = Sample { instructions: 1000, walk_cycles: 1, ..Sample::default() };
        // Decides every second, which is ten intervals; ignores intervals of little load.
        let named = Named::load("rpms-shipped").unwrap();
        let source = Source::simulated(named.spec.interval_s() / 10.0);
        let new = || Driver::new(&named.spec, Mode::Nested, source, Scale::both(1.0), None).unwrap();
        let until = |load: f64, length: f64| {
            let mut driver = new();
            driver.log = Log::on();
            let now = interval(&sample, load, length * source.interval_s);
            let n = (1..50).find(|_| driver.interval(now, &[]).is_some()).unwrap();
            (n, driver.log.take())
        };
        assert_eq!([1.0, 2.0, 0.5, 11.0].map(|length| until(1.0, length).0), [10, 5, 19, 1]);
        let (mut busy, mut idle) = (new(), new());
        (busy.log, idle.log) = (Log::on(), Log::on());
        for n in 0..10 {
            // A tenth of the time runs, once in one long interval and once in ten short ones.
            busy.interval(interval(&sample, if n == 0 { 1.0 } else { 0.0 }, source.interval_s), &[]);
            idle.interval(interval(&sample, 0.1, source.interval_s), &[]);
        }
        assert_eq!(busy.log.take(), idle.log.take());
    }
}
