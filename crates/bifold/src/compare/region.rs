// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options for long programs: the part of the command to record, and sampling.

use crate::words;
use bifold_guest::{Begin, Region, Windows};
use clap::Args;

/// Options for long programs.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Long programs")]
pub struct RegionArgs {
    /// Skip the first N instructions, or seconds with the suffix s: 500M, 2G, 1.5s
    ///
    /// N counts from the start of the command, or from --from-function, or from the marker where
    /// --from-marker has `--regions 1`. Instructions are those of the whole guest, kernel included; suffixes
    /// k, M and G are decimal. Seconds are those of the ideal run, as in the table. What was skipped is not
    /// counted, and its memory, tables and caches are there.
    #[arg(long, value_name = "N", value_parser = parse_span)]
    pub skip: Option<Span>,

    /// Record N instructions or seconds (written as for --skip), then kill the command
    ///
    /// Bifold's exit status is then 0. With --from-marker, a region ends after N at the latest, and the
    /// command goes on, unless --regions ends it.
    #[arg(long = "for", value_name = "N", value_parser = parse_span)]
    pub length: Option<Span>,

    /// Count only what is between the program's own markers
    ///
    /// The program calls bifold_begin() and bifold_end() of include/bifold.h, or of the Rust crate
    /// bifold-marker. Each such pair is a region. Everything before and between regions is recorded as well,
    /// so that a region begins in a warm VM; only the regions count. The figures are of all regions together,
    /// and a second table has a row for each. The command runs to its end.
    #[arg(long, conflicts_with = "from_function")]
    pub from_marker: bool,

    /// With --from-marker, kill the command after N regions
    ///
    /// Bifold's exit status is then 0. With --sample or --skip, N has to be 1.
    #[arg(long, value_name = "N", requires = "from_marker", value_parser = clap::value_parser!(u64).range(1..))]
    pub regions: Option<u64>,

    /// Record from the first call of this function on
    ///
    /// NAME is a symbol of the program itself, as `nm` prints it. Symbols of libraries, and of programs that
    /// a shell starts, are not found. Everything before is recorded as well, so that the region begins in a
    /// warm VM; only the region counts.
    #[arg(long, value_name = "NAME")]
    pub from_function: Option<String>,

    /// Record memory accesses in windows only, and estimate the rest with a 95 % interval
    ///
    /// Without WINDOW:PERIOD everything is recorded in the first 100M instructions. Then a window of 500k
    /// comes in every period of 10M; after each 32 windows the period doubles, up to 320M, and windows grow
    /// to 4M. With it, as in 1M:100M, both stay. In each PERIOD of instructions, accesses are recorded in one
    /// window of WINDOW instructions at a random place; before it, four times as many instructions refill
    /// TLBs and caches. Page faults, page-table stores, control registers and instructions are always
    /// recorded. A sampled run has no timeline and no policies. The events of a recording or a generator are
    /// thinned in the same way, which shows how accurate sampling is.
    #[arg(long, value_name = "WINDOW:PERIOD", num_args = 0..=1, require_equals = true,
          default_missing_value = SAMPLE, value_parser = parse_windows)]
    pub sample: Option<Windows>,

    /// With --sample, end the command when every overhead is known to P percent of itself: 5%
    ///
    /// That is half the width of its 95 % interval, and at least 30 windows are waited for. The table then
    /// says that the command was ended, and Bifold's exit status is 0. The figures are those of the part that
    /// ran.
    #[arg(long, value_name = "P%", requires = "sample", value_parser = parse_percent)]
    pub until: Option<f64>,
}

/// The value of `--sample` alone.
const SAMPLE: &str = "";

/// A length of a program's run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Span {
    /// Instructions of the guest.
    Instructions(u64),
    /// Seconds of the ideal run.
    Seconds(f64),
}

impl Span {
    fn instructions(self, per_second: f64) -> u64 {
        match self {
            Span::Instructions(n) => n,
            Span::Seconds(s) => (s * per_second) as u64,
        }
    }
}

impl RegionArgs {
    /// The region to record. A second of the ideal run has `per_second` instructions; `seed` places windows.
    pub fn region(&self, per_second: f64, seed: u64) -> Region {
        Region {
            begin: match &self.from_function {
                Some(name) => Begin::Function(name.clone()),
                None if self.from_marker => Begin::Marker,
                None => Begin::Command,
            },
            regions: self.regions,
            skip: self.skip.map_or(0, |s| s.instructions(per_second)),
            length: self.length.map(|s| s.instructions(per_second).max(1)),
            sample: self.windows(seed),
        }
    }

