// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's recording: a line for each reading of a VM, as `bifold stat --format jsonl` writes, and a
//! line for each decision.
//!
//! Whole lines only: what a full disk cuts off is taken back, and the recording goes on when there is room.

use crate::config::Recording;
use crate::error::DaemonError;
use bifold_host::VmId;
use bifold_live::IntervalRow;
use bifold_live::columns::{self, Column};
use bifold_live::files::json_line;
use bifold_live::recording::{DECISION_SCHEMA, MEMORY_DECISION_SCHEMA, START_SCHEMA};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, rename};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

/// What the daemon writes into its recording for a decision over the mode of a VM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DecisionLine {
    /// Name and version of this schema.
    pub schema: String,
    /// End of the interval, since 1970-01-01. Unit: s.
    pub time: f64,
    /// KVM's identifier of the VM: thread and file descriptor.
    pub vm: String,
    /// The VM's name; null if unknown.
    pub name: Option<String>,
    /// The policy.
    pub policy: String,
    /// The VM's mode.
    pub now: String,
    /// The mode that the policy wants.
    pub wants: String,
    /// What the limits allow: `stay`, `switch`, `too-early` or `too-many`.
    pub verdict: String,
    /// What the daemon did: `stayed`, `switched`, `would-switch`, `held`, or `not-switched` with the reason.
    /// If KVM would refuse the switch, `not-switched, WORD` or, of a VM that is only observed,
    /// `would-be-refused, WORD`, with KVM's word and the reason.
    pub done: String,
    /// The policy's reason.
    pub why: String,
}

impl DecisionLine {
    /// The schema's name.
    pub fn schema() -> String {
        DECISION_SCHEMA.into()
    }
}

/// What the daemon writes into its recording for a decision over the memory of a VM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryLine {
    /// Name and version of this schema.
    pub schema: String,
    /// Time of the decision, since 1970-01-01. Unit: s.
    pub time: f64,
    /// The VM's process.
    pub pid: u32,
    /// KVM's identifier of the VM; null if KVM does not run the guest.
    pub vm: Option<String>,
    /// The VM's name.
    pub name: String,
    /// The policy.
    pub policy: String,
    /// The size that the VM has, or that is ordered. Unit: bytes.
    pub now_bytes: u64,
    /// The size that the policy wants. Unit: bytes.
    pub wants_bytes: u64,
    /// What the daemon did: `stayed`, `takes`, `gives`, `would-take`, `held`, `too-early`, `too-many` or
    /// `not-taken`.
    pub done: String,
    /// More about what the daemon did; null without more.
    pub note: Option<String>,
    /// The policy's reason.
    pub why: String,
}

impl MemoryLine {
    /// The schema's name.
    pub fn schema() -> String {
        MEMORY_DECISION_SCHEMA.into()
    }
}

/// What the daemon writes into its recording at its start: the VMs that an earlier daemon has switched.
#[derive(Serialize, JsonSchema)]
pub struct StartLine {
    /// Name and version of this schema.
    schema: &'static str,
    /// Time of the start, since 1970-01-01. Unit: s.
    time: f64,
    /// KVM's identifiers of the VMs that an earlier daemon has switched.
    away: Vec<String>,
}

/// An open recording.
pub struct Recorder {
    recording: Recording,
    file: File,
    columns: Vec<Column>,
    /// The file's length in whole lines.
    length: u64,
    /// Lines of this interval.
    lines: Vec<u8>,
}

