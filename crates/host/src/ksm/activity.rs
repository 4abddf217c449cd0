// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts KSM's work up to a moment, and the change between two moments.

use super::{Counter, Counters, Ksmd};
use crate::VmStat;

/// KSM's work and its cost up to a moment. A figure that the kernel lacks is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Activity {
    /// The moment, in seconds of the caller's clock.
    pub at_s: f64,
    /// Pages that share a merged frame now (`pages_sharing`).
    pub sharing: Option<i64>,
    /// Pages that ksmd has visited.
    pub scanned: Option<i64>,
    /// Merged pages copied because a guest wrote to them.
    pub copies: Option<u64>,
    /// Merged pages copied because they came back from swap.
    pub swapped_in: Option<u64>,
    /// CPU time of ksmd, seconds.
    pub ksmd_cpu_s: Option<f64>,
}

impl Activity {
    /// The boot: all counts and the clock are 0.
    pub const BOOT: Activity = Activity {
        at_s: 0.0,
        sharing: Some(0),
        scanned: Some(0),
        copies: Some(0),
        swapped_in: Some(0),
        ksmd_cpu_s: Some(0.0),
    };

    /// The activity from readings of one moment.
    pub fn of(at_s: f64, counters: &Counters, vmstat: &VmStat, ksmd: Option<Ksmd>) -> Activity {
        Activity {
            at_s,
            sharing: counters.get(Counter::PagesSharing),
            scanned: counters.get(Counter::PagesScanned),
            copies: vmstat.get("cow_ksm"),
            swapped_in: vmstat.get("ksm_swpin_copy"),
            ksmd_cpu_s: ksmd.map(|k| k.cpu.as_secs_f64()),
        }
    }

    /// The change since an earlier moment of the same clock.
    pub fn since(&self, earlier: &Activity) -> Change {
        let count = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        let level = |now: Option<i64>, then: Option<i64>| Some(now? - then?);
        Change {
            seconds: self.at_s - earlier.at_s,
            sharing: level(self.sharing, earlier.sharing),
            scanned: level(self.scanned, earlier.scanned),
            copies: count(self.copies, earlier.copies),
            swapped_in: count(self.swapped_in, earlier.swapped_in),
            ksmd_cpu_s: self.ksmd_cpu_s.zip(earlier.ksmd_cpu_s).map(|(now, then)| now - then),
        }
    }
}

/// The change between two moments.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // as in Activity
pub struct Change {
    pub seconds: f64,
    pub sharing: Option<i64>,
    pub scanned: Option<i64>,
    pub copies: Option<u64>,
    pub swapped_in: Option<u64>,
    pub ksmd_cpu_s: Option<f64>,
}

impl Change {
    /// A change per second. An interval shorter than a millisecond counts as a millisecond.
    pub fn per_second(&self, change: f64) -> f64 {
        change / self.seconds.max(1e-3)
    }

    /// CPU time of ksmd as a share of one processor; `None` if no time passed.
    pub fn ksmd_share(&self) -> Option<f64> {
        Some(self.ksmd_cpu_s? / Some(self.seconds).filter(|s| *s > 0.0)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_the_difference_and_absent_where_either_moment_lacks_it() {
        let before = Activity { at_s: 10.0, sharing: Some(900), copies: Some(5), ..Activity::default() };
        let after = Activity {
            at_s: 12.5,
            sharing: Some(400),
            copies: Some(4),
            ksmd_cpu_s: Some(1.0),
            ..Activity::default()
        };
        let change = after.since(&before);
        assert_eq!((change.seconds, change.sharing, change.ksmd_cpu_s), (2.5, Some(-500), None));
        assert_eq!(change.copies, Some(0), "vmstat sums its processors without a lock");
        assert_eq!(change.per_second(-500.0), -200.0);
        let since_boot = after.since(&Activity::BOOT);
        assert_eq!((since_boot.ksmd_share(), since_boot.scanned), (Some(0.08), None));
        assert_eq!(Activity::BOOT.since(&Activity::BOOT).ksmd_share(), None);
    }
}
