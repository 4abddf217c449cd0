// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a configuration waited: for its data beyond the first level, and for its walks.
//!
//! Stalls of simulated data accesses stand for those of all classes alike. A walk's references
//! are known one by one, so those outside the sample are charged the running mean of the
//! references of their walk step: [`Stalls::unseen_reference`].

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
    /// Of the simulated lines alone, cycles.
    data: ByDependence,
    /// Data accesses by index of the answering level, beyond the first.
    answers: [u64; MOST_LEVELS + 1],
    /// Of all walks, in 1/256 cycles.
    walks: ByDependence,
    /// Mean latency by walk step, in 1/256 cycles.
    means: [[u32; 6]; 6],
    /// References in the sample, and outside.
    seen: u64,
    unseen: u64,
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
            seen: 0,
            unseen: 0,
            classes: vec![ClassStalls::default(); classes.len() as usize],
        }
    }

    /// A data access of the sample waited `cycles` for the level of index `answers`.
    #[inline]
    pub fn data(&mut self, rank: usize, answers: usize, cycles: u64, dependent: bool) {
        self.answers[answers] += 1;
        self.data[usize::from(dependent)] += cycles;
        self.classes[rank].data[usize::from(dependent)] += cycles;
    }

    /// A walk's reference of the sample took `cycles`.
    #[inline]
    pub fn reference(&mut self, step: (usize, usize), rank: usize, cycles: u64, dependent: bool) {
        let mean = &mut self.means[step.0][step.1];
        let cycles = cycles << FRACTION;
        let off = cycles as i64 - i64::from(*mean);
        *mean = (i64::from(*mean) + (off >> MEAN_SHIFT)) as u32;
        self.seen += 1;
        self.walks[usize::from(dependent)] += cycles;
        self.classes[rank].walks[usize::from(dependent)] += off;
    }

    /// A walk's reference outside the sample.
    #[inline]
    pub fn unseen_reference(&mut self, step: (usize, usize), dependent: bool) {
        self.unseen += 1;
        self.walks[usize::from(dependent)] += u64::from(self.means[step.0][step.1]);
    }

    /// Cycles of data stalls if nothing is hidden, and how many of them `overlap` hides.
    pub fn data_cycles(&self, scale: u64, overlap: f64) -> (u64, u64) {
        let [independent, dependent] = self.data.map(|cycles| cycles * scale);
        (independent + dependent, hidden(independent, overlap))
    }

    /// Cycles of walks if nothing is hidden, and how many of them `overlap` hides.
    pub fn walk_cycles(&self, overlap: f64) -> (u64, u64) {
        let [independent, dependent] = self.walks.map(|cycles| cycles >> FRACTION);
        (independent + dependent, hidden(independent, overlap))
    }

    /// Data accesses that missed the level of this index, prefetched lines left out.
    pub fn misses(&self, level: usize, scale: u64) -> u64 {
        self.answers[level + 1..].iter().sum::<u64>() * scale
    }

    /// By class: the estimate of all cycles, hidden ones left out, that this class alone gives for its
    /// share. Their spread is the error of the sample.
    pub(super) fn class_estimates(&self, scale: u64, data_overlap: f64, walk_overlap: f64) -> Vec<f64> {
        let weight = if self.seen == 0 { 0.0 } else { self.unseen as f64 / self.seen as f64 };
        let of = |c: &ClassStalls| {
            let data = c.data[0] as f64 / data_overlap + c.data[1] as f64;
            let walks = c.walks[0] as f64 / walk_overlap + c.walks[1] as f64;
            data * scale as f64 + weight * walks / f64::from(1 << FRACTION)
        };
        self.classes.iter().map(of).collect()
    }
}

/// The part of independent stalls that an overlap of so many hides. Grows with the stalls, so
/// that the growth over any interval is no less than 0.
fn hidden(independent: u64, overlap: f64) -> u64 {
    (independent as f64 * (1.0 - 1.0 / overlap)) as u64
}
