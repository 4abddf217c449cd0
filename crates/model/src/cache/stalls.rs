// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a configuration waited: for its data beyond the first level, and for its walks.
//!
//! The stall of a simulated data access is multiplied by the number of lines that its line stands
//! for. A walk's references are known one by one, so those outside the sample are charged the
//! running mean of the references of their walk step: [`Stalls::unseen_reference`].

use super::classes::Classes;
use super::hierarchy::MOST_LEVELS;
use super::window::{FRACTION, Limits, SHARE, Windows};
use crate::profile::WalkCosts;

/// A new reference moves the mean of its step by 1/64 of the difference.
const MEAN_SHIFT: u32 = 6;

/// What waits: independent work, and dependent.
type ByDependence = [u64; 2];

/// The stalls of one configuration since the start.
#[derive(Debug, Clone)]
pub(crate) struct Stalls {
    /// Of data, cycles.
    data: ByDependence,
    /// Data accesses by index of the answering level, beyond the first.
    answers: [u64; MOST_LEVELS + 1],
    /// Of all walks, in 1/256 cycles.
    walks: ByDependence,
    /// Of independent data and walks: what is exposed beyond the overlaps, as too little else was near. In
    /// 1/65,536 cycles, and in 1/256 of that.
    alone: Alone<u64>,
    pub(super) windows: Windows,
    /// Mean latency by walk step, in 1/256 cycles.
    means: [[u32; 6]; 6],
    /// By walk step, references in the sample, and outside.
    seen: [[u64; 6]; 6],
    unseen: [[u64; 6]; 6],
    /// Per class.
    pub(super) classes: Vec<ClassStalls>,
}

/// Data and walks of independent accesses that overlap less than they might.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Alone<Walks> {
    data: u64,
    walks: Walks,
}

/// The part of one class, for the error of the sample.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ClassStalls {
    pub data: ByDependence,
    /// Latencies of walk references less the means of their steps, in 1/256 cycles.
    pub walks: [i64; 2],
    pub alone: Alone<i64>,
}

impl Stalls {
    pub fn new(walk: &WalkCosts, limits: Limits, classes: &Classes) -> Stalls {
        let mut means = [[0; 6]; 6];
        for (guest, row) in means.iter_mut().enumerate() {
            for (host, mean) in row.iter_mut().enumerate() {
                let cycles = match (guest, host) {
                    (1, 0) => walk.guest_leaf,
                    (_, 0) => walk.guest_upper,
                    (_, 1) => walk.host_leaf,
                    _ => walk.host_upper,
                };
                *mean = (cycles as u32) << FRACTION;
            }
        }
        Stalls {
            data: [0; 2],
            answers: [0; MOST_LEVELS + 1],
            walks: [0; 2],
            alone: Alone::default(),
            windows: Windows::new(limits),
            means,
            seen: [[0; 6]; 6],
            unseen: [[0; 6]; 6],
            classes: vec![ClassStalls::default(); classes.len() as usize],
        }
    }

    /// A data access of class `rank` waited `cycles` for the level of index `answers`, and stands for
    /// `weight` such accesses. `alone`: the share of an independent wait that is exposed beyond the overlap.
    #[inline]
    pub fn data(&mut self, rank: usize, weight: u64, answers: usize, cycles: u64, waits: Waits) {
        let Waits { dependent, alone } = waits;
        self.answers[answers] += weight;
        let cycles = cycles * weight;
        self.alone.data += cycles * alone;
        self.classes[rank].alone.data += cycles * alone;
        self.data[usize::from(dependent)] += cycles;
        self.classes[rank].data[usize::from(dependent)] += cycles;
    }

    /// A dependent load waited `cycles` for something other than a cache.
    #[inline]
    pub fn dependent(&mut self, cycles: u64) {
        self.data[1] += cycles;
    }

