// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clock line and its warnings: how far the guest ran as on hardware, by its time, its timer ticks and
//! its share of the host's CPUs.
//!
//! Under emulation a guest is slower than hardware. With exact timing the guest's clock counts
//! instructions, so only waiting distorts a run. With the host's clock (`--fast`) more timer ticks fall
//! into the same work, and on a busy host ticks can be most of what is counted.

use crate::text::{fixed, number, seconds};
use crate::{Comparison, start};
use bifold_trace::Clock;
use schemars::JsonSchema;
use serde::Serialize;

/// Timer ticks per million instructions above which a run gets a warning. A tick of Linux 6.1 takes some
/// 3,000 instructions beside a loop that does nothing else (evidence/tools/clock-check), so this is where
/// ticks are over 1 % of what is counted. Hardware has 0.1: 250 ticks in some 2,500 million.
const MOST_TICKS: f64 = 4.0;
/// Percent of the wall time in which the vCPU waited for a CPU of the host, above which a run gets a
/// warning.
const MOST_STARVED: f64 = 25.0;

/// Figures derived from the clock's raw values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Figures {
    /// Guest time. Unit: s.
    pub(crate) guest_seconds: Option<f64>,
    /// Idle time of the guest's CPUs: sleep, and waits for timers. Unit: s.
    pub(crate) idle_seconds: Option<f64>,
    /// Guest time over the ideal run's.
    pub(crate) guest_to_ideal: Option<f64>,
    /// CPU time of the vCPU thread. Unit: % of the wall time.
    pub(crate) vcpu_percent: f64,
    /// Waits of the vCPU thread for a CPU of the host. Unit: % of the wall time.
    pub(crate) starved_percent: f64,
    /// Timer ticks per million instructions.
    pub(crate) ticks_per_million: Option<f64>,
    /// Whether another run of the same command over the same files gives the same events to the bit.
    pub(crate) repeats: bool,
}

/// The values that the figures derive from.
#[derive(Debug, Clone, Copy)]
struct Run {
    clock: Clock,
    exact: bool,
    /// Whether the command ran to its end.
    whole: bool,
    instructions: u64,
    /// Time of the ideal run, with the guest's own start, which the guest's clock sees too.
    ideal_seconds: f64,
    /// Whether the figures are of a part of the command. The guest's clock is of all of it.
    part: bool,
    /// Whether a timer of the guest ended the command.
    by_timer: bool,
}

impl Run {
    /// None without a guest, or for a recording without a clock.
    fn of(c: &Comparison) -> Option<Run> {
        Some(Run {
            clock: c.meta.clock?,
            exact: c.meta.guest.as_ref().and_then(|g| g.timing.as_deref()) == Some("exact"),
            whole: c.meta.partial.is_none(),
            instructions: c.outcome.configs.first().map_or(0, |r| r.total.instructions),
            ideal_seconds: (c.outcome.ideal_cycles() + start::ideal_cycles(c))
                / c.outcome.frequency_hz.max(1) as f64,
            part: c.meta.guest.as_ref().is_some_and(|g| g.region.is_some()),
            by_timer: c.meta.exit.zip(c.meta.guest.as_ref()).is_some_and(|(e, g)| e.by_timer(&g.command)),
        })
    }

    fn figures(&self) -> Figures {
        let clock = self.clock;
        let guest = clock.guest_ns.map(|ns| ns as f64 / 1e9);
        let percent = |s: f64| if clock.wall_seconds > 0.0 { 100.0 * s / clock.wall_seconds } else { 0.0 };
        Figures {
            guest_seconds: guest,
            idle_seconds: clock.idle_ns.map(|ns| ns as f64 / 1e9),
            guest_to_ideal: guest
                .filter(|_| self.ideal_seconds > 0.0 && !self.part)
                .map(|g| g / self.ideal_seconds),
            vcpu_percent: percent(clock.vcpu_seconds),
            starved_percent: percent(clock.starved_seconds),
            ticks_per_million: clock
                .timer_ticks
                .filter(|_| self.instructions > 0)
                .map(|t| t as f64 * 1e6 / self.instructions as f64),
            repeats: self.exact && clock.in_step && self.whole,
        }
    }

    fn line(&self) -> String {
        let f = self.figures();
        let mut parts = Vec::new();
        if let (Some(guest), Some(idle)) = (f.guest_seconds, f.idle_seconds) {
            let idle = if idle > 0.0 { format!("{} idle", seconds(idle)) } else { "never idle".into() };
            let of = match f.guest_to_ideal {
                Some(ratio) => format!(" ({} times ideal)", number(ratio)),
                None if self.part => " for the whole command".into(),
                None => String::new(),
            };
            parts.push(format!("{} of guest time{of}, {idle}", seconds(guest)));
        }
        if !self.exact {
            parts.push(format!("vCPU ran for {} % of the wall time", fixed(f.vcpu_percent, 0)));
        }
        if let Some(t) = f.ticks_per_million {
            parts.push(format!("{} timer ticks per million instructions", fixed(t, 2)));
        }
        if f.repeats {
            parts.push("repeats to the bit".into());
        }
        parts.join("; ")
    }

