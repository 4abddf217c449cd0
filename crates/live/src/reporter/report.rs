// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lines of a guest's reporter, out of a stream of bytes that the guest chooses.

use serde::Deserialize;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Name and version of the reports' schema.
const SCHEMA: &str = "bifold.report/1";
/// Longest line. A report with 16 names has about 1,000 bytes.
const MOST_LINE: usize = 4 << 10;
/// Most names of progress.
pub const MOST_NAMES: usize = 16;
/// Longest name of progress.
const MOST_NAME: usize = 32;
/// Largest count that is believed: what a JSON number holds exactly.
pub const MOST_COUNT: u64 = 1 << 53;

/// A report: the guest's counts since its boot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Milliseconds since the guest's boot, by the guest.
    pub uptime_ms: Option<u64>,
    /// Page faults that the guest's kernel has handled.
    pub page_faults: Option<u64>,
    /// What the guest's work has done, by names that the work chose.
    pub progress: BTreeMap<String, u64>,
    /// The guest's memory.
    pub memory: MemoryView,
}

/// A guest's memory as its own kernel counts it. A figure that the guest does not tell, or that cannot be
/// true, is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryView {
    /// Bytes in all (`MemTotal`).
    pub total: Option<u64>,
    /// Bytes that programs can take without swapping (`MemAvailable`).
    pub available: Option<u64>,
    /// Bytes that are free (`MemFree`).
    pub free: Option<u64>,
    /// Faults since the boot that read from a disk (`pgmajfault`).
    pub major_faults: Option<u64>,
    /// Pages since the boot that came back soon after they were taken (`workingset_refault_*`).
    pub refaults: Option<u64>,
    /// Microseconds since the boot in which some task waited for memory (PSI).
    pub waited_us: Option<u64>,
    /// Microseconds since the boot in which all tasks waited for memory (PSI).
    pub all_waited_us: Option<u64>,
}

/// Finds reports in a guest's bytes, and counts the lines that are not reports.
///
/// ```
/// use bifold_live::reporter::Reports;
///
/// let mut reports = Reports::default();
/// let mut all = Vec::new();
/// reports.read(b"{\"schema\":\"bifold.report/1\",\"page_faults\":7}\nnonsense\n{\"sche", |r| all.push(r));
/// assert_eq!((all[0].page_faults, reports.bad_lines()), (Some(7), 1));
/// ```
#[derive(Debug, Default)]
pub struct Reports {
    /// The start of a line whose end has not come yet.
    partial: Vec<u8>,
    /// Whether that line is too long, so that its start was not kept.
    too_long: bool,
    bad_lines: u64,
}

impl Reports {
    /// Reads the next bytes of the stream.
    pub fn read(&mut self, bytes: &[u8], mut each: impl FnMut(Report)) {
        for part in bytes.split_inclusive(|b| *b == b'\n') {
            let (part, ends) = part.strip_suffix(b"\n").map_or((part, false), |line| (line, true));
            self.too_long |= self.partial.len() + part.len() > MOST_LINE;
            if self.too_long {
                self.partial.clear();
            } else {
                self.partial.extend_from_slice(part);
            }
            if ends {
                let report = if self.too_long { None } else { parse(&self.partial) };
                self.bad_lines += u64::from(report.is_none());
                self.partial.clear();
                self.too_long = false;
                report.into_iter().for_each(&mut each);
            }
        }
    }

    /// Number of lines that were no report.
    pub fn bad_lines(&self) -> u64 {
        self.bad_lines
    }

    /// Forgets the start of a line: another stream begins.
    pub(super) fn restart(&mut self) {
        self.partial.clear();
        self.too_long = false;
    }
}

/// A line as it may be: a figure of a wrong type is unknown, and spoils no other.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    schema: Cow<'a, str>,
    #[serde(default)]
    uptime_ms: Value,
    #[serde(default)]
    page_faults: Value,
    #[serde(default)]
    progress: Value,
    #[serde(default)]
    memory: Value,
}

fn parse(line: &[u8]) -> Option<Report> {
    let line: Line = serde_json::from_slice(line).ok().filter(|l: &Line| l.schema == SCHEMA)?;
    let progress = match line.progress {
        Value::Object(all) => counts(&all),
        _ => BTreeMap::new(),
    };
    Some(Report {
        uptime_ms: count(&line.uptime_ms),
        page_faults: count(&line.page_faults),
        progress,
        memory: memory(&line.memory),
    })
}

fn memory(value: &Value) -> MemoryView {
    let get = |name: &str| value.get(name).and_then(count);
    let total = get("total_bytes");
    // More than all of it is believed of no guest.
    let part = |name: &str| get(name).filter(|bytes| total.is_some_and(|total| *bytes <= total));
    MemoryView {
        total,
        available: part("available_bytes"),
        free: part("free_bytes"),
        major_faults: get("major_faults"),
        refaults: get("refaults"),
        waited_us: get("waited_us"),
        all_waited_us: get("all_waited_us"),
    }
}

fn counts(all: &Map<String, Value>) -> BTreeMap<String, u64> {
    let allowed = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
    let good = |name: &str| (1..=MOST_NAME).contains(&name.len()) && name.bytes().all(allowed);
    let named = all.iter().filter(|(name, _)| good(name));
    named.filter_map(|(name, value)| Some((name.clone(), count(value)?))).take(MOST_NAMES).collect()
}

