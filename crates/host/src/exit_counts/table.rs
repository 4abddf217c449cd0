// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts of exits by thread, and what can be asked of them.

use super::counter::Counter;
use std::collections::BTreeMap;
use std::io;

/// Events by thread and second key.
pub(super) type Counts = BTreeMap<(u32, u64), u64>;

/// Why a count is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// This kernel does not have the event, or the event lacks a field.
    #[error("this kernel does not trace it")]
    NoEvent,
    /// The kernel's table was full.
    #[error("the kernel's table was full and dropped {events} events")]
    Dropped {
        /// Events of any threads that were not counted.
        events: u64,
    },
    /// A count is smaller than before: the tables are from different starts, or somebody cleared the
    /// kernel's.
    #[error("its count has fallen")]
    Fallen,
}

/// Counts of all threads at one moment, or over an interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitTable([Result<Counts, Unknown>; Counter::ALL.len()]);

/// Counts of some threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitCounts {
    /// Exits by the number of their reason, for [`reason_name`](super::reason_name).
    pub exits: Result<BTreeMap<u64, u64>, Unknown>,
    /// Page faults and violations by error code. An EPT violation has Intel's exit qualification instead of
    /// an error code. Device accesses are among them, except those that exit as `ept_misconfig`.
    pub page_faults: Result<BTreeMap<u64, u64>, Unknown>,
    /// Page faults that KVM injected into the guest: the guest's own.
    pub injected_page_faults: Result<u64, Unknown>,
    /// Shadow pages that became unsync.
    pub unsync_pages: Result<u64, Unknown>,
    /// Instructions that KVM emulated.
    pub emulated_instructions: Result<u64, Unknown>,
}

impl ExitTable {
    /// A table of the counters in order.
    pub(super) fn new(
        counts: [io::Result<Result<Counts, Unknown>>; Counter::ALL.len()],
    ) -> io::Result<ExitTable> {
        let mut table = ExitTable([const { Err(Unknown::NoEvent) }; Counter::ALL.len()]);
        for (place, counts) in table.0.iter_mut().zip(counts) {
            *place = counts?;
        }
        Ok(table)
    }

    /// What was counted since an earlier reading of the same counters.
    pub fn since(&self, earlier: &ExitTable) -> ExitTable {
        ExitTable(Counter::ALL.map(|counter| {
            let (now, then) = (self.of(counter)?, earlier.of(counter)?);
            if then.keys().any(|key| !now.contains_key(key)) {
                return Err(Unknown::Fallen);
            }
            let mut interval = Counts::new();
            for (key, count) in now {
                let before = then.get(key).copied().unwrap_or(0);
                let more = count.checked_sub(before).ok_or(Unknown::Fallen)?;
                if more > 0 {
                    interval.insert(*key, more);
                }
            }
            Ok(interval)
        }))
    }

    /// Sums over threads: a VM's are those of [`Host::vcpus`](crate::Host::vcpus).
    pub fn threads(&self, threads: &[u32]) -> ExitCounts {
        let mut threads = threads.to_vec();
        threads.sort_unstable();
        threads.dedup();
        let by_key = |counter| {
            let counts = self.of(counter)?;
            let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
            for &thread in &threads {
                for ((_, key), count) in counts.range((thread, 0)..=(thread, u64::MAX)) {
                    let sum = sums.entry(*key).or_default();
                    *sum = sum.saturating_add(*count);
                }
            }
            Ok(sums)
        };
        // These tables have one entry for each thread, with the key 0.
        let sum = |counter| by_key(counter).map(|sums| sums.get(&0).copied().unwrap_or(0));
        ExitCounts {
            exits: by_key(Counter::Exits),
            page_faults: by_key(Counter::PageFaults),
            injected_page_faults: sum(Counter::InjectedPageFaults),
            unsync_pages: sum(Counter::UnsyncPages),
            emulated_instructions: sum(Counter::EmulatedInstructions),
        }
    }

    /// Whether a table of the kernel is three quarters full, or has dropped events. Only a reading tells
    /// that, an interval does not.
    pub fn nearly_full(&self) -> bool {
        Counter::ALL.iter().any(|&counter| match self.of(counter) {
            Ok(counts) => counts.len() >= counter.size() / 4 * 3,
            Err(unknown) => matches!(unknown, Unknown::Dropped { .. }),
        })
    }

    fn of(&self, counter: Counter) -> Result<&Counts, Unknown> {
        self.0[counter as usize].as_ref().map_err(|unknown| *unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A table of exits; the other counters are unknown.
    fn exits(counts: &[((u32, u64), u64)]) -> ExitTable {
        of(Ok(counts.iter().copied().collect()))
    }

    fn of(exits: Result<Counts, Unknown>) -> ExitTable {
        let mut table = ExitTable([const { Err(Unknown::NoEvent) }; Counter::ALL.len()]);
        table.0[Counter::Exits as usize] = exits;
        table
    }

    #[test]
    fn the_places_of_counters_are_those_of_the_list() {
        for (place, &counter) in Counter::ALL.iter().enumerate() {
            assert_eq!(counter as usize, place);
        }
    }

    #[test]
    fn an_interval_has_what_came_and_threads_add_up() {
        let then = exits(&[((7, 30), 5), ((8, 48), 1)]);
        let now = exits(&[((7, 12), 1), ((7, 30), 5), ((8, 30), 2), ((8, 48), 4), ((9, 30), 50)]);
        let interval = now.since(&then);
        assert_eq!(interval, exits(&[((7, 12), 1), ((8, 30), 2), ((8, 48), 3), ((9, 30), 50)]));
        let vm = interval.threads(&[8, 7, 8, 100]);
        assert_eq!(vm.exits, Ok(BTreeMap::from([(12, 1), (30, 2), (48, 3)])));
        assert_eq!(vm.unsync_pages, Err(Unknown::NoEvent));
        assert_eq!(interval.threads(&[]).exits, Ok(BTreeMap::new()));
    }

    #[test]
    fn counts_that_fall_or_were_dropped_are_unknown() {
        let then = exits(&[((7, 30), 5), ((8, 48), 1)]);
        for now in [exits(&[((7, 30), 4), ((8, 48), 1)]), exits(&[((7, 30), 6)])] {
            assert_eq!(now.since(&then).threads(&[7]).exits, Err(Unknown::Fallen));
        }
        let dropped = of(Err(Unknown::Dropped { events: 3 }));
        for interval in [dropped.since(&then), then.since(&dropped)] {
            assert_eq!(interval.threads(&[7]).exits, Err(Unknown::Dropped { events: 3 }));
        }
        assert!(dropped.nearly_full());
    }

    #[test]
    fn a_table_is_nearly_full_at_three_quarters() {
        let three_quarters = 3 << 13;
        let counts = |n| (0..n).map(|n| ((n / 20, u64::from(n % 20)), 1)).collect();
        assert!(!of(Ok(counts(three_quarters - 1))).nearly_full());
        assert!(of(Ok(counts(three_quarters))).nearly_full());
    }

    proptest! {
        #[test]
        fn intervals_add_up(
            first in proptest::collection::btree_map((0..4u32, 0..4u64), 0..100u64, 0..16),
            second in proptest::collection::btree_map((0..4u32, 0..4u64), 0..100u64, 0..16),
        ) {
            let mut both = first.clone();
            second.iter().for_each(|(key, n)| *both.entry(*key).or_default() += n);
            let interval = of(Ok(both)).since(&of(Ok(first)));
            let came = second.into_iter().filter(|(_, n)| *n > 0).collect();
            prop_assert_eq!(interval, of(Ok(came)));
        }
    }
}
