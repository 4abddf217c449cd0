// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Working sets against sets of frames.

use bifold_reclaim::{WorkingSet, WorkingSets};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

proptest! {
    #[test]
    fn are_the_sets_of_frames_used_and_written_in_each_interval(
        length in 1u64..300,
        references in proptest::collection::vec((0u64..50, any::<bool>(), 0u64..20, 0u64..6), 0..1000),
    ) {
        let mut sets = WorkingSets::new(48, NonZeroU64::new(length).expect("not 0")).expect("few frames");
        let mut expected: BTreeMap<u64, [BTreeSet<u64>; 2]> = BTreeMap::new();
        let (mut now, mut latest, mut outside) = (0, 0, 0);
        for (frame, write, step, back) in references {
            now += step;
            // A vCPU that lags behind.
            let at = if back == 0 { now / 2 } else { now };
            latest = at.max(latest);
            sets.reference(frame, write, at);
            if frame >= 48 {
                outside += 1;
                continue;
            }
            let [used, written] = expected.entry(latest / length).or_default();
            used.insert(frame);
            if write {
                written.insert(frame);
            }
        }
        let expected: Vec<WorkingSet> = expected
            .into_iter()
            .map(|(interval, [used, written])| WorkingSet {
                interval,
                frames: used.len() as u64,
                dirty: written.len() as u64,
            })
            .collect();
        prop_assert_eq!(sets.outside(), outside);
        prop_assert!(expected.starts_with(sets.closed()));
        prop_assert_eq!(sets.finish(), expected);
    }
}
