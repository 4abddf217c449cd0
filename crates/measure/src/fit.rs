// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds plateaus and knees in measured curves, and what geometry they mean. Nothing here measures.
//!
//! A curve is the time of a load over a growing set: of lines for caches, of pages for TLBs. While the set
//! fits a level, the time is that level's; beyond, the next one's. Between two plateaus the time rises at
//! once (true LRU visited in a ring), or over some points (other replacement, neighbours, hashed sets).

/// A point: the size of the set and the time of a load.
pub type Point = (f64, f64);

/// A stretch of a curve with one time.
#[derive(Debug, Clone, PartialEq)]
pub struct Plateau {
    /// Its time: the median of its points.
    pub time: f64,
    /// Index of its first and of its last point.
    pub first: usize,
    /// Index of its last point.
    pub last: usize,
}

/// The rise from one plateau to the next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Knee {
    /// The largest set that still fits.
    pub fits: f64,
    /// The smallest set that does not.
    pub exceeds: f64,
    /// Time while it fits.
    pub below: f64,
    /// Time of the next plateau.
    pub above: f64,
}

/// How many points make a plateau; fewer are part of a rise.
const FEWEST: usize = 3;
/// What a further stretch costs, in units of the noise: it must explain that much.
const NEW_STRETCH: f64 = 5.0;
/// The part of a rise that a set which still fits may show.
const STILL_FITS: f64 = 0.2;
/// The part of a rise beyond which a set does not fit: with hashed sets, about half of the accesses miss
/// where the set is as large as the array.
const EXCEEDS: f64 = 0.5;

/// The plateaus of a curve: the stretches of the piecewise constant function that is nearest to the points,
/// with a price for each stretch. `noise` gives the noise of a time; differences below twice that make no
/// plateau.
pub fn plateaus(curve: &[Point], noise: impl Fn(f64) -> f64) -> Vec<Plateau> {
    let n = curve.len();
    // best[i]: the least cost of the first i points, and where their last stretch begins. The cost of a point
    // is its distance from the stretch's median, which outliers do not move.
    let mut best: Vec<(f64, usize)> = vec![(0.0, 0)];
    for end in 1..=n {
        let cost = |begin: usize| {
            let m = median(curve[begin..end].iter().map(|p| p.1));
            let off: f64 = curve[begin..end].iter().map(|p| (p.1 - m).abs()).sum();
            best[begin].0 + off / noise(m) + NEW_STRETCH
        };
        let found = (0..end).map(|b| (cost(b), b)).min_by(|a, b| a.0.total_cmp(&b.0));
        best.push(found.unwrap_or((0.0, 0)));
    }
    let mut stretches = Vec::new();
    let mut end = n;
    while end > 0 {
        let begin = best[end].1;
        let time = median(curve[begin..end].iter().map(|p| p.1));
        stretches.push(Plateau { time, first: begin, last: end - 1 });
        end = begin;
    }
    stretches.reverse();
    let mut out: Vec<Plateau> = Vec::new();
    for s in stretches.into_iter().filter(|s| s.last + 1 - s.first >= FEWEST) {
        match out.last_mut() {
            Some(before) if s.time - before.time < 2.0 * noise(before.time) => before.last = s.last,
            _ => out.push(s),
        }
    }
    out
}

/// The knee between two plateaus.
pub fn knee(curve: &[Point], below: &Plateau, above: &Plateau) -> Knee {
    let at = |part: f64| below.time + part * (above.time - below.time);
    // The last point that is not above, after which the times stay above.
    let last =
        |limit: f64| (below.first..=above.first).rev().find(|&i| curve[i].1 <= limit).unwrap_or(below.first);
    let (fits, half) = (last(at(STILL_FITS)), last(at(EXCEEDS)));
    let next = (half + 1).min(curve.len() - 1);
    Knee { fits: curve[fits].0, exceeds: curve[next].0, below: below.time, above: above.time }
}

/// All knees of a curve.
pub fn knees(curve: &[Point], noise: impl Fn(f64) -> f64) -> Vec<Knee> {
    plateaus(curve, noise).windows(2).map(|p| knee(curve, &p[0], &p[1])).collect()
}

