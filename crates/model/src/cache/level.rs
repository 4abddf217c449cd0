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

    /// The set of `line`, whose class is the `rank`-th simulated one: where its ways begin.
    #[inline(always)]
    pub fn set(&self, line: Line, rank: usize) -> usize {
        let upper = line >> 6;
        let row = if self.mask != u64::MAX { upper & self.mask } else { upper % self.sets_per_class };
        let column = if self.by_class { rank as u64 } else { line & (self.columns - 1) };
        (row * self.columns + column) as usize * self.ways
    }

    /// The set of `line`, from the most recently used line on.
    #[inline(always)]
    pub fn lines_of(&mut self, line: Line, rank: usize) -> &mut [Line] {
        let set = self.set(line, rank);
        &mut self.lines[set..set + self.ways]
    }

    /// Calls `f` with the lines of a set. The compiler knows the usual numbers of ways, and unrolls loops
    /// over them.
    #[inline(always)]
    fn ways<R>(&mut self, set: usize, f: impl Fn(&mut [Line]) -> R) -> R {
        let lines = &mut self.lines[set..set + self.ways];
        match lines.len() {
            4 => f(&mut lines[..4]),
            8 => f(&mut lines[..8]),
            11 => f(&mut lines[..11]),
            12 => f(&mut lines[..12]),
            16 => f(&mut lines[..16]),
            _ => f(lines),
        }
    }

    /// Is the line in this set, which is its own? It is the most recent of the set then.
    #[inline(always)]
    pub fn lookup(&mut self, set: usize, line: Line) -> bool {
        if self.lines[set] == line {
            return true;
        }
        self.ways(set, |lines| {
            let Some(at) = lines.iter().position(|&l| l == line) else { return false };
            // Few steps mostly, for which a copy of memory takes longer.
            (0..at).for_each(|i| lines.swap(i, at));
            true
        })
    }

    /// Files a line that is not here as the most recent of its set; the line that had to leave.
    #[inline(always)]
    pub fn insert(&mut self, set: usize, line: Line) -> Option<Line> {
        self.ways(set, |lines| {
            let last = lines.len() - 1;
            let victim = lines[last];
            lines.copy_within(..last, 1);
            lines[0] = line;
            (victim != EMPTY).then_some(victim)
        })
    }

    /// Drops a line; false if it was not here.
    #[inline]
    pub fn remove(&mut self, line: Line, rank: usize) -> bool {
        let set = self.set(line, rank);
        let Some(at) = self.ways(set, |lines| lines.iter().position(|&l| l == line)) else { return false };
        let lines = &mut self.lines[set..set + self.ways];
        // The lines behind it move up, so empty ways stay at the end.
        lines.copy_within(at + 1.., at);
        lines[lines.len() - 1] = EMPTY;
        true
    }
}
