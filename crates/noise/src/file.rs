// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Noise files: interruptions of one CPU as text.
//!
//! A line is the start of an interruption and its length in nanoseconds, with white space between. Netgauge's
//! selfish benchmark writes such files (`write_results_selfish`), and LogGOPSim reads them with
//! `--noise-trace` (`Noise.hpp`). A line that begins with `#` is a comment. LogGOPSim ignores what follows
//! the two numbers; a third column, behind a tab, is the source of the interruption here. The comment
//! `# duration_ns: N` says how long the recording was; without it, a recording ends with its last
//! interruption.
//!
//! Interruptions are sorted and do not overlap.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, BufRead};

/// Most bytes of a line. LogGOPSim reads lines of up to 1023 bytes, and does not end on a longer one.
pub const MOST_LINE: usize = 1023;
/// Most interruptions of a file.
pub const MOST_INTERRUPTIONS: usize = 4_000_000;
/// Most different sources of a file.
pub const MOST_SOURCES: usize = 10_000;
/// Latest time of a file in nanoseconds: 11 days. Every nanosecond up to there, and a run of years, is exact
/// in a double.
pub const LATEST: f64 = 1e15;
/// The source of an interruption whose line names none.
pub const UNKNOWN: &str = "unknown";
/// Longest name of a source in bytes.
const MOST_NAME: usize = 100;
/// Files with two decimals have rounding errors: an overlap up to here is cut off.
const ROUNDING_NS: f64 = 1.0;

/// An interruption, or the part of it that one source causes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interruption {
    /// Nanoseconds from the start of the recording.
    pub start: f64,
    /// Nanoseconds.
    pub length: f64,
    /// Index of the source in [`Trace::sources`].
    pub source: u32,
}

impl Interruption {
    /// When the interruption is over.
    pub fn end(&self) -> f64 {
        self.start + self.length
    }
}

/// The interruptions of one CPU.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trace {
    /// Nanoseconds that the recording took.
    pub duration: f64,
    /// Names of the sources.
    pub sources: Vec<String>,
    /// Sorted by start, without overlap.
    pub interruptions: Vec<Interruption>,
}

/// Why a noise file cannot be used. Lines count from 1.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoiseError {
    /// A line has no two numbers.
    #[error("line {line}: {text:?} is no start and length in nanoseconds, such as 1500 and 250")]
    NotNumbers {
        /// The line.
        line: usize,
        /// Its beginning.
        text: String,
    },
    /// A time that no clock shows.
    #[error("line {line}: the {what} {value} is not from 0 to {LATEST:e} ns")]
    OutOfRange {
        /// The line.
        line: usize,
        /// Start, length, end or duration.
        what: &'static str,
        /// The number.
        value: f64,
    },
    /// The lines are not in the order of time.
    #[error(
        "line {line}: start {start} comes before that of the line above, {above}: sort the file by its first column"
    )]
    Unsorted {
        /// The line.
        line: usize,
        /// Its start.
        start: f64,
        /// Start of the interruption before.
        above: f64,
    },
    /// Two interruptions overlap.
    #[error(
        "line {line}: the interruption starts at {start}, before that of the line above ends, at {end}: one CPU has one interruption at a time, so give each CPU a file of its own"
    )]
    Overlap {
        /// The line.
        line: usize,
        /// Its start.
        start: f64,
        /// End of the interruption before.
        end: f64,
    },
    /// The stated duration is shorter than what follows.
    #[error("duration_ns is {duration}, but the last interruption ends at {end}")]
    TooShort {
        /// The stated duration.
        duration: f64,
        /// End of the last interruption.
        end: f64,
    },
    /// Neither interruptions nor a duration.
    #[error("the file has no interruption, and no line `# duration_ns: N` that says how long there was none")]
    Empty,
    /// More than can be read.
    #[error("line {line}: more than {most} {what}")]
    TooMany {
        /// The line.
        line: usize,
        /// The limit.
        most: usize,
        /// Of what.
        what: &'static str,
    },
    /// The file cannot be read.
    #[error("cannot read the file")]
    Io(#[from] io::Error),
}

