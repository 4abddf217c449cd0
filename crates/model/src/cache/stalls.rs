// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a configuration waited: for its data beyond the first level, and for its walks.
//!
//! The stall of a simulated data access is multiplied by the number of lines that its line stands
//! for. A walk's references are known one by one, so those outside the sample are charged the
//! running mean of the references of their walk step: [`Stalls::unseen_reference`].

use super::classes::Classes;
use super::hierarchy::MOST_LEVELS;
use crate::profile::WalkCosts;

/// Means are kept in 1/256 cycles.
const FRACTION: u32 = 8;
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
    /// Mean latency by walk step, in 1/256 cycles.
    means: [[u32; 6]; 6],
    /// By walk step, references in the sample, and outside.
    seen: [[u64; 6]; 6],
    unseen: [[u64; 6]; 6],
    /// Per class.
    pub(super) classes: Vec<ClassStalls>,
}

/// The part of one class, for the error of the sample.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ClassStalls {
    pub data: ByDependence,
    /// Latencies of walk references less the means of their steps, in 1/256 cycles.
    pub walks: [i64; 2],
}

impl Stalls {
    pub fn new(walk: &WalkCosts, classes: &Classes) -> Stalls {
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
            means,
            seen: [[0; 6]; 6],
            unseen: [[0; 6]; 6],
            classes: vec![ClassStalls::default(); classes.len() as usize],
        }
    }

    /// A data access of class `rank` waited `cycles` for the level of index `answers`, and stands for
    /// `weight` such accesses.
    #[inline]
    pub fn data(&mut self, rank: usize, weight: u64, answers: usize, cycles: u64, dependent: bool) {
        self.answers[answers] += weight;
        let cycles = cycles * weight;
        self.data[usize::from(dependent)] += cycles;
        self.classes[rank].data[usize::from(dependent)] += cycles;
    }

    /// A walk's reference of class `rank` took `cycles`. Line 0 says nothing of the others.
    #[inline]
    pub fn reference(&mut self, step: (usize, usize), rank: usize, cycles: u64, dependent: bool) {
        let cycles = cycles << FRACTION;
        self.walks[usize::from(dependent)] += cycles;
        if rank == 0 {
            return;
        }
        let mean = &mut self.means[step.0][step.1];
        let off = cycles as i64 - i64::from(*mean);
        *mean = (i64::from(*mean) + (off >> MEAN_SHIFT)) as u32;
        self.seen[step.0][step.1] += 1;
        self.classes[rank].walks[usize::from(dependent)] += off;
    }

    /// A walk's reference outside the sample.
    #[inline]
    pub fn unseen_reference(&mut self, step: (usize, usize), dependent: bool) {
        self.unseen[step.0][step.1] += 1;
        self.walks[usize::from(dependent)] += u64::from(self.means[step.0][step.1]);
    }

    /// Cycles of data stalls if nothing is hidden, and how many of them `overlap` hides.
    pub fn data_cycles(&self, overlap: f64) -> (u64, u64) {
        let [independent, dependent] = self.data;
        (independent + dependent, hidden(independent, overlap))
    }

    /// Cycles of walks if nothing is hidden, and how many of them `overlap` hides.
    pub fn walk_cycles(&self, overlap: f64) -> (u64, u64) {
        let [independent, dependent] = self.walks.map(|cycles| cycles >> FRACTION);
        (independent + dependent, hidden(independent, overlap))
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

    /// By class: the cycles of data, and of walks beyond what their steps' means say, hidden ones left out, of the lines
    /// that the class stands for. The spread within a stratum is the error of the sample.
    pub(super) fn class_estimates(&self, data_overlap: f64, walk_overlap: f64) -> Vec<f64> {
        let [seen, unseen] = [&self.seen, &self.unseen].map(|n| n.as_flattened().iter().sum::<u64>() as f64);
        let weight = unseen / seen.max(1.0);
        let of = |c: &ClassStalls| {
            let data = c.data[0] as f64 / data_overlap + c.data[1] as f64;
            let walks = c.walks[0] as f64 / walk_overlap + c.walks[1] as f64;
            data + weight * walks / f64::from(1 << FRACTION)
        };
        self.classes.iter().map(of).collect()
    }
}

/// The part of independent stalls that an overlap of so many hides. Grows with the stalls, so
/// that the growth over any interval is no less than 0.
fn hidden(independent: u64, overlap: f64) -> u64 {
    (independent as f64 * (1.0 - 1.0 / overlap)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile;
    use crate::cache::CacheMode;

    fn stalls(mode: CacheMode) -> Stalls {
        let profile = Profile::load("geometry-g", &[]).unwrap();
        Stalls::new(&profile.walk, &Classes::new(mode, &profile.cache, true))
    }

    #[test]
    fn independent_stalls_overlap_and_dependent_ones_do_not() {
        let mut s = stalls(CacheMode::Exact);
        s.data(3, 1, 3, 100, false);
        s.data(4, 1, 3, 50, true);
        assert_eq!(s.data_cycles(4.0), (150, 75));
        assert_eq!(s.data_cycles(1.0), (150, 0));
        s.reference((1, 0), 3, 80, false);
        s.reference((1, 0), 3, 40, true);
        assert_eq!(s.walk_cycles(2.0), (120, 40));
        assert_eq!([0, 1, 2].map(|level| s.misses(level)), [2, 2, 2]);
    }

    #[test]
    fn a_reference_outside_the_sample_takes_the_mean_of_its_step() {
        let mut s = stalls(CacheMode::Sampled);
        let prior = Profile::load("geometry-g", &[]).unwrap().walk.guest_leaf;
        s.unseen_reference((1, 0), true);
        assert_eq!(s.walk_cycles(1.0).0, prior);
        for _ in 0..2000 {
            s.reference((1, 0), 3, 200, true);
        }
        let before = s.walk_cycles(1.0).0;
        s.unseen_reference((1, 0), true);
        assert!((198..=201).contains(&(s.walk_cycles(1.0).0 - before)));
        // Line 0 is counted as it is, and the mean keeps out of it.
        s.reference((2, 0), 0, 4, true);
        let before = s.walk_cycles(1.0).0;
        s.unseen_reference((2, 0), true);
        assert_eq!(s.walk_cycles(1.0).0 - before, Profile::load("geometry-g", &[]).unwrap().walk.guest_upper);
    }
}