    fn warnings(&self) -> Vec<String> {
        let f = self.figures();
        let mut out = Vec::new();
        if self.by_timer {
            out.push(
                "a timer of the guest ended the command, and the guest is slower than hardware: the figures are of \
                 what the command did until then; give the command more time, or no timer"
                    .into(),
            );
        }
        if let Some(t) = f.ticks_per_million.filter(|t| *t > MOST_TICKS) {
            let what = if self.exact {
                "the command mostly waits, so most counts are of the waiting kernel"
            } else {
                "run without --fast, or on a host with less to do"
            };
            out.push(format!(
                "{} timer ticks per million instructions (hardware has about 0.1, the limit is {MOST_TICKS}): \
                 every figure includes the cost of these ticks; {what}",
                fixed(t, 1)
            ));
        }
        if !self.exact && f.starved_percent > MOST_STARVED {
            out.push(format!(
                "the host ran other programs for {} % of the wall time while the guest's clock went on \
                 (the limit is {MOST_STARVED} %): run without --fast, or on a host with less to do",
                fixed(f.starved_percent, 0)
            ));
        }
        if self.exact && !self.clock.in_step {
            out.push(
                "the guest's clock jumped while the guest waited for the host's files, because this QEMU hides \
                 its devices from plugins: counts of programs that read files vary by tens of percent; use \
                 Debian's qemu-system-x86, or --root initramfs"
                    .into(),
            );
        }
        out
    }
}

/// The figures; none without a guest, or for a recording without a clock.
pub(crate) fn figures(c: &Comparison) -> Option<Figures> {
    Run::of(c).map(|r| r.figures())
}

/// One line for people.
pub(crate) fn line(c: &Comparison) -> Option<String> {
    Run::of(c).map(|r| r.line()).filter(|l| !l.is_empty())
}

/// Warnings on figures beyond the limits, each with advice.
pub(crate) fn warnings(c: &Comparison) -> Vec<String> {
    Run::of(c).map_or(Vec::new(), |r| r.warnings())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(exact: bool, instructions: u64) -> Run {
        let clock = Clock {
            guest_ns: Some(3_000_000_000),
            idle_ns: Some(1_000_000_000),
            wall_seconds: 10.0,
            vcpu_seconds: 8.0,
            starved_seconds: 1.0,
            in_step: true,
            timer_ticks: Some(500),
            other_interrupts: Some(3),
        };
        let ideal_seconds = instructions as f64 / 1e9;
        Run { clock, exact, whole: true, instructions, ideal_seconds, part: false, by_timer: false }
    }

    #[test]
    fn an_exact_run_says_that_it_repeats() {
        let r = run(true, 1_000_000_000);
        assert_eq!(
            r.line(),
            "3.00 s of guest time (3.00 times ideal), 1.00 s idle; 0.50 timer ticks per million instructions; \
             repeats to the bit"
        );
        assert_eq!(r.warnings(), Vec::<String>::new());
        assert!(!Run { whole: false, ..r }.figures().repeats);
    }

    #[test]
    fn the_whole_commands_time_is_not_compared_with_a_regions() {
        let r = Run { part: true, ..run(true, 1_000_000_000) };
        assert!(
            r.line().starts_with("3.00 s of guest time for the whole command, 1.00 s idle;"),
            "{}",
            r.line()
        );
        assert_eq!(r.figures().guest_to_ideal, None);
    }

    #[test]
    fn a_clock_out_of_step_with_files_is_marked() {
        let mut r = run(true, 1_000_000_000);
        r.clock.in_step = false;
        assert!(!r.figures().repeats);
        assert!(r.warnings()[0].contains("jumped"));
    }

    #[test]
    fn fast_runs_are_marked_beyond_the_limits_only() {
        let r = run(false, 1_000_000_000);
        assert!(r.warnings().is_empty() && r.line().contains("vCPU ran for 80 %"));
        assert!(run(false, 125_000_000).warnings().is_empty());
        let ticks = run(false, 100_000_000).warnings();
        assert!(ticks[0].starts_with("5.0 timer ticks"), "{ticks:?}");
        let mut starved = r;
        starved.clock.starved_seconds = 2.5;
        assert!(starved.warnings().is_empty());
        starved.clock.starved_seconds = 2.6;
        assert!(starved.warnings()[0].contains("26 % of the wall time"));
    }

    #[test]
    fn a_command_that_a_timer_ended_is_marked() {
        let r = run(true, 1_000_000_000);
        assert!(Run { by_timer: true, ..r }.warnings()[0].starts_with("a timer of the guest ended"));
    }

    #[test]
    fn a_guest_that_was_killed_shows_no_time() {
        let r = Run { clock: Clock::default(), ..run(true, 0) };
        assert_eq!(r.line(), "");
    }
}
