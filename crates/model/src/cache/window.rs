// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What overlaps: a core looks ahead by as many instructions as its reorder buffer holds, so a miss hides
//! behind others only if they are that near (Karkhanis and Smith, A First-Order Superscalar Processor Model,
//! ISCA 2004: isolated misses cost their whole latency, and misses within a window share one). Dense misses
//! overlap as `memory.data_overlap` and `memory.walk_overlap` say, which were measured on such.
//!
//! A dependent load waits for the loads before it in its chain. It overlaps with the other chains that have
//! loads within the window: each probe of a hash table follows a list of its own.
//!
//! A store leaves the core for the store buffer and waits there. The window does not limit what stores
//! overlap with.
//!
//! A walk whose data are in a cache has no wait for memory to hide behind. It overlaps with other walks
//! alone, as many as the core has walkers.

use crate::profile::Profile;

/// Cycles of walks, and the means of their references, are kept in 1/256.
pub(super) const FRACTION: u32 = 8;
/// Shares are kept in 1/65,536.
pub(super) const SHARE: u32 = 16;
/// The pace of accesses is that of about so many instructions, the most recent ones.
const RECENT: u64 = 1 << 20;
/// The density of misses is that of the last so many.
const LAST: usize = 8;
/// The last so many chains count, more than a core has misses under way.
const CHAINS: usize = 16;
/// A new answer moves the share of walks whose data come from memory by 1/64 of the difference.
const MEAN_SHIFT: u32 = 6;

/// The limits of a profile.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub data: f64,
    pub walk: f64,
    /// Walks at once, if their data are in a cache.
    walkers: f64,
    /// Instructions that the core looks ahead.
    reorder: Option<u64>,
    /// The shares that the overlaps of data and of walks hide.
    most_data: u64,
    most_walk: u64,
}

impl Limits {
    /// The limits of a profile with `memory`.
    pub fn new(profile: &Profile) -> Limits {
        let (data, walk) = profile.memory.as_ref().map_or((1.0, 1.0), |m| (m.data_overlap, m.walk_overlap));
        let walkers = profile.memory.as_ref().and_then(|m| m.walkers).map_or(walk, |n| walk.min(n as f64));
        let (most_data, most_walk) = (most(data), most(walk));
        Limits { data, walk, walkers, reorder: profile.cpu.reorder_window, most_data, most_walk }
    }

    /// Of independent data: cycles that the core hides of so many, of which `alone` (in 1/65,536) are exposed
    /// beyond the overlap.
    pub fn hidden_data(&self, cycles: u64, alone: u64) -> u64 {
        self.hidden(cycles, self.data, cycles * self.most_data, alone)
    }

    /// The same of independent walks, whose cycles are in 1/256.
    pub fn hidden_walks(&self, cycles: u64, alone: u64) -> u64 {
        self.hidden(cycles >> FRACTION, self.walk, (cycles * self.most_walk) >> FRACTION, alone)
    }

    /// Grows with the cycles, so that the growth over any interval is no less than 0: what each wait adds to
    /// `alone` is at most what it adds to `by`, and only the difference is rounded.
    fn hidden(&self, cycles: u64, overlap: f64, by: u64, alone: u64) -> u64 {
        match self.reorder {
            None => (cycles as f64 * (1.0 - 1.0 / overlap)) as u64,
            Some(_) => by.saturating_sub(alone) >> SHARE,
        }
    }
}

/// When an access is: its number, and the reorder window around it in accesses, if the core has one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub access: u64,
    window: Option<u64>,
}

/// Accesses per instruction, of the most recent instructions. Those of a gap, whose accesses are not in the
/// stream, do not count.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    accesses: u64,
    instructions: u64,
    /// Accesses at the last call of [`Pace::ran`].
    before: u64,
    /// Accesses between that call and the last [`Pace::renumber`].
    pending: u64,
}

impl Pace {
    /// So many instructions ran, after which there were `accesses` in all.
    pub fn ran(&mut self, instructions: u64, accesses: u64) {
        let made = std::mem::take(&mut self.pending) + accesses - self.before;
        self.before = accesses;
        if made > 0 {
            self.accesses += made;
            self.instructions += instructions;
        }
        if self.instructions > RECENT {
            self.accesses /= 2;
            self.instructions /= 2;
        }
    }

