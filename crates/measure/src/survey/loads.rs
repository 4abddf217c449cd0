// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Misses: random loads over the whole area, dependent and independent, with one and with eight loads in each page
//! that is drawn, on 4 KB and on 2 MB pages; and loads of one line after the other.
//!
//! Eight loads a page share a walk, one load a page has it alone: the difference is the walk's. This holds on any
//! host. Comparing 2 MB with 4 KB pages is another way, but where a host maps 4 KB pages, both are walked. Before each
//! time, page tables come into the caches as far as they stay there: a walk over cold tables takes four times as long.

use super::caches::Caches;
use super::{Kind, MeasureError, Work, all_narrow};
use crate::estimate::Estimate;
use crate::fit;
use crate::loops::{Order, RandomLoads};
use crate::os::PAGE;
use serde::Serialize;

/// Loads of a page that share a walk.
const TOGETHER: u64 = 8;
/// Bytes that stay in the first-level cache and TLB.
const FEW: usize = 4 * PAGE;
/// Loads of a piece: enough that what an independent load takes, some 40 cycles, is known to a part of a cycle.
const LOADS: u64 = 65_536;

/// Cycles of loads over the whole area.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Loads {
    /// Bytes of the area.
    pub area: u64,
    /// Load to use of a load that misses all caches, without its walk.
    pub memory: Option<Estimate>,
    /// A load that waits for the one before, 2 MB pages, walk included.
    pub dependent_2m: Option<Estimate>,
    /// The same on 4 KB pages.
    pub dependent_4k: Option<Estimate>,
    /// A load whose address is known, 2 MB pages.
    pub independent_2m: Option<Estimate>,
    /// The same on 4 KB pages.
    pub independent_4k: Option<Estimate>,
    /// Waits of dependent misses over those of independent ones, without walks.
    pub data_overlap: Option<Estimate>,
    /// Walks of dependent loads over those of independent ones, 4 KB pages.
    pub walk_overlap: Option<Estimate>,
    /// A walk of a dependent load, 4 KB pages.
    pub walk: Option<Estimate>,
    /// A load of the line after the last one.
    pub sequential: Option<Estimate>,
    /// The cache level whose time that is; 0 = memory.
    pub prefetch_level: u8,
    /// The first line of a 4 KB page after the last line of the page before, without its walk; none if a stream stops at each
    /// multiple of 4 KB in 2 MB pages, too.
    pub page_cross: Option<Estimate>,
}

