// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The survey of a machine: what is measured in which order, and what is said of each value.

mod caches;
mod costs;
mod error;
mod loads;
mod pace;
mod streams;
mod tlbs;

use crate::bench::{Bench, Calm};
use crate::estimate::Estimate;
use crate::loops::{Chain, cpuid};
use crate::os::{self, HUGE, Pages, Region};
use crate::rounds::{self, Clock, End, Plan};
use crate::surroundings::{self, Busy};
use crate::told::Told;
pub use caches::Level;
pub use costs::Costs;
pub use error::MeasureError;
pub use loads::Loads;
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_pcg::Pcg64Mcg;
use schemars::JsonSchema;
use serde::Serialize;
use std::time::{Duration, Instant};
pub use tlbs::{Array, HostPages, Tlbs};

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The CPU to measure on; none for the last one allowed, which has the fewest interrupts on most
    /// machines.
    pub cpu: Option<usize>,
    /// Fewer points and rounds.
    pub quick: bool,
    /// The survey ends after this time with the parts that are complete.
    pub limit: Duration,
}

/// A part of the survey, in the order of measuring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Page faults, system calls, switches: the shortest part.
    Costs,
    /// TLBs.
    Tlbs,
    /// Caches.
    Caches,
    /// Memory and overlaps.
    Loads,
    /// What caches keep beside misses.
    Kept,
}

impl Part {
    /// All parts, in the order of measuring.
    pub const ALL: [Part; 5] = [Part::Costs, Part::Tlbs, Part::Caches, Part::Loads, Part::Kept];

    /// What is measured, in words.
    pub fn words(self) -> &'static str {
        match self {
            Part::Costs => "system calls, faults and switches",
            Part::Tlbs => "TLBs",
            Part::Caches => "caches",
            Part::Loads => "memory and overlaps of misses",
            Part::Kept => "caches beside misses",
        }
    }
}

/// Everything that was found.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Survey {
    /// Number of the CPU.
    pub cpu: usize,
    /// What CPUID has of the processor.
    pub told: Told,
    /// Usual rounds of a value.
    pub rounds: usize,
    /// Rounds of the value that took the most.
    pub most_rounds: usize,
    /// What ended the survey before its last part was complete; null if all parts are.
    pub ended: Option<End>,
    /// Parts that are not complete.
    pub not_reached: Vec<Part>,
    /// Part of the time in which the hypervisor ran others on the CPU, 0 to 1.
    pub steal: f64,
    /// That the machine was busy, and what this does to the values; null if the machine was calm.
    pub busy: Option<String>,
    /// Frequency of the core while measuring. Unit: Hz.
    pub clock: Estimate,
    /// How calm the machine was.
    pub calm: Calm,
    /// Part of the memory advised to be huge that was, 0 to 1.
    pub huge_part: f64,
    /// Cache levels, first level first.
    pub caches: Vec<Level>,
    /// TLBs.
    pub tlbs: Tlbs,
    /// What the caches keep while every other load waits for memory; null if not determined. Unit: bytes.
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
    /// When the survey has to end.
    deadline: Instant,
    /// When the current part has used its share of the time.
    share: Instant,
    /// Rounds of the value that took the most.
    most: usize,
}

/// Bytes of each of the two areas that loads go to.
const AREA: u64 = 1 << 30;
/// The least of it: several times the caches of most cores.
const LEAST_AREA: u64 = 128 << 20;
/// Rounds of a value whose interval is narrow.
const ROUNDS: usize = 15;
const QUICK_ROUNDS: usize = rounds::FEWEST;
/// Part of the memory that must be in huge pages to be called so.
const HUGE_ENOUGH: f64 = 0.95;

/// Measures this machine. `say` gets what is measured now; `stop` is asked between rounds.
///
/// The survey ends at the limit, or when `stop` says so, and keeps the parts that are complete by then.
///
/// # Errors
/// If the CPU or memory cannot be had, or if no part is complete at the end.
pub fn survey(
    options: Options,
    say: &mut dyn FnMut(&str),
    stop: &dyn Fn() -> bool,
) -> Result<Survey, MeasureError> {
    let deadline = Instant::now() + options.limit;
    let allowed = os::allowed_cpus();
    let cpu = options.cpu.or(allowed.last().copied()).unwrap_or(0);
    os::pin(cpu).map_err(|source| MeasureError::Cpu { cpu, allowed: allowed.clone(), source })?;
    let nothing = |end| match end {
        End::Limit => MeasureError::TooShort { seconds: options.limit.as_secs_f64() },
        End::Stopped => MeasureError::Stopped,
    };
    if let Some(end) = ended(stop, deadline) {
        return Err(nothing(end));
    }
    let host = bifold_host::Host::live();
    let load = surroundings::busy_load(&host, allowed.len());
    let mut warnings = surroundings::warnings(&host);
    say("memory");
    let (mut work, huge_part) = prepare(options, cpu, &host, (&mut warnings, deadline), stop)?;
    let mut of = Found::default();
    let not_reached = of.measure_all(&mut work, say)?;
    let ended = if not_reached.is_empty() { None } else { work.ended() };
    let clock = Estimate::of(&work.bench.clocks).filter(|_| not_reached.len() < Part::ALL.len());
    let clock = clock.ok_or_else(|| nothing(ended.unwrap_or(End::Stopped)))?;
    let steal = work.bench.steal();
    let busy = Busy { load, cpus: allowed.len(), cpu, steal, rounds: [work.rounds, work.most] };
    let busy = busy.sentence(&work.bench.calm);
    warnings.extend(busy.clone());
    if clock.relative_width() > 0.03 {
        warnings.push(
            "the clock changed while measuring: times are in cycles of the clock at each moment".into(),
        );
    }
    Ok(Survey {
        cpu,
        told: work.told,
        rounds: work.rounds,
        most_rounds: work.most,
        ended,
        not_reached,
        steal,
        busy,
        clock,
        calm: work.bench.calm,
        huge_part,
        caches: of.caches.levels,
        tlbs: of.tlbs,
        kept: of.kept,
        loads: of.loads,
        costs: of.costs,
        warnings,
    })
}