    /// A walk's reference of class `rank` took `cycles`. Line 0 says nothing of the others.
    #[inline]
    pub fn reference(&mut self, step: (usize, usize), rank: usize, cycles: u64, waits: Waits) {
        let Waits { dependent, alone } = waits;
        let cycles = cycles << FRACTION;
        self.alone.walks += (cycles * alone) >> FRACTION;
        self.walks[usize::from(dependent)] += cycles;
        if rank == 0 {
            return;
        }
        let mean = &mut self.means[step.0][step.1];
        let off = cycles as i64 - i64::from(*mean);
        *mean = (i64::from(*mean) + (off >> MEAN_SHIFT)) as u32;
        self.seen[step.0][step.1] += 1;
        self.classes[rank].walks[usize::from(dependent)] += off;
        self.classes[rank].alone.walks += (off * alone as i64) >> FRACTION;
    }

    /// A walk's reference outside the sample.
    #[inline(always)]
    pub fn unseen_reference(&mut self, step: (usize, usize), waits: Waits) {
        self.unseen[step.0][step.1] += 1;
        let cycles = u64::from(self.means[step.0][step.1]);
        self.walks[usize::from(waits.dependent)] += cycles;
        self.alone.walks += (cycles * waits.alone) >> FRACTION;
    }

    /// Cycles of data stalls if nothing is hidden, and how many of them the core hides.
    pub fn data_cycles(&self) -> (u64, u64) {
        let [independent, dependent] = self.data;
        (independent + dependent, self.windows.limits().hidden_data(independent, self.alone.data))
    }

    /// Cycles of walks if nothing is hidden, and how many of them the core hides.
    pub fn walk_cycles(&self) -> (u64, u64) {
        let [independent, dependent] = self.walks;
        let hidden = self.windows.limits().hidden_walks(independent, self.alone.walks);
        ((independent >> FRACTION) + (dependent >> FRACTION), hidden)
    }

    /// Data accesses that missed the level of this index, prefetched lines left out.
    pub fn misses(&self, level: usize) -> u64 {
        self.answers[level + 1..].iter().sum()
    }

    /// The standard error of what references outside the sample were charged. A step's mean comes from
    /// few references at first, and their latencies spread about as widely as the mean is
    /// high: a step without any reference in the sample may be wrong by all of it.
    pub(super) fn mean_error(&self) -> f64 {
        let steps = self.means.as_flattened().iter().zip(self.seen.as_flattened());
        let of = |((mean, seen), unseen): ((&u32, &u64), &u64)| {
            let mean = f64::from(*mean) / f64::from(1 << FRACTION);
            (*unseen as f64 * mean).powi(2) / (1.0 + *seen as f64)
        };
        steps.zip(self.unseen.as_flattened()).map(of).sum::<f64>().sqrt()
    }

    /// By class: the cycles of data, and of walks beyond what their steps' means say, hidden ones left out,
    /// of the lines that the class stands for. The spread within a stratum is the error of the sample.
    pub(super) fn class_estimates(&self) -> Vec<f64> {
        let limits = self.windows.limits();
        let share = f64::from(1 << SHARE);
        let [seen, unseen] = [&self.seen, &self.unseen].map(|n| n.as_flattened().iter().sum::<u64>() as f64);
        let weight = unseen / seen.max(1.0);
        let of = |c: &ClassStalls| {
            let data = c.data[0] as f64 / limits.data + c.data[1] as f64 + c.alone.data as f64 / share;
            let walks = c.walks[0] as f64 / limits.walk + c.walks[1] as f64;
            data + weight * (walks / f64::from(1 << FRACTION) + c.alone.walks as f64 / share)
        };
        self.classes.iter().map(of).collect()
    }
}

