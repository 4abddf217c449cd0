// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts over the numbers of contents: which guests have a content, and how often.
//!
//! Guests are visited in order, so a content's set of guests grows only at its end. Sets are numbered as they
//! appear (a set is an earlier set and one more guest), and a content holds the number of its set: four bytes
//! for any number of guests. Guests share contents in few patterns, so there are few sets, and the contents
//! that pairs of guests have in common are counted set by set.
//!
//! Threads take ranges of contents, not of pages: each thread reads the numbers of all pages and counts those
//! in its range, so threads share nothing.

use super::scan::ZERO;
use super::{Counts, MOST_PAIRED};
use rayon::prelude::*;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::ops::Range;

/// The result of a count.
#[derive(Debug, Default)]
pub struct Tally {
    /// A tally for each guest.
    pub guests: Vec<GuestTally>,
    /// The most repeated contents, most pages first; zeros are not among them.
    pub top: Vec<Repeated>,
    /// Pages of the contents asked for.
    pub wanted: HashMap<u32, u64>,
    /// Contents that two guests have in common.
    pub pairs: Option<Vec<Vec<u64>>>,
}

/// The tally of one guest.
#[derive(Debug, Clone, Default)]
pub struct GuestTally {
    /// Counts of the guest's pages.
    pub counts: Counts,
    /// Distinct contents without zeros.
    pub contents: u64,
    /// Distinct contents without zeros that another guest has, too.
    pub with_others: u64,
}

/// A content and its number of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repeated {
    /// Number of the content.
    pub id: u32,
    /// Pages.
    pub pages: u64,
    /// Guests.
    pub guests: u64,
    /// The first page.
    pub first: u32,
}

/// Counts the contents of `ids`, whose numbers are less than `contents`.
pub fn tally(
    ids: &[u32],
    guests: &[Range<usize>],
    contents: usize,
    top: usize,
    wanted: &HashSet<u32>,
) -> Tally {
    // More ranges than threads would make smaller tables but more passes over the pages.
    let ranges = rayon::current_num_threads().max(4);
    let step = contents.div_ceil(ranges).max(1);
    let parts: Vec<Part> = (0..contents)
        .into_par_iter()
        .step_by(step)
        .map(|from| Part::count(ids, guests, from as u32..(from + step).min(contents) as u32, top, wanted))
        .collect();
    let mut all = Tally { guests: vec![GuestTally::default(); guests.len()], ..Tally::default() };
    let mut pairs = (guests.len() <= MOST_PAIRED).then(|| vec![vec![0; guests.len()]; guests.len()]);
    for part in parts {
        for (guest, has) in all.guests.iter_mut().zip(&part.guests) {
            guest.contents += has.contents;
            guest.counts.minimum += has.minimum;
        }
        part.sets.common(&mut all.guests, pairs.as_mut());
        all.top.extend(part.top);
        all.wanted.extend(part.wanted);
    }
    all.pairs = pairs;
    all.top.sort_by_key(|t| (Reverse(t.pages), t.first));
    all.top.truncate(top);
    all.guests.par_iter_mut().zip(guests).for_each(|(guest, pages)| {
        let c = &mut guest.counts;
        c.pages = pages.len() as u64;
        c.zero = ids[pages.clone()].iter().filter(|id| **id == ZERO).count() as u64;
        c.intra = c.pages - c.zero - guest.contents;
        c.inter = guest.contents - c.minimum;
    });
    all
}

/// A range of contents.
struct Part {
    guests: Vec<Has>,
    sets: Sets,
    top: Vec<Repeated>,
    wanted: HashMap<u32, u64>,
}

/// What a guest has of the range.
#[derive(Debug, Clone, Copy, Default)]
struct Has {
    contents: u64,
    /// Those that no guest before it has.
    minimum: u64,
}

/// What is known of a content.
#[derive(Debug, Clone, Copy, Default)]
struct KnownContent {
    set: u32,
    pages: u32,
    first: u32,
}

