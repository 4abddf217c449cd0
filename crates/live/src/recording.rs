// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads recordings: the JSON lines that `bifold stat` and the daemon write ([`files`](crate::files)).
//!
//! A replay needs of a row what a policy saw: the mode, the counters that were known, cycles, load and
//! length. Rows of vCPUs, lines of the daemon's decisions and all other figures are skipped. A last line that
//! is cut off, as after a kill, is left out.

use crate::files::SCHEMA;
use crate::measured::Measured;
use crate::observation::Observation;
use bifold_model::Sample;
use bifold_policy::{Counters, mode_from_name};
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Schema of the daemon's lines for decisions, which stand among the rows.
pub const DECISION_SCHEMA: &str = "bifold.decision/1";
/// The schema of a line about a decision over the memory of a VM.
pub const MEMORY_DECISION_SCHEMA: &str = "bifold.memory-decision/1";

/// Schema of the line that a daemon writes at its start.
pub const START_SCHEMA: &str = "bifold.daemon-start/1";

/// Longest line of a recording.
const MOST_LINE: u64 = 64 << 10;
/// Most rows: a day of 100 VMs at a row a second.
const MOST_ROWS: usize = 100 * 86_400;
/// Largest count of an interval: what a JSON number holds exactly. No sum over all rows overflows.
const MOST: u64 = 1 << 53;
/// Largest sum of a counter over a VM's intervals.
const MOST_SUM: u64 = 1 << 62;

/// Why a recording cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The file cannot be read.
    #[error("cannot read recording {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line is no interval.
    #[error("{}, line {line}: {problem} (`bifold stat --format jsonl` writes recordings)", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// The file has no interval.
    #[error("recording {} has no interval of a VM", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// The error for a line, of what is wrong with it.
type Wrong<'a> = dyn Fn(String) -> RecordingError + 'a;

/// The intervals of a VM, in the order of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedVm {
    /// KVM's identifier.
    pub vm: String,
    /// The VM's name in its last interval; the identifier if no interval has one.
    pub name: String,
    /// The intervals.
    pub intervals: Vec<RecordedInterval>,
    /// Where a daemon began to watch the VM, in order.
    pub starts: Vec<Start>,
}

/// A daemon began to watch a VM: its policy knew nothing of the intervals before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// The daemon's first interval.
    pub interval: usize,
    /// Whether an earlier daemon had switched the VM.
    pub away: bool,
}

/// An interval of a VM.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecordedInterval {
    /// End of the interval, in seconds since 1970.
    pub time: f64,
    /// What policies and probes saw.
    pub seen: Observation,
}

/// Whether a file begins as a recording does: with an object of JSON.
///
/// # Errors
/// If the file cannot be read.
pub fn is_recording(path: &Path) -> io::Result<bool> {
    // What is read of a pipe is gone.
    if !path.metadata()?.is_file() {
        return Ok(false);
    }
    let mut first = [0; 1];
    let read = File::open(path)?.read(&mut first)?;
    Ok(first[..read] == *b"{")
}

/// Reads a recording. VMs are in the order of their first interval.
///
/// # Errors
/// If the file cannot be read, or a line is no interval.
pub fn read(path: &Path) -> Result<Vec<RecordedVm>, RecordingError> {
    let file = File::open(path).map_err(|source| RecordingError::Io { path: path.into(), source })?;
    parse(BufReader::new(file), path)
}

/// Reads a recording's text; errors name `path`.
///
/// # Errors
/// As [`read`].
pub fn parse(mut file: impl BufRead, path: &Path) -> Result<Vec<RecordedVm>, RecordingError> {
    let io = |source| RecordingError::Io { path: path.into(), source };
    let mut vms = Vms::default();
    let mut rows = 0;
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        file.by_ref().take(MOST_LINE).read_until(b'\n', &mut line).map_err(io)?;
        let wrong = |problem| RecordingError::Line { path: path.into(), line: number, problem };
        match line.last() {
            None => break,
            Some(b'\n') => {}
            Some(_) if line.len() as u64 == MOST_LINE => return Err(wrong("the line is too long".into())),
            // Cut off in the middle of a row.
            Some(_) => break,
        }
        let line: Map<String, Value> = serde_json::from_slice(&line).map_err(|e| wrong(e.to_string()))?;
        if line.get("schema").and_then(Value::as_str) == Some(START_SCHEMA) {
            vms.start(&line);
        } else if let Some((vm, name, interval)) = row(&line, &wrong)? {
            rows += 1;
            if rows > MOST_ROWS {
                return Err(wrong(format!("more than {MOST_ROWS} intervals of VMs")));
            }
            vms.add(vm, name, interval, &wrong)?;
        }
    }
    if vms.all.is_empty() {
        return Err(RecordingError::Empty { path: path.into() });
    }
    Ok(vms.all)
}

