// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The survey of a machine: what is measured in which order, and what is said of each value.

mod caches;
mod costs;
mod loads;
mod pace;
mod tlbs;

use crate::bench::{Bench, Calm};
use crate::estimate::Estimate;
use crate::loops::{Chain, cpuid};
use crate::os::{self, HUGE, Pages, Region};
use crate::surroundings;
use crate::told::Told;
pub use caches::Level;
pub use costs::Costs;
pub use loads::Loads;
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_pcg::Pcg64Mcg;
use serde::Serialize;
use std::io;
pub use tlbs::{Array, HostPages, Tlbs};

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// The CPU is not there, or not allowed.
    #[error("cannot run on CPU {cpu}: this process may use CPUs {allowed:?}")]
    Cpu {
        /// The CPU asked for.
        cpu: usize,
        /// CPUs of the process.
        allowed: Vec<usize>,
        /// The kernel's error.
        source: io::Error,
    },
    /// Memory is short.
    #[error("measuring takes {needed} MiB of free memory, and {there} MiB are available: end other programs")]
    TooLittleMemory {
        /// MiB needed.
        needed: u64,
        /// MiB available.
        there: u64,
    },
    /// A system call failed.
    #[error("cannot {what}")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The user stopped the measurement.
    #[error("measuring was stopped: no profile was made")]
    Stopped,
}

impl MeasureError {
    /// Whether the machine lacks something, as opposed to a failure.
    pub fn cannot_work_here(&self) -> bool {
        matches!(self, MeasureError::TooLittleMemory { .. })
    }
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The CPU to measure on; none for the last one allowed, which has the fewest interrupts on most machines.
    pub cpu: Option<usize>,
    /// Fewer points and rounds.
    pub quick: bool,
}

/// Everything that was found.
#[derive(Debug, Clone, Serialize)]
pub struct Survey {
    /// The CPU.
    pub cpu: usize,
    /// CPUID's words.
    pub told: Told,
    /// Rounds of each value.
    pub rounds: usize,
    /// Hz of the core while measuring.
    pub clock: Estimate,
    /// How calm the machine was.
    pub calm: Calm,
    /// Part of the memory advised to be huge that was.
    pub huge_part: f64,
    /// Cache levels, first level first.
    pub caches: Vec<Level>,
    /// TLBs.
    pub tlbs: Tlbs,
    /// Bytes of the caches that stay while every other load waits for memory.
    pub kept: Option<Estimate>,
    /// Random and sequential loads.
    pub loads: Loads,
    /// Page faults, system calls, switches.
    pub costs: Costs,
    /// What the user should know, each a sentence.
    pub warnings: Vec<String>,
}

/// A survey under way: memory, the bench, and how much to measure.
struct Work<'a> {
    bench: Bench,
    told: Told,
    huge: Region,
    small: Region,
    huge_ok: bool,
    rounds: usize,
    /// Points per octave of a curve.
    per_octave: u32,
    random: Pcg64Mcg,
    stop: &'a dyn Fn() -> bool,
}

/// Bytes of each of the two areas that loads go to.
const AREA: u64 = 1 << 30;
/// The least of it: several times the caches of most cores.
const LEAST_AREA: u64 = 128 << 20;
/// Rounds of a value; nine are the fewest whose interval leaves out extremes.
const ROUNDS: usize = 15;
const QUICK_ROUNDS: usize = 9;
/// Part of the memory that must be in huge pages to be called so.
const HUGE_ENOUGH: f64 = 0.95;

/// Measures this machine. `say` gets what is measured now; `stop` is asked between rounds.
///
/// # Errors
/// If the CPU or memory cannot be had, or if `stop` said so.
pub fn survey(
    options: Options,
    say: &mut dyn FnMut(&str),
    stop: &dyn Fn() -> bool,
) -> Result<Survey, MeasureError> {
    let allowed = os::allowed_cpus();
    let cpu = options.cpu.or(allowed.last().copied()).unwrap_or(0);
    os::pin(cpu).map_err(|source| MeasureError::Cpu { cpu, allowed: allowed.clone(), source })?;
    let host = bifold_host::Host::live();
    let mut warnings = surroundings::warnings(&host, allowed.len());
    say("memory");
    let area = area(host.memory().ok().and_then(|m| m.available))?;
    let map = |pages| {
        Region::new(area as usize, pages)
            .map_err(|source| MeasureError::Kernel { what: "map memory", source })
    };
    let (huge, small) = (map(Pages::Huge)?, map(Pages::Small)?);
    let huge_part = surroundings::huge_part(&host, huge.base() as u64, huge.len() as u64);
    let huge_ok = huge_part >= HUGE_ENOUGH;
    if !huge_ok {
        warnings.push(format!(
            "only {:.0} % of the memory could be made huge: what needs 2 MB pages is a prior",
            huge_part * 100.0
        ));
    }
    let told = Told::ask(&cpuid);
    if let Some(h) = &told.hypervisor {
        warnings.push(format!(
            "this is a virtual machine ({h}): walks are nested ones, as they are here; CPUID is the hypervisor's"
        ));
    }
    let (rounds, per_octave) = if options.quick { (QUICK_ROUNDS, 2) } else { (ROUNDS, 4) };
    let random = Pcg64Mcg::seed_from_u64(1);
    let mut work =
        Work { bench: Bench::new(cpu), told, huge, small, huge_ok, rounds, per_octave, random, stop };
    say("TLBs");
    let tlbs = tlbs::measure(&mut work)?;
    say("caches");
    let found = caches::measure(&mut work)?;
    say("misses");
    let loads = loads::measure(&mut work, &found)?;
    say("caches beside misses");
    let kept = pace::measure(&mut work, &found)?;
    say("system calls, faults and switches");
    let costs = costs::measure(&mut work)?;
    let clock = Estimate::of(&work.bench.clocks).ok_or(MeasureError::Stopped)?;
    let Calm { pieces, given_up, repeated } = work.bench.calm;
    if given_up * 20 > pieces || repeated > pieces {
        warnings.push(format!(
            "the machine was not calm: of {pieces} pieces of work, {given_up} stayed disturbed after all repeats"
        ));
    }
    if clock.relative_width() > 0.03 {
        warnings.push(
            "the clock changed while measuring: times are in cycles of the clock at each moment".into(),
        );
    }
    let caches = found.levels;
    Ok(Survey {
        cpu,
        told: work.told,
        rounds,
        clock,
        calm: work.bench.calm,
        huge_part,
        caches,
        tlbs,
        kept,
        loads,
        costs,
        warnings,
    })
}