    /// Access number `accesses` was the last: those that follow are numbered from 0 on. The pace stays, and
    /// accesses whose instructions are not known yet still count.
    pub fn renumber(&mut self, accesses: u64) {
        self.pending += accesses - std::mem::take(&mut self.before);
    }

    /// Access number `access` at this pace.
    pub fn at(&self, access: u64, limits: &Limits) -> Now {
        let window = limits.reorder.map(|n| n * self.accesses / self.instructions.max(1));
        Now { access, window }
    }
}

/// The share that an overlap hides, in 1/65,536.
fn most(overlap: f64) -> u64 {
    ((1.0 - 1.0 / overlap) * f64::from(1 << SHARE)) as u64
}

/// How near the last misses were to each other.
#[derive(Debug, Clone, Default)]
struct Density {
    /// When each was, in accesses, and the number of misses that it stands for.
    last: [(u64, u64); LAST],
    next: usize,
    misses: u64,
}

impl Density {
    /// Notes a miss. Returns the number of misses in a window of so many accesses around it.
    fn note(&mut self, now: u64, weight: u64, window: u64) -> f64 {
        let oldest = std::mem::replace(&mut self.last[self.next], (now, weight));
        self.next = (self.next + 1) % LAST;
        self.misses = self.misses + weight - oldest.1;
        self.misses as f64 * window as f64 / now.saturating_sub(oldest.0).max(1) as f64
    }
}

/// The last chains of dependent loads.
#[derive(Debug, Clone)]
pub(super) struct Chains {
    /// The last load of each.
    last: [u64; CHAINS],
    /// The chain of the loads that come next.
    current: usize,
}

impl Default for Chains {
    fn default() -> Chains {
        Chains { last: [u64::MAX; CHAINS], current: 0 }
    }
}

impl Chains {
    pub fn begins(&mut self, access: u64) {
        self.current = (self.current + 1) % CHAINS;
        self.last[self.current] = access;
    }

    /// The current chain has a load.
    #[inline(always)]
    pub fn load(&mut self, access: u64) {
        self.last[self.current] = access;
    }

    /// Chains with a load within one window, at least one.
    pub fn at_once(&self, now: Now) -> u64 {
        let Some(window) = now.window else { return 1 };
        let within = |&&last: &&u64| now.access.checked_sub(last).is_some_and(|ago| ago < window);
        self.last.iter().filter(within).count().max(1) as u64
    }
}

/// What one configuration's independent work exposes beyond the share that the overlaps expose.
#[derive(Debug, Clone)]
pub(super) struct Windows {
    limits: Limits,
    data: Density,
    walks: Density,
    /// The access whose walk was the last one of an independent access.
    walked: u64,
    /// Share of walks whose data come from memory, in 1/65,536.
    far: u32,
}

/// `1 / overlap` less `1 / limit`, in 1/65,536, where the limit hides the share `most_of_limit`.
fn beyond(overlap: f64, most_of_limit: u64) -> u64 {
    most_of_limit.saturating_sub(most(overlap))
}

