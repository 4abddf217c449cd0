// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One cache level: sets of lines in order of recency (true LRU), of the simulated classes only.

use super::classes::Classes;
use crate::profile::{CacheLevel, Content};

/// No line: beyond every host-physical address.
const EMPTY: u64 = u64::MAX;

/// The number of a 64-byte line: a host-physical address without its low 6 bits.
pub type Line = u64;

/// One level, of one vCPU or shared by all.
#[derive(Debug, Clone)]
pub(super) struct Level {
    /// Per set, from the most recently used line on.
    lines: Box<[Line]>,
    ways: usize,
    /// Sets of one class.
    sets_per_class: u64,
    /// `sets_per_class - 1` where that is a power of two, for a quick remainder; else all ones.
    mask: u64,
    /// Sets of one row: one for each simulated class, or all where the level has fewer than 64.
    columns: u64,
    /// The class chooses the column. Otherwise the line's lowest bits do.
    by_class: bool,
    pub content: Content,
}

impl Level {
    pub fn new(spec: &CacheLevel, classes: &Classes) -> Level {
        let sets = spec.sets();
        // With fewer than 64 sets, classes share sets, and all are simulated.
        let by_class = sets >= 64;
        let sets_per_class = spec.sets_per_class();
        let columns = if by_class { classes.len() } else { sets };
        Level {
            lines: vec![EMPTY; (sets_per_class * columns) as usize * spec.ways].into(),
            ways: spec.ways,
            sets_per_class,
            mask: if sets_per_class.is_power_of_two() { sets_per_class - 1 } else { u64::MAX },
            columns,
            by_class,
            content: spec.content,
        }
    }

    /// The set of `line`, whose class is the `rank`-th simulated one.
    #[inline]
    fn set(&mut self, line: Line, rank: usize) -> &mut [Line] {
        let upper = line >> 6;
        let row = if self.mask != u64::MAX { upper & self.mask } else { upper % self.sets_per_class };
        let column = if self.by_class { rank as u64 } else { line & (self.columns - 1) };
        let start = (row * self.columns + column) as usize * self.ways;
        &mut self.lines[start..start + self.ways]
    }

    /// Is the line here? It is the most recent of its set then.
    #[inline]
    pub fn lookup(&mut self, line: Line, rank: usize) -> bool {
        let set = self.set(line, rank);
        if set[0] == line {
            return true;
        }
        let Some(at) = set.iter().position(|&l| l == line) else { return false };
        // Few steps mostly, for which a copy of memory takes longer.
        (0..at).for_each(|i| set.swap(i, at));
        true
    }

    /// Files a line that is not here as the most recent of its set; the line that had to leave.
    #[inline]
    pub fn insert(&mut self, line: Line, rank: usize) -> Option<Line> {
        let set = self.set(line, rank);
        let last = set.len() - 1;
        let victim = set[last];
        set.copy_within(..last, 1);
        set[0] = line;
        (victim != EMPTY).then_some(victim)
    }

    /// Drops a line; false if it was not here.
    pub fn remove(&mut self, line: Line, rank: usize) -> bool {
        let set = self.set(line, rank);
        let Some(at) = set.iter().position(|&l| l == line) else { return false };
        // The lines behind it move up, so empty ways stay at the end.
        set.copy_within(at + 1.., at);
        set[set.len() - 1] = EMPTY;
        true
    }
}