impl Recorder {
    /// Opens a recording, and adds to what is there.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(recording: &Recording) -> Result<Recorder, DaemonError> {
        let (file, length) = open(recording).map_err(|e| DaemonError::io(&recording.file, e))?;
        let columns = columns::all();
        Ok(Recorder { recording: recording.clone(), file, columns, length, lines: Vec::new() })
    }

    /// What is recorded.
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Adds a reading to the interval's lines.
    pub fn reading(&mut self, row: &IntervalRow) {
        json_line(&self.columns, row, &mut self.lines).expect("memory takes every line");
    }

    /// Adds a decision, or a start, to the interval's lines.
    pub fn line(&mut self, line: &impl Serialize) {
        if let Ok(text) = serde_json::to_string(line) {
            self.lines.extend_from_slice(text.as_bytes());
            self.lines.push(b'\n');
        }
    }

    /// Adds the line of a daemon's start, with the VMs that an earlier daemon has switched.
    pub fn start(&mut self, time: f64, away: &[VmId]) {
        let away = away.iter().map(VmId::to_string).collect();
        self.line(&StartLine { schema: START_SCHEMA, time, away });
    }

    /// Writes the interval's lines.
    ///
    /// # Errors
    /// If the lines cannot be written: the recording lacks this interval.
    pub fn write(&mut self) -> Result<(), DaemonError> {
        let lines = std::mem::take(&mut self.lines);
        self.add(&lines).map_err(|e| DaemonError::io(&self.recording.file, e))
    }

    fn add(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.length > 0 && self.length + lines.len() as u64 > self.recording.most_mib << 20 {
            match rename(&self.recording.file, older(&self.recording.file)) {
                // Somebody removed the file.
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            (self.file, self.length) = open(&self.recording)?;
        }
        self.file.write_all(lines).inspect_err(|_| {
            // Without a half line, if the disk is full; if that fails too, a reader leaves a cut last line
            // out.
            let _ = self.file.set_len(self.length).and_then(|()| self.file.seek(SeekFrom::End(0)));
        })?;
        self.length += lines.len() as u64;
        Ok(())
    }
}

/// The name of a recording that is full.
fn older(file: &std::path::Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

/// Opens the file at the end of its last whole line.
fn open(recording: &Recording) -> io::Result<(File, u64)> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).open(&recording.file)?;
    let length = file.seek(SeekFrom::End(0))?;
    let mut first = [0; 1];
    if length > 0 && (file.read_at(&mut first, 0)? != 1 || first != *b"{") {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no recording: name another file"));
    }
    // A daemon that was killed may have left a part of a line.
    const LONGEST: u64 = 64 << 10;
    let start = file.seek(SeekFrom::Start(length.saturating_sub(LONGEST)))?;
    let mut tail = Vec::new();
    (&file).take(LONGEST).read_to_end(&mut tail)?;
    let whole = match tail.iter().rposition(|b| *b == b'\n') {
        Some(at) => start + at as u64 + 1,
        None if start == 0 => 0,
        None => length,
    };
    file.set_len(whole)?;
    file.seek(SeekFrom::Start(whole))?;
    Ok((file, whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(why: &str) -> DecisionLine {
        let text = |t: &str| t.to_string();
        DecisionLine {
            schema: DecisionLine::schema(),
            time: 1.5,
            vm: text("100-7"),
            name: Some(text("web")),
            policy: text("dsp"),
            now: text("nested"),
            wants: text("shadow"),
            verdict: text("switch"),
            done: text("switched"),
            why: text(why),
        }
    }

    #[test]
    fn a_cut_line_is_removed_and_lines_are_added() {
        let dir = tempfile::tempdir().unwrap();
        let recording = Recording { file: dir.path().join("vms.jsonl"), most_mib: 1 };
        std::fs::write(&recording.file, "{\"a\":1}\n{\"b").unwrap();
        let mut recorder = Recorder::open(&recording).unwrap();
        recorder.line(&line("misses"));
        recorder.write().unwrap();
        let text = std::fs::read_to_string(&recording.file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0]), (2, "{\"a\":1}"));
        assert_eq!(serde_json::from_str::<DecisionLine>(lines[1]).unwrap(), line("misses"));
    }

    #[test]
    fn a_full_file_is_renamed() {
        let dir = tempfile::tempdir().unwrap();
        let recording = Recording { file: dir.path().join("vms.jsonl"), most_mib: 1 };
        let mut recorder = Recorder::open(&recording).unwrap();
        for _ in 0..3 {
            recorder.line(&line(&"x".repeat(600 << 10)));
            recorder.write().unwrap();
        }
        let size = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().len();
        assert!(size("vms.jsonl") < 1 << 20 && size("vms.jsonl.1") < 1 << 20);
    }

    #[test]
    fn a_full_disk_is_an_error_and_a_file_of_another_kind_is_left_alone() {
        let recording = Recording { file: "/dev/full".into(), most_mib: 1 };
        let file = File::options().write(true).open("/dev/full").unwrap();
        let columns = columns::all();
        let mut recorder = Recorder { recording, file, columns, length: 0, lines: Vec::new() };
        recorder.line(&line("x"));
        assert!(recorder.write().is_err());
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("notes.txt");
        std::fs::write(&file, "my notes").unwrap();
        assert!(Recorder::open(&Recording { file: file.clone(), most_mib: 1 }).is_err());
        assert_eq!(std::fs::read_to_string(file).unwrap(), "my notes");
    }
}
