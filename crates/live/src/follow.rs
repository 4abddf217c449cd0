// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A policy that follows a VM, interval by interval. Replays of recordings and the daemon use the same
//! follower, so that both decide alike.

use crate::observation::Observation;
use bifold_policy::{
    Counters, Decision, Driver, Estimator, Interval, Log, Mode, Scale, Source, Spec, UnknownCounter,
};

/// What became of an interval.
#[derive(Debug, Clone, PartialEq)]
pub enum Followed {
    /// The policy did not see the interval: the VM was in no single mode, or a counter that the policy needs
    /// is unknown.
    LeftOut,
    /// The policy saw the interval, and decides later.
    NotDue,
    /// The policy decided.
    Decided(Decision),
}

/// A policy, and what it has seen of one VM.
pub struct Follower {
    spec: Spec,
    estimator: Option<Estimator>,
    interval_s: f64,
    /// Made at the first interval that the policy sees, because a policy starts in a mode.
    driver: Option<Driver>,
    /// The counters that some interval in one mode had.
    counted: Counters,
}

impl Follower {
    /// A policy that sees intervals of nominally `interval_s` seconds. The estimator tells policies that need
    /// it what the other mode would cost.
    pub fn new(spec: &Spec, estimator: Option<&Estimator>, interval_s: f64) -> Follower {
        let estimator = estimator.filter(|_| spec.needs_other()).cloned();
        Follower { spec: spec.clone(), estimator, interval_s, driver: None, counted: Counters::NONE }
    }

    /// The counters that the policy and its estimator read of an interval in this mode.
    fn needs_in(&self, mode: Mode) -> Counters {
        self.spec.needs().and(self.estimator.as_ref().map_or(Counters::NONE, |e| e.needs_in(mode)))
    }

    /// Takes the next interval.
    pub fn interval(&mut self, i: &Observation) -> Followed {
        let Some(mode) = i.mode else { return Followed::LeftOut };
        self.counted = self.counted.and(i.measured.known);
        let needs = self.needs_in(mode);
        // Shares of cycles need all cycles too.
        let of_cycles = Counters::WALK_CYCLES.and(Counters::VMM_CYCLES);
        let shares = needs.less(of_cycles) != needs;
        if needs.less(i.measured.known) != Counters::NONE || (shares && i.measured.cycles.is_none()) {
            return Followed::LeftOut;
        }
        let Some(driver) = self.driver(mode) else { return Followed::LeftOut };
        let now = Interval {
            mode,
            sample: &i.measured.sample,
            cycles: i.measured.cycles.unwrap_or(0.0),
            // Without the scheduler's times, every interval counts as busy.
            load: i.measured.load.unwrap_or(1.0),
            seconds: i.seconds,
        };
        match driver.interval(now, &[]) {
            Some(mode) => Followed::Decided(Decision { mode, why: driver.log.take() }),
            None => Followed::NotDue,
        }
    }

    fn driver(&mut self, mode: Mode) -> Option<&mut Driver> {
        if self.driver.is_none() {
            // What an interval lacks is asked before the driver sees the interval.
            let estimator = self.estimator.as_ref().map_or(Counters::NONE, Estimator::needs);
            let known = self.spec.needs().and(estimator);
            let source = Source { interval_s: self.interval_s, known };
            let scale = Scale::both(1.0);
            let mut driver = Driver::new(&self.spec, mode, source, scale, self.estimator.as_ref()).ok()?;
            driver.log = Log::on();
            self.driver = Some(driver);
        }
        self.driver.as_mut()
    }

    /// The first counter that the policy needs and no interval so far has had; `None` once the policy has
    /// seen an interval.
    pub fn missing(&self) -> Option<UnknownCounter> {
        let all = bifold_host::Mode::BOTH.map(|mode| self.needs_in(mode.into()).less(self.counted));
        // An interval in one of the modes needs less.
        let fewest = all.into_iter().min_by_key(|missing| missing.iter().count())?;
        let counter = fewest.iter().next().filter(|_| self.driver.is_none())?;
        Some(UnknownCounter { policy: self.spec.name(), counter: counter.name })
    }
}
