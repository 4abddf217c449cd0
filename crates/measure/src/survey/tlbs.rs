// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TLBs: a ring of loads, one per page, over a growing number of pages, less the time of a ring through as
//! many neighbouring lines. The lines spread over the cache sets alike in both, so that the difference is the
//! TLB's.
//!
//! Pages are nine apart: processors that join neighbouring pages into one entry (AMD's of four or eight) then
//! need one entry per page. The same ring on 2 MB pages tells the host's page size: where it meets the knee
//! of the 4 KB pages, the host maps the guest's 2 MB pages in pieces of 4 KB, and TLB entries are of that
//! size.

use super::{Kind, MeasureError, Work, huge_pages, if_reached};
use crate::estimate::Estimate;
use crate::fit::{self, Plateau, Point};
use crate::os::{HUGE, PAGE};
use schemars::JsonSchema;
use serde::Serialize;

/// Pages between two that are visited.
const STRIDE: usize = 9;

/// Pages of the longest ring: twice the entries of the largest second-level TLB there is, and more.
const MOST_PAGES: usize = 10_000;

/// A TLB as measured.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Array {
    /// Entries: the likely number, and the pages that fit and that do not.
    pub entries: Estimate,
    /// Ways of associativity; 0 if no page stride shows sets, null if not measured.
    pub ways: Option<u64>,
    /// What a miss costs at first, on top of a hit. Unit: cycles.
    pub miss: f64,
}

/// The pages of the host behind 2 MB pages of this machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostPages {
    /// TLB entries of 2 MB pages reach 2 MB.
    Whole,
    /// TLB entries of 2 MB pages reach 4 KB: a host below maps 4 KB pages.
    Split,
    /// Not determined.
    #[default]
    Unknown,
}

/// All that was found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Tlbs {
    /// First-level data TLB, 4 KB pages; null if not determined.
    pub l1_4k: Option<Array>,
    /// Second-level TLB, 4 KB pages; null if not determined.
    pub l2_4k: Option<Array>,
    /// First-level data TLB, 2 MB pages; null if not determined.
    pub l1_2m: Option<Array>,
    /// The pages of the host behind 2 MB pages of this machine.
    pub host_pages: HostPages,
}

pub(super) fn measure(work: &mut Work) -> Result<Tlbs, MeasureError> {
    let most = MOST_PAGES.min(work.small.len() / PAGE / STRIDE);
    let numbers = work.sizes(8, most, 1);
    let spread = |i: usize| i * STRIDE * PAGE + line(i);
    let one = |w: &mut Work, p: usize| {
        let n = numbers[p / 3];
        match p % 3 {
            0 => w.chase(Kind::Small, (0..n).map(spread).collect()),
            1 => w.chase(Kind::Huge, (0..n).map(|i| i * 64).collect()),
            _ => w.chase(Kind::Huge, (0..n).map(spread).collect()),
        }
    };
    let found = work.rounds(numbers.len() * 3, one, |found| {
        let [l1, l2] = arrays(&curve(&numbers, found, 0), found[0].len());
        // A machine may have no second level; each has a first one.
        l1.is_some() && [l1, l2].iter().flatten().all(|a| a.entries.refusal().is_none())
    })?;
    let (small, huge) = (curve(&numbers, &found, 0), curve(&numbers, &found, 2));
    let [mut l1_4k, l2_4k] = arrays(&small, found[0].len());
    let host_pages =
        if work.huge_ok { host_pages(&small, &huge, l1_4k.as_ref()) } else { HostPages::Unknown };
    if let Some(l1) = &mut l1_4k {
        l1.ways = if_reached(first_level_ways(work, l1.entries.high))?;
    }
    let l1_2m = if host_pages == HostPages::Whole { if_reached(first_level_2m(work))? } else { None };
    Ok(Tlbs { l1_4k, l2_4k, l1_2m, host_pages })
}

/// The times of one of three rings (4 KB pages, lines, 2 MB pages), less those of the lines.
fn curve(numbers: &[usize], found: &[Vec<f64>], which: usize) -> Vec<Point> {
    let over = |values: &[f64], base: &[f64]| fit::median(values.iter().zip(base).map(|(v, b)| v - b));
    let rings = found.chunks(3).zip(numbers);
    rings.map(|(ring, n)| (*n as f64, over(&ring[which], &ring[1]))).collect()
}

/// Offset of the line that is loaded in the i-th page: 64 pages use all cache sets of a page.
fn line(i: usize) -> usize {
    i * 5 % 64 * 64
}

fn noise(t: f64) -> f64 {
    0.7 + 0.05 * t.abs()
}

/// First and second level from the curve of differences.
fn arrays(curve: &[Point], rounds: usize) -> [Option<Array>; 2] {
    let plateaus = fit::plateaus(curve, noise);
    let array = |below: &Plateau, above: &Plateau| {
        let knee = fit::knee(curve, below, above);
        let entries = Estimate::between(fit::likely_size(&knee, 1.0), knee.fits, knee.exceeds, rounds);
        Array { entries, ways: None, miss: above.time - below.time }
    };
    let [first, second, ..] = &plateaus[..] else { return [None, None] };
    // The first plateau is that of hits.
    if first.time.abs() > 2.0 * noise(0.0) {
        return [None, None];
    }
    // The more pages, the costlier a walk: its tables leave the caches. The last points stand for walks.
    let end = Plateau {
        time: fit::median(curve[curve.len() - 3..].iter().map(|p| p.1)),
        first: curve.len() - 3,
        last: curve.len() - 1,
    };
    let l2 = (end.time > second.time + 4.0 * noise(second.time)).then(|| array(second, &end));
    [Some(array(first, second)), l2]
}

