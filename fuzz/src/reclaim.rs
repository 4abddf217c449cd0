// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies for `bifold-reclaim`: timelines of memory.

use bifold_reclaim::{MemoryTimeline, PolicyName, Setting, plan};

/// A timeline of memory: an error, or a timeline over which policies replay.
pub fn memory_timeline(data: &[u8]) {
    let Ok(timeline) = MemoryTimeline::from_json(data, "fuzz".as_ref()) else { return };
    let frames = timeline.about.guest_frames;
    // Steps take time, whatever the file's length is.
    let step_s = Some(timeline.seconds() / 10.0);
    let guests = [("a".to_string(), timeline.clone()), ("b".to_string(), timeline)];
    for host_frames in [0, frames, frames * 3 / 2, frames * 3] {
        let setting = Setting { host_frames, floor_frames: 0, refault_s: 1e-4, step_s, time_scale: 100.0 };
        let Ok(plan) = plan(&guests, &PolicyName::ALL, &setting) else { continue };
        for policy in plan.policies {
            let mean = policy.guests.iter().map(|guest| guest.mean_frames).sum::<u64>();
            assert!(mean <= host_frames + 2, "{}: {mean} of {host_frames}", policy.name);
            assert!(policy.stall_seconds.is_finite() && policy.stall_seconds >= 0.0);
            let ratio = policy.worst.and_then(|worst| worst.ratio);
            assert!(ratio.is_none_or(|ratio| ratio.is_finite() && ratio >= 0.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{bytes, leaves, number};
    use super::*;
    use bifold_reclaim::{About, Interval};
    use proptest::prelude::*;
    use serde_json::Value;

    fn small() -> String {
        let interval = |i: u64| Interval {
            seconds: 0.1,
            instructions: 1_000_000,
            working_set: 300 + 100 * (i % 2),
            dirty: 50,
            in_use: 400,
            references: 10_000,
            first: if i == 0 { 400 } else { 0 },
            misses: if i == 0 { vec![4000, 900, 400] } else { vec![3000, 500, 0] },
        };
        let about = About { program: "small".into(), guest_frames: 600, ..About::default() };
        MemoryTimeline { about, sizes: vec![256, 400, 600], intervals: (0..8).map(interval).collect() }
            .to_json()
    }

    #[test]
    fn the_small_timeline_has_plans() {
        let timeline = MemoryTimeline::from_json(small().as_bytes(), "small".as_ref()).unwrap();
        let guests = [("a".to_string(), timeline)];
        let setting =
            Setting { host_frames: 300, floor_frames: 0, refault_s: 1e-4, step_s: None, time_scale: 1.0 };
        assert!(plan(&guests, &PolicyName::ALL, &setting).unwrap().policies[0].refaults > 0);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_timeline_or_refused(data in bytes(), text in "\\PC{0,200}") {
            memory_timeline(&data);
            memory_timeline(text.as_bytes());
        }

        #[test]
        fn a_timeline_with_values_changed_is_replayed_or_refused(
            changes in prop::collection::vec((any::<prop::sample::Index>(), number()), 1..4), cut in any::<prop::sample::Index>(),
        ) {
            let good = small();
            let mut document: Value = serde_json::from_str(&good).unwrap();
            for (at, value) in changes {
                let mut leaves = leaves(&mut document);
                let at = at.index(leaves.len());
                *leaves[at] = value;
            }
            memory_timeline(document.to_string().as_bytes());
            memory_timeline(&good.as_bytes()[..cut.index(good.len())]);
        }
    }
}
