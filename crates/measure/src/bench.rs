// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Times short pieces of work in cycles, on one CPU, beside whatever else runs there.
//!
//! A cycle is that of an add chain, which is timed just before and just after each piece: turbo clocks and
//! throttling then change nothing. A piece is disturbed if the thread was preempted meanwhile, if the
//! hypervisor stole time from the CPU, or if the clock changed; the piece is then repeated, within a limit.

use crate::loops::add_chain;
use crate::os;
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Instant;

/// Additions whose time gives the length of a cycle: some microseconds, which a timer tick seldom hits.
const ADDS: u64 = 16_384;
/// How often the chain is timed for one length: the shortest time is taken.
const CHAINS: usize = 3;
/// A change of the clock beyond which a piece of work is disturbed.
const CLOCK_CHANGE: f64 = 0.02;
/// How often a disturbed piece is repeated.
const REPEATS: usize = 6;

/// The time of a piece, and whether something came between.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Timed {
    /// Cycles per unit of work.
    cycles: f64,
    /// Whether the time is longer than the work alone takes.
    disturbed: bool,
}

/// How calm the machine was.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Calm {
    /// Pieces of work that were timed.
    pub pieces: u64,
    /// Pieces that were repeated because something came between.
    pub repeated: u64,
    /// Pieces that stayed disturbed after all repeats; their times are in the results.
    pub given_up: u64,
}

/// Times work on the CPU that the thread is pinned to.
pub struct Bench {
    cpu: usize,
    /// Hz of the clock, one for each piece.
    pub clocks: Vec<f64>,
    /// How calm the machine was.
    pub calm: Calm,
    /// When measuring began, and the ticks stolen until then.
    began: (Instant, u64),
}

/// Ticks of a second in proc_stat(5): USER_HZ, 100 on every architecture that Linux has in 64 bits but Alpha.
const TICKS: f64 = 100.0;

impl Bench {
    /// For a thread that is pinned to this CPU.
    pub fn new(cpu: usize) -> Bench {
        let began = (Instant::now(), stolen_ticks(cpu));
        Bench { cpu, clocks: Vec::new(), calm: Calm::default(), began }
    }

    /// Part of the time since the beginning in which the hypervisor ran others on the CPU.
    pub fn steal(&self) -> f64 {
        let (since, before) = self.began;
        let ticks = stolen_ticks(self.cpu).saturating_sub(before) as f64;
        (ticks / TICKS / since.elapsed().as_secs_f64().max(1e-3)).min(1.0)
    }

    /// Times a piece of work, which returns its number of units; cycles per unit. Before each time, `warm`
    /// brings what the work needs into caches and TLBs.
    pub fn time<T>(&mut self, on: &mut T, warm: impl Fn(&mut T), work: impl Fn(&mut T) -> u64) -> f64 {
        self.calmly(|bench| {
            warm(on);
            bench.once(|| work(on))
        })
    }

    fn once(&mut self, work: impl FnOnce() -> u64) -> Timed {
        let stolen = stolen_ticks(self.cpu);
        let before = clock();
        let preempted = os::preemptions();
        let start = Instant::now();
        let units = work();
        let ns = start.elapsed().as_nanos() as f64;
        let preempted = os::preemptions() != preempted;
        let after = clock();
        let hz = (before + after) / 2.0;
        self.clocks.push(hz);
        let changed = (before / after - 1.0).abs() > CLOCK_CHANGE;
        let disturbed = preempted || changed || stolen_ticks(self.cpu) != stolen;
        Timed { cycles: ns * hz / 1e9 / units.max(1) as f64, disturbed }
    }

    /// Does a piece again while it is disturbed, within the limit.
    fn calmly(&mut self, mut piece: impl FnMut(&mut Bench) -> Timed) -> f64 {
        self.calm.pieces += 1;
        let mut found = piece(self);
        for _ in 0..REPEATS {
            if !found.disturbed {
                return found.cycles;
            }
            self.calm.repeated += 1;
            let again = piece(self);
            // Of two disturbed times the shorter is nearer to the work's.
            if !again.disturbed || again.cycles < found.cycles {
                found = again;
            }
        }
        self.calm.given_up += u64::from(found.disturbed);
        found.cycles
    }
}

/// Hz of the core's clock now.
fn clock() -> f64 {
    let once = || {
        let start = Instant::now();
        add_chain(ADDS);
        start.elapsed().as_nanos() as f64
    };
    let ns = (0..CHAINS).map(|_| once()).fold(f64::INFINITY, f64::min);
    ADDS as f64 / ns.max(1.0) * 1e9
}

/// Ticks that the hypervisor gave to others while this CPU had work, since boot (proc_stat(5), `steal`).
fn stolen_ticks(cpu: usize) -> u64 {
    std::fs::read_to_string("/proc/stat").ok().and_then(|text| stolen(&text, cpu)).unwrap_or(0)
}

fn stolen(stat: &str, cpu: usize) -> Option<u64> {
    let name = format!("cpu{cpu} ");
    stat.lines().find_map(|l| l.strip_prefix(&name)?.split_whitespace().nth(7)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_the_eighth_figure_of_the_cpu_s_own_line() {
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu1 1 2 3 4 5 6 7 8 9 10\ncpu11 0 0 0 0 0 0 0 11 0 0\n";
        assert_eq!((stolen(stat, 1), stolen(stat, 11), stolen(stat, 2)), (Some(8), Some(11), None));
        assert_eq!(stolen("cpu0 1 2", 0), None, "kernels before 2.6.11 have no such figure");
    }

    #[test]
    fn a_disturbed_piece_is_repeated_and_the_repeat_taken() {
        let mut bench = Bench::new(0);
        let mut times = [(9.0, true), (5.0, true), (7.0, false)].into_iter();
        let next = |(cycles, disturbed)| Timed { cycles, disturbed };
        assert_eq!(bench.calmly(|_| next(times.next().unwrap())), 7.0);
        assert_eq!(bench.calm, Calm { pieces: 1, repeated: 2, given_up: 0 });
        let mut n = 10.0;
        let found = bench.calmly(|_| {
            n -= 1.0;
            next((n, true))
        });
        assert_eq!((found, bench.calm.given_up), (3.0, 1));
    }
}
