// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Caches: a ring of loads through sets of growing size, on 2 MB pages where the kernel gives them.
//!
//! Pages come in random order, and from each page eight random lines at a time: TLB misses then cost an
//! eighth, also where the host has split the pages, and eight lines of 64 are too few for prefetchers of
//! regions.

use super::{Kind, MeasureError, Work, if_reached};
use crate::estimate::Estimate;
use crate::fit::{self, Knee, Point};
use crate::os::PAGE;
use crate::told::ToldCache;
use rand::seq::SliceRandom as _;
use schemars::JsonSchema;
use serde::Serialize;

/// Lines that are visited in a page before the next page.
const GROUP: usize = 8;
/// Lines of a page.
const LINES: usize = 64;

/// One level.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Level {
    /// Number of the level, 1 to 3.
    pub level: u8,
    /// Capacity in the profile. Unit: bytes.
    pub bytes: u64,
    /// Where the time leaves the level: the largest set that fits, and the smallest that does not; null if no
    /// knee was found. Unit: bytes.
    pub reach: Option<Estimate>,
    /// The level by CPUID; null if CPUID does not have the level.
    pub told: Option<ToldCache>,
    /// Ways of associativity; measured for the first level.
    pub ways: u64,
    /// Ways of associativity as measured; null if not determined.
    pub ways_measured: Option<u64>,
    /// Load to use; null if no set was answered by the level alone. Unit: cycles.
    pub cycles: Option<Estimate>,
}

/// What was found.
#[derive(Default)]
pub struct Caches {
    /// Levels, first level first.
    pub levels: Vec<Level>,
}

pub(super) fn measure(work: &mut Work) -> Result<Caches, MeasureError> {
    let told = work.told.caches.clone();
    let largest = told.iter().map(|c| c.bytes as usize).max().unwrap_or(32 << 20);
    let last = (2 * largest).clamp(16 << 20, work.huge.len() / 2);
    let sizes = work.sizes(2 * PAGE, last, PAGE);
    let one = |w: &mut Work, p: usize| {
        let order = grouped(sizes[p] / PAGE, w);
        w.chase_in_order(Kind::Huge, &order)
    };
    let narrow =
        |l: &Level| l.cycles.is_none_or(|c| c.is_narrow()) && l.reach.is_none_or(|r| r.refusal().is_none());
    let found =
        work.rounds(sizes.len(), one, |found| levels(&sizes, found, &told, &[]).iter().all(narrow))?;
    let conflicts = if_reached(first_level_ways(work))?;
    Ok(Caches { levels: levels(&sizes, &found, &told, &conflicts) })
}

/// The lines of the first pages of an area: visits of `GROUP` lines, in random order.
fn grouped(pages: usize, work: &mut Work) -> Vec<usize> {
    let per_page = LINES / GROUP;
    let mut visits: Vec<usize> = (0..pages * per_page).collect();
    visits.shuffle(&mut work.random);
    let mut lines: Vec<usize> = (0..LINES).collect();
    lines.shuffle(&mut work.random);
    // Odd multiples permute the lines differently in each page.
    let line = |page: usize, i: usize| lines[i] * (2 * page + 1) % LINES;
    let visit = |v: &usize| {
        let (page, first) = (v / per_page, v % per_page * GROUP);
        (first..first + GROUP).map(move |i| (page, i)).collect::<Vec<_>>()
    };
    visits.iter().flat_map(visit).map(|(page, i)| page * PAGE + line(page, i) * 64).collect()
}

/// The largest numbers of addresses 4 KB and 32 KB apart that the first level holds. Addresses 32 KB apart
/// are of one set in every cache of up to 512 sets. On AMD's cores, way prediction by a hash of the address
/// lets some strides meet more conflicts than there are (Lipp et al., Take A Way, AsiaCCS 2020), so there are
/// two.
fn first_level_ways(work: &mut Work) -> Result<Vec<u64>, MeasureError> {
    const STRIDES: [usize; 2] = [PAGE, 32 << 10];
    let numbers: Vec<usize> = (2..=24).collect();
    let one = |w: &mut Work, p: usize| {
        let (n, stride) = (numbers[p / STRIDES.len()], STRIDES[p % STRIDES.len()]);
        w.chase(Kind::Huge, (0..n).map(|i| i * stride).collect())
    };
    let found = work.rounds(numbers.len() * STRIDES.len(), one, |_| true)?;
    let fits = |k: usize| {
        let times = found.iter().skip(k).step_by(STRIDES.len()).map(|v| fit::median(v.iter().copied()));
        let all: Vec<Point> = numbers.iter().map(|n| *n as f64).zip(times).collect();
        let base = all.first().map_or(0.0, |p| p.1);
        // One load in n misses beyond, or all: either is more than a cycle.
        all.iter().rev().find(|p| p.1 < base * 1.25).map_or(0, |p| p.0 as u64)
    };
    Ok((0..STRIDES.len()).map(fits).collect())
}

