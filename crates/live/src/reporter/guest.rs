// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's report at a reading, and the difference of two.

use crate::reporter::Report;
use std::collections::BTreeMap;
use std::time::Duration;

/// Least time of a vCPU for a page fault. A page fault enters and leaves the guest's kernel as a system call
/// does, and does more there. A system call alone takes 470 cycles on Zen 5
/// (`profiles/epyc-zen5-guest.toml`), and a page fault ten times as many.
const LEAST_FAULT_NS: u64 = 100;

/// The last report before a reading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuestReading {
    /// Changes with every connection and every boot of the guest, behind which counts start again.
    pub epoch: u64,
    /// How old the report may be.
    pub age: Duration,
    /// The report.
    pub report: Report,
}

/// What a guest reported of an interval. Reports and readings are not at the same moment: the counts may be
/// those of an interval that is up to two thirds shorter or longer; over several intervals they sum up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuestInterval {
    /// Page faults that the guest's kernel handled; `None` if the guest does not tell, or tells the
    /// impossible.
    pub page_faults: Option<u64>,
    /// What the guest's work did, by names that the work chose. A name that is new, or whose count went back,
    /// is not there.
    pub progress: BTreeMap<String, u64>,
}

impl GuestInterval {
    /// The difference of two readings, between which the vCPUs ran `ran_ns` in total; `None` if counts
    /// started again.
    pub(crate) fn between(
        earlier: &GuestReading,
        now: &GuestReading,
        ran_ns: Option<u64>,
        vcpus: usize,
    ) -> Option<GuestInterval> {
        if earlier.epoch != now.epoch {
            return None;
        }
        let (then, now) = (&earlier.report, &now.report);
        // What the earlier report did not know yet may be in the count.
        let before = u64::try_from(earlier.age.as_nanos()).unwrap_or(u64::MAX).saturating_mul(vcpus as u64);
        let most = ran_ns.map(|ran| ran.saturating_add(before) / LEAST_FAULT_NS);
        let faults = then.page_faults.zip(now.page_faults).and_then(|(then, now)| now.checked_sub(then));
        let difference =
            |(name, n): (&String, &u64)| Some((name.clone(), n.checked_sub(*then.progress.get(name)?)?));
        Some(GuestInterval {
            page_faults: faults.zip(most).filter(|(faults, most)| faults <= most).map(|(faults, _)| faults),
            progress: now.progress.iter().filter_map(difference).collect(),
        })
    }

    /// The progress of all names together; `None` if no name's is known.
    pub fn all_progress(&self) -> Option<u64> {
        // At most 16 names, each at most 2^53; more than 2^53 together is as little believed as of one name.
        let sum = (!self.progress.is_empty()).then(|| self.progress.values().sum());
        sum.filter(|n| *n <= crate::reporter::MOST_COUNT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reporter::{MOST_COUNT, MOST_NAMES};
    use proptest::prelude::*;

    fn reading(page_faults: Option<u64>, progress: &[(&str, u64)]) -> GuestReading {
        let progress = progress.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        let report = Report { page_faults, progress, ..Report::default() };
        GuestReading { epoch: 1, age: Duration::ZERO, report }
    }

    fn between(earlier: &GuestReading, now: &GuestReading) -> Option<GuestInterval> {
        // A millisecond of a vCPU.
        GuestInterval::between(earlier, now, Some(1_000_000), 1)
    }

    #[test]
    fn counts_are_differences_and_a_name_that_is_new_has_none() {
        let then = reading(Some(100), &[("tables", 5), ("gone", 1), ("back", 9)]);
        let now = reading(Some(170), &[("tables", 8), ("new", 3), ("back", 8)]);
        let interval = between(&then, &now).unwrap();
        assert_eq!(interval.page_faults, Some(70));
        assert_eq!(interval.progress, [("tables".to_owned(), 3)].into());
        assert_eq!((interval.all_progress(), GuestInterval::default().all_progress()), (Some(3), None));
    }

    #[test]
    fn what_no_guest_can_do_is_unknown() {
        let faults = |then, now| between(&reading(then, &[]), &reading(now, &[])).unwrap().page_faults;
        assert_eq!(faults(Some(100), Some(99)), None, "back");
        assert_eq!(faults(Some(0), Some(10_000)), Some(10_000));
        assert_eq!(faults(Some(0), Some(10_001)), None, "more than one in 100 ns");
        assert_eq!((faults(None, Some(5)), faults(Some(5), None)), (None, None));
        // The earlier report is a millisecond old, on two vCPUs.
        let old = GuestReading { age: Duration::from_millis(1), ..reading(Some(0), &[]) };
        let later =
            |n| GuestInterval::between(&old, &reading(Some(n), &[]), Some(1_000_000), 2).unwrap().page_faults;
        assert_eq!((later(30_000), later(30_001)), (Some(30_000), None));
        let idle = GuestInterval::between(&old, &reading(Some(1), &[]), None, 2).unwrap();
        assert_eq!(idle.page_faults, None, "without a time there is no bound");
    }

    #[test]
    fn behind_a_boot_or_a_connection_nothing_is_known() {
        let later = GuestReading { epoch: 2, ..reading(Some(170), &[]) };
        assert_eq!(between(&reading(Some(100), &[]), &later), None);
    }

    proptest! {
        #[test]
        fn no_reports_give_counts_above_the_bounds(
            text in "(\\{\"schema\":\"bifold.report/1\",\"page_faults\":[0-9]{1,19},\"progress\":\\{\"a\":[0-9]{1,19}\\}\\}\n){2,6}",
            ran in 0..1u64 << 40,
            age in 0..1u64 << 40,
        ) {
            let mut all = Vec::new();
            crate::reporter::Reports::default().read(text.as_bytes(), |report| all.push(report));
            for pair in all.windows(2) {
                let age = Duration::from_nanos(age);
                let of = |n: usize| GuestReading { epoch: 1, age, report: pair[n].clone() };
                let interval = GuestInterval::between(&of(0), &of(1), Some(ran), 4).unwrap();
                let most = (ran + 4 * age.as_nanos() as u64) / LEAST_FAULT_NS;
                prop_assert!(interval.page_faults.is_none_or(|n| n <= most));
                prop_assert!(interval.all_progress().is_none_or(|n| n <= MOST_NAMES as u64 * MOST_COUNT));
            }
        }
    }
}