/// How an access waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waits {
    /// For all of its work.
    pub dependent: bool,
    /// Share of independent work that is exposed beyond the overlap, in 1/65,536.
    pub alone: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile;
    use crate::cache::CacheMode;
    use proptest::prelude::*;

    fn stalls(mode: CacheMode) -> Stalls {
        with(mode, &["memory.data_overlap=4.0", "memory.walk_overlap=2.0"])
    }

    fn with(mode: CacheMode, set: &[&str]) -> Stalls {
        let set: Vec<String> = set.iter().map(|s| s.to_string()).collect();
        let profile = Profile::load("geometry-g", &set).unwrap();
        Stalls::new(&profile.walk, Limits::new(&profile), &Classes::new(mode, &profile.cache, true))
    }

    const INDEPENDENT: Waits = Waits { dependent: false, alone: 0 };
    const DEPENDENT: Waits = Waits { dependent: true, alone: 0 };

    #[test]
    fn independent_stalls_overlap_and_dependent_ones_do_not() {
        let mut s = stalls(CacheMode::Exact);
        s.data(3, 1, 3, 100, INDEPENDENT);
        s.data(4, 1, 3, 50, DEPENDENT);
        assert_eq!(s.data_cycles(), (150, 75));
        s.reference((1, 0), 3, 80, INDEPENDENT);
        s.reference((1, 0), 3, 40, DEPENDENT);
        assert_eq!(s.walk_cycles(), (120, 40));
        assert_eq!([0, 1, 2].map(|level| s.misses(level)), [2, 2, 2]);
    }

    #[test]
    fn what_is_alone_is_exposed_beyond_the_overlap() {
        let quarter = Waits { dependent: false, alone: 1 << (SHARE - 2) };
        let set = ["memory.data_overlap=4.0", "memory.walk_overlap=2.0", "cpu.reorder_window=300"];
        let mut s = with(CacheMode::Exact, &set);
        s.data(3, 2, 3, 100, quarter);
        // A quarter is exposed by the overlap of 4, and a quarter beyond.
        assert_eq!(s.data_cycles(), (200, 100));
        s.reference((1, 0), 3, 80, quarter);
        assert_eq!(s.walk_cycles(), (80, 20));
        let means = s.walk_cycles().0;
        s.unseen_reference((1, 0), quarter);
        let (all, hidden) = s.walk_cycles();
        assert_eq!(hidden, 20 + (all - means) / 4);
    }

    #[test]
    fn a_reference_outside_the_sample_takes_the_mean_of_its_step() {
        let mut s = stalls(CacheMode::Sampled);
        let prior = Profile::load("geometry-g", &[]).unwrap().walk.guest_leaf;
        s.unseen_reference((1, 0), DEPENDENT);
        assert_eq!(s.walk_cycles().0, prior);
        for _ in 0..2000 {
            s.reference((1, 0), 3, 200, DEPENDENT);
        }
        let before = s.walk_cycles().0;
        s.unseen_reference((1, 0), DEPENDENT);
        assert!((198..=201).contains(&(s.walk_cycles().0 - before)));
        // Line 0 is counted as it is, and the mean keeps out of it.
        s.reference((2, 0), 0, 4, DEPENDENT);
        let before = s.walk_cycles().0;
        s.unseen_reference((2, 0), DEPENDENT);
        assert_eq!(s.walk_cycles().0 - before, Profile::load("geometry-g", &[]).unwrap().walk.guest_upper);
    }

    proptest! {
        #[test]
        fn what_is_hidden_never_falls(
            waits in proptest::collection::vec((1u64..600, 0u32..=3, any::<bool>(), any::<bool>()), 1..300),
            window in any::<bool>(),
        ) {
            let set = ["memory.data_overlap=4.0", "memory.walk_overlap=2.0", "cpu.reorder_window=300"];
            let mut s = with(CacheMode::Exact, &set[..2 + usize::from(window)]);
            let mut last = [(0, 0); 2];
            for (cycles, quarters, seen, data) in waits {
                // At most what the overlap hides, and nothing without a window.
                let most = if data { 3 } else { 2 };
                let alone = u64::from(quarters.min(most) * u32::from(window)) << (SHARE - 2);
                let waits = Waits { dependent: false, alone };
                match (data, seen) {
                    (true, _) => s.data(3, 1, 3, cycles, waits),
                    (_, true) => s.reference((1, 0), 3, cycles, waits),
                    _ => s.unseen_reference((1, 0), waits),
                }
                let now = [s.data_cycles(), s.walk_cycles()];
                for ((all, hidden), (all_before, before)) in now.into_iter().zip(last) {
                    prop_assert!(before <= hidden && all_before + hidden <= all + before, "{last:?} {now:?}");
                }
                last = now;
            }
        }
    }
}
