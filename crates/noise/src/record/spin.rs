// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop that sees interruptions: it reads the clock again and again. Two readings that lie further apart
//! than the threshold had an interruption between them.
//!
//! That is the selfish detour benchmark (Beckman et al. 2006; Netgauge's `perform_selfish`): the fixed work
//! is one reading of the clock, so a detour's length is what lies between two readings, less the shortest
//! time between two.

use super::clock::{Clock, Moment};
use std::sync::atomic::{AtomicBool, Ordering};

/// The threshold in shortest iterations, unless the user names one: Netgauge's.
const THRESHOLD: u64 = 9;
/// Iterations that look for the shortest one, before the recording.
const WARM_UP: u32 = 200_000;

/// What one CPU's loop saw, in ticks of its clock.
#[derive(Debug)]
pub struct SpinRecord {
    /// Start and length of each detour, in the order of time.
    pub detours: Vec<(u64, u64)>,
    /// The shortest iteration.
    pub shortest: u64,
    /// Shorter gaps are not kept.
    pub threshold: u64,
    /// Number of iterations.
    pub iterations: u64,
    /// Both clocks at the start and at the end.
    pub ends: (Moment, Moment),
    /// Why the loop ended early.
    pub early: Option<Early>,
}

/// Why a loop ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Early {
    /// No room for more detours.
    Full,
    /// The kernel moved the thread to another CPU: the CPU went off line, or left the cpuset.
    Moved,
}

/// What the loop is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Loop<'a> {
    /// The CPU that the calling thread is bound to.
    pub cpu: usize,
    /// What to read.
    pub clock: Clock,
    /// For how long, nanoseconds.
    pub ns: u64,
    /// Threshold in nanoseconds, if the user named one.
    pub threshold_ns: Option<f64>,
    /// Most detours that are kept, 16 bytes each.
    pub most: usize,
    /// Ends the loop.
    pub stop: &'a AtomicBool,
}

impl Loop<'_> {
    /// Runs the loop.
    pub fn run(self) -> SpinRecord {
        // Its own copy for each clock: the loop then has no choice to make.
        match self.clock {
            Clock::Tsc => self.run_with(|| Clock::Tsc.now()),
            Clock::Raw => self.run_with(|| Clock::Raw.now()),
        }
    }

    fn run_with(self, now: impl Fn() -> u64 + Copy) -> SpinRecord {
        let begin = self.clock.moment();
        let shortest = shortest(now);
        let warm = self.clock.moment();
        let ticks_per_ns = (warm.ticks - begin.ticks) as f64 / (warm.ns - begin.ns).max(1) as f64;
        let named = self.threshold_ns.map(|ns| (ns * ticks_per_ns) as u64);
        let mut seen = SpinRecord {
            detours: room(self.most),
            shortest,
            threshold: named.unwrap_or(THRESHOLD * shortest).max(shortest),
            iterations: 0,
            ends: (warm, warm),
            early: None,
        };
        let start = self.clock.moment();
        let until = start.ticks + (self.ns as f64 * ticks_per_ns) as u64;
        let mut current = now();
        while current < until && !self.stop.load(Ordering::Relaxed) {
            let previous = current;
            current = now();
            seen.iterations += 1;
            let gap = current.wrapping_sub(previous);
            if gap > seen.threshold {
                seen.early = self.note(&mut seen, previous, gap);
                if seen.early.is_some() {
                    break;
                }
                // What noting takes is no detour.
                current = now();
            }
        }
        seen.ends = (start, self.clock.moment());
        seen
    }

    #[cold]
    fn note(self, seen: &mut SpinRecord, at: u64, gap: u64) -> Option<Early> {
        if rustix::thread::sched_getcpu() != self.cpu {
            return Some(Early::Moved);
        }
        if seen.detours.len() >= self.most {
            return Some(Early::Full);
        }
        seen.detours.push((at, gap - seen.shortest));
        None
    }
}

/// The shortest of many iterations. A clock that stands still between two readings counts as one tick.
fn shortest(now: impl Fn() -> u64) -> u64 {
    let mut least = u64::MAX;
    let mut previous = now();
    for _ in 0..WARM_UP {
        let current = now();
        least = least.min(current.wrapping_sub(previous));
        previous = current;
    }
    least.max(1)
}

/// Memory whose pages are there: a page fault would be a detour of our own.
fn room(most: usize) -> Vec<(u64, u64)> {
    let mut room = vec![(1, 1); most];
    room.clear();
    room
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn asked(stop: &AtomicBool) -> Loop<'_> {
        let cpu = rustix::thread::sched_getcpu();
        Loop { cpu, clock: Clock::Raw, ns: 20_000_000, threshold_ns: Some(1e6), most: 100, stop }
    }

    #[test]
    fn a_pause_of_the_thread_is_a_detour() {
        let stop = AtomicBool::new(false);
        let readings = Cell::new(0);
        let seen = asked(&stop).run_with(|| {
            readings.set(readings.get() + 1);
            if readings.get() == WARM_UP + 500 {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            Clock::Raw.now()
        });
        let paused = seen.detours.iter().any(|(_, ns)| *ns > 4_900_000);
        assert!(paused || seen.early == Some(Early::Moved), "{seen:?}");
    }

    #[test]
    fn a_full_loop_ends() {
        let stop = AtomicBool::new(false);
        let seen = Loop { threshold_ns: Some(0.0), most: 3, ..asked(&stop) }.run();
        assert!(
            seen.early == Some(Early::Moved) || (seen.detours.len(), seen.early) == (3, Some(Early::Full)),
            "{seen:?}"
        );
    }

    #[test]
    fn the_shortest_iteration_is_found_and_is_never_zero() {
        let tick = Cell::new(0_u64);
        let steps = [7, 5, 9, 3, 50];
        let next = || {
            tick.set(tick.get() + 1);
            let (rounds, rest) = (tick.get() / 5, (tick.get() % 5) as usize);
            rounds * steps.iter().sum::<u64>() + steps[..rest].iter().sum::<u64>()
        };
        assert_eq!(shortest(next), 3);
        assert_eq!(shortest(|| 42), 1);
    }

    #[test]
    fn a_loop_ends_at_its_time_and_when_it_is_stopped() {
        let (stop, stopped) = (AtomicBool::new(false), AtomicBool::new(true));
        let seen = Loop { ns: 5_000_000, threshold_ns: Some(1e5), ..asked(&stop) }.run();
        let (from, to) = seen.ends;
        assert!(seen.early == Some(Early::Moved) || to.ns - from.ns >= 5_000_000, "{seen:?}");
        assert!(seen.iterations > 0 && seen.threshold >= 90_000, "{}", seen.threshold);
        let none = Loop { ns: u64::MAX >> 8, ..asked(&stopped) }.run();
        assert_eq!((none.iterations, none.detours.len()), (0, 0));
    }
}
