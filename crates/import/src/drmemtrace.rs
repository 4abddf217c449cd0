// SPDX-License-Identifier: Apache-2.0 OR MIT
//! DynamoRIO's offline traces (drmemtrace), as its post-processing writes them: for each thread a file of
//! 12-byte records (`trace_entry_t` in `clients/drcachesim/common/trace_entry.h`): type, size, and address or
//! value, little-endian and packed.
//!
//! A file begins with a header, whose value is the version, and ends with a footer. A fetch comes before the
//! accesses of its instruction. Markers tell, among other things, what kind of file it is and what time it
//! is.
//!
//! The threads of a process share one CPU here: the thread whose time is the earliest runs until its next
//! timestamp.

use crate::input::{self, Bytes};
use crate::{Fault, ImportError, Step, fill};
use bifold_trace::Process;
use std::path::{Path, PathBuf};

const RECORD: usize = 12;
const REMEDY: &str =
    "import the files that `drrun -t drmemtrace -offline` and its post-processing put into DIR/trace";
/// Versions in which records mean what they mean here (`trace_version_t`).
const VERSIONS: std::ops::RangeInclusive<u64> = 2..=7;
/// Most threads: each has an open file.
const MOST_THREADS: usize = 256;

/// Types of records (`trace_type_t`).
mod kind {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const INSTR: u16 = 10;
    pub const INSTR_RETURN: u16 = 16;
    pub const INSTR_BUNDLE: u16 = 17;
    pub const PID: u16 = 24;
    pub const HEADER: u16 = 25;
    pub const FOOTER: u16 = 26;
    pub const MARKER: u16 = 28;
    pub const INSTR_SYSENTER: u16 = 31;
    pub const INSTR_TAKEN_JUMP: u16 = 48;
    pub const INSTR_UNTAKEN_JUMP: u16 = 49;
    /// The first number that no record has.
    pub const INVALID: u16 = 50;
}

/// Kinds of markers (`trace_marker_type_t`).
mod marker {
    pub const TIMESTAMP: u16 = 2;
    pub const FILETYPE: u16 = 9;
    pub const VERSION: u16 = 12;
}

/// Kinds of files that lack accesses or mix processes (`offline_file_type_t`), and why they are refused.
const REFUSED: [(u64, &str); 5] = [
    (
        0x01 | 0x80 | 0x100,
        "the accesses that hit a small cache were filtered out, which changes what TLBs see (-L0_filter)",
    ),
    (0x04, "it has instructions and no accesses (-instr_only_trace)"),
    (0x10 | 0x20, "it is of a 32-bit program"),
    (0x4000, "it has templates of system calls and no program"),
    (0x1_0000 | 0x4_0000, "it is ordered by CPU and mixes processes"),
];

struct Record {
    kind: u16,
    size: u16,
    value: u64,
}

/// One thread's file.
struct Thread {
    path: PathBuf,
    bytes: Bytes,
    records: u64,
    time: u64,
    /// Where the instruction after the last one lies.
    next: u64,
    /// The last record was the footer.
    ended: bool,
}

/// The trace of a process.
pub struct Drmemtrace {
    threads: Vec<Thread>,
    running: usize,
    pid: Option<u64>,
    /// Threads that have ended, for places in errors.
    last: PathBuf,
}

impl Drmemtrace {
    pub fn new(path: &Path, bytes: Bytes) -> Drmemtrace {
        Drmemtrace { threads: vec![Thread::new(path, bytes)], running: 0, pid: None, last: path.into() }
    }