/// Compares the two curves where the first-level TLB misses and the second hits.
fn host_pages(small: &[Point], huge: &[Point], l1: Option<&Array>) -> HostPages {
    let Some(l1) = l1 else { return HostPages::Unknown };
    let inside = |c: &[Point]| {
        let (low, high) = (l1.entries.high * 1.2, l1.entries.high * 6.0);
        fit::median(c.iter().filter(|p| (low..high).contains(&p.0)).map(|p| p.1))
    };
    let (small, huge) = (inside(small), inside(huge));
    match huge / small.max(1e-9) {
        _ if small < 3.0 * noise(0.0) => HostPages::Unknown,
        part if part < 0.3 => HostPages::Whole,
        part if part > 0.7 => HostPages::Split,
        _ => HostPages::Unknown,
    }
}

/// Pages at strides of 16, 64 and 256: how many the first level holds of each.
fn first_level_ways(work: &mut Work, most: f64) -> Result<Option<u64>, MeasureError> {
    let strides = [16, 64, 256];
    let numbers: Vec<usize> =
        [2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128]
            .into_iter()
            .filter(|n| *n as f64 <= most * 1.3 && n * 256 * PAGE <= work.small.len())
            .collect();
    let one = |w: &mut Work, p: usize| {
        let (n, stride) = (numbers[p / strides.len()], strides[p % strides.len()]);
        w.chase(Kind::Small, (0..n).map(|i| i * stride * PAGE + line(i)).collect())
    };
    let found = work.rounds(numbers.len() * strides.len(), one, |_| true)?;
    let fits = |k: usize| {
        let times = found.iter().skip(k).step_by(strides.len()).map(|v| fit::median(v.iter().copied()));
        let all: Vec<Point> = numbers.iter().map(|n| *n as f64).zip(times).collect();
        let base = all.first().map_or(0.0, |p| p.1);
        all.iter().rev().find(|p| p.1 < base + 2.0).map_or(f64::NAN, |p| p.0)
    };
    let fits: Vec<f64> = (0..strides.len()).map(fits).collect();
    Ok(Some(fit::ways(&fits, most) as u64))
}

/// One load per 2 MB page.
fn first_level_2m(work: &mut Work) -> Result<Option<Array>, MeasureError> {
    let numbers = work.sizes(4, huge_pages(&work.huge), 1);
    let one = |w: &mut Work, p: usize| {
        let n = numbers[p / 2];
        let at = |i: usize| if p % 2 == 0 { i * HUGE + i % 64 * 64 + i / 64 % 8 * PAGE } else { i * 64 };
        w.chase(Kind::Huge, (0..n).map(at).collect())
    };
    let found = work.rounds(numbers.len() * 2, one, |_| true)?;
    let point = |(pair, n): (&[Vec<f64>], &usize)| {
        (*n as f64, fit::median(pair[0].iter().zip(&pair[1]).map(|(v, b)| v - b)))
    };
    let curve: Vec<Point> = found.chunks(2).zip(&numbers).map(point).collect();
    let [l1, _] = arrays(&curve, found[0].len());
    Ok(l1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(time: impl Fn(f64) -> f64) -> Vec<Point> {
        (0..42).map(|i| (8.0 * 2f64.powf(f64::from(i) / 4.0)).round()).map(|n| (n, time(n))).collect()
    }

    #[test]
    fn both_levels_are_found_where_walks_grow_dearer_all_the_time() {
        // Entries 96 and 4096 of 8 hashed ways, as an EPYC of family 1Ah shows them: misses begin early.
        let c = curve(|n| match n {
            n if n <= 96.0 => 0.1,
            n if n <= 1100.0 => 7.1,
            n => 7.1 + 140.0 / (1.0 + (-(n / 4600.0).ln() * 3.0).exp()),
        });
        let [l1, l2] = arrays(&c, 9);
        let (l1, l2) = (l1.unwrap(), l2.unwrap());
        assert_eq!(l1.entries.median, 96.0);
        assert!((6.0..9.0).contains(&l1.miss), "{l1:?}");
        assert!(l2.entries.low <= 4096.0 && 4096.0 < l2.entries.high, "{l2:?}");
    }

    #[test]
    fn a_curve_without_a_second_rise_has_one_level() {
        let [l1, l2] = arrays(&curve(|n| if n <= 64.0 { 0.0 } else { 30.0 }), 9);
        assert_eq!((l1.unwrap().entries.median, l2), (64.0, None));
        assert_eq!(arrays(&curve(|_| 0.2), 9), [None, None]);
        assert_eq!(arrays(&[], 9), [None, None]);
    }

    #[test]
    fn split_pages_meet_the_knee_of_small_ones() {
        let small = curve(|n| if n <= 64.0 { 0.0 } else { 7.0 });
        let [l1, _] = arrays(&small, 9);
        assert_eq!(host_pages(&small, &small, l1.as_ref()), HostPages::Split);
        assert_eq!(host_pages(&small, &curve(|_| 0.1), l1.as_ref()), HostPages::Whole);
        assert_eq!(
            host_pages(&small, &curve(|n| if n <= 64.0 { 0.0 } else { 3.5 }), l1.as_ref()),
            HostPages::Unknown
        );
        assert_eq!(host_pages(&small, &small, None), HostPages::Unknown);
    }
}
