// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Between intervals as they come and a policy that decides at its own pace: the same for a
//! replay and for a VM that runs.

use crate::estimate::Estimator;
use crate::{Log, Mode, Other, Policy, Spec, View};
use bifold_model::Sample;

/// How policies' time is to the timeline's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// Seconds of a policy per second of the timeline: a capture of seconds stands for a run
    /// of minutes. 1 is real time.
    pub time: f64,
    /// What costs of switching are divided by, so that they keep their proportion to an
    /// interval.
    pub switch: f64,
}

impl Scale {
    /// Both by the same factor.
    pub fn both(factor: f64) -> Scale {
        Scale { time: factor, switch: factor }
    }

    /// Intervals of `interval_s` seconds of the timeline per decision of a policy that
    /// decides every `policy_s` seconds.
    pub fn every(&self, policy_s: f64, interval_s: f64) -> usize {
        (policy_s / (interval_s * self.time)).round().max(1.0) as usize
    }
}

/// One decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The mode of the next interval.
    pub mode: Mode,
    /// Why, if that was asked for.
    pub why: String,
}

/// A policy and what it is to see next.
pub struct Driver<'a> {
    policy: Box<dyn Policy>,
    needs_other: bool,
    every: usize,
    estimator: Option<&'a Estimator>,
    switch_scale: f64,
    seen: usize,
    sample: Sample,
    cycles: f64,
    other: Option<Other>,
    /// What the policy says.
    pub log: Log,
}

impl<'a> Driver<'a> {
    /// A policy at the start of a VM in mode `start` whose intervals are `interval_s` long.
    /// Without an estimator, costs of the other mode are to be given to [`Driver::interval`].
    pub fn new(
        spec: &Spec,
        start: Mode,
        interval_s: f64,
        scale: Scale,
        estimator: Option<&'a Estimator>,
    ) -> Driver<'a> {
        Driver {
            policy: spec.policy(start),
            needs_other: spec.needs_other(),
            every: scale.every(spec.interval_s(), interval_s),
            estimator,
            switch_scale: scale.switch,
            seen: 0,
            sample: Sample::default(),
            cycles: 0.0,
            other: None,
            log: Log::off(),
        }
    }

    /// Intervals per decision.
    pub fn every(&self) -> usize {
        self.every
    }

    /// Does the next [`Driver::interval`] have to be given the other mode's cost?
    pub fn wants_other(&self) -> bool {
        self.needs_other && self.estimator.is_none()
    }

    /// An interval has ended; the decision, if it is time for one. `other` is the other
    /// mode's cost for this interval, and of switching as seen from here.
    pub fn interval(
        &mut self,
        mode: Mode,
        sample: &Sample,
        cycles: f64,
        other: Option<Other>,
    ) -> Option<Mode> {
        if self.every == 1 {
            return Some(self.decide(mode, sample, cycles, other));
        }
        self.sample.add(sample);
        self.cycles += cycles;
        if let Some(o) = other {
            let sum = self.other.get_or_insert(Other { extra_cycles: 0.0, ..o });
            *sum = Other { extra_cycles: sum.extra_cycles + o.extra_cycles, ..o };
        }
        self.seen += 1;
        if self.seen < self.every {
            return None;
        }
        self.seen = 0;
        let (sample, cycles) = (std::mem::take(&mut self.sample), std::mem::take(&mut self.cycles));
        let other = self.other.take();
        Some(self.decide(mode, &sample, cycles, other))
    }

    fn decide(&mut self, mode: Mode, sample: &Sample, cycles: f64, known: Option<Other>) -> Mode {
        let other = match self.estimator {
            Some(e) if self.needs_other => Some(e.other(mode, sample, self.switch_scale)),
            _ => known,
        };
        self.policy.decide(&View { mode, sample, cycles, load: 1.0, other }, &mut self.log)
    }
}