/// The associativity that conflicts show: CPUID's if one stride shows the same, else that of the wide stride
/// if both agree.
fn ways(conflicts: &[u64], told: Option<u64>) -> Option<u64> {
    let all: Vec<u64> = conflicts.iter().copied().filter(|n| (2..24).contains(n)).collect();
    let agreed = all.len() > 1 && all.windows(2).all(|w| w[0] == w[1]);
    told.filter(|t| all.contains(t)).or(all.last().copied().filter(|_| agreed))
}

fn curve(sizes: &[usize], found: &[Vec<f64>]) -> Vec<Point> {
    sizes.iter().zip(found).map(|(s, v)| (*s as f64, fit::median(v.iter().copied()))).collect()
}

/// The levels from the curve and from what CPUID says. CPUID's size is taken if the curve's knee agrees with
/// it, or if the curve has none for it; else the size is the knee's.
fn levels(sizes: &[usize], found: &[Vec<f64>], told: &[ToldCache], conflicts: &[u64]) -> Vec<Level> {
    let rounds = found.first().map_or(0, Vec::len);
    let curve = curve(sizes, found);
    let knees = fit::knees(&curve, |t| 0.06 * t);
    let mut levels: Vec<Level> = Vec::new();
    let all: Vec<(Option<ToldCache>, Option<Knee>)> = if told.is_empty() {
        knees.iter().take(3).map(|k| (None, Some(*k))).collect()
    } else {
        matched(told, &knees)
    };
    for (i, (told, knee)) in all.into_iter().enumerate() {
        let reach = knee.map(|k| Estimate::between(fit::likely_size(&k, 1024.0), k.fits, k.exceeds, rounds));
        let measured = reach.map(|r| r.median as u64);
        let bytes = match (&told, &knee) {
            (Some(t), Some(k)) if fit::agrees(k, t.bytes as f64) => t.bytes,
            (Some(t), None) => t.bytes,
            _ => measured.unwrap_or(0),
        };
        let ways_measured = if i == 0 { ways(conflicts, told.as_ref().map(|t| t.ways)) } else { None };
        let ways = ways_measured.or(told.as_ref().map(|t| t.ways)).unwrap_or(8);
        // A reach that is no multiple of the ways is rounded to one with legal sets (multiples of 64).
        let unit = 64 * 64 * ways;
        let bytes = if told.as_ref().is_some_and(|t| t.bytes == bytes) {
            bytes
        } else {
            (bytes / unit).max(1) * unit
        };
        let below = levels.last().map_or(0, |l| l.bytes);
        let end = reach.map_or(bytes * 3 / 4, |r| (r.low as u64).min(bytes));
        let cycles = answered(sizes, found, below, end);
        levels.push(Level { level: i as u8 + 1, bytes, reach, told, ways, ways_measured, cycles });
    }
    levels
}

/// The knee of each level that CPUID names: the nearest in size, at most half an octave off for private
/// levels. The last level's may lie lower, if others use it too.
fn matched(told: &[ToldCache], knees: &[Knee]) -> Vec<(Option<ToldCache>, Option<Knee>)> {
    let mut from = 0.0;
    let mut out = Vec::new();
    for (i, t) in told.iter().enumerate() {
        let size = t.bytes as f64;
        let last = i + 1 == told.len() && i > 0;
        let octaves = |k: &Knee| ((k.fits * k.exceeds).sqrt() / size).log2();
        let near = |k: &&Knee| {
            let o = octaves(k);
            k.fits > from && if last { o < 0.75 } else { o.abs() < 0.75 }
        };
        let distance = |k: &Knee| octaves(k).abs();
        let knee = knees.iter().filter(near).min_by(|a, b| distance(a).total_cmp(&distance(b))).copied();
        from = knee.map_or(size, |k| k.fits);
        out.push((Some(t.clone()), knee));
    }
    out
}