impl Trace {
    /// Reads a noise file.
    ///
    /// ```
    /// let file = "# by hand\n100\t50\n1000 20.5\ttimer\n";
    /// let trace = bifold_noise::Trace::read(file.as_bytes())?;
    /// assert_eq!((trace.interruptions.len(), trace.duration), (2, 1020.5));
    /// assert_eq!(trace.sources, ["unknown", "timer"]);
    /// # Ok::<(), bifold_noise::NoiseError>(())
    /// ```
    ///
    /// # Errors
    /// If a line is wrong; the error names the line.
    pub fn read(mut from: impl BufRead) -> Result<Trace, NoiseError> {
        let mut reading = Reading::default();
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let length = io::Read::take(&mut from, MOST_LINE as u64 + 2).read_until(b'\n', &mut bytes)?;
            if length == 0 {
                return reading.finish();
            }
            reading.line += 1;
            let text = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
            if text.len() > MOST_LINE {
                return Err(NoiseError::TooMany { line: reading.line, most: MOST_LINE, what: "bytes" });
            }
            reading.take(&String::from_utf8_lossy(text))?;
        }
    }

    /// The file's text below `head`, whose lines become comments. Times are rounded to nanoseconds.
    pub fn text(&self, head: &str) -> String {
        let mut out = String::new();
        for line in head.lines().chain(["Times in nanoseconds. Columns: start, length, source."]) {
            let _ = writeln!(out, "# {line}");
        }
        let _ = writeln!(out, "# duration_ns: {:.0}", self.duration.ceil());
        for one in &self.interruptions {
            // Both ends are rounded: rounded lengths could overlap.
            let (start, end) = (one.start.round(), one.end().round());
            let _ = writeln!(out, "{start:.0}\t{:.0}\t{}", end - start, self.sources[one.source as usize]);
        }
        out
    }

    /// The index of a source, which is added if it is new. Control characters in the name are replaced.
    pub fn source(&mut self, name: &str) -> u32 {
        let mut end = name.len().min(MOST_NAME);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        let clean: String = name[..end].chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let found = self.sources.iter().position(|known| *known == clean);
        found.unwrap_or_else(|| {
            self.sources.push(clean);
            self.sources.len() - 1
        }) as u32
    }

    /// Share of the time that the interruptions take, 0 to 1.
    pub fn share(&self) -> f64 {
        // The sum of no floats is -0.0.
        let taken = self.interruptions.iter().fold(0.0, |sum, i| sum + i.length);
        if self.duration > 0.0 { taken / self.duration } else { 0.0 }
    }

    /// The same recording without one source.
    pub fn without(&self, source: &str) -> Trace {
        let removed = self.sources.iter().position(|s| s == source);
        let mut trace = self.clone();
        trace.interruptions.retain(|i| Some(i.source as usize) != removed);
        trace
    }
}

/// A file that is being read.
#[derive(Default)]
struct Reading {
    line: usize,
    trace: Trace,
    duration: Option<f64>,
    /// Indices of sources by their names in the file.
    names: HashMap<String, u32>,
}

impl Reading {
    fn take(&mut self, text: &str) -> Result<(), NoiseError> {
        let text = text.trim_end_matches('\r');
        if let Some(comment) = text.strip_prefix('#') {
            return self.comment(comment);
        }
        if text.trim().is_empty() {
            return Ok(());
        }
        let (start, rest) = self.number(text, text)?;
        let (length, rest) = self.number(rest, text)?;
        self.within("start", start)?;
        self.within("length", length)?;
        self.within("end", start + length)?;
        let name = rest.trim();
        self.push(start, length, if name.is_empty() { UNKNOWN } else { name })
    }

    fn comment(&mut self, comment: &str) -> Result<(), NoiseError> {
        let Some(value) = comment.trim().strip_prefix("duration_ns:") else { return Ok(()) };
        let (value, _) = self.number(value, comment)?;
        self.within("duration_ns", value)?;
        self.duration = Some(value);
        Ok(())
    }

