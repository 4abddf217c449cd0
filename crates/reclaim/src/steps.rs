// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Timelines of several guests on one clock: their intervals differ, and a plan decides for all at the same
//! times.

use crate::grid::Curve;
use crate::timeline::MemoryTimeline;

/// What a guest needs in one step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step {
    /// Misses by size.
    pub curve: Curve,
    /// Frames in use at the end, with memory without end.
    pub in_use: f64,
    /// Distinct frames used.
    pub working_set: f64,
    /// Those of them that were written.
    pub dirty: f64,
}

/// The longest of the files' mean intervals, in s.
pub(crate) fn longest_interval(timelines: &[&MemoryTimeline]) -> f64 {
    let mean = |t: &&MemoryTimeline| t.seconds() / t.intervals.len() as f64;
    timelines.iter().map(mean).fold(0.0, f64::max)
}

/// A timeline in steps of `length` s. A guest is idle after its end.
///
/// Of an interval that is partly in a step, the step has the same part of the misses: the interval's are
/// taken as spread evenly. The working set is the largest of the intervals', which is the least that it can
/// be; a part of an interval has the interval's.
pub(crate) fn steps(timeline: &MemoryTimeline, length: f64, count: usize) -> Vec<Step> {
    let idle = Step { curve: Curve::flat(&timeline.curve(0)), in_use: 0.0, working_set: 0.0, dirty: 0.0 };
    let mut steps = vec![idle; count];
    let (mut begin, mut in_use) = (0.0, 0.0);
    for (i, interval) in timeline.intervals.iter().enumerate() {
        let end = begin + interval.seconds;
        let curve = timeline.curve(i);
        let (from, to) = ((begin / length) as usize, (end / length).ceil() as usize);
        for (n, step) in steps.iter_mut().enumerate().take(to).skip(from) {
            let overlap = end.min((n + 1) as f64 * length) - begin.max(n as f64 * length);
            let part = overlap / interval.seconds;
            // What is left by rounding is no part.
            if part < 1e-9 {
                continue;
            }
            step.curve.add(&curve, part);
            // What is in use grows as evenly as first references come.
            let passed = ((((n + 1) as f64 * length).min(end) - begin) / interval.seconds).min(1.0);
            step.in_use = in_use + (interval.in_use as f64 - in_use) * passed;
            step.working_set = step.working_set.max(interval.working_set as f64);
            step.dirty = step.dirty.max(interval.dirty as f64);
        }
        (begin, in_use) = (end, interval.in_use as f64);
    }
    // An idle guest keeps what it had.
    for n in 1..count {
        if steps[n].working_set == 0.0 && steps[n].curve.misses(0.0) == 0.0 {
            steps[n].in_use = steps[n - 1].in_use;
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{About, Interval};

    #[test]
    fn intervals_of_any_length_keep_their_sums() {
        let interval = |seconds: f64, references| Interval {
            seconds,
            instructions: 1,
            working_set: references / 10,
            dirty: 1,
            in_use: references / 10,
            references,
            first: references / 4,
            misses: vec![references / 2, references / 4],
        };
        let timeline = MemoryTimeline {
            about: About { guest_frames: 100, ..About::default() },
            sizes: vec![64, 100],
            intervals: vec![interval(1.0, 400), interval(0.5, 800), interval(2.0, 40)],
        };
        assert_eq!(longest_interval(&[&timeline]), 3.5 / 3.0);
        let sets = |length: f64, count| -> Vec<f64> {
            let steps = steps(&timeline, length, count);
            let sum = |f: &dyn Fn(&Step) -> f64| steps.iter().map(f).sum::<f64>();
            assert!((sum(&|s| s.curve.misses(0.0)) - 1240.0).abs() < 1e-6);
            assert!((sum(&|s| s.curve.misses(64.0)) - 620.0).abs() < 1e-6);
            assert!((sum(&|s| s.curve.first()) - 310.0).abs() < 1e-6);
            steps.iter().map(|s| s.working_set).collect()
        };
        assert_eq!(sets(1.0, 5), [40.0, 80.0, 4.0, 4.0, 0.0]);
        assert_eq!(sets(0.75, 5), [40.0, 80.0, 4.0, 4.0, 4.0]);
        assert_eq!(sets(10.0, 1), [80.0]);
        assert_eq!(
            steps(&timeline, 1.0, 5).iter().map(|s| s.in_use).collect::<Vec<_>>(),
            [40.0, 61.0, 23.0, 4.0, 4.0]
        );
    }
}