/// The VMs of a recording, their places by identifier, and the sums of their counters.
#[derive(Default)]
struct Vms {
    all: Vec<RecordedVm>,
    places: HashMap<String, usize>,
    sums: Vec<Vec<u64>>,
    /// Number of the daemon's starts so far, in all and those that each VM has seen.
    starts: usize,
    seen: Vec<usize>,
    /// VMs that a daemon before the last start had switched.
    away: HashSet<String>,
}

impl Vms {
    fn start(&mut self, line: &Map<String, Value>) {
        self.starts += 1;
        let away = line.get("away").and_then(Value::as_array).into_iter().flatten();
        self.away = away.filter_map(Value::as_str).map(String::from).collect();
    }

    fn add(
        &mut self,
        vm: String,
        name: Option<String>,
        interval: RecordedInterval,
        wrong: &Wrong,
    ) -> Result<(), RecordingError> {
        let place = match self.places.get(&vm) {
            Some(place) => *place,
            None => {
                self.places.insert(vm.clone(), self.all.len());
                self.all.push(RecordedVm { name: vm.clone(), vm, intervals: Vec::new(), starts: Vec::new() });
                self.seen.push(0);
                self.sums.push(vec![0; Sample::COUNTERS.len()]);
                self.all.len() - 1
            }
        };
        // A policy sees sums over the intervals since its last decision.
        for ((sum, value), counter) in
            self.sums[place].iter_mut().zip(interval.seen.measured.sample.values()).zip(Sample::COUNTERS)
        {
            *sum += value;
            if *sum > MOST_SUM {
                return Err(wrong(format!("{} is above {MOST_SUM} over all intervals", counter.name)));
            }
        }
        if let Some(name) = name {
            self.all[place].name = name;
        }
        let vm = &mut self.all[place];
        if std::mem::replace(&mut self.seen[place], self.starts) != self.starts {
            vm.starts.push(Start { interval: vm.intervals.len(), away: self.away.contains(&vm.vm) });
        }
        vm.intervals.push(interval);
        Ok(())
    }
}

/// The VM, its name and the interval of a line; `None` for a vCPU or a decision.
fn row(
    row: &Map<String, Value>,
    wrong: &Wrong,
) -> Result<Option<(String, Option<String>, RecordedInterval)>, RecordingError> {
    match row.get("schema").and_then(Value::as_str) {
        Some(SCHEMA) => {}
        Some(DECISION_SCHEMA | MEMORY_DECISION_SCHEMA) => return Ok(None),
        Some(other) => return Err(wrong(format!("schema {} is not {SCHEMA}", other.escape_debug()))),
        None => return Err(wrong("it has no schema".into())),
    }
    if row.contains_key("vcpu") {
        return Ok(None);
    }
    let text = |name: &str| row.get(name).and_then(Value::as_str).map(String::from);
    let number = |name: &str| match row.get(name) {
        None => Ok(None),
        Some(v) => match v.as_f64().filter(|n| n.is_finite() && *n >= 0.0) {
            Some(n) => Ok(Some(n)),
            None => Err(wrong(format!("{name} = {v} is no number from 0 on"))),
        },
    };
    let needed = |name: &str| number(name)?.ok_or_else(|| wrong(format!("it has no {name}")));
    let seconds = needed("seconds")?;
    let mode = match text("mode").as_deref() {
        None => None,
        Some(word) => {
            let mode = mode_from_name(word);
            Some(mode.ok_or_else(|| wrong(format!("mode {} is unknown", word.escape_debug())))?)
        }
    };
    let load = number("load")?.map(|l| l.min(1.0));
    let (sample, known) = counters(row, wrong)?;
    let measured = Measured { sample, known, cycles: number("cycles")?, load };
    let vm = text("vm").ok_or_else(|| wrong("it has no vm".into()))?;
    let time = needed("time")?;
    let progress = match row.get("reported_progress") {
        None => None,
        Some(v) => {
            let count = v.as_u64().filter(|n| *n <= MOST);
            Some(count.ok_or_else(|| wrong(format!("reported_progress = {v} is no count up to {MOST}")))?)
        }
    };
    Ok(Some((
        vm,
        text("name"),
        RecordedInterval { time, seen: Observation { seconds, mode, measured, progress } },
    )))
}

