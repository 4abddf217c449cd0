// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The counts that are judged.

use super::{Moved, PlaceNames};
use bifold_model::{Config, Costs, Sample};

/// A count of a run, which places may have as well.
pub(super) struct Count {
    pub name: &'static str,
    /// For people.
    pub words: &'static str,
    pub of_run: fn(&Sample) -> i64,
    pub of_place: Option<fn(&Costs) -> i64>,
    /// A smaller change does not count: a short program has few events, of which one more is many percent.
    pub least: i64,
}

/// Least change of a number of events, and of cycles.
const EVENTS: i64 = 100;
const CYCLES: i64 = 100_000;

pub(super) const COUNTS: [Count; 7] = [
    Count {
        name: "tlb_misses",
        words: "TLB misses",
        of_run: |s| s.tlb_misses() as i64,
        of_place: Some(|c| c.tlb_misses as i64),
        least: EVENTS,
    },
    Count { name: "walks", words: "walks", of_run: |s| s.walks as i64, of_place: None, least: EVENTS },
    Count {
        name: "walk_references",
        words: "references of walks",
        of_run: |s| (s.guest_refs + s.host_refs) as i64,
        of_place: None,
        least: EVENTS,
    },
    Count {
        name: "walk_cycles",
        words: "walk cycles",
        of_run: |s| s.walk_cycles as i64,
        of_place: Some(|c| c.walk_cycles as i64),
        least: CYCLES,
    },
    Count {
        name: "exits",
        words: "exits",
        of_run: |s| s.all_exits() as i64,
        of_place: Some(|c| c.exits as i64),
        least: EVENTS,
    },
    Count {
        name: "page_faults",
        words: "the guest's page faults",
        of_run: |s| s.guest_page_faults as i64,
        of_place: None,
        least: EVENTS,
    },
    Count {
        name: "extra_cycles",
        words: "extra cycles",
        of_run: |s| s.extra_cycles() as i64,
        of_place: Some(Costs::extra_cycles),
        least: CYCLES,
    },
];

impl Count {
    /// The change, if it is more than `worse_than` percent and at least `least`.
    pub fn moved(
        &self,
        worse_than: f64,
        least: i64,
        (before, now): (i64, i64),
        config: Config,
        place: Option<&PlaceNames>,
    ) -> Option<Moved> {
        let change = now - before;
        let percent = (before != 0).then(|| 100.0 * change as f64 / before.abs() as f64);
        let moved = change.abs() >= least && percent.is_none_or(|p| p.abs() > worse_than);
        moved.then(|| Moved {
            config: config.name(),
            place: place.cloned(),
            count: self.name.into(),
            before,
            now,
            percent,
        })
    }
}
