// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory for a page's charts: refaults by size, and the working set over time.

use super::{FRAME, MemoryNeeds};
use bifold_reclaim::IntervalUse;
use serde::Serialize;

/// Most points of the working set: more would overlap on a screen.
const MAX_POINTS: usize = 400;
const MIB: f64 = (1 << 20) as f64;

/// Points of the charts.
#[derive(Debug, Serialize)]
pub(crate) struct MemoryChart {
    refaults: Vec<AtSize>,
    sets: Vec<Set>,
}

#[derive(Debug, PartialEq, Serialize)]
struct AtSize {
    mib: f64,
    how: &'static str,
    refaults: u64,
}

/// The memory in use in a stretch of the run, seconds of the ideal run and MiB.
#[derive(Debug, PartialEq, Serialize)]
struct Set {
    from: f64,
    to: f64,
    used: f64,
    written: f64,
}

impl MemoryNeeds {
    pub(crate) fn chart(&self) -> MemoryChart {
        let at = |how, frames, refaults| AtSize { mib: mib(frames), how, refaults };
        let lru = self.rows.iter().map(|row| at("LRU", row.frames, row.all()));
        let fewest = self.rows.iter().filter_map(|row| Some(at("fewest possible", row.frames, row.fewest?)));
        MemoryChart { refaults: lru.chain(fewest).collect(), sets: self.sets_in(MAX_POINTS) }
    }

    /// The working set in at most so many points. Of intervals that share a point, the one with the most
    /// counts.
    fn sets_in(&self, points: usize) -> Vec<Set> {
        let mut end = 0.0;
        let set = |intervals: &[IntervalUse]| {
            let from = end;
            let instructions: u64 = intervals.iter().map(|i| i.instructions).sum();
            end += instructions as f64 * self.seconds_per_instruction;
            let most = |of: fn(&IntervalUse) -> u64| mib(intervals.iter().map(of).max().unwrap_or(0));
            Set { from, to: end, used: most(|i| i.frames), written: most(|i| i.dirty) }
        };
        self.intervals.chunks(self.intervals.len().div_ceil(points).max(1)).map(set).collect()
    }
}

fn mib(frames: u64) -> f64 {
    (frames * FRAME) as f64 / MIB
}

#[cfg(test)]
mod tests {
    use crate::MemoryNeeds;
    use bifold_model::{Model, Options, Profile, UseOptions};
    use bifold_trace::Generator;
    use std::num::NonZeroU64;

    #[test]
    fn curves_have_each_size_and_sets_the_whole_run() {
        let generator = Generator::parse("t:20000").unwrap();
        let profile = Profile::load("i5-7600", &[]).unwrap();
        let options = Options { guest_frames: generator.guest_frames(), ..Options::default() };
        let mut model = Model::new(&profile, options);
        model.watch_uses(UseOptions { interval: NonZeroU64::new(1000).unwrap(), optimum: 1 << 20 }).unwrap();
        generator.run(&mut |words| model.consume(words)).unwrap();
        let uses = model.take_uses().unwrap();
        let outcome = model.finish();
        let needs = MemoryNeeds::of(&outcome, &uses, &[1024, 2048], 1e-4);
        let chart = needs.chart();
        let of = |how| chart.refaults.iter().filter(move |p| p.how == how).collect::<Vec<_>>();
        assert_eq!(of("LRU").iter().map(|p| p.mib).collect::<Vec<_>>(), [4.0, 8.0]);
        assert!(of("fewest possible").iter().zip(of("LRU")).all(|(a, b)| a.refaults <= b.refaults));
        let intervals = uses.intervals();
        assert!(intervals.len() > 2 && chart.sets.len() == intervals.len());
        let all: u64 = intervals.iter().map(|i| i.instructions).sum();
        let all = all as f64 * needs.seconds_per_instruction;
        let most = intervals.iter().map(|i| i.frames).max().unwrap() as f64 / 256.0;
        for sets in [&chart.sets, &needs.sets_in(2)] {
            assert!((sets.last().unwrap().to / all - 1.0).abs() < 1e-9);
            assert_eq!(sets.iter().map(|s| s.used).fold(0.0, f64::max), most);
        }
        assert_eq!(needs.sets_in(2).len(), 2);
    }
}
