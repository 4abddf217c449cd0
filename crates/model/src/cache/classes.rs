// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lines that are simulated: classes of lines by their place in a 4 KB page.
//!
//! A line's place in its page, address bits 6 to 11, is the same in guest-virtual,
//! guest-physical and host-physical addresses, and every cache with at least 64 sets uses these bits
//! to choose a set. So the lines of one class share no set with those of another, and simulating some
//! classes alone loses nothing of them: it is a sample of sets, the same in every
//! configuration. An access is known to be outside the sample before it is translated.
//! Line 0 of a page is simulated always, beside the sample of the others.

use crate::profile::CacheLevel;

/// Lines of a 4 KB page.
const ALL: usize = 64;

/// Which lines go through the data caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheMode {
    /// Those of [`SAMPLE`]'s classes, which stand for all.
    #[default]
    Sampled,
    /// All.
    Exact,
    /// None: ideal run and walks have fixed costs.
    Off,
}

/// The classes of a sample, beside line 0. They are spread over the page, and no two are neighbours:
/// neighbouring lines often belong to one object. Each stands for 9 of the 63 classes other than 0.
pub const SAMPLE: [u8; 7] = [5, 13, 22, 31, 41, 50, 58];

/// The simulated classes.
#[derive(Debug, Clone)]
pub(crate) struct Classes {
    /// A bit for each simulated class, and for each whose accesses the prefetcher watches.
    pub watched: u64,
    /// A bit for each simulated class.
    pub simulated: u64,
    rank: [u8; ALL],
    n: u8,
    /// Lines that each simulated one stands for, except that line 0 stands for itself alone.
    scale: u64,
}

impl Classes {
    /// All classes, or those of the sample. Where a level has fewer than 64 sets, classes share
    /// sets, and all are simulated.
    pub fn new(mode: CacheMode, levels: &[CacheLevel], prefetch: bool) -> Classes {
        let exact = mode == CacheMode::Exact || levels.iter().any(|l| l.sets() < ALL as u64);
        let scale = if exact { 1 } else { (ALL - 1) / SAMPLE.len() } as u64;
        let mut classes = Classes { watched: 0, simulated: 0, rank: [u8::MAX; ALL], n: 0, scale };
        for class in (0..ALL as u8).filter(|c| exact || *c == 0 || SAMPLE.contains(c)) {
            classes.simulated |= 1 << class;
            classes.rank[usize::from(class)] = classes.n;
            classes.n += 1;
        }
        let simulated = classes.simulated;
        classes.watched = if prefetch { simulated | simulated << 1 | simulated >> 1 } else { simulated };
        classes
    }

    /// Number of simulated classes.
    pub fn len(&self) -> u64 {
        u64::from(self.n)
    }

    /// Lines that a simulated one stands for, by its class's rank. Line 0 is always
    /// simulated and stands for itself: a sequential stream enters each page there, and no prefetcher
    /// has fetched that line, so line 0 is like no other.
    #[inline]
    pub fn weight(&self, rank: usize) -> u64 {
        if rank == 0 { 1 } else { self.scale }
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
        assert_eq!((sampled.len(), sampled.rank(0x7000), sampled.weight(0)), (8, Some(0), 1));
        let ranks: Vec<_> = SAMPLE.iter().map(|&c| sampled.rank(u64::from(c) << 6 | 0x7000)).collect();
        assert_eq!(ranks, (1..=7).map(Some).collect::<Vec<_>>());
        assert_eq!((0..8).map(|rank| sampled.weight(rank)).sum::<u64>(), 64);
        assert_eq!(sampled.rank(12 << 6), None);
        assert_eq!(sampled.watched.count_ones(), 2 + 3 * 7);
        let bits = SAMPLE.iter().fold(1, |bits, class| bits | 1 << class);
        assert_eq!(Classes::new(CacheMode::Sampled, &[], false).watched, bits);
        let exact = Classes::new(CacheMode::Exact, &[], true);
        assert_eq!((exact.len(), exact.weight(9), exact.watched), (64, 1, u64::MAX));
    }
}
