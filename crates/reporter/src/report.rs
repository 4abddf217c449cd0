// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A report: the guest's own counts as a line of JSON.

use crate::O_NONBLOCK;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Where Linux counts page faults: `pgfault`, all that it has handled since the boot (`PGFAULT`, counted by
/// `handle_mm_fault` and what it calls in `mm/memory.c`).
pub const VMSTAT: &str = "/proc/vmstat";
const MOST_NAMES: usize = 16;
const MOST_NAME: usize = 32;
/// Longest file of progress: 16 lines of a name, a space and a number.
const MOST_BYTES: u64 = 1024;

/// The report of this moment. What cannot be read is left out.
pub fn line(progress: Option<&Path>) -> String {
    let counts = progress.and_then(|path| read(path).ok());
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let vmstat = text(VMSTAT);
    let memory = memory(&text("/proc/meminfo"), &vmstat, &text("/proc/pressure/memory"));
    format(uptime_ms(), count(&vmstat, "pgfault"), counts.as_deref().and_then(counts_of).as_deref(), &memory)
}

/// The number behind a name at the start of a line.
fn count(text: &str, name: &str) -> Option<u64> {
    let is = |line: &str| {
        line.strip_prefix(name)?.strip_prefix([' ', ':'])?.split_whitespace().next()?.parse().ok()
    };
    text.lines().find_map(is)
}

/// The guest's memory as its kernel counts it, by names of the report. Each figure that the files lack is
/// left out.
fn memory(meminfo: &str, vmstat: &str, pressure: &str) -> Vec<(&'static str, u64)> {
    let bytes = |name| count(meminfo, name)?.checked_mul(1024);
    // Before Linux 5.9 there is one count.
    let refaults = ["workingset_refault_anon", "workingset_refault_file", "workingset_refault"]
        .map(|n| count(vmstat, n));
    let refaults = refaults.iter().flatten().copied().reduce(u64::saturating_add);
    let waited = |who: &str| {
        let line = pressure.lines().find(|line| line.split(' ').next() == Some(who))?;
        line.split(' ').find_map(|word| word.strip_prefix("total=")?.parse().ok())
    };
    let all = [
        ("total_bytes", bytes("MemTotal")),
        ("available_bytes", bytes("MemAvailable")),
        ("free_bytes", bytes("MemFree")),
        ("major_faults", count(vmstat, "pgmajfault")),
        ("refaults", refaults),
        ("waited_us", waited("some")),
        ("all_waited_us", waited("full")),
    ];
    all.into_iter().filter_map(|(name, n)| Some((name, n?))).collect()
}

fn format(
    uptime_ms: Option<u64>,
    page_faults: Option<u64>,
    progress: Option<&[(&str, u64)]>,
    memory: &[(&str, u64)],
) -> String {
    let mut line = String::from("{\"schema\":\"bifold.report/1\"");
    // Writing to a string does not fail.
    for (name, value) in [("uptime_ms", uptime_ms), ("page_faults", page_faults)] {
        let _ = value.map(|n| write!(line, ",\"{name}\":{n}"));
    }
    for (name, all) in [("progress", progress), ("memory", Some(memory).filter(|all| !all.is_empty()))] {
        let Some(all) = all else { continue };
        let all: Vec<String> = all.iter().map(|(name, n)| format!("\"{name}\":{n}")).collect();
        let _ = write!(line, ",\"{name}\":{{{}}}", all.join(","));
    }
    line + "}\n"
}

/// The page faults since the boot.
pub fn page_faults() -> io::Result<u64> {
    let text = fs::read_to_string(VMSTAT)?;
    count(&text, "pgfault")
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the file has no number pgfault"))
}

/// The time since the boot, by which the host sees how old a report is.
fn uptime_ms() -> Option<u64> {
    let text = fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = text.split(' ').next()?.parse().ok()?;
    Some((seconds * 1000.0) as u64)
}

/// The start of a file. A pipe without a writer is empty, as the open does not wait for one.
fn read(path: &Path) -> io::Result<String> {
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// The lines `NAME COUNT`; `None` if a line is something else. The file may just be being written, so a last
/// line without its end is not believed either.
fn counts_of(text: &str) -> Option<Vec<(&str, u64)>> {
    let lines = text.strip_suffix('\n').filter(|_| text.len() as u64 <= MOST_BYTES)?;
    let mut counts: Vec<(&str, u64)> = Vec::new();
    for line in lines.split('\n') {
        let (name, count) = line.split_once(' ')?;
        let digits = !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit());
        let allowed = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
        let good = (1..=MOST_NAME).contains(&name.len()) && name.bytes().all(allowed);
        if !good || !digits || counts.iter().any(|(n, _)| *n == name) {
            return None;
        }
        counts.push((name, count.parse().ok()?));
    }
    (counts.len() <= MOST_NAMES).then_some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_line_of_what_is_known() {
        let all =
            format(Some(5120), Some(7), Some(&[("tables", 120), ("chase", 55)]), &[("free_bytes", 4096)]);
        assert_eq!(
            all,
            "{\"schema\":\"bifold.report/1\",\"uptime_ms\":5120,\"page_faults\":7,\
             \"progress\":{\"tables\":120,\"chase\":55},\"memory\":{\"free_bytes\":4096}}\n"
        );
        assert_eq!(format(None, None, None, &[]), "{\"schema\":\"bifold.report/1\"}\n");
    }

    #[test]
    fn memory_is_what_the_kernels_files_have() {
        let meminfo = "MemTotal:        1000 kB\nMemFree:          300 kB\nMemAvailable:     700 kB\n";
        let vmstat = "pgfault 9\npgmajfault 3\nworkingset_refault_anon 4\nworkingset_refault_file 5\n";
        let pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=77\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=66\n";
        assert_eq!(
            memory(meminfo, vmstat, pressure),
            [
                ("total_bytes", 1_024_000),
                ("available_bytes", 716_800),
                ("free_bytes", 307_200),
                ("major_faults", 3),
                ("refaults", 9),
                ("waited_us", 77),
                ("all_waited_us", 66),
            ]
        );
        assert_eq!(memory("", "workingset_refault 8\nworkingset_refault_x 1\n", ""), [("refaults", 8)]);
        assert_eq!(memory("MemFree: x kB\n", "pgmajfault -1\n", "some total=\n"), []);
        assert!(line(None).contains("\"memory\":{\"total_bytes\":"));
    }

    #[test]
    fn this_machines_page_faults_grow() {
        let before = page_faults().unwrap();
        // Each page is new memory.
        let memory = vec![1u8; 8 << 20];
        assert!(page_faults().unwrap() > before, "{}", memory.len());
        assert!(uptime_ms().unwrap() > 0);
    }

    #[test]
    fn progress_is_read_whole_or_not_at_all() {
        assert_eq!(counts_of("tables 120\nchase_2 55\n"), Some(vec![("tables", 120), ("chase_2", 55)]));
        let many: String = (0..17).map(|n| format!("n{n} 1\n")).collect();
        let long = format!("{} 1\n", "n".repeat(33));
        for text in [
            "",
            "\n",
            "a 1",
            "a 1\nb 12",
            "a\n",
            "a -1\n",
            "a +1\n",
            "a 1 2\n",
            "A 1\n",
            " 1\n",
            "a 1\na 2\n",
            "a 1\r\n",
            "a 1e3\n",
            "\"a 1\n",
            "a 18446744073709551616\n",
            &many,
            &long,
        ] {
            assert_eq!(counts_of(text), None, "{text:?}");
        }
        assert_eq!(counts_of("a 18446744073709551615\n"), Some(vec![("a", u64::MAX)]));
        let most: String = (0..16).map(|n| format!("{n:032} {}\n", u64::MAX)).collect();
        assert_eq!(counts_of(&most).unwrap().len(), 16);
    }

    #[test]
    fn a_file_that_cannot_be_read_leaves_the_report_without_progress() {
        assert!(!line(Some(Path::new("/nonexistent"))).contains("progress"));
        assert!(!line(Some(Path::new("/proc"))).contains("progress"));
        assert!(line(None).contains("\"page_faults\":"));
    }
}