/// The rings of a round that follow [`POINTS`].
const RINGS: [(Ring, Kind); 4] = [
    (Ring::Lines, Kind::Huge),
    (Ring::Lines, Kind::Small),
    (Ring::Pages, Kind::Huge),
    (Ring::Pages, Kind::Small),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ring {
    /// One line after the other.
    Lines,
    /// A line of each of many neighbouring pages, whose translations miss the TLB and are near the core.
    Pages,
}

/// Twice as many as the second-level TLB of most cores holds.
const MANY_PAGES: usize = 8192;
const LINES_PER_PAGE: f64 = (PAGE / 64) as f64;

/// The points of a round: whether few bytes only, pages, order and loads per page.
const POINTS: [(bool, Kind, Order, u64); 12] = {
    use Kind::{Huge, Small};
    use Order::{Dependent as D, Independent as I};
    [
        (true, Huge, D, 1),
        (true, Huge, D, TOGETHER),
        (true, Huge, I, 1),
        (true, Huge, I, TOGETHER),
        (false, Huge, D, 1),
        (false, Huge, D, TOGETHER),
        (false, Huge, I, 1),
        (false, Huge, I, TOGETHER),
        (false, Small, D, 1),
        (false, Small, D, TOGETHER),
        (false, Small, I, 1),
        (false, Small, I, TOGETHER),
    ]
};

pub(super) fn measure(work: &mut Work, caches: &Caches) -> Result<Loads, MeasureError> {
    let mut seed = 0;
    let one = |w: &mut Work, p: usize| {
        let Some((few, kind, order, per_page)) = POINTS.get(p).copied() else {
            return match RINGS[p - POINTS.len()] {
                (Ring::Lines, kind) => sequential(w, kind),
                (Ring::Pages, kind) => pages(w, kind),
            };
        };
        let region = if kind == Kind::Huge { &w.huge } else { &w.small };
        let bytes = if few { FEW } else { region.len() };
        seed += 1;
        let mut loads = RandomLoads::new(region, bytes, per_page, seed);
        // Over the whole area no line comes twice, but the lines of page tables do, each with the translations of eight
        // pages: a program that goes on finds them where they stay, so each was read some four times before.
        let warm = (4 * bytes / PAGE / 8) as u64;
        w.bench.time(&mut loads, |l| _ = l.run(Order::Independent, warm.max(512)), |l| l.run(order, LOADS))
    };
    let area = work.huge.len() as u64;
    let found = work.rounds(POINTS.len() + RINGS.len(), one, |found| {
        let l = loads(found, caches, area);
        all_narrow(&[l.memory, l.data_overlap, l.walk, l.walk_overlap])
    })?;
    Ok(loads(&found, caches, area))
}

/// The values from the rounds of [`POINTS`] and of [`RINGS`].
fn loads(found: &[Vec<f64>], caches: &Caches, area: u64) -> Loads {
    let of = |few, kind, order, per_page| -> &[f64] {
        let at = POINTS.iter().position(|p| *p == (few, kind, order, per_page));
        at.map_or(&[], |i| &found[i][..])
    };
    let less = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<f64>>();
    use Kind::{Huge, Small};
    use Order::{Dependent, Independent};
    let l1 = caches.levels.first().and_then(|l| l.cycles).map_or(4.0, |e| e.median);
    // What one load costs more than one of the first level, with and without its walk.
    let wait =
        |kind, order, per_page| less(of(false, kind, order, per_page), of(true, Huge, order, per_page));
    let memory: Vec<f64> = wait(Huge, Dependent, TOGETHER).iter().map(|t| t + l1).collect();
    let zeros = vec![0.0; memory.len()];
    let data =
        fit::overlap(&wait(Huge, Dependent, TOGETHER), &wait(Huge, Independent, TOGETHER), &zeros, &zeros);
    // A walk is shared by eight loads on one side and by none on the other: 7/8 of it is in the difference.
    let part = (TOGETHER - 1) as f64 / TOGETHER as f64;
    let walk = |kind, order| -> Vec<f64> {
        less(&wait(kind, order, 1), &wait(kind, order, TOGETHER)).iter().map(|t| t / part).collect()
    };
    let (alone, beside) = (walk(Small, Dependent), walk(Small, Independent));
    let left: Vec<f64> = beside.iter().zip(&alone).map(|(b, a)| b / a).collect();
    let rings = |ring, kind| -> &[f64] {
        RINGS.iter().position(|r| *r == (ring, kind)).map_or(&[], |i| &found[POINTS.len() + i][..])
    };
    let in_sequence = rings(Ring::Lines, Huge);
    let sequential = Estimate::of(in_sequence);
    let levels: Vec<f64> = caches.levels.iter().filter_map(|l| Some(l.cycles?.median)).collect();
    let memory = Estimate::of(&memory);
    let prefetch_level = match (sequential, memory) {
        (Some(s), Some(m)) => fit::prefetch_level(s.median, &levels, m.median),
        _ => 0,
    };
    // A stream that stops waits for memory once a page.
    let stops = match (sequential, memory) {
        (Some(s), Some(m)) => (s.high - l1) * LINES_PER_PAGE > m.low,
        _ => true,
    };
    let walks = less(rings(Ring::Pages, Small), rings(Ring::Pages, Huge));
    let of_page = less(rings(Ring::Lines, Small), in_sequence);
    let cross: Vec<f64> =
        of_page.iter().zip(&walks).zip(in_sequence).map(|((p, w), s)| p * LINES_PER_PAGE - w + s).collect();
    // Between the times of a line that was fetched and of one that was not.
    let fetched = usize::from(prefetch_level).checked_sub(1).and_then(|i| levels.get(i).copied());
    let page_cross = Estimate::of(&cross).zip(fetched).zip(memory).map(|((e, fetched), memory)| {
        let within = |v: f64| v.max(fetched).min(memory.median);
        Estimate { median: within(e.median), low: within(e.low), high: within(e.high), ..e }
    });
    Loads {
        area,
        memory,
        dependent_2m: Estimate::of(of(false, Huge, Dependent, 1)),
        dependent_4k: Estimate::of(of(false, Small, Dependent, 1)),
        independent_2m: Estimate::of(of(false, Huge, Independent, 1)),
        independent_4k: Estimate::of(of(false, Small, Independent, 1)),
        data_overlap: Estimate::of(&data),
        walk_overlap: Estimate::of(&left).map(overlap_of),
        walk: Estimate::of(&alone),
        sequential,
        prefetch_level,
        page_cross: page_cross.filter(|_| !stops),
    }
}

/// No core has more loads under way.
const MOST_UNDER_WAY: f64 = 100.0;

/// The overlap, from the part of a wait that independent loads leave: little is left of walks beside data that take longer,
/// and noise may make the part negative. Without a part that is certainly above zero, the overlap has no upper end.
fn overlap_of(left: Estimate) -> Estimate {
    let of = |part: f64| match part {
        part if part <= 0.0 => f64::INFINITY,
        part => 1.0 / part.clamp(1.0 / MOST_UNDER_WAY, 1.0),
    };
    Estimate { median: of(left.median), low: of(left.high), high: of(left.low), rounds: left.rounds }
}

/// A ring through neighbouring lines, half the area long: each line was evicted since the last turn.
fn sequential(work: &mut Work, kind: Kind) -> f64 {
    let region = if kind == Kind::Huge { &mut work.huge } else { &mut work.small };
    let offsets: Vec<usize> = (0..region.len() / 2).step_by(64).collect();
    let mut chain = crate::loops::Chain::link(region, &offsets);
    work.bench.time(&mut chain, |c| _ = c.follow(64), |c| c.follow(LOADS))
}

/// A ring in random order through a line of each of many pages. Neighbouring pages use different cache sets.
fn pages(work: &mut Work, kind: Kind) -> f64 {
    let most = MANY_PAGES.min(work.small.len() / PAGE);
    work.chase(kind, (0..most).map(|i| i * PAGE + i * 5 % 64 * 64).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlap_is_the_inverse_of_what_is_left_within_what_cores_can() {
        let left = Estimate { median: 0.05, low: -0.01, high: 0.1, rounds: 15 };
        let found = overlap_of(left);
        assert_eq!((found.median, found.low, found.high), (20.0, 10.0, f64::INFINITY));
        assert!(found.refusal().is_some());
        let found = overlap_of(Estimate { low: 0.002, ..left });
        assert_eq!(found.high, MOST_UNDER_WAY);
        let none = overlap_of(Estimate { median: 1.1, low: 1.0, high: 1.2, rounds: 15 });
        assert_eq!((none.median, none.low, none.high), (1.0, 1.0, 1.0));
    }
}
