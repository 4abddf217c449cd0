// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the last cache level keeps of a set that is used at the pace of memory misses.
//!
//! A ring of loads that the level answers uses each of its lines every few hundred microseconds. A program
//! that waits for memory uses the lines of its page tables every few milliseconds, and neighbours who share
//! the level have taken many of them by then. So loads of a small set alternate with loads of the whole area,
//! each waiting for the one before, and the time of the small set's loads tells how much of the set was still
//! there.

use super::caches::{Caches, Level};
use super::{MeasureError, Work, all_narrow};
use crate::estimate::Estimate;
use crate::loops::{Order, RandomLoads};
use crate::os::PAGE;

/// Loads of a page that share a walk.
const TOGETHER: u64 = 8;
/// Loads of either set in a piece.
const LOADS: u64 = 8_192;
/// Bytes of a set that the first level answers.
const FEW: usize = 4 * PAGE;
/// Under true LRU, with as many loads of the small set as of lines that never come again, half of the small
/// set's loads are answered if the level has so many times the set's lines: after t loads of either, a level
/// of S (1 - exp(-t/S)) + t lines is full, and a line comes again within t with the probability 1 - exp(-t/S)
/// (Che, Tung and Wang, Hierarchical Web Caching Systems, IEEE JSAC 20(7), 2002). At one half, t is S ln 2.
const LINES_AT_HALF: f64 = 0.5 + std::f64::consts::LN_2;

/// Bytes that the last level keeps, and the levels below with it; none if there is no such level, or if no
/// set was half answered.
pub(super) fn measure(work: &mut Work, caches: &Caches) -> Result<Option<Estimate>, MeasureError> {
    let [.., below, last] = &caches.levels[..] else { return Ok(None) };
    let Some(hit) = last.cycles.filter(|_| work.huge_ok) else { return Ok(None) };
    let largest = last.told.as_ref().map_or(last.bytes, |t| t.bytes).max(last.bytes) as usize;
    let mut sets = work.sizes(below.bytes as usize / 2, largest.min(work.huge.len() / 4), PAGE);
    let first = sets.len();
    sets.extend([FEW, work.huge.len()]);
    let mut seed = 0;
    let one = |w: &mut Work, p: usize| {
        seed += 1;
        let mut both = Both {
            set: RandomLoads::new(&w.huge, sets[p], TOGETHER, seed),
            all: RandomLoads::new(&w.huge, w.huge.len(), TOGETHER, !seed),
        };
        // As many loads as the set has lines: more than fill what can answer half of them.
        let warm = (sets[p] as u64 / 64).min(2 * largest as u64 / 64);
        w.bench.time(&mut both, |b| _ = b.run(warm), |b| b.run(LOADS))
    };
    let all = |found: &[Vec<f64>]| of_rounds(&sets[..first], found, [first_level(caches), hit.median]);
    let found = work.rounds(sets.len(), one, |found| all_narrow(&[all(found)]))?;
    Ok(all(&found))
}

/// Bytes kept, from the rounds of the sets and of the two ends.
fn of_rounds(sets: &[usize], found: &[Vec<f64>], hits: [f64; 2]) -> Option<Estimate> {
    let (found, ends) = found.split_at(sets.len());
    let rounds = ends[0].len();
    let kept: Vec<f64> = (0..rounds)
        .filter_map(|r| {
            let times: Vec<f64> = found.iter().map(|v| v[r]).collect();
            kept(sets, &times, [ends[0][r], ends[1][r]], hits)
        })
        .collect();
    // Fewer than half of the rounds are no result.
    if kept.len() * 2 < rounds { None } else { Estimate::of(&kept) }
}

fn first_level(caches: &Caches) -> f64 {
    caches.levels.first().and_then(|l: &Level| l.cycles).map_or(0.0, |c| c.median)
}

/// Bytes kept in one round. `times` are those of a load of a set and a load of the whole area together;
/// `ends` the same for a set that the first level answers, and for one as large as the area; `hits` the times
/// of a load that the first level and that the last level answers.
fn kept(sets: &[usize], times: &[f64], ends: [f64; 2], hits: [f64; 2]) -> Option<f64> {
    let load = |both: f64| both - ends[0] + hits[0];
    let half = (hits[1] + load(ends[1])) / 2.0;
    let above = times.iter().position(|t| load(*t) > half)?;
    let lines = |size: f64| LINES_AT_HALF * size;
    if above == 0 {
        return Some(lines(sets[0] as f64));
    }
    let (low, high) = (load(times[above - 1]), load(times[above]));
    let part = (half - low) / (high - low);
    let ratio = sets[above] as f64 / sets[above - 1] as f64;
    Some(lines(sets[above - 1] as f64 * ratio.powf(part)))
}

struct Both<'a> {
    set: RandomLoads<'a>,
    all: RandomLoads<'a>,
}

impl Both<'_> {
    /// At least so many loads of either, some of each by turns. Returns the number of pairs.
    fn run(&mut self, loads: u64) -> u64 {
        let turns = loads.div_ceil(TOGETHER);
        for _ in 0..turns {
            self.all.run(Order::Dependent, TOGETHER);
            self.set.wait_for(&self.all);
            self.set.run(Order::Dependent, TOGETHER);
            self.all.wait_for(&self.set);
        }
        turns * TOGETHER
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng as _, SeedableRng as _};

    /// The time of a pair of loads on a machine whose last level keeps so many lines by true LRU.
    fn pair(lines: usize, set: usize, random: &mut rand_pcg::Pcg64Mcg) -> f64 {
        let mut used = vec![0_u64; set];
        let (mut hits, mut n) = (0.0, 0.0);
        // The lines used since: those of the set, and as many others as there were loads.
        for now in 1..=20 * set as u64 {
            let line = random.random_range(0..set);
            let last = std::mem::replace(&mut used[line], now);
            if now > 10 * set as u64 && now % 16 == 0 {
                let since = used.iter().filter(|u| **u > last).count() as u64 + (now - last);
                n += 1.0;
                hits += f64::from(last > 0 && since <= lines as u64);
            }
        }
        600.0 + 50.0 * hits / n + 600.0 * (1.0 - hits / n)
    }

    #[test]
    fn the_size_of_an_lru_level_is_found() {
        let mut random = rand_pcg::Pcg64Mcg::seed_from_u64(1);
        const LINES: usize = 600;
        let lines = [150, 212, 300, 424, 600, 849];
        let times = lines.map(|n| pair(LINES, n, &mut random));
        let sets = lines.map(|n| n * 64);
        let found = kept(&sets, &times, [604.0, 1200.0], [4.0, 50.0]).unwrap() / 64.0;
        assert!((found / LINES as f64 - 1.0).abs() < 0.12, "{found}: {times:?}");
    }

    #[test]
    fn a_set_that_is_always_answered_or_never_gives_the_end_of_the_scale() {
        let ends = [604.0, 1200.0];
        assert_eq!(kept(&[1 << 20, 2 << 20], &[650.0, 655.0], ends, [4.0, 50.0]), None);
        let least = kept(&[1 << 20, 2 << 20], &[1100.0, 1150.0], ends, [4.0, 50.0]).unwrap();
        assert_eq!(least, LINES_AT_HALF * f64::from(1 << 20));
    }
}
