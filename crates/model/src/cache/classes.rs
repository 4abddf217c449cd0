// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lines that are simulated: classes of lines by their place in a 4 KB page.
//!
//! A line's place in its page, address bits 6 to 11, is the same in guest-virtual,
//! guest-physical and host-physical addresses, and every cache with at least 64 sets uses these bits
//! to choose a set. So the lines of one class share no set with those of another, and simulating some
//! classes alone loses nothing of them: it is a sample of sets, the same in every
//! configuration. An access is known to be outside the sample before it is translated.

use crate::profile::CacheLevel;

/// Lines of a 4 KB page.
const ALL: usize = 64;

/// Which lines go through the data caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheMode {
    /// Some, which stand for all: [`STRATA`].
    #[default]
    Sampled,
    /// All.
    Exact,
    /// None: ideal run and walks have fixed costs.
    Off,
}

/// A stratum of lines, which a sample represents by some of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stratum {
    /// The simulated lines of a sample.
    sample: &'static [u8],
    /// Lines that each simulated one stands for.
    weight: u64,
}

/// The strata of a sample. Objects begin at multiples of their size, so how lines are used depends on the
/// largest power of two that divides their number. Line 0 stands for itself: a sequential stream enters each
/// page there, and a prefetcher may stop before that line.
pub(crate) const STRATA: [Stratum; 5] = [
    Stratum { sample: &[0], weight: 1 },
    // Odd lines, of each remainder by 8.
    Stratum { sample: &[5, 23, 41, 59], weight: 8 },
    // Twice an odd number, of each remainder by 8.
    Stratum { sample: &[18, 46], weight: 8 },
    // Four times an odd number.
    Stratum { sample: &[28], weight: 8 },
    // Multiples of 8.
    Stratum { sample: &[56], weight: 7 },
];

/// The stratum of a line.
pub(crate) fn stratum(line: usize) -> usize {
    match line.trailing_zeros() {
        _ if line == 0 => 0,
        n => 1 + n.min(3) as usize,
    }
}

/// The simulated classes.
#[derive(Debug, Clone)]
pub(crate) struct Classes {
    /// A bit for each simulated class, and for each whose accesses the prefetcher watches.
    pub watched: u64,
    /// A bit for each simulated class.
    pub simulated: u64,
    rank: [u8; ALL],
    /// By rank.
    weights: Vec<u64>,
    /// By rank: the line.
    pub lines: Vec<u8>,
}

impl Classes {
    /// All classes, or those of the sample. Where a level has fewer than 64 sets, classes share
    /// sets, and all are simulated.
    pub fn new(mode: CacheMode, levels: &[CacheLevel], prefetch: bool) -> Classes {
        let exact = mode == CacheMode::Exact || levels.iter().any(|l| l.sets() < ALL as u64);
        let mut classes = Classes {
            watched: 0,
            simulated: 0,
            rank: [u8::MAX; ALL],
            weights: Vec::new(),
            lines: Vec::new(),
        };
        for line in 0..ALL as u8 {
            let of = &STRATA[stratum(line.into())];
            if exact || of.sample.contains(&line) {
                classes.simulated |= 1 << line;
                classes.rank[usize::from(line)] = classes.lines.len() as u8;
                classes.lines.push(line);
                classes.weights.push(if exact { 1 } else { of.weight });
            }
        }
        let simulated = classes.simulated;
        // The first line of a page is the neighbour of the last one of the page before.
        let neighbours = simulated.rotate_left(1) | simulated.rotate_right(1);
        classes.watched = if prefetch { simulated | neighbours } else { simulated };
        classes
    }

    /// Number of simulated classes.
    pub fn len(&self) -> u64 {
        self.lines.len() as u64
    }

    /// Lines that a simulated one stands for, by its class's rank.
    #[inline]
    pub fn weight(&self, rank: usize) -> u64 {
        self.weights[rank]
    }

    /// The number of the address's class among the simulated ones.
    #[inline]
    pub fn rank(&self, address: u64) -> Option<usize> {
        let rank = self.rank[(address >> 6) as usize % ALL];
        (rank != u8::MAX).then_some(usize::from(rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_ranks_in_order_and_watches_neighbours() {
        let sampled = Classes::new(CacheMode::Sampled, &[], true);
        assert_eq!((sampled.len(), sampled.rank(0x7000), sampled.weight(0)), (9, Some(0), 1));
        assert_eq!(sampled.rank(12 << 6), None);
        assert_eq!(sampled.watched.count_ones(), 3 * 9);
        assert_eq!(sampled.watched >> 62, 0b10);
        assert_eq!(Classes::new(CacheMode::Sampled, &[], false).watched, sampled.simulated);
        for (line, &rank) in sampled.rank.iter().enumerate().filter(|(_, r)| **r != u8::MAX) {
            assert_eq!(usize::from(sampled.lines[usize::from(rank)]), line);
        }
        // The lines of a stratum stand for all of it.
        for (i, of) in STRATA.iter().enumerate() {
            assert!(of.sample.iter().all(|&line| stratum(line.into()) == i), "{i}");
            let all = (0..ALL).filter(|&line| stratum(line) == i).count() as u64;
            assert_eq!(of.weight * of.sample.len() as u64, all, "{i}");
        }
        let exact = Classes::new(CacheMode::Exact, &[], true);
        assert_eq!((exact.len(), exact.weight(9), exact.watched), (64, 1, u64::MAX));
    }
}