impl Windows {
    pub fn new(limits: Limits) -> Windows {
        Windows {
            limits,
            data: Density::default(),
            walks: Density::default(),
            walked: u64::MAX,
            far: 1 << SHARE,
        }
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// An access, which stands for `weight`, waits for memory or for a cache. Of the accesses like it,
    /// `at_once` overlap at most. Returns the share of its wait that is exposed beyond
    /// `1 / memory.data_overlap`; 0 if it exposes all, or nothing beyond.
    #[inline]
    pub fn data(&mut self, now: Now, weight: u64, at_once: u64, from_memory: bool, write: bool) -> u64 {
        if at_once == 1 || !from_memory && at_once == u64::MAX {
            return 0;
        }
        let Some(window) = now.window else { return 0 };
        let near = if from_memory { self.data.note(now.access, weight, window) } else { f64::MAX };
        if write {
            return 0;
        }
        beyond(near.min(at_once as f64).clamp(1.0, self.limits.data), self.limits.most_data)
    }

    /// An access walks. Returns the share of its walk that is exposed beyond `1 / memory.walk_overlap`; 0 if
    /// it exposes all.
    #[inline]
    pub fn walk(&mut self, now: Now, at_once: u64) -> u64 {
        if at_once == 1 {
            return 0;
        }
        let Some(window) = now.window else { return 0 };
        self.walked = now.access;
        let far = f64::from(self.far) / f64::from(1 << SHARE);
        let limit = 1.0 / (far / self.limits.walk + (1.0 - far) / self.limits.walkers);
        let overlap = self.walks.note(now.access, 1, window).min(at_once as f64).clamp(1.0, limit.max(1.0));
        beyond(overlap, self.limits.most_walk)
    }

    /// Whether memory answered the access, which is part of no chain without end. It may have walked.
    pub fn answered(&mut self, now: Now, from_memory: bool) {
        if self.walked == now.access {
            let goal = i64::from(from_memory) << SHARE;
            self.far = (i64::from(self.far) + ((goal - i64::from(self.far)) >> MEAN_SHIFT)).max(0) as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(reorder: &str, walkers: &str) -> Windows {
        let set = ["memory.data_overlap=10", "memory.walk_overlap=20", reorder, walkers].map(String::from);
        let set: Vec<String> = set.into_iter().filter(|s| !s.is_empty()).collect();
        Windows::new(Limits::new(&Profile::load("zen4", &set).unwrap()))
    }

    /// An access number whose window of 300 instructions has 100 accesses.
    fn at(access: u64) -> Now {
        Now { access, window: Some(100) }
    }

    fn exposed(share: u64, limit: f64) -> f64 {
        share as f64 / f64::from(1 << SHARE) + 1.0 / limit
    }

    #[test]
    fn misses_overlap_with_those_in_their_window() {
        // (accesses from one miss to the next, the share that is exposed)
        for (distance, share) in [(1, 0.1), (10, 0.1), (25, 0.25), (50, 0.5), (100, 1.0), (1000, 1.0)] {
            let mut w = windows("cpu.reorder_window=300", "memory.walkers=4");
            let (mut data, mut walk) = (0, 0);
            for n in 1..100 {
                data = w.data(at(n * distance), 1, u64::MAX, true, false);
                walk = w.walk(at(n * distance), u64::MAX);
            }
            assert!((exposed(data, 10.0) - share).abs() < 0.001, "{distance}: {}", exposed(data, 10.0));
            let walks = (distance as f64 / 100.0).clamp(0.05, 1.0);
            assert!((exposed(walk, 20.0) - walks).abs() < 0.001, "{distance}: {}", exposed(walk, 20.0));
        }
    }

    #[test]
    fn a_store_waits_in_the_store_buffer_and_loads_overlap_with_it() {
        let mut w = windows("cpu.reorder_window=300", "memory.walkers=4");
        let stores = (1..100).map(|n| w.data(at(n * 1000), 1, u64::MAX, true, true)).max();
        assert_eq!(stores, Some(0));
        let mut load = 0;
        for n in 1000..1100 {
            w.data(at(n * 100), 1, u64::MAX, true, true);
            load = w.data(at(n * 100 + 50), 1, u64::MAX, true, false);
        }
        assert!((exposed(load, 10.0) - 0.5).abs() < 0.01, "{}", exposed(load, 10.0));
    }

    #[test]
    fn a_simulated_miss_stands_for_its_weight() {
        let mut w = windows("cpu.reorder_window=300", "memory.walkers=4");
        let last = (1..100).map(|n| w.data(at(n * 200), 8, u64::MAX, true, false)).last().unwrap();
        assert!((exposed(last, 10.0) - 0.25).abs() < 0.001, "{}", exposed(last, 10.0));
    }

    #[test]
    fn walks_of_data_in_a_cache_overlap_as_far_as_there_are_walkers() {
        let mut w = windows("cpu.reorder_window=300", "memory.walkers=4");
        let mut now = 0;
        let mut walk = |from_memory: bool| {
            let mut share = 0;
            for _ in 0..1000 {
                now += 1;
                share = w.walk(at(now), u64::MAX);
                w.answered(at(now), from_memory);
            }
            exposed(share, 20.0)
        };
        assert!((walk(true) - 0.05).abs() < 0.002);
        assert!((walk(false) - 0.25).abs() < 0.002);
        assert!((walk(true) - 0.05).abs() < 0.002);
    }

    #[test]
    fn the_pace_is_that_of_recent_instructions_whose_accesses_are_known() {
        let (limits, mut pace, mut accesses) =
            (windows("cpu.reorder_window=300", "memory.walkers=4").limits(), Pace::default(), 0);
        let mut ran = |instructions: u64, made: u64| {
            accesses += made;
            pace.ran(instructions, accesses);
            pace.at(accesses, &limits).window
        };
        assert_eq!(ran(3000, 1000), Some(100));
        assert_eq!(ran(1 << 40, 0), Some(100));
        (0..100).for_each(|_| _ = ran(60_000, 40_000));
        let near = |window: Option<u64>| window.is_some_and(|w| (195..=200).contains(&w));
        assert!(near(ran(60_000, 40_000)));
        // At the begin of a region.
        pace.renumber(accesses);
        pace.ran(60_000, 40_000);
        assert!(near(pace.at(1, &limits).window));
        // Regions that begin between accesses and the number of their instructions.
        let mut pace = Pace::default();
        pace.renumber(600);
        pace.renumber(300);
        pace.ran(3000, 100);
        assert_eq!(pace.at(100, &limits).window, Some(100));
    }

    #[test]
    fn chains_overlap_with_those_in_their_window() {
        let mut w = windows("cpu.reorder_window=300", "memory.walkers=4");
        let mut chains = Chains::default();
        let load = |chains: &mut Chains, access: u64| {
            chains.load(access);
            chains.at_once(at(access))
        };
        assert_eq!((load(&mut chains, 5), load(&mut chains, 6)), (1, 1));
        // So many loads, one after the other, in a chain of every 25 accesses. Of the chain that left the
        // window last, loads may still be within the window.
        let mut at_once = |loads: u64| {
            let chain = |n: u64| {
                chains.begins(n * 25);
                (1..=loads).map(|i| load(&mut chains, n * 25 + i)).last()
            };
            (1..100).map(chain).last().flatten()
        };
        assert_eq!((at_once(1), at_once(24)), (Some(4), Some(4)));
        chains.begins(100 * 25);
        assert_eq!(load(&mut chains, 100 * 25 + 1), 5);
        // Long after the last begin.
        assert_eq!(load(&mut chains, 101 * 25 + 100), 1);
        // A load of one of four chains: a quarter of the wait is exposed, wherever its line is, however near
        // other misses are.
        for from_memory in [true, false] {
            let data = (1..100).map(|n| w.data(at(n), 1, 4, from_memory, false)).last().unwrap();
            assert!((exposed(data, 10.0) - 0.25).abs() < 0.001, "{}", exposed(data, 10.0));
        }
        let walk = (1..100).map(|n| w.walk(at(n), 4)).last().unwrap();
        assert!((exposed(walk, 20.0) - 0.25).abs() < 0.001, "{}", exposed(walk, 20.0));
        assert_eq!((w.data(at(200), 1, 1, true, false), w.walk(at(200), 1)), (0, 0));
    }

    #[test]
    fn without_a_reorder_window_all_independent_work_overlaps() {
        let text = Profile::builtin_text("zen4").unwrap();
        let text: String = text
            .lines()
            .filter(|l| !l.starts_with("reorder_window") && !l.starts_with("walkers"))
            .map(|l| format!("{l}\n"))
            .collect();
        let mut w = Windows::new(Limits::new(&Profile::parse(&text, "x", &[]).unwrap()));
        let (pace, limits) = (Pace { accesses: 1000, instructions: 3000, ..Pace::default() }, w.limits());
        let at = |access| pace.at(access, &limits);
        assert_eq!((w.data(at(5000), 1, u64::MAX, true, false), w.walk(at(90_000), u64::MAX)), (0, 0));
    }
}
