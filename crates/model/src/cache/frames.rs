// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the host's blocks of frames lie, which decides in which sets of a physically indexed cache a page's
//! lines are.
//!
//! An allocator hands out whole blocks of frames (`host.rs`), and which ones it has free is chance. So each
//! block lies at random, and each class of lines has a draw of its own: classes share no set, so one run of
//! the model sees as many placements as classes, its figures are their mean, and the classes' spread has what
//! chance does.

use crate::host::{Frames, mix, order};
use crate::profile::CacheLevel;
use crate::{Config, Paging};
use bifold_mmu::Hpa;

/// Bits of an address that tell a place, not whose memory it is.
const BITS: u32 = 40;

/// The draws of a run.
#[derive(Debug, Clone, Copy)]
pub struct Draws {
    /// Chooses the draws.
    pub seed: u64,
    /// The kind of host.
    pub frames: Frames,
}

/// How the frames behind a guest lie. Configurations of one layout have their data in the same sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// In blocks of the host's allocator, the smallest of this order.
    Blocks(u32),
    /// In single frames, as [`Draws::line`] places what is not behind a
    /// [`HostMemory`](crate::host::HostMemory).
    Single,
}

impl Draws {
    /// The layout of a configuration's frames; none if caches of these levels have the data in the same sets
    /// as the ideal run's.
    pub(super) fn layout(&self, config: Config, levels: &[CacheLevel]) -> Option<Layout> {
        let (layout, order) = match (config.mode, self.frames) {
            (Paging::Native, _) | (Paging::Offset | Paging::Direct, Frames::Fresh) => return None,
            (Paging::Offset | Paging::Direct, Frames::Aged) => (Layout::Single, 0),
            // An inner hypervisor's memory lies on the machine as that of a hypervisor there would.
            (_, frames) => {
                let order = frames.least_order(config.host_page);
                (Layout::Blocks(order), order)
            }
        };
        // A block of as many frames as a class has sets, or of a multiple, has its lines in the same sets
        // wherever it lies.
        let tells = |level: &CacheLevel| (1 << order) % level.sets_per_class() != 0;
        levels.iter().any(tells).then_some(layout)
    }

    /// The line of the address in the draw of its class.
    #[inline]
    pub fn line(&self, at: Hpa) -> u64 {
        let line = at.0 >> 6;
        // A machine's own memory lies as the machine's kernel has placed it.
        if at.0 >> BITS == 0 {
            return line;
        }
        let order = match (order(at), self.frames) {
            (Some(order), _) => order,
            // The hypervisor's tables, one page at a time.
            (None, Frames::Aged) => 0,
            (None, Frames::Fresh) => return line,
        };
        let class = line & 63;
        let shift = 12 + order;
        let block = permute(at.0 >> shift, BITS - shift, mix(self.seed << 6 | class));
        (block << shift | at.0 & ((1 << shift) - 1)) >> 6
    }
}

/// A permutation of the numbers below 2^bits chosen by `seed`, which leaves higher bits alone: odd
/// multiplications and shifted xors are each invertible, so their composition is.
fn permute(x: u64, bits: u32, seed: u64) -> u64 {
    let mask = (1u64 << bits) - 1;
    let high = x & !mask;
    let mut x = (x ^ seed) & mask;
    for factor in [0xff51_afd7_ed55_8ccd_u64, 0xc4ce_b9fe_1a85_ec53] {
        x ^= x >> (bits / 2);
        x = x.wrapping_mul(factor ^ (seed & !1)) & mask;
    }
    high | x ^ x >> (bits / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostMemory;
    use bifold_mmu::{Gpa, PageSize};
    use std::collections::HashSet;

    const FRAMES: u64 = 1 << 16;

    fn places(page: PageSize, frames: Frames, seed: u64, line: u64) -> Vec<u64> {
        let host = HostMemory::new(page, FRAMES, frames, seed);
        let draws = Draws { seed, frames };
        (0..FRAMES).map(|n| draws.line(host.hpa(Gpa(n << 12 | line << 6)))).collect()
    }

    #[test]
    fn no_two_frames_share_a_place_and_lines_keep_their_class() {
        for frames in [Frames::Fresh, Frames::Aged] {
            for page in [PageSize::Size4K, PageSize::Size2M, PageSize::Size1G] {
                let lines = places(page, frames, 3, 17);
                assert!(lines.iter().all(|line| line & 63 == 17));
                assert_eq!(lines.into_iter().collect::<HashSet<_>>().len() as u64, FRAMES);
            }
        }
    }

    #[test]
    fn frames_of_a_fresh_host_lie_as_those_of_2_mb_pages() {
        assert_eq!(
            places(PageSize::Size4K, Frames::Fresh, 3, 5),
            places(PageSize::Size2M, Frames::Fresh, 3, 5)
        );
        assert_ne!(
            places(PageSize::Size4K, Frames::Aged, 3, 5),
            places(PageSize::Size2M, Frames::Aged, 3, 5)
        );
    }

    /// 64 sets of pages: by chance, 1024 of 65,536 frames each, with a standard deviation of 32.
    #[test]
    fn an_aged_hosts_frames_are_spread_by_chance_in_each_draw() {
        let mut of_sets = vec![];
        for (seed, line) in [(1, 5), (1, 6), (1, 7)] {
            let lines = places(PageSize::Size4K, Frames::Aged, seed, line);
            let mut counts = [0u32; 64];
            lines.iter().for_each(|l| counts[(l >> 6 & 63) as usize] += 1);
            let variance = counts.iter().map(|&n| (f64::from(n) - 1024.0).powi(2)).sum::<f64>() / 64.0;
            // Blocks of several frames spread more evenly than single frames.
            assert!((200.0..1400.0).contains(&variance), "{variance}");
            of_sets.push(lines.iter().map(|l| l >> 6 & 63).collect::<Vec<_>>());
        }
        // Single frames that share a set in one draw share one in another by chance: one pair in 64.
        let host = HostMemory::new(PageSize::Size4K, FRAMES, Frames::Aged, 1);
        let single = |i: usize| order(host.hpa(Gpa::from_frame(i as u64))) == Some(0);
        let singles: Vec<usize> = (0..FRAMES as usize).filter(|&i| single(i)).collect();
        for other in [1, 2] {
            let pair = |of: &[u64], p: &[usize]| of[p[0]] == of[p[1]];
            let pairs = singles.chunks_exact(2).filter(|p| pair(&of_sets[0], p));
            let (one, both) =
                pairs.fold((0, 0), |(n, b), p| (n + 1, b + u32::from(pair(&of_sets[other], p))));
            assert!((220..390).contains(&one) && both < 20, "{one}, by chance 302, and {both}, by chance 5");
        }
    }

    #[test]
    fn the_machines_own_memory_stays_where_it_is() {
        let draws = Draws { seed: 1, frames: Frames::Aged };
        assert_eq!(draws.line(Hpa(0x1234_5678)), 0x1234_5678 >> 6);
    }
}