    /// The number at the start of `rest`, and what follows.
    fn number<'a>(&self, rest: &'a str, whole: &str) -> Result<(f64, &'a str), NoiseError> {
        let rest = rest.trim_start();
        let (word, after) = rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len()));
        let value = word.parse().map_err(|_| NoiseError::NotNumbers {
            line: self.line,
            text: whole.chars().take(40).collect(),
        })?;
        Ok((value, after))
    }

    fn within(&self, what: &'static str, value: f64) -> Result<(), NoiseError> {
        if (0.0..=LATEST).contains(&value) {
            return Ok(());
        }
        Err(NoiseError::OutOfRange { line: self.line, what, value })
    }

    fn push(&mut self, start: f64, length: f64, name: &str) -> Result<(), NoiseError> {
        let line = self.line;
        let mut one = Interruption { start, length, source: 0 };
        if let Some(last) = self.trace.interruptions.last() {
            if start < last.start {
                return Err(NoiseError::Unsorted { line, start, above: last.start });
            }
            if start + ROUNDING_NS < last.end() {
                return Err(NoiseError::Overlap { line, start, end: last.end() });
            }
            one.start = start.max(last.end());
            one.length = (start + length - one.start).max(0.0);
        }
        if self.trace.interruptions.len() == MOST_INTERRUPTIONS {
            return Err(NoiseError::TooMany { line, most: MOST_INTERRUPTIONS, what: "interruptions" });
        }
        one.source = match self.names.get(name) {
            Some(&known) => known,
            None if self.names.len() == MOST_SOURCES => {
                return Err(NoiseError::TooMany { line, most: MOST_SOURCES, what: "sources" });
            }
            None => {
                let new = self.trace.source(name);
                self.names.insert(name.into(), new);
                new
            }
        };
        self.trace.interruptions.push(one);
        Ok(())
    }

    fn finish(mut self) -> Result<Trace, NoiseError> {
        let end = self.trace.interruptions.last().map_or(0.0, Interruption::end);
        self.trace.duration = match self.duration {
            Some(duration) if duration + ROUNDING_NS < end => {
                return Err(NoiseError::TooShort { duration, end });
            }
            Some(duration) => duration.max(end),
            None => end,
        };
        if self.trace.duration == 0.0 {
            return Err(NoiseError::Empty);
        }
        Ok(self.trace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn error(text: &str) -> String {
        Trace::read(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn netgauges_file_is_read() {
        let text = "# Selfish Benchmark\n# Time [ns]\tselfish duration [ns]\n0.00\t1514.15\n1000101.5\t2212.25\n\
                    # CPU overhead due to noise: 0.22%\n";
        let trace = Trace::read(text.as_bytes()).unwrap();
        assert_eq!(trace.interruptions[1], Interruption { start: 1000101.5, length: 2212.25, source: 0 });
        assert_eq!((trace.duration, &trace.sources[0][..]), (1002313.75, "unknown"));
    }

    #[test]
    fn an_error_names_the_line_and_what_is_wrong() {
        assert!(
            error("# x\n5 5\n4 1\n").starts_with("line 3: start 4 comes before that of the line above, 5")
        );
        assert!(error("5 5\n8 1\n").starts_with("line 2: the interruption starts at 8, before"));
        assert!(error("5 -1\n").starts_with("line 1: the length -1 is not from 0"));
        assert!(error("-5 1\n").starts_with("line 1: the start -5 is not"));
        for bad in ["NaN 1", "inf 1", "1 nan", "1 1e300", "1e16 1", "6e14 6e14"] {
            assert!(error(bad).contains("is not from 0 to 1e15 ns"), "{bad}");
        }
        for bad in ["1", "a b", "1\tx", "1,2", "0x10 3"] {
            assert!(error(bad).contains("is no start and length in nanoseconds"), "{bad}");
        }
        assert!(
            error("# duration_ns: 10\n5 8\n")
                .contains("duration_ns is 10, but the last interruption ends at 13")
        );
        assert!(error(&"1".repeat(2000)).contains("more than 1023 bytes"));
        for empty in ["", "\n\n", "# nothing\n", "# duration_ns: 0\n"] {
            assert!(error(empty).starts_with("the file has no interruption"), "{empty:?}");
        }
    }

    #[test]
    fn a_cpu_without_interruptions_has_a_duration() {
        let trace = Trace::read("# duration_ns: 1000000\n".as_bytes()).unwrap();
        assert_eq!((trace.duration, trace.share()), (1e6, 0.0));
        assert!(trace.share().is_sign_positive());
    }

    #[test]
    fn a_source_goes_alone() {
        let trace = Trace::read("0 1\ta\n5 2\tb\n9 1\ta\n".as_bytes()).unwrap();
        assert_eq!((trace.share(), trace.without("a").share()), (0.4, 0.2));
        assert_eq!(trace.without("c"), trace);
    }

    #[test]
    fn a_name_from_outside_keeps_its_line() {
        let mut trace = Trace { duration: 10.0, ..Trace::default() };
        let source = trace.source(&format!("a\nb\t{}", "é".repeat(600)));
        trace.interruptions.push(Interruption { start: 1.0, length: 2.0, source });
        let text = trace.text("made\nby hand");
        assert!(text.starts_with("# made\n# by hand\n# Times"), "{text}");
        let again = Trace::read(text.as_bytes()).unwrap();
        assert_eq!(again.sources, trace.sources);
        assert!(again.sources[0].starts_with("a?b?é"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(gaps in prop::collection::vec((0.0..1e6, 0.0..1e5, 0u32..3), 1..50)) {
            let mut trace = Trace::default();
            let mut now = 1.0;
            for (gap, length, source) in gaps {
                let source = trace.source(&format!("source {source}"));
                trace.interruptions.push(Interruption { start: now + gap, length, source });
                now += gap + length;
            }
            trace.duration = now;
            let again = Trace::read(trace.text("").as_bytes()).unwrap();
            prop_assert_eq!(again.interruptions.len(), trace.interruptions.len());
            for (a, b) in again.interruptions.iter().zip(&trace.interruptions) {
                prop_assert!((a.start - b.start).abs() <= 0.5 && (a.end() - b.end()).abs() <= 0.5);
                prop_assert_eq!(&again.sources[a.source as usize], &trace.sources[b.source as usize]);
            }
        }
    }
}
