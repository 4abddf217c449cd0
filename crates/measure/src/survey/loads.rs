// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Misses: random loads over the whole area, dependent and independent, with one and with eight loads in each
//! page that is drawn, on 4 KB and on 2 MB pages; and [`streams`].
//!
//! Eight loads a page share a walk, one load a page has it alone: the difference is the walk's. This holds on
//! any host. Comparing 2 MB with 4 KB pages is another way, but where a host maps 4 KB pages, both are
//! walked. Before each time, page tables come into the caches as far as they stay there: a walk over cold
//! tables takes four times as long.

use super::caches::Caches;
use super::{Kind, MeasureError, Work, all_narrow, streams};
use crate::estimate::Estimate;
use crate::fit;
use crate::loops::{Order, RandomLoads};
use crate::os::PAGE;
use schemars::JsonSchema;
use serde::Serialize;

/// Loads of a page that share a walk.
const TOGETHER: u64 = 8;
/// Bytes that stay in the first-level cache and TLB.
const FEW: usize = 4 * PAGE;
/// Loads of a piece: enough that what an independent load takes, some 40 cycles, is known to a part of a
/// cycle.
const LOADS: u64 = 65_536;

/// Cycles of loads over the whole area.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Loads {
    /// Size of the area that loads go to; 0 if this part is not complete. Unit: bytes.
    pub area: u64,
    /// Load to use of a load that misses all caches, without its walk; null if not determined. Unit: cycles.
    pub memory: Option<Estimate>,
    /// A load that waits for the one before, 2 MB pages, walk included; null if not determined. Unit: cycles.
    pub dependent_2m: Option<Estimate>,
    /// A load that waits for the one before, 4 KB pages, walk included; null if not determined. Unit: cycles.
    pub dependent_4k: Option<Estimate>,
    /// A load whose address is known, 2 MB pages; null if not determined. Unit: cycles.
    pub independent_2m: Option<Estimate>,
    /// A load whose address is known, 4 KB pages; null if not determined. Unit: cycles.
    pub independent_4k: Option<Estimate>,
    /// Waits of dependent misses over those of independent ones, without walks; null if not determined.
    pub data_overlap: Option<Estimate>,
    /// Walks of dependent loads over those of independent ones, 4 KB pages; null if not determined.
    pub walk_overlap: Option<Estimate>,
    /// A walk of a dependent load, 4 KB pages; null if not determined. Unit: cycles.
    pub walk: Option<Estimate>,
    /// A load of the line after the last one; null if not determined. Unit: cycles.
    pub sequential: Option<Estimate>,
    /// The cache level whose time that is; 0 for memory.
    pub prefetch_level: u8,
    /// The first line of a 4 KB page after the last line of the page before, without its walk; null if
    /// streams stop, or if that is not known. Unit: cycles.
    pub page_cross: Option<Estimate>,
    /// Whether streams stop at each multiple of 4 KB, in 2 MB pages too.
    pub streams_stop: bool,
}

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
        let (few, kind, order, per_page) = POINTS[p];
        let region = if kind == Kind::Huge { &w.huge } else { &w.small };
        let bytes = if few { FEW } else { region.len() };
        seed += 1;
        let mut loads = RandomLoads::new(region, bytes, per_page, seed);
        // Over the whole area no line comes twice, but the lines of page tables do, each with the
        // translations of eight pages: a program that goes on finds them where they stay, so each was read
        // some four times before.
        let warm = (4 * bytes / PAGE / 8) as u64;
        w.bench.time(&mut loads, |l| _ = l.run(Order::Independent, warm.max(512)), |l| l.run(order, LOADS))
    };
    let area = work.huge.len() as u64;
    let found = work.rounds(POINTS.len(), one, |found| {
        let l = loads(found, caches, area);
        all_narrow(&[l.memory, l.data_overlap, l.walk, l.walk_overlap])
    })?;
    let mut l = loads(&found, caches, area);
    let streams = streams::measure(work)?;
    let levels: Vec<f64> = caches.levels.iter().filter_map(|l| Some(l.cycles?.median)).collect();
    if let Some((s, m)) = streams.line.zip(l.memory) {
        l.prefetch_level = fit::prefetch_level(s.median, &levels, m.median);
    }
    (l.sequential, l.page_cross, l.streams_stop) = (streams.line, streams.page_cross, streams.stop);
    Ok(l)
}

/// The values from the rounds of [`POINTS`].
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
    Loads {
        area,
        memory: Estimate::of(&memory),
        dependent_2m: Estimate::of(of(false, Huge, Dependent, 1)),
        dependent_4k: Estimate::of(of(false, Small, Dependent, 1)),
        independent_2m: Estimate::of(of(false, Huge, Independent, 1)),
        independent_4k: Estimate::of(of(false, Small, Independent, 1)),
        data_overlap: Estimate::of(&data),
        walk_overlap: Estimate::of(&left).map(overlap_of),
        walk: Estimate::of(&alone),
        ..Loads::default()
    }
}

/// No core has more loads under way.
const MOST_UNDER_WAY: f64 = 100.0;

/// The overlap, from the part of a wait that independent loads leave: little is left of walks beside data
/// that take longer, and noise may make the part negative. Without a part that is certainly above zero, the
/// overlap has no upper end.
fn overlap_of(left: Estimate) -> Estimate {
    let of = |part: f64| match part {
        part if part <= 0.0 => f64::INFINITY,
        part => 1.0 / part.clamp(1.0 / MOST_UNDER_WAY, 1.0),
    };
    Estimate { median: of(left.median), low: of(left.high), high: of(left.low), rounds: left.rounds }
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
