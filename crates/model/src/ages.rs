// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ages of table entries: what a cold start at any earlier interval would cost now.
//!
//! A mode that is entered at the beginning of interval i finds empty tables. In interval j >= i the
//! mode fills an entry again if the unswitched run had filled that entry before i and has not used
//! the entry between i and j. So each interval counts the entries that it uses by the age of their
//! last use, and [`Reuse`] then gives the cost of any sequence of switches without another run.
//! Nested tables that are kept during shadow mode lack only the entries made meanwhile, so the age
//! of an entry's making is counted as well.
//!
//! Ages are counted in [`bucket`]s: exact up to 8 intervals, then four buckets to an octave.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Entries that existed before an interval and are used for the first time in that interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reuse {
    /// [`bucket`] of the number of intervals since their last use.
    pub last: u8,
    /// [`bucket`] of the number of intervals since they were made (nested tables; else as `last`).
    pub made: u8,
    /// Exits that would fill these entries: one per entry of nested tables. In shadow tables, one
    /// per block of 8 entries, which prefetch fills together, and one per large entry.
    pub exits: u32,
    /// Shadow pages that would have to be made again.
    pub tables: u32,
}

/// Buckets that there can be: ages up to 2^25 intervals.
pub const BUCKETS: u8 = 100;

/// The bucket of an age in intervals, which is at least 1.
pub fn bucket(age: u32) -> u8 {
    let age = age.clamp(1, (1 << 25) - 1);
    if age <= 8 {
        return age as u8 - 1;
    }
    let octave = 31 - age.leading_zeros(); // at least 3
    let quarter = (age >> (octave - 2)) & 3;
    (8 + (octave - 3) * 4 + quarter) as u8
}

/// The ages of a bucket: from, and up to but not including.
pub fn bounds(bucket: u8) -> (u32, u32) {
    if bucket < 8 {
        let age = u32::from(bucket) + 1;
        return (age, age + 1);
    }
    let (octave, quarter) = ((u32::from(bucket) - 8) / 4 + 3, (u32::from(bucket) - 8) % 4);
    let from = (4 + quarter) << (octave - 2);
    (from.max(9), (5 + quarter) << (octave - 2))
}

/// Counts of one interval in the making.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ages {
    /// The interval, counted from 0 or 1.
    pub now: u32,
    cells: BTreeMap<(u8, u8), (u32, u32)>,
}

impl Ages {
    /// Counts of intervals from 1 on.
    pub fn from_1() -> Ages {
        Ages { now: 1, ..Ages::default() }
    }

    fn cell(&mut self, last: u32, made: u32) -> &mut (u32, u32) {
        let key = (bucket(self.now.saturating_sub(last)), bucket(self.now.saturating_sub(made)));
        self.cells.entry(key).or_default()
    }

    /// An entry last used and made in these intervals is used for the first time in this one.
    pub fn used(&mut self, last: u32, made: u32) {
        self.cell(last, made).0 += 1;
    }

    /// A shadow page that was last used in interval `last` is used for the first time in this one.
    pub fn table_used(&mut self, last: u32) {
        self.cell(last, last).1 += 1;
    }

    /// Begins the next interval.
    pub fn begin_interval(&mut self) {
        self.now += 1;
        self.cells.clear();
    }

    /// What was counted in this interval.
    pub fn counted(&self) -> Vec<Reuse> {
        let reuse = |(&(last, made), &(exits, tables))| Reuse { last, made, exits, tables };
        self.cells.iter().map(reuse).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_age_lies_in_the_bounds_of_its_bucket_and_buckets_follow_each_other() {
        let mut next = 1;
        for b in 0..BUCKETS - 4 {
            let (from, to) = bounds(b);
            assert_eq!(from, next, "bucket {b}");
            next = to;
            for age in from..to.min(from + 2000) {
                assert_eq!(bucket(age), b, "age {age}");
            }
        }
    }
}