/// The whole number that hardware is most likely to have between two points of a curve: of those in
/// `fits..exceeds`, the one with the fewest odd factors (a power of two, else 3, 5, 7 or 9 times one).
pub fn likely_size(knee: &Knee, unit: f64) -> f64 {
    let (low, high) = (knee.fits / unit, knee.exceeds / unit);
    let sizes = [1_u64, 3, 5, 7, 9, 11, 13, 15];
    for odd in sizes {
        let fitting = (0..40).map(|k| (odd << k) as f64).find(|x| *x >= low && *x < high);
        if let Some(found) = fitting {
            return found * unit;
        }
    }
    knee.fits
}

/// Does the size lie where the knee is? A size below by a tenth is within what other memory of the process
/// takes.
pub fn agrees(knee: &Knee, size: f64) -> bool {
    (knee.fits * 0.99..knee.exceeds * 1.1).contains(&size)
}

/// The overlap of independent misses: how much of the wait of dependent ones is left, by round. Each slice
/// has a time per round; waits are over the times of loads that hit.
pub fn overlap(dependent: &[f64], independent: &[f64], dep_hit: &[f64], ind_hit: &[f64]) -> Vec<f64> {
    let all = dependent.iter().zip(independent).zip(dep_hit.iter().zip(ind_hit));
    all.map(|((d, i), (dh, ih))| {
        let (whole, left) = (d - dh, i - ih);
        if whole > 0.0 && left > 0.0 { (whole / left).max(1.0) } else { f64::NAN }
    })
    .collect()
}

/// Associativity from conflicts: how many addresses at each stride fit. Where the smallest number is about
/// the whole capacity, the array is fully associative, or its sets are hashed. Returns the ways; 0 = cannot
/// be distinguished from full associativity.
pub fn ways(fit_at_strides: &[f64], capacity: f64) -> usize {
    let least = fit_at_strides.iter().copied().fold(f64::INFINITY, f64::min);
    if !least.is_finite() || least > capacity / 2.0 { 0 } else { least.round() as usize }
}

/// Which level answers after a prefetch: the nearest in ratio of times; 0 if memory is.
pub fn prefetch_level(sequential: f64, levels: &[f64], memory: f64) -> u8 {
    let distance = |t: f64| (sequential.max(1e-3) / t).ln().abs();
    let all = levels.iter().enumerate().map(|(i, t)| (i as u8 + 1, *t)).chain([(0, memory)]);
    all.min_by(|a, b| distance(a.1).total_cmp(&distance(b.1))).map_or(0, |(level, _)| level)
}

/// The median of some values; 0 of none.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(0.5, values)
}

