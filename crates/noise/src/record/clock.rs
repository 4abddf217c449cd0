// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clock of the loop.
//!
//! The time-stamp counter, if it runs at a constant rate in all states (`constant_tsc`, `nonstop_tsc`): a
//! reading takes some ten nanoseconds. Its rate comes from readings of CLOCK_MONOTONIC_RAW at both ends of
//! the recording. Otherwise CLOCK_MONOTONIC_RAW itself, whose reading may be a system call.

use bifold_host::Host;
use rustix::time::{ClockId, clock_gettime};

/// What the loop reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The time-stamp counter.
    Tsc,
    /// CLOCK_MONOTONIC_RAW, nanoseconds.
    Raw,
}

/// A moment by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// What [`Clock::now`] shows.
    pub ticks: u64,
    /// CLOCK_MONOTONIC_RAW in nanoseconds.
    pub ns: u64,
}

impl Clock {
    /// The clock of this machine.
    pub fn of(host: &Host) -> Clock {
        let cpu = bifold_host::read_up_to(&host.proc.join("cpuinfo"), 1 << 16).unwrap_or_default();
        let text = String::from_utf8_lossy(&cpu);
        let flags: Vec<&str> =
            text.lines().find(|l| l.starts_with("flags")).unwrap_or("").split(' ').collect();
        let constant = ["constant_tsc", "nonstop_tsc"].iter().all(|flag| flags.contains(flag));
        if cfg!(target_arch = "x86_64") && constant { Clock::Tsc } else { Clock::Raw }
    }

    /// The name in the kernel's `trace_clock`.
    pub fn in_trace(self) -> &'static str {
        match self {
            Clock::Tsc => "x86-tsc",
            Clock::Raw => "mono_raw",
        }
    }

    /// A reading in the clock's ticks.
    #[inline(always)]
    pub fn now(self) -> u64 {
        match self {
            Clock::Tsc => tsc(),
            Clock::Raw => raw(),
        }
    }

    /// Reads both clocks at the same moment: the reading with the least time between two of this clock.
    pub fn moment(self) -> Moment {
        let try_once = |_| {
            let before = self.now();
            let ns = raw();
            let after = self.now();
            (after - before, Moment { ticks: before + (after - before) / 2, ns })
        };
        (0..50).map(try_once).min_by_key(|(took, _)| *took).expect("there are several tries").1
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(unsafe_code)]
fn tsc() -> u64 {
    use core::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: every x86-64 processor has both instructions. The fence keeps the reading from overtaking the
    // one before it, as in Linux's `rdtsc_ordered`: without it, the shortest gap would be a tick.
    unsafe {
        _mm_lfence();
        _rdtsc()
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn tsc() -> u64 {
    raw()
}

fn raw() -> u64 {
    let time = clock_gettime(ClockId::MonotonicRaw);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Turns ticks into nanoseconds from a common start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    from: Moment,
    ns_per_tick: f64,
    epoch_ns: u64,
}

impl Scale {
    /// The line through two moments; times count from `epoch_ns` of CLOCK_MONOTONIC_RAW.
    pub fn between(from: Moment, to: Moment, epoch_ns: u64) -> Scale {
        let ticks = to.ticks.saturating_sub(from.ticks).max(1);
        Scale { from, ns_per_tick: to.ns.saturating_sub(from.ns) as f64 / ticks as f64, epoch_ns }
    }

    /// When the ticks were shown, in nanoseconds from the epoch.
    pub fn time(&self, ticks: u64) -> f64 {
        let since = ticks.wrapping_sub(self.from.ticks) as i64;
        self.length(since) + self.from.ns as f64 - self.epoch_ns as f64
    }

    /// Nanoseconds of a number of ticks.
    pub fn length(&self, ticks: i64) -> f64 {
        ticks as f64 * self.ns_per_tick
    }

    /// Ticks in a second.
    pub fn hertz(&self) -> f64 {
        1e9 / self.ns_per_tick
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_the_line_through_both_moments() {
        let (from, to) = (Moment { ticks: 1000, ns: 500 }, Moment { ticks: 4000, ns: 1500 });
        let scale = Scale::between(from, to, 400);
        assert_eq!((scale.time(1000), scale.time(4000)), (100.0, 1100.0));
        assert_eq!(scale.time(700), 0.0);
        assert_eq!(scale.hertz().round(), 3e9);
    }

    #[test]
    fn time_goes_forward() {
        for clock in [Clock::Raw, Clock::of(&Host::live())] {
            let (a, b) = (clock.moment(), clock.moment());
            assert!(a.ticks < b.ticks && a.ns < b.ns, "{clock:?}: {a:?} {b:?}");
        }
    }
}