    /// The files of a directory that DynamoRIO wrote, or of its `trace` subdirectory.
    pub fn of_directory(path: &Path) -> Result<Drmemtrace, ImportError> {
        let error = |source| ImportError::Read { path: path.into(), source };
        let below = path.join("trace");
        let dir = if below.is_dir() { &below } else { path };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(error)? {
            let entry = entry.map_err(error)?;
            // NAME.trace, NAME.trace.zip and so on.
            if entry.file_name().to_string_lossy().contains(".trace") && entry.path().is_file() {
                files.push(entry.path());
            }
            if files.len() > MOST_THREADS {
                let problem =
                    format!("more than {MOST_THREADS} threads: import the files of some of them, one by one");
                return Err(ImportError::Files { path: dir.into(), problem });
            }
        }
        files.sort();
        if files.is_empty() {
            let problem = match path.join("raw").is_dir() {
                true => {
                    "the trace is raw: let DynamoRIO process it with `drrun -t drmemtrace -indir DIR -tool basic_counts`"
                }
                false => {
                    "no file of the directory is named *.trace*: name a trace, or the directory that drmemtrace wrote"
                }
            };
            return Err(ImportError::Files { path: dir.into(), problem: problem.into() });
        }
        let threads = files
            .into_iter()
            .map(|file| input::open(&file).map(|bytes| Thread::new(&file, bytes)))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Drmemtrace { threads, running: 0, pid: None, last: path.into() })
    }

    /// Whether these first bytes are of such a trace.
    pub fn is(first: &[u8]) -> bool {
        let record = first.first_chunk().map(Record::of);
        record.is_some_and(|r| r.kind == kind::HEADER && r.size == 0 && r.value <= 100)
    }

    pub fn path(&self) -> &Path {
        self.threads.get(self.running).map_or(&self.last, |thread| &thread.path)
    }

    pub fn place(&self) -> String {
        let records = self.threads.get(self.running).map_or(0, |thread| thread.records);
        format!("record {} (byte {})", records, records.saturating_sub(1) * RECORD as u64)
    }

    pub fn step(&mut self, process: &mut Process) -> Result<Step, Fault> {
        let Some(thread) = self.threads.get_mut(self.running) else { return Ok(Step::End) };
        let Some(record) = thread.next()? else {
            if !thread.ended {
                thread.records += 1;
                return Err(Fault::Truncated);
            }
            self.last = self.threads.remove(self.running).path;
            self.turn();
            return Ok(Step::Other(0));
        };
        if thread.records == 1 && record.kind != kind::HEADER {
            return Err(Fault::foreign("no header", REMEDY));
        }
        thread.ended = record.kind == kind::FOOTER;
        let (value, size) = (record.value, u64::from(record.size));
        match record.kind {
            kind::READ => process.load(value, size)?,
            kind::WRITE => process.store(value, size)?,
            kind::INSTR..=kind::INSTR_RETURN
            | kind::INSTR_SYSENTER
            | kind::INSTR_TAKEN_JUMP
            | kind::INSTR_UNTAKEN_JUMP => {
                // Without a size, only the place of the access that follows.
                if size > 0 {
                    process.instruction(value, size)?;
                }
                thread.next = value.wrapping_add(size);
            }
            kind::INSTR_BUNDLE => {
                for bytes in value.to_le_bytes().into_iter().take(record.size.into()) {
                    process.instruction(thread.next, bytes.into())?;
                    thread.next = thread.next.wrapping_add(bytes.into());
                }
            }
            kind::PID => match self.pid.replace(value) {
                Some(other) if other != value => {
                    let problem = format!("records of process {value} after those of process {other}");
                    return Err(Fault::foreign(problem, "import one process: each has its own addresses"));
                }
                _ => return Ok(Step::Other(RECORD)),
            },
            kind::HEADER => return check_version(value).map(|()| Step::Other(RECORD)),
            kind::MARKER => return self.mark(record.size, value).map(|()| Step::Other(RECORD)),
            kind::INVALID.. => {
                return Err(Fault::foreign(format!("a record of the unknown type {}", record.kind), REMEDY));
            }
            // Prefetches, flushes, encodings, threads, repetitions of a string instruction: nothing that a
            // TLB must hold.
            _ => return Ok(Step::Other(RECORD)),
        }
        Ok(Step::Access)
    }

    /// Takes a marker of the running thread.
    fn mark(&mut self, which: u16, value: u64) -> Result<(), Fault> {
        match which {
            marker::TIMESTAMP => {
                self.threads[self.running].time = value;
                self.turn();
            }
            marker::VERSION => check_version(value)?,
            marker::FILETYPE => {
                if let Some((_, why)) = REFUSED.iter().find(|(bits, _)| value & bits != 0) {
                    return Err(Fault::foreign(*why, REMEDY));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The thread with the earliest time runs next.
    fn turn(&mut self) {
        let earliest = self.threads.iter().enumerate().min_by_key(|(_, thread)| thread.time);
        self.running = earliest.map_or(0, |(i, _)| i);
    }
}

fn check_version(version: u64) -> Result<(), Fault> {
    if VERSIONS.contains(&version) {
        return Ok(());
    }
    let problem =
        format!("version {version}, and this Bifold reads {} to {}", VERSIONS.start(), VERSIONS.end());
    Err(Fault::foreign(problem, "process the raw trace with a DynamoRIO of such a version"))
}

impl Thread {
    fn new(path: &Path, bytes: Bytes) -> Thread {
        Thread { path: path.into(), bytes, records: 0, time: 0, next: 0, ended: false }
    }

    fn next(&mut self) -> Result<Option<Record>, Fault> {
        let mut record = [0; RECORD];
        let n = fill(&mut self.bytes, &mut record)?;
        if n == 0 {
            return Ok(None);
        }
        self.records += 1;
        if n < RECORD { Err(Fault::Truncated) } else { Ok(Some(Record::of(&record))) }
    }
}

impl Record {
    fn of(bytes: &[u8; RECORD]) -> Record {
        let [a, b, c, d, value @ ..] = *bytes;
        Record {
            kind: u16::from_le_bytes([a, b]),
            size: u16::from_le_bytes([c, d]),
            value: u64::from_le_bytes(value),
        }
    }
}