/// A quantile of some values, between the two nearest; 0 of none.
pub fn quantile(part: f64, values: impl Iterator<Item = f64>) -> f64 {
    let mut v: Vec<f64> = values.collect();
    v.sort_by(f64::total_cmp);
    let Some(last) = v.len().checked_sub(1) else { return 0.0 };
    let at = part * last as f64;
    let (low, over) = (at.floor() as usize, at.fract());
    v[low] + over * (v[(low + 1).min(last)] - v[low])
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng as _, SeedableRng as _};

    /// Sizes from `first` on, four to the octave.
    fn sizes(first: f64, n: usize) -> Vec<f64> {
        (0..n).map(|i| (first * 2f64.powf(i as f64 / 4.0)).round()).collect()
    }

    /// Times of levels (capacity, time), with memory behind; `blur` octaves of transition after each
    /// capacity.
    fn curve(
        sizes: &[f64],
        levels: &[(f64, f64)],
        memory: f64,
        blur: f64,
        noise: f64,
        seed: u64,
    ) -> Vec<Point> {
        let mut random = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
        let time = |size: f64| {
            let mut t = levels[0].1;
            for (i, (capacity, _)) in levels.iter().enumerate() {
                let next = levels.get(i + 1).map_or(memory, |l| l.1);
                let over = (size / capacity).log2();
                let part = if over <= 0.0 {
                    0.0
                } else if blur == 0.0 {
                    1.0
                } else {
                    (over / blur).min(1.0)
                };
                t += part * (next - levels[i].1);
            }
            t
        };
        sizes.iter().map(|s| (*s, time(*s) * (1.0 + noise * (random.random::<f64>() * 2.0 - 1.0)))).collect()
    }

    fn relative(t: f64) -> f64 {
        0.05 * t
    }

    #[test]
    fn three_caches_are_found_through_noise() {
        let levels = [(49152.0, 4.0), (1048576.0, 14.0), (33554432.0, 52.0)];
        for seed in 0..50 {
            let c = curve(&sizes(4096.0, 60), &levels, 420.0, 0.0, 0.08, seed);
            let found = knees(&c, relative);
            assert_eq!(found.len(), 3, "seed {seed}: {found:?}");
            for (k, (capacity, time)) in found.iter().zip(levels) {
                assert!(agrees(k, capacity), "seed {seed}: {k:?} is not {capacity}");
                assert!((k.below / time - 1.0).abs() < 0.06, "seed {seed}: {k:?}");
                assert!((likely_size(k, 1.0) / capacity - 1.0).abs() < 0.2, "seed {seed}: {k:?}");
            }
            assert!((found[2].above / 420.0 - 1.0).abs() < 0.08, "seed {seed}: {found:?}");
        }
    }

    #[test]
    fn a_blurred_rise_has_its_knee_where_it_begins() {
        let levels = [(32768.0, 4.0), (262144.0, 12.0), (6291456.0, 40.0)];
        for seed in 0..50 {
            let c = curve(&sizes(4096.0, 60), &levels, 300.0, 1.0, 0.03, seed);
            let found = knees(&c, relative);
            assert_eq!(found.len(), 3, "seed {seed}: {found:?}");
            for (k, (capacity, _)) in found.iter().zip(levels) {
                assert!((0.8..1.45).contains(&(k.fits / capacity)), "seed {seed}: {k:?} for {capacity}");
            }
        }
    }

    #[test]
    fn a_flat_curve_has_no_knee_even_if_one_point_was_disturbed() {
        let mut c = curve(&sizes(8.0, 40), &[(1e9, 5.0)], 50.0, 0.0, 0.05, 1);
        assert_eq!(knees(&c, relative), []);
        c[20].1 = 60.0;
        assert_eq!(knees(&c, relative), []);
        assert_eq!(knees(&[], relative), []);
        assert_eq!(plateaus(&[(1.0, 1.0)], relative), []);
    }

    #[test]
    fn tlbs_are_found_in_differences_around_zero() {
        // 64 and 1536 entries; 7 and 35 cycles more.
        let mut random = rand_pcg::Pcg64Mcg::seed_from_u64(3);
        let time = |n: f64| {
            if n <= 64.0 {
                0.0
            } else if n <= 1536.0 {
                7.0
            } else {
                35.0
            }
        };
        for _ in 0..50 {
            let c: Vec<Point> =
                sizes(8.0, 42).iter().map(|n| (*n, time(*n) + random.random::<f64>() - 0.5)).collect();
            let found = knees(&c, |t| 0.5 + 0.05 * t);
            assert_eq!(found.len(), 2, "{found:?}");
            assert!(agrees(&found[0], 64.0) && agrees(&found[1], 1536.0), "{found:?}");
            assert_eq!((likely_size(&found[0], 1.0), likely_size(&found[1], 1.0)), (64.0, 1536.0));
        }
    }

    #[test]
    fn overlap_is_the_wait_of_one_over_the_wait_of_many() {
        let found = overlap(&[404.0, 804.0, 4.0], &[52.0, 102.0, 1.0], &[4.0; 3], &[2.0; 3]);
        assert_eq!(found[..2], [8.0, 8.0]);
        assert!(found[2].is_nan(), "no wait at all has no overlap");
        assert_eq!(overlap(&[10.0], &[30.0], &[0.0], &[0.0]), [1.0], "an overlap is at least 1");
    }

    #[test]
    fn quantiles_lie_between_their_neighbours() {
        let v = [4.0, 1.0, 3.0, 2.0];
        assert_eq!((quantile(0.25, v.into_iter()), median(v.into_iter())), (1.75, 2.5));
        assert_eq!((median([7.0].into_iter()), median([].into_iter())), (7.0, 0.0));
    }

    #[test]
    fn ways_are_the_fewest_conflicting_addresses_that_fit() {
        assert_eq!(ways(&[64.0, 8.0, 4.0, 4.0], 64.0), 4);
        assert_eq!(ways(&[96.0, 90.0, 96.0], 96.0), 0);
        assert_eq!(ways(&[], 96.0), 0);
    }

    #[test]
    fn a_prefetched_line_comes_from_the_level_of_its_time() {
        let levels = [4.0, 14.0, 50.0];
        for (time, level) in [(4.5, 1), (11.0, 2), (60.0, 3), (300.0, 0)] {
            assert_eq!(prefetch_level(time, &levels, 400.0), level, "{time}");
        }
    }
}