fn count(value: &Value) -> Option<u64> {
    value.as_u64().filter(|n| *n <= MOST_COUNT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINE: &str = r#"{"schema":"bifold.report/1","uptime_ms":5120,"page_faults":7,"progress":{"tables":120,"chase":55}}"#;

    fn read(parts: &[&[u8]]) -> (Vec<Report>, u64) {
        let (mut reports, mut all) = (Reports::default(), Vec::new());
        parts.iter().for_each(|p| reports.read(p, |r| all.push(r)));
        (all, reports.bad_lines())
    }

    fn one(line: &str) -> Report {
        let (mut all, bad) = read(&[line.as_bytes(), b"\n"]);
        assert_eq!((all.len(), bad), (1, 0), "{line}");
        all.remove(0)
    }

    #[test]
    fn a_report_has_what_the_guest_says() {
        let report = one(LINE);
        assert_eq!((report.uptime_ms, report.page_faults), (Some(5120), Some(7)));
        assert_eq!(
            report.progress,
            [("tables", 120), ("chase", 55)].map(|(name, n)| (name.to_owned(), n)).into()
        );
        assert_eq!(one(r#"{"more":[{}],"schema":"bifold.report/1"}"#), Report::default());
    }

    #[test]
    fn a_count_that_is_none_is_unknown_and_spoils_no_other() {
        for strange in
            ["9007199254740993", "18446744073709551616", "1e300", "-1", "7.5", "\"7\"", "null", "[1]"]
        {
            let report = one(&LINE.replace(":7,", &format!(":{strange},")));
            assert_eq!((report.page_faults, report.progress.len()), (None, 2), "{strange}");
            let report = one(&LINE.replace(":120", &format!(":{strange}")));
            assert_eq!((report.page_faults, report.progress.len()), (Some(7), 1), "{strange}");
        }
        assert_eq!(one(&LINE.replace(":7,", ":9007199254740992,")).page_faults, Some(MOST_COUNT));
    }

    #[test]
    fn memory_is_optional_and_no_part_is_larger_than_all() {
        let with = |memory: &str| {
            one(&LINE.replace("\"progress\"", &format!("\"memory\":{memory},\"progress\""))).memory
        };
        let all = r#"{"total_bytes":1000,"available_bytes":700,"free_bytes":1001,"major_faults":3,"refaults":-1,"waited_us":9}"#;
        let known = MemoryView {
            total: Some(1000),
            available: Some(700),
            major_faults: Some(3),
            waited_us: Some(9),
            ..MemoryView::default()
        };
        assert_eq!(with(all), known);
        assert_eq!(
            with(&all.replace("\"total_bytes\":1000,", "")).available,
            None,
            "no part of what is not known"
        );
        for none in ["[]", "7", "null", "{}"] {
            assert_eq!(with(none), MemoryView::default(), "{none}");
        }
    }

    #[test]
    fn names_are_checked_and_few() {
        let many: Vec<String> = (0..99).map(|n| format!("\"n{n}\":1")).collect();
        let with = |progress: &str| {
            one(&format!(r#"{{"schema":"bifold.report/1","progress":{{{progress}}}}}"#)).progress
        };
        assert_eq!(with(&many.join(",")).len(), MOST_NAMES);
        let long = format!("\"{}\":1", "n".repeat(33));
        for bad in [r#""":1"#, r#""A":1"#, r#""\u001b[2J":1"#, r#""a b":1"#, &long] {
            assert_eq!(with(&format!("{bad},\"ok\":2")).len(), 1, "{bad}");
        }
    }

    #[test]
    fn lines_that_are_no_report_are_counted_and_skipped() {
        let long = format!("{LINE}{}", " ".repeat(5000));
        let exact = format!("{LINE}{}", " ".repeat(MOST_LINE - LINE.len()));
        let text = format!("\n[]\n{}\n{long}\n{LINE}\n{exact}\nrest", LINE.replace("/1", "/2"));
        assert_eq!(read(&[text.as_bytes()]).1, 4);
        assert_eq!(read(&[text.as_bytes()]).0.len(), 2);
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_give_the_same_reports(
            noise in prop::collection::vec(any::<u8>(), 0..200),
            repeat in 0..60usize,
            at in 0..LINE.len(),
            piece in 1..400usize,
        ) {
            let mut text = format!("{LINE}\n").into_bytes();
            (0..repeat).for_each(|_| text.extend(&noise));
            text.splice(at..at, noise.iter().copied());
            text.extend(format!("\n{LINE}\n").bytes());
            let whole = read(&[&text]);
            prop_assert_eq!(&whole, &read(&text.chunks(piece).collect::<Vec<_>>()));
            prop_assert_eq!(whole.0.last().unwrap(), &one(LINE));
            for report in whole.0 {
                prop_assert!(report.page_faults.is_none_or(|n| n <= MOST_COUNT));
                prop_assert!(report.progress.len() <= MOST_NAMES);
                prop_assert!(report.memory.free <= report.memory.total);
                prop_assert!(report.progress.values().all(|n| *n <= MOST_COUNT));
            }
        }
    }
}