impl Part {
    fn count(
        ids: &[u32],
        guests: &[Range<usize>],
        range: Range<u32>,
        top: usize,
        wanted: &HashSet<u32>,
    ) -> Part {
        let mut seen = vec![KnownContent::default(); range.len()];
        let mut sets = Sets::default();
        let mut has = vec![Has::default(); guests.len()];
        for (guest, (pages, has)) in guests.iter().zip(&mut has).enumerate() {
            sets.begin();
            for (page, id) in pages.clone().zip(&ids[pages.clone()]) {
                // Below the range, the difference wraps around; ZERO is beyond every range.
                let Some(seen) = seen.get_mut(id.wrapping_sub(range.start) as usize) else { continue };
                seen.pages += 1;
                if sets.last(seen.set) == Some(guest) {
                    continue;
                }
                has.contents += 1;
                if seen.pages == 1 {
                    has.minimum += 1;
                    seen.first = page as u32;
                }
                seen.set = sets.with(seen.set, guest);
            }
        }
        let mut heap = BinaryHeap::new();
        for (id, s) in range.clone().zip(&seen).filter(|(_, s)| s.pages > 0) {
            sets.all[s.set as usize].contents += 1;
            let ranked = Reverse((s.pages, Reverse(s.first), id, s.set));
            // The one with the fewest pages comes first.
            let fewer = |last: &Reverse<_>| ranked.0 > last.0;
            if s.pages > 1 && top > 0 && (heap.len() < top || heap.peek().is_some_and(fewer)) {
                heap.push(ranked);
                if heap.len() > top {
                    heap.pop();
                }
            }
        }
        let top = heap.into_iter().map(|Reverse((pages, Reverse(first), id, set))| {
            let guests = u64::from(sets.all[set as usize].size);
            Repeated { id, pages: pages.into(), guests, first }
        });
        let pages = |id: &u32| u64::from(seen[(id - range.start) as usize].pages);
        Part {
            guests: has,
            top: top.collect(),
            wanted: wanted.iter().filter(|id| range.contains(id)).map(|id| (*id, pages(id))).collect(),
            sets,
        }
    }
}

/// Sets of guests, by number. 0 is the empty set.
struct Sets {
    all: Vec<Set>,
    /// By number of a set: that set and the guest at hand, if it is there already (0 if not).
    with_guest: Vec<u32>,
}

/// A set: another one, and a guest after all of that.
#[derive(Debug, Clone, Copy)]
struct Set {
    but_last: u32,
    last: u32,
    size: u32,
    /// Contents that exactly these guests have.
    contents: u64,
}

impl Default for Sets {
    fn default() -> Sets {
        let empty = Set { but_last: 0, last: u32::MAX, size: 0, contents: 0 };
        Sets { all: vec![empty], with_guest: Vec::new() }
    }
}

impl Sets {
    fn last(&self, set: u32) -> Option<usize> {
        (set != 0).then(|| self.all[set as usize].last as usize)
    }

    /// Another guest's turn: only sets without it, which are there now, can grow by it.
    fn begin(&mut self) {
        self.with_guest.clear();
        self.with_guest.resize(self.all.len(), 0);
    }

    /// The set with the guest at hand.
    fn with(&mut self, set: u32, guest: usize) -> u32 {
        let with = &mut self.with_guest[set as usize];
        if *with == 0 {
            let size = self.all[set as usize].size + 1;
            *with = self.all.len() as u32;
            self.all.push(Set { but_last: set, last: guest as u32, size, contents: 0 });
        }
        *with
    }

    /// Adds to each guest the contents that it shares, and to each pair those that it has in common.
    fn common(&self, guests: &mut [GuestTally], mut pairs: Option<&mut Vec<Vec<u64>>>) {
        let mut members = Vec::new();
        for set in self.all.iter().filter(|s| s.contents > 0) {
            members.clear();
            let mut at = *set;
            while at.size > 0 {
                members.push(at.last as usize);
                at = self.all[at.but_last as usize];
            }
            for &a in &members {
                guests[a].with_others += if set.size > 1 { set.contents } else { 0 };
                if let Some(pairs) = &mut pairs {
                    for &b in &members {
                        pairs[a][b] += set.contents;
                    }
                }
            }
        }
    }
}