    /// Windows of a sampled run, placed by this seed.
    pub fn windows(&self, seed: u64) -> Option<Windows> {
        self.sample.map(|w| Windows { seed, ..w })
    }

    /// The option that is for one region only, where the command may have several.
    pub fn for_one_region(&self) -> Option<&'static str> {
        let several = self.from_marker && self.regions != Some(1);
        [(self.sample.is_some(), "--sample"), (self.skip.is_some(), "--skip")]
            .into_iter()
            .find_map(|(given, name)| (several && given).then_some(name))
    }

    /// These options by name, and whether each is given.
    pub fn given(&self) -> [(bool, &'static str); 6] {
        [
            (self.until.is_some(), "--until"),
            (self.skip.is_some(), "--skip"),
            (self.length.is_some(), "--for"),
            (self.from_marker, "--from-marker"),
            (self.regions.is_some(), "--regions"),
            (self.from_function.is_some(), "--from-function"),
        ]
    }
}

/// Percent, with or without the sign.
fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>();
    number
        .ok()
        .filter(|p| (0.1..=100.0).contains(p))
        .ok_or_else(|| "give percent from 0.1 to 100, as 5%".into())
}

/// A number of instructions or seconds.
pub(crate) fn parse_span(text: &str) -> Result<Span, String> {
    if let Some(seconds) = text.strip_suffix('s') {
        return words::seconds(seconds).map(Span::Seconds);
    }
    let n = words::instructions(text)
        .ok_or("not a number of instructions or seconds such as 500M, 2G or 1.5s")?;
    Ok(Span::Instructions(n))
}

/// `WINDOW:PERIOD`, both in instructions, or nothing for periods that double.
pub(crate) fn parse_windows(text: &str) -> Result<Windows, String> {
    if text == SAMPLE {
        return Ok(Windows::DOUBLING);
    }
    let (window, period) = text.split_once(':').ok_or("not WINDOW:PERIOD, as in 1M:100M")?;
    let number =
        |t| words::instructions(t).ok_or_else(|| format!("{t} is not a number of instructions such as 1M"));
    let (window, period) = (number(window)?, number(period)?);
    if window < 10_000 {
        return Err("a window has 10k instructions at least".into());
    }
    if period < 8 * window {
        return Err(
            "a period has to be 8 times as long as a window at least; record all of it instead".into()
        );
    }
    Ok(Windows { window, warm_up: 4 * window, period, seed: 0, doubles: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_instructions_with_decimal_suffixes_or_seconds() {
        assert_eq!(parse_span("2G"), Ok(Span::Instructions(2_000_000_000)));
        assert_eq!(parse_span("1.5M"), Ok(Span::Instructions(1_500_000)));
        assert_eq!(parse_span("10k"), Ok(Span::Instructions(10_000)));
        assert_eq!(parse_span("7"), Ok(Span::Instructions(7)));
        assert_eq!(parse_span("1.5s"), Ok(Span::Seconds(1.5)));
        for bad in ["", "s", "G", "-1", "0", "1T", "1e3", "nan", "inf", "-2s", "1 G", "99999999G"] {
            assert!(parse_span(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn windows_are_shorter_than_their_period() {
        let w = parse_windows("1M:50M").unwrap();
        assert_eq!((w.window, w.warm_up, w.period), (1_000_000, 4_000_000, 50_000_000));
        assert_eq!(parse_windows(SAMPLE), Ok(Windows::DOUBLING));
        for bad in ["1M", "1M:", ":1M", "1M:2M", "5M:1M", "1k:1M", "1M:50M:9"] {
            assert!(parse_windows(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_accuracy_is_percent() {
        assert_eq!(
            (parse_percent("5%"), parse_percent("0.5 %"), parse_percent("10")),
            (Ok(5.0), Ok(0.5), Ok(10.0))
        );
        for bad in ["", "%", "0", "101%", "-1", "nan", "5%%"] {
            assert!(parse_percent(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn seconds_become_instructions_of_the_ideal_run() {
        let args = RegionArgs {
            skip: Some(Span::Seconds(0.5)),
            length: Some(Span::Instructions(9)),
            from_marker: false,
            regions: None,
            from_function: Some("work".into()),
            sample: None,
            until: None,
        };
        let region = args.region(5e9, 1);
        assert_eq!((region.skip, region.length), (2_500_000_000, Some(9)));
        assert_eq!(region.begin, Begin::Function("work".into()));
    }
}