/// Bytes of an area: a power of two up to 1 GiB of which several fit into the available memory.
fn area(available: Option<u64>) -> Result<u64, MeasureError> {
    let available = available.unwrap_or(u64::MAX);
    let mut area = AREA;
    // Two areas, and as much again for everybody else.
    while area * 4 > available {
        area /= 2;
    }
    if area < LEAST_AREA {
        return Err(MeasureError::TooLittleMemory { needed: (LEAST_AREA * 4) >> 20, there: available >> 20 });
    }
    Ok(area)
}

impl Work<'_> {
    /// Rounds over points, or [`MeasureError::Stopped`].
    fn rounds(
        &mut self,
        points: usize,
        mut one: impl FnMut(&mut Work, usize) -> f64,
    ) -> Result<Vec<Vec<f64>>, MeasureError> {
        let mut found = vec![Vec::with_capacity(self.rounds); points];
        for _ in 0..self.rounds {
            for (point, values) in found.iter_mut().enumerate() {
                if (self.stop)() {
                    return Err(MeasureError::Stopped);
                }
                values.push(one(self, point));
            }
        }
        Ok(found)
    }

    /// Cycles per load of a chain through these offsets, in this order.
    fn chase_in_order(&mut self, kind: Kind, offsets: &[usize]) -> f64 {
        let region = match kind {
            Kind::Huge => &mut self.huge,
            Kind::Small => &mut self.small,
        };
        let n = offsets.len() as u64;
        let mut chain = Chain::link(region, offsets);
        // A ring that fits a cache or TLB is there after one turn; a long one misses anyway.
        let (first, warm) = (n.min(1 << 17), (2 * n).min(1 << 15));
        let loads = (2 * n).clamp(1 << 13, 1 << 15);
        chain.follow(first);
        self.bench.time(&mut chain, |c| _ = c.follow(warm), |c| c.follow(loads))
    }

    /// The same in random order.
    fn chase(&mut self, kind: Kind, mut offsets: Vec<usize>) -> f64 {
        offsets.shuffle(&mut self.random);
        self.chase_in_order(kind, &offsets)
    }

    /// Sizes from `first` to `last`, so many to the octave, as multiples of `unit`.
    fn sizes(&self, first: usize, last: usize, unit: usize) -> Vec<usize> {
        let octave = f64::from(self.per_octave);
        let all = (0..)
            .map(|i| (first as f64 * 2f64.powf(f64::from(i) / octave) / unit as f64).round() as usize * unit);
        let mut sizes: Vec<usize> = all.take_while(|s| *s <= last).collect();
        sizes.dedup();
        sizes
    }
}

/// The area of a chase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Huge,
    Small,
}

/// Huge pages of an area.
fn huge_pages(region: &Region) -> usize {
    region.len() / HUGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_area_leaves_half_of_the_memory_to_others() {
        assert_eq!(area(None).unwrap(), 1 << 30);
        assert_eq!(area(Some(4 << 30)).unwrap(), 1 << 30);
        assert_eq!(area(Some((4 << 30) - 1)).unwrap(), 512 << 20);
        assert_eq!(area(Some(512 << 20)).unwrap(), 128 << 20);
        let e = area(Some(300 << 20)).unwrap_err();
        assert!(e.cannot_work_here());
        assert!(e.to_string().contains("512 MiB") && e.to_string().contains("300 MiB"), "{e}");
    }

    #[test]
    fn a_cpu_that_is_not_there_is_an_error_with_those_that_are() {
        let options = Options { cpu: Some(100_000), quick: true };
        // On a thread of its own, as pinning stays.
        let e =
            std::thread::spawn(move || survey(options, &mut |_| (), &|| true).unwrap_err()).join().unwrap();
        assert!(e.to_string().starts_with("cannot run on CPU 100000: this process may use CPUs ["), "{e}");
    }
}
