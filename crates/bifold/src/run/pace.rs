// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the progress line says of a run under way: its phase, how far it is, its rate, and the time left
//! where the length is known.

use crate::console::{duration, left};
use bifold_report::grouped;

/// The guest starts, and runs no instruction of the command yet.
pub const BOOT: &str = "boot";
/// The command runs, and its region has not begun.
pub const SKIP: &str = "skip";
/// The command runs in the guest, and its events go through the model.
pub const RUN: &str = "run";
/// Events that exist already, or that a generator makes, go through the model.
pub const MODEL: &str = "model";
/// All events are there, and the figures are made of them.
pub const REPORT: &str = "report";

/// How far a phase is.
#[derive(Debug, Clone, PartialEq)]
pub struct Pace {
    /// The phase.
    pub phase: &'static str,
    /// Seconds since it began.
    pub seconds: f64,
    /// Guest instructions since it began.
    pub instructions: u64,
    /// What is done of it, from 0 to 1; none if its length is unknown.
    pub done: Option<f64>,
    /// For a sampled run with intervals: the configuration whose overhead is known worst, and its interval's
    /// half-width in percent of the overhead.
    pub accuracy: Option<(String, f64)>,
}

impl Pace {
    /// The words of the line. The hint comes last, because the terminal's width may cut it off.
    pub fn words(&self) -> String {
        let Pace { phase, seconds, instructions, done, ref accuracy } = *self;
        if instructions == 0 {
            return format!("{phase}: {}", duration(seconds));
        }
        let millions = instructions as f64 / 1e6;
        let rate = millions / seconds.max(1e-3);
        let mut words =
            format!("{phase}: {} M instructions, {rate:.0} M/s", grouped(millions.round() as u64));
        match done.map(|d| d.clamp(0.0, 1.0)) {
            None => words += &format!(", {}", duration(seconds)),
            Some(done) => {
                words += &format!(", {:.0} %", (done * 100.0).floor());
                words += &left(seconds, done);
            }
        }
        if let Some((config, percent)) = accuracy {
            words += &format!(", {config} ± {:.0} %", percent.ceil());
        }
        words + " (Ctrl-C: figures so far)"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(seconds: f64, instructions: u64, done: Option<f64>) -> String {
        Pace { phase: RUN, seconds, instructions, done, accuracy: None }.words()
    }

    #[test]
    fn a_rate_is_shown_where_instructions_are_and_time_left_where_a_length_is() {
        let hint = " (Ctrl-C: figures so far)";
        for (seconds, instructions, done, words) in [
            (10.0, 1_500_000_000, None, "run: 1,500 M instructions, 150 M/s, 10 s"),
            (30.0, 3_000_000_000, Some(0.25), "run: 3,000 M instructions, 100 M/s, 25 %, 90 s left"),
            (600.0, 60_000_000_000, Some(0.5), "run: 60,000 M instructions, 100 M/s, 50 %, 10 min left"),
            (3600.0, 36_000_000_000, Some(0.2), "run: 36,000 M instructions, 10 M/s, 20 %, 4 h left"),
            // Too early to say.
            (1.0, 100_000_000, Some(0.01), "run: 100 M instructions, 100 M/s, 1 %"),
            (5.0, 100_000_000, Some(0.0), "run: 100 M instructions, 20 M/s, 0 %"),
            // 100 % is for the end alone; what comes after the known length is no negative time.
            (9.0, 900_000_000, Some(0.999), "run: 900 M instructions, 100 M/s, 99 %, 0 s left"),
            (9.0, 900_000_000, Some(1.2), "run: 900 M instructions, 100 M/s, 100 %, 0 s left"),
        ] {
            assert_eq!(line(seconds, instructions, done), format!("{words}{hint}"));
        }
    }

    #[test]
    fn a_sampled_run_says_how_well_the_worst_overhead_is_known() {
        let accuracy = Some(("shadow-4k".to_owned(), 7.2));
        let line =
            Pace { phase: RUN, seconds: 9.0, instructions: 3_600_000_000, done: None, accuracy }.words();
        assert_eq!(line, "run: 3,600 M instructions, 400 M/s, 9 s, shadow-4k ± 8 % (Ctrl-C: figures so far)");
    }

    #[test]
    fn without_an_instruction_there_is_neither_rate_nor_rest() {
        assert_eq!(line(3.2, 0, None), "run: 3 s");
        assert_eq!(line(200.0, 0, Some(0.0)), "run: 3 min");
    }

    #[test]
    fn a_long_line_fits_into_80_columns() {
        // The spinner and a blank stand before it.
        let words = line(9000.0, 999_999_000_000, Some(0.5));
        assert!(words.len() + 2 <= 80, "{words}");
    }
}
