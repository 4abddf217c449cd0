// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of `bifold reclaim show`, which all its outputs have.

use super::{FRAME, LEAST};
use bifold_reclaim::{IntervalUse, MemoryUse, MissCurve, ReferenceKind, sizes};
use bifold_report::Comparison;

/// What a guest needs.
pub struct Needs {
    /// The guest's memory, bytes.
    pub guest: u64,
    /// Frames in use at the end.
    pub held: u64,
    /// References by kind.
    pub references: [u64; KINDS],
    /// References to pages that held no memory, by kind.
    pub first: [u64; KINDS],
    /// References outside of the guest's memory.
    pub outside: u64,
    /// The smallest memory without refaults, frames.
    pub enough: u64,
    /// Sizes, ascending.
    pub rows: Vec<Row>,
    pub intervals: Vec<IntervalUse>,
    /// Of the ideal run.
    pub seconds_per_instruction: f64,
    /// Seconds that the guest waits for a refault.
    pub refault_s: f64,
}

pub const KINDS: usize = ReferenceKind::ALL.len();

/// One size of memory.
pub struct Row {
    pub frames: u64,
    /// Refaults by kind, with LRU replacement.
    pub refaults: [u64; KINDS],
    /// The fewest refaults, if they are known.
    pub fewest: Option<u64>,
    /// Whether the table has this size.
    pub shown: bool,
}

impl Row {
    pub fn bytes(&self) -> u64 {
        self.frames * FRAME
    }

    pub fn all(&self) -> u64 {
        self.refaults.iter().sum()
    }
}

impl Needs {
    /// `wanted`: sizes for the table, in frames; chosen here if there are none.
    pub fn of(comparison: &Comparison, uses: &MemoryUse, wanted: &[u64], refault_s: f64) -> Needs {
        let curves = ReferenceKind::ALL.map(|kind| uses.curve_of(kind));
        let all = uses.curve();
        let first = curves.each_ref().map(MissCurve::first);
        let frames = comparison.outcome.guest_frames;
        let row = |(frames, shown): (u64, bool)| Row {
            frames,
            refaults: std::array::from_fn(|i| curves[i].misses(frames) - first[i]),
            fewest: uses.optimum(frames).map(|misses| misses - all.first()),
            shown,
        };
        let o = &comparison.outcome;
        Needs {
            guest: frames * FRAME,
            held: uses.held(),
            references: curves.each_ref().map(MissCurve::references),
            first,
            outside: uses.outside(),
            enough: all.enough(),
            rows: choose(wanted, all.enough(), frames).into_iter().map(row).collect(),
            intervals: uses.intervals().to_vec(),
            seconds_per_instruction: o.base_cpi / o.frequency_hz as f64,
            refault_s,
        }
    }

    pub fn seconds(&self) -> f64 {
        self.intervals.iter().map(|i| i.instructions as f64).sum::<f64>() * self.seconds_per_instruction
    }
}

/// Sizes in frames, and whether the table has them: those wanted, or else four for each doubling up to the memory that is enough,
/// every other one of them in the table.
fn choose(wanted: &[u64], enough: u64, frames: u64) -> Vec<(u64, bool)> {
    if !wanted.is_empty() {
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        return wanted.into_iter().map(|size| (size, true)).collect();
    }
    let last = enough.max(LEAST);
    let below = sizes(LEAST, frames.max(LEAST)).into_iter().filter(|&size| size < last);
    let mut chosen: Vec<(u64, bool)> = below.enumerate().map(|(i, size)| (size, i % 2 == 0)).collect();
    chosen.push((last, true));
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_two_sizes_for_each_doubling_and_ends_with_enough() {
        let shown = |enough| {
            let chosen = choose(&[], enough, 1 << 18);
            chosen.into_iter().filter(|c| c.1).map(|c| c.0).collect::<Vec<_>>()
        };
        assert_eq!(shown(1000), [256, 384, 512, 768, 1000]);
        assert_eq!(shown(300), [256, 300]);
        assert_eq!(shown(256), [256]);
        assert_eq!(choose(&[700, 300, 700], 1000, 1 << 18), [(300, true), (700, true)]);
    }
}
