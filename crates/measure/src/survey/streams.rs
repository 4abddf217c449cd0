// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Streams: loads of one line after the other, each waiting for the one before, and what such a stream takes
//! where a 4 KB page ends.
//!
//! In 2 MB pages, the 4 KB pages come in order or in random order. If the order makes no difference, streams
//! stop at each multiple of 4 KB. Otherwise the prefetcher follows them, and what a page of 4 KB in order
//! takes longer than a part of a 2 MB page is its walk and the wait for its first line. The walk is measured
//! by loads whose translations miss the TLB and whose tables are in the caches, as a stream's are for seven
//! of eight pages.

use super::{Kind, MeasureError, Work, all_narrow};
use crate::estimate::Estimate;
use crate::loops::Chain;
use crate::os::PAGE;
use rand::seq::SliceRandom as _;

/// Loads of a piece.
const LOADS: u64 = 65_536;
/// Twice as many as the second-level TLB of most cores holds.
const MANY_PAGES: usize = 8192;
const LINE: usize = 64;
const LINES_PER_PAGE: f64 = (PAGE / LINE) as f64;
/// Streams stop if pages in order take more than this part of pages in random order.
const STOPS: f64 = 0.75;

/// What was found.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Streams {
    /// A line after the line before, 2 MB pages.
    pub line: Option<Estimate>,
    /// The first line of a 4 KB page after the last line of the page before, without its walk.
    pub page_cross: Option<Estimate>,
    /// Streams stop at each multiple of 4 KB.
    pub stop: bool,
}

#[derive(Debug, Clone, Copy)]
enum Ring {
    /// One line after the other.
    InOrder,
    /// The lines of a 4 KB page in order, the pages in random order.
    Shuffled,
    /// A line of each of many neighbouring pages, in random order.
    Pages,
}

/// The points of a round.
const RINGS: [(Ring, Kind); 5] = [
    (Ring::InOrder, Kind::Huge),
    (Ring::InOrder, Kind::Small),
    (Ring::Shuffled, Kind::Huge),
    (Ring::Pages, Kind::Huge),
    (Ring::Pages, Kind::Small),
];

pub(super) fn measure(work: &mut Work) -> Result<Streams, MeasureError> {
    let huge_ok = work.huge_ok;
    let one = |w: &mut Work, p: usize| {
        let (ring, kind) = RINGS[p];
        match ring {
            Ring::InOrder => lines(w, kind, false),
            Ring::Shuffled => lines(w, kind, true),
            Ring::Pages => {
                let most = MANY_PAGES.min(w.small.len() / PAGE);
                w.chase(kind, (0..most).map(|i| i * PAGE + i * 5 % 64 * LINE).collect())
            }
        }
    };
    let of = |found: &[Vec<f64>]| streams(found, huge_ok);
    let found = work.rounds(RINGS.len(), one, |found| {
        let s = of(found);
        all_narrow(&[s.line, s.page_cross])
    })?;
    Ok(of(&found))
}

/// A ring through all lines of half the area: each was evicted since the last turn.
fn lines(work: &mut Work, kind: Kind, shuffled: bool) -> f64 {
    let region = if kind == Kind::Huge { &mut work.huge } else { &mut work.small };
    let mut pages: Vec<usize> = (0..region.len() / 2 / PAGE).collect();
    if shuffled {
        pages.shuffle(&mut work.random);
    }
    let offsets: Vec<usize> =
        pages.iter().flat_map(|page| (0..PAGE).step_by(LINE).map(move |at| page * PAGE + at)).collect();
    let mut chain = Chain::link(region, &offsets);
    work.bench.time(&mut chain, |c| _ = c.follow(64), |c| c.follow(LOADS))
}

/// The values from the rounds of [`RINGS`]. `huge_ok`: the area for 2 MB pages has them.
fn streams(found: &[Vec<f64>], huge_ok: bool) -> Streams {
    let [in_order, small, shuffled, pages_huge, pages_small] = found else { return Streams::default() };
    let line = Estimate::of(in_order);
    if !huge_ok {
        return Streams { line, ..Streams::default() };
    }
    let part: Vec<f64> = in_order.iter().zip(shuffled).map(|(o, s)| o / s).collect();
    let Some(part) = Estimate::of(&part) else { return Streams { line, ..Streams::default() } };
    let cross = |round: usize| {
        let page = LINES_PER_PAGE * (small[round] - in_order[round]);
        page - (pages_small[round] - pages_huge[round]) + in_order[round]
    };
    let cross: Vec<f64> = (0..in_order.len()).map(cross).collect();
    let page_cross = if part.high < STOPS { Estimate::of(&cross) } else { None };
    Streams { line, page_cross, stop: part.low > STOPS }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of a line in order on 2 MB and 4 KB pages, with pages in random order, and of a line per page
    /// on both.
    fn rounds(of: [f64; 5]) -> Vec<Vec<f64>> {
        of.iter().map(|v| (0..15).map(|i| v * (1.0 + 0.001 * f64::from(i % 5))).collect()).collect()
    }

    #[test]
    fn a_stream_that_crosses_has_the_time_of_a_page_s_first_line_without_the_walk() {
        // As on an EPYC of family 19h: 470 and 800 cycles for a page in order, 2,850 for one in random order.
        let found = streams(&rounds([7.3, 12.5, 44.5, 67.0, 94.0]), true);
        let cross = found.page_cross.unwrap();
        assert!((cross.median - (64.0 * 5.2 - 27.0 + 7.3)).abs() < 2.0, "{cross:?}");
        assert!(!found.stop && cross.refusal().is_none());
        assert!((found.line.unwrap().median - 7.3).abs() < 0.1);
    }

    #[test]
    fn a_stream_that_stops_has_no_such_time_whatever_a_line_takes() {
        for line in [5.0, 14.0] {
            let per_line = line + 400.0 / 64.0;
            let found = streams(&rounds([per_line, per_line + 0.5, per_line + 0.2, 60.0, 90.0]), true);
            assert_eq!((found.page_cross, found.stop), (None, true));
        }
    }

    #[test]
    fn without_huge_pages_or_between_the_two_nothing_is_known() {
        let found = streams(&rounds([7.3, 7.3, 44.5, 67.0, 67.0]), false);
        assert_eq!((found.page_cross, found.stop, found.line.is_some()), (None, false, true));
        let mut unclear = rounds([7.5, 12.0, 10.0, 67.0, 94.0]);
        unclear[0].iter_mut().step_by(2).for_each(|v| *v = 6.0);
        unclear[0].iter_mut().skip(1).step_by(2).for_each(|v| *v = 9.0);
        let found = streams(&unclear, true);
        assert_eq!((found.page_cross, found.stop), (None, false));
        assert_eq!(streams(&[], true), Streams::default());
    }
}