/// Cycles of a load that the level answers: of each round, the lower quartile over the sets that are larger
/// than the level below by half and still fit this one. Neighbours make single sets slow, never fast.
fn answered(sizes: &[usize], found: &[Vec<f64>], below: u64, bytes: u64) -> Option<Estimate> {
    let (low, high) = (below as f64 * 1.5, bytes as f64);
    let inside: Vec<&Vec<f64>> = sizes
        .iter()
        .zip(found)
        .filter(|(s, _)| (low..=high).contains(&(**s as f64)))
        .map(|(_, v)| v)
        .collect();
    let rounds = inside.iter().map(|v| v.len()).min().unwrap_or(0);
    let of_rounds: Vec<f64> = (0..rounds).map(|r| fit::quantile(0.25, inside.iter().map(|v| v[r]))).collect();
    Estimate::of(&of_rounds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng as _, SeedableRng as _};

    fn told(level: u8, kib: u64, ways: u64) -> ToldCache {
        ToldCache { level, bytes: kib << 10, ways, inclusive: false, sharing: 1 }
    }

    /// Times with noise of 4 % for these capacities in KiB; one round in five is 30 % slower.
    fn machine(capacities: [u64; 3], seed: u64) -> (Vec<usize>, Vec<Vec<f64>>) {
        let mut random = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
        let sizes: Vec<usize> =
            (0..54).map(|i| (8192.0 * 2f64.powf(f64::from(i) / 4.0)) as usize & !4095).collect();
        let time = |s: usize| match s as u64 >> 10 {
            k if k <= capacities[0] => 4.0,
            k if k <= capacities[1] => 14.0,
            k if k <= capacities[2] => 50.0,
            _ => 500.0,
        };
        let mut one = |s: usize| {
            let slow = if random.random_bool(0.2) { 1.3 } else { 1.0 };
            time(s) * slow * (1.0 + 0.04 * (random.random::<f64>() - 0.5))
        };
        let found = sizes.iter().map(|s| (0..9).map(|_| one(*s)).collect()).collect();
        (sizes, found)
    }

    #[test]
    fn levels_that_agree_with_cpuid_have_its_sizes() {
        for seed in 0..20 {
            let (sizes, found) = machine([48, 1024, 32768], seed);
            let l =
                levels(&sizes, &found, &[told(1, 48, 12), told(2, 1024, 16), told(3, 32768, 16)], &[12, 11]);
            let kib: Vec<u64> = l.iter().map(|l| l.bytes >> 10).collect();
            assert_eq!(kib, [48, 1024, 32768], "seed {seed}");
            for (l, cycles) in l.iter().zip([4.0, 14.0, 50.0]) {
                let e = l.cycles.unwrap();
                assert!(
                    (e.median / cycles - 1.0).abs() < 0.06 && e.low <= e.median && e.median <= e.high,
                    "{l:?}"
                );
            }
        }
    }

    #[test]
    fn a_shared_level_that_neighbours_use_has_the_reach_that_is_left() {
        let (sizes, found) = machine([48, 1024, 6144], 1);
        let l = levels(&sizes, &found, &[told(1, 48, 12), told(2, 1024, 16), told(3, 32768, 16)], &[]);
        assert!((5 << 20..8 << 20).contains(&l[2].bytes), "{:?}", l[2]);
        assert_eq!(l[2].bytes % (64 * 64 * 16), 0);
        assert_eq!((l[0].ways, l[0].ways_measured), (12, None));
    }

    #[test]
    fn without_cpuid_sizes_are_the_curve_s() {
        let (sizes, found) = machine([32, 256, 8192], 2);
        let l = levels(&sizes, &found, &[], &[8, 8]);
        let kib: Vec<u64> = l.iter().map(|l| l.bytes >> 10).collect();
        assert_eq!(kib, [32, 256, 8192]);
    }

    #[test]
    fn ways_need_two_strides_or_cpuid() {
        assert_eq!(ways(&[12, 10], Some(12)), Some(12));
        assert_eq!(ways(&[10, 12], Some(12)), Some(12));
        assert_eq!(ways(&[8, 8], Some(12)), Some(8));
        assert_eq!(ways(&[16, 2], None), None);
        assert_eq!(ways(&[24, 24], Some(24)), None, "more than were tried");
    }

    #[test]
    fn a_level_whose_knee_cannot_be_seen_is_told() {
        let (sizes, mut found) = machine([48, 1024, 32768], 3);
        found.iter_mut().for_each(|v| v.fill(4.0));
        let l = levels(&sizes, &found, &[told(1, 48, 12), told(2, 1024, 16)], &[9, 10]);
        assert_eq!((l[0].reach, l[1].bytes), (None, 1024 << 10));
    }
}