/// Maps the memory, asks what CPUID says, and warns of what either lacks. The huge part of the memory, too.
fn prepare<'a>(
    options: Options,
    cpu: usize,
    host: &bifold_host::Host,
    (warnings, deadline): (&mut Vec<String>, Instant),
    stop: &'a dyn Fn() -> bool,
) -> Result<(Work<'a>, f64), MeasureError> {
    let area = area(host.memory().ok().and_then(|m| m.available))?;
    let failed = |source| MeasureError::Kernel { what: "map memory", source };
    let map = |pages| Region::new(area as usize, pages).map_err(failed);
    let (huge, small) = (map(Pages::Huge)?, map(Pages::Small)?);
    let huge_part = surroundings::huge_part(host, huge.base() as u64, huge.len() as u64);
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
    let work = Work {
        bench: Bench::new(cpu),
        told,
        huge,
        small,
        huge_ok,
        rounds,
        per_octave,
        random: Pcg64Mcg::seed_from_u64(1),
        stop,
        deadline,
        share: deadline,
        most: 0,
    };
    Ok((work, huge_part))
}

/// What the parts found.
#[derive(Default)]
struct Found {
    costs: Costs,
    tlbs: Tlbs,
    caches: caches::Caches,
    loads: Loads,
    kept: Option<Estimate>,
}

impl Found {
    /// Measures every part, and returns the parts that were not reached. Each has its share of the time that
    /// is left.
    fn measure_all(
        &mut self,
        work: &mut Work<'_>,
        say: &mut dyn FnMut(&str),
    ) -> Result<Vec<Part>, MeasureError> {
        let mut not_reached = Vec::new();
        for (i, part) in Part::ALL.into_iter().enumerate() {
            say(part.words());
            let left = (Part::ALL.len() - i) as u32;
            work.share = Instant::now() + work.deadline.saturating_duration_since(Instant::now()) / left;
            if work.ended().is_some() {
                not_reached.push(part);
                continue;
            }
            match self.measure(part, work) {
                Err(MeasureError::Ended(_)) => not_reached.push(part),
                other => other?,
            }
        }
        Ok(not_reached)
    }

    /// Measures a part. A part that is not complete leaves nothing.
    fn measure(&mut self, part: Part, work: &mut Work) -> Result<(), MeasureError> {
        match part {
            Part::Costs => self.costs = costs::measure(work)?,
            Part::Tlbs => self.tlbs = tlbs::measure(work)?,
            Part::Caches => self.caches = caches::measure(work)?,
            Part::Loads => self.loads = loads::measure(work, &self.caches)?,
            Part::Kept => self.kept = pace::measure(work, &self.caches)?,
        }
        Ok(())
    }
}

/// A side of a part that the end of the survey may cost: the part goes on without.
fn if_reached<T: Default>(side: Result<T, MeasureError>) -> Result<T, MeasureError> {
    match side {
        Err(MeasureError::Ended(_)) => Ok(T::default()),
        other => other,
    }
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
    /// Why the survey has to end now, if it has to.
    fn ended(&self) -> Option<End> {
        ended(self.stop, self.deadline)
    }

    /// Rounds over points: more than usual until the values are `enough`, within the part's share of the
    /// time.
    fn rounds(
        &mut self,
        points: usize,
        mut one: impl FnMut(&mut Work, usize) -> f64,
        enough: impl Fn(&[Vec<f64>]) -> bool,
    ) -> Result<Vec<Vec<f64>>, MeasureError> {
        let (stop, deadline, share) = (self.stop, self.deadline, self.share);
        let clock = Clock { ended: &|| ended(stop, deadline), late: &|| Instant::now() >= share };
        let plan = Plan { usual: self.rounds, points };
        let found =
            rounds::gather(plan, &clock, |point| one(self, point), enough).map_err(MeasureError::Ended)?;
        self.most = self.most.max(found.first().map_or(0, Vec::len));
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

fn ended(stop: &dyn Fn() -> bool, deadline: Instant) -> Option<End> {
    match stop() {
        true => Some(End::Stopped),
        false => (Instant::now() >= deadline).then_some(End::Limit),
    }
}

/// Whether more rounds are of no use for these values: those that are there have narrow intervals.
fn all_narrow(values: &[Option<Estimate>]) -> bool {
    values.iter().flatten().all(Estimate::is_narrow)
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
        let options = Options { cpu: Some(100_000), quick: true, limit: Duration::from_secs(9) };
        // On a thread of its own, as pinning stays.
        let e =
            std::thread::spawn(move || survey(options, &mut |_| (), &|| true).unwrap_err()).join().unwrap();
        assert!(e.to_string().starts_with("cannot run on CPU 100000: this process may use CPUs ["), "{e}");
    }

    #[test]
    fn a_survey_without_a_complete_part_is_an_error_that_says_what_to_do() {
        let of = |limit, stop: bool| {
            let options = Options { cpu: None, quick: true, limit: Duration::from_secs(limit) };
            std::thread::spawn(move || survey(options, &mut |_| (), &|| stop).unwrap_err()).join().unwrap()
        };
        let e = of(0, false);
        assert!(e.to_string().starts_with("--limit 0 ended before a value was complete: give more"), "{e}");
        assert!(matches!(of(60, true), MeasureError::Stopped));
    }
}
