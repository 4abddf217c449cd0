// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decides when KSM runs and how many pages it scans, by the rule of ksmtuned, the service that distributions
//! ship with KVM. The rule is applied to the experiment's own memory.
//!
//! It compares two amounts of free memory of an imagined host with a threshold: the memory that would be free
//! without sharing, and the memory that is free. KSM runs while the first is below the threshold. Merging
//! does not change the first amount, so KSM continues once it has begun, as under ksmtuned, which compares
//! committed memory. While the second amount is below the threshold too, each step adds `boost` pages per
//! wake-up; otherwise it removes `decay` pages.

use super::spec::StartSpec;

/// How KSM has to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Orders {
    /// Whether KSM runs.
    pub run: bool,
    /// Pages per wake-up, if the tuner sets them.
    pub pages_to_scan: Option<u64>,
}

/// The rule and its state.
#[derive(Debug, Clone)]
pub struct Tuner {
    spec: StartSpec,
    /// Memory of the imagined host in bytes.
    budget: u64,
    pages: u64,
    /// Time of the last change of the pages, in seconds.
    looked: Option<f64>,
}

impl Tuner {
    /// A tuner for a host with this memory, in bytes.
    pub fn new(spec: StartSpec, budget: u64) -> Tuner {
        let pages = spec.tuner.map_or(0, |t| t.min);
        Tuner { spec, budget, pages, looked: None }
    }

    /// The orders at `now` (seconds since the start). The guests use `used` bytes, and would use `unshared`
    /// bytes without sharing.
    pub fn look(&mut self, now: f64, unshared: u64, used: u64) -> Orders {
        let Some(share) = self.spec.free_below else { return Orders { run: true, pages_to_scan: None } };
        let threshold = share * self.budget as f64;
        let below = |taken: u64| self.budget as f64 - (taken as f64) < threshold;
        let run = below(unshared);
        let Some(t) = self.spec.tuner else { return Orders { run, pages_to_scan: None } };
        // ksmtuned does not change the number while KSM does not run.
        if run && self.looked.is_none_or(|last| now - last >= t.every) {
            let pages = if below(used) { self.pages + t.boost } else { self.pages.saturating_sub(t.decay) };
            self.pages = pages.clamp(t.min, t.max);
            self.looked = Some(now);
        }
        Orders { run, pages_to_scan: Some(self.pages) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::TunerSpec;
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn without_a_threshold_it_always_runs() {
        let mut tuner = Tuner::new(StartSpec::default(), 100);
        assert_eq!(tuner.look(0.0, 0, 0), Orders { run: true, pages_to_scan: None });
    }

    #[test]
    fn it_begins_below_the_threshold_and_goes_on_when_merging_frees_memory() {
        let spec = StartSpec { free_below: Some(0.75), tuner: None };
        let mut tuner = Tuner::new(spec, 100 * MIB);
        assert!(!tuner.look(0.0, 25 * MIB, 25 * MIB).run, "75 % free is not below 75 %");
        assert!(tuner.look(1.0, 26 * MIB, 26 * MIB).run);
        assert!(tuner.look(2.0, 80 * MIB, 5 * MIB).run, "resident pages stay resident when merged");
        assert!(!tuner.look(3.0, 5 * MIB, 5 * MIB).run, "until the guests are gone");
    }

    #[test]
    fn pages_follow_the_pressure_within_their_bounds() {
        let t = TunerSpec { every: 60.0, boost: 300, decay: 50, min: 64, max: 1250 };
        let spec = StartSpec { free_below: Some(0.2), tuner: Some(t) };
        let mut tuner = Tuner::new(spec, 100 * MIB);
        let mut pages =
            |at, unshared, used| tuner.look(at, unshared * MIB, used * MIB).pages_to_scan.unwrap();
        assert_eq!(pages(0.0, 10, 10), 64, "it does not run: nothing changes");
        assert_eq!(pages(1.0, 90, 90), 364);
        assert_eq!(pages(30.0, 90, 90), 364, "not before its time");
        assert_eq!([pages(61.0, 90, 90), pages(121.0, 90, 90), pages(181.0, 90, 90)], [664, 964, 1250]);
        assert_eq!(pages(241.0, 90, 40), 1200);
        for n in 0..40 {
            pages(301.0 + 60.0 * f64::from(n), 90, 40);
        }
        assert_eq!(pages(1e6, 90, 40), 64);
    }
}