/// The counters that the row has.
fn counters(row: &Map<String, Value>, wrong: &Wrong) -> Result<(Sample, Counters), RecordingError> {
    let mut values = Sample::default().values();
    let mut known = Counters::NONE;
    for (place, counter) in Sample::COUNTERS.iter().enumerate() {
        let Some(value) = row.get(counter.name) else { continue };
        let count = value.as_u64().filter(|n| *n <= MOST);
        values[place] =
            count.ok_or_else(|| wrong(format!("{} = {value} is no count up to {MOST}", counter.name)))?;
        known = known.and(Counters::of(&[counter.name]));
    }
    Ok((Sample::from_values(values), known))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifold_policy::Mode;
    use proptest::prelude::*;

    const LINE: &str = r#"{"schema":"bifold.stat/1","time":5.5,"seconds":1.0,"vm":"9-7","name":"web","mode":"shadow","load":0.5,"cycles":2e9,"instructions":7,"pf_taken":3}"#;

    fn read_text(text: &str) -> Result<Vec<RecordedVm>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        std::fs::write(&path, text).unwrap();
        read(&path).map_err(|e| e.to_string().replace(&format!("{}", path.display()), "FILE"))
    }

    #[test]
    fn an_interval_comes_back_with_what_was_known() {
        let vcpu = LINE.replace(r#""vm""#, r#""vcpu":0,"vm""#);
        let other = LINE.replace("9-7", "8-7").replace(r#""name":"web","#, "");
        let cut = &LINE[..40];
        let vms = read_text(&format!("{LINE}\n{vcpu}\n{other}\n{LINE}\n{cut}")).unwrap();
        assert_eq!(
            vms.iter().map(|v| (&v.vm[..], &v.name[..], v.intervals.len())).collect::<Vec<_>>(),
            [("9-7", "web", 2), ("8-7", "8-7", 1)]
        );
        let i = vms[0].intervals[0];
        assert_eq!((i.time, i.seen.seconds, i.seen.mode), (5.5, 1.0, Some(Mode::Shadow)));
        let m = i.seen.measured;
        assert_eq!(
            (m.sample.instructions, m.known, m.cycles, m.load),
            (7, Counters::INSTRUCTIONS, Some(2e9), Some(0.5))
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (from, to, problem) in [
            ("bifold.stat/1", "bifold.stat/2", "line 2: schema bifold.stat/2 is not bifold.stat/1"),
            (r#""schema""#, r#""skema""#, "line 2: it has no schema"),
            (r#""seconds":1.0,"#, "", "line 2: it has no seconds"),
            ("shadow", "sideways", "line 2: mode sideways is unknown"),
            (r#""instructions":7"#, r#""instructions":-7"#, "line 2: instructions = -7 is no count"),
            (r#""instructions":7"#, r#""instructions":1e30"#, "line 2: instructions = 1e+30 is no count"),
            (r#""load":0.5"#, r#""load":"much""#, "line 2: load = \"much\" is no number"),
            (r#"{"#, r#"["#, "line 2: "),
        ] {
            let e = read_text(&format!("{LINE}\n{}\n", LINE.replacen(from, to, 1))).unwrap_err();
            assert!(e.contains(problem), "{e}");
        }
        assert!(read_text("").unwrap_err().contains("no interval"));
        assert!(
            read_text(&format!("{LINE}\n{}\n", " ".repeat(70_000)))
                .unwrap_err()
                .contains("line 2: the line is too long")
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_recording_or_an_error(text in "[\\x00-\\x7f]{0,300}", cut in 0..=LINE.len()) {
            let _ = parse(text.as_bytes(), Path::new("r"));
            let _ = parse(format!("{}{text}", &LINE[..cut]).as_bytes(), Path::new("r"));
        }
    }
}
