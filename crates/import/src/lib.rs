// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Traces of other tools as events of a guest.
//!
//! | module | traces of |
//! |---|---|
//! | [`lackey`] | `valgrind --tool=lackey --trace-mem=yes` |
//! | [`champsim`] | ChampSim |
//! | [`drmemtrace`] | DynamoRIO |
//! | [`input`] | any of them, packed by gzip, xz or zstd, or in a zip archive |
//!
//! These traces are of user programs: addresses without page tables. The tables come from the simple
//! operating system of [`bifold_trace::Process`], which says what it does and what it leaves out.
//!
//! A trace is read once and in pieces, so its length and what it unpacks to do not matter for memory. What a
//! trace must not be: without end and without accesses. An importer reads at most [`MOST_WITHOUT`] bytes in a
//! row that hold no access.
#![forbid(unsafe_code)]

mod champsim;
mod drmemtrace;
mod error;
mod input;
mod lackey;
#[cfg(test)]
mod tests;

pub use error::ImportError;

use bifold_trace::{GuestPages, Header, OsError, Process, Source};
use champsim::Champsim;
use drmemtrace::Drmemtrace;
use lackey::Lackey;
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};

/// Most bytes in a row without an access.
pub const MOST_WITHOUT: usize = 1 << 24;
/// First bytes by which a format is recognised.
const FIRST: usize = 4096;

/// The tool that made a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Valgrind's lackey.
    Lackey,
    /// DynamoRIO.
    Drmemtrace,
    /// ChampSim.
    Champsim,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 3] = [Kind::Lackey, Kind::Drmemtrace, Kind::Champsim];

    /// The name on the command line, and in a recording's header.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Lackey => "lackey",
            Kind::Drmemtrace => "drmemtrace",
            Kind::Champsim => "champsim",
        }
    }

    /// The tool, as its authors write it.
    pub fn tool(self) -> &'static str {
        match self {
            Kind::Lackey => "Valgrind's lackey",
            Kind::Drmemtrace => "DynamoRIO's drmemtrace",
            Kind::Champsim => "ChampSim",
        }
    }
}

/// How a trace is imported.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The tool that made it; none to tell by the first bytes.
    pub kind: Option<Kind>,
    /// 4 KB frames of the guest.
    pub frames: u64,
    /// Size of the guest's pages.
    pub pages: GuestPages,
    /// Instructions to import at most.
    pub instructions: Option<u64>,
}

/// What one step has read.
enum Step {
    Access,
    /// So many bytes of which a guest does nothing.
    Other(usize),
    End,
}

/// What is wrong at a place that the importer names.
enum Fault {
    Io(io::Error),
    Os(OsError),
    Truncated,
    Foreign { problem: String, remedy: &'static str },
}

impl Fault {
    fn foreign(problem: impl Into<String>, remedy: &'static str) -> Fault {
        Fault::Foreign { problem: problem.into(), remedy }
    }
}

impl From<io::Error> for Fault {
    fn from(e: io::Error) -> Fault {
        Fault::Io(e)
    }
}

impl From<OsError> for Fault {
    fn from(e: OsError) -> Fault {
        Fault::Os(e)
    }
}

/// Fills `record` as far as the trace goes.
fn fill(bytes: &mut dyn BufRead, record: &mut [u8]) -> io::Result<usize> {
    let mut n = 0;
    while n < record.len() {
        match bytes.read(&mut record[n..]) {
            Ok(0) => break,
            Ok(got) => n += got,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}

/// The program by a trace's name: `drmemtrace.PROGRAM.PID.NUMBER.dir` of DynamoRIO, or else the whole name.
/// None for standard input.
fn named(path: &Path) -> Option<String> {
    let name = path.file_name().filter(|name| *name != "-")?.to_string_lossy();
    let of_dynamorio = name.strip_prefix("drmemtrace.").and_then(|rest| {
        let numbers = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        let pieces: Vec<&str> = rest.split('.').collect();
        let end = pieces.iter().position(|piece| numbers(piece)).filter(|end| *end > 0)?;
        Some(pieces[..end].join("."))
    });
    Some(of_dynamorio.unwrap_or_else(|| name.into_owned()))
}

enum Trace {
    Lackey(Lackey),
    Drmemtrace(Drmemtrace),
    Champsim(Champsim),
}

/// Reads a trace from its start to its end.
#[allow(missing_debug_implementations)]
pub struct Importer {
    path: PathBuf,
    /// The program, as the trace or its file names it.
    program: Option<String>,
    trace: Trace,
    process: Process,
    accesses: u64,
    /// Bytes since the last access.
    without: usize,
    ended: bool,
    /// The trace goes on after [`Options::instructions`].
    limited: bool,
}

impl Importer {
    /// Opens a trace. `-` is standard input; a directory is a trace of DynamoRIO's.
    ///
    /// # Errors
    /// If the trace cannot be read, or its kind is not recognised.
    ///
    /// # Panics
    /// If the options have more frames than [`Process::MOST_FRAMES`].
    pub fn open(path: &Path, options: &Options) -> Result<Importer, ImportError> {
        let mut command = None;
        let trace = if path.is_dir() {
            match options.kind {
                None | Some(Kind::Drmemtrace) => Trace::Drmemtrace(Drmemtrace::of_directory(path)?),
                Some(kind) => {
                    let problem = format!("a directory, and a trace of {} is a file", kind.tool());
                    return Err(ImportError::Files { path: path.into(), problem });
                }
            }
        } else {
            let bytes = input::open(path)?;
            let (first, bytes) =
                look(bytes).map_err(|source| ImportError::Read { path: path.into(), source })?;
            let kind = match options.kind {
                Some(kind) => kind,
                None if first.is_empty() => {
                    return Err(ImportError::Empty { path: path.into(), hint: ": the file is empty" });
                }
                None => recognised(path, &first).ok_or_else(|| ImportError::Unknown { path: path.into() })?,
            };
            command = Lackey::command(&first).filter(|_| kind == Kind::Lackey);
            match kind {
                Kind::Lackey => Trace::Lackey(Lackey::new(bytes)),
                Kind::Drmemtrace => Trace::Drmemtrace(Drmemtrace::new(path, bytes)),
                Kind::Champsim => Trace::Champsim(Champsim::new(bytes)),
            }
        };
        let process = Process::new(options.frames).with_pages(options.pages);
        let process = process.limited(options.instructions.unwrap_or(u64::MAX));
        Ok(Importer {
            program: command.or_else(|| named(path)),
            path: path.into(),
            trace,
            process,
            accesses: 0,
            without: 0,
            ended: false,
            limited: false,
        })
    }

    /// The tool that made the trace.
    pub fn kind(&self) -> Kind {
        match self.trace {
            Trace::Lackey(_) => Kind::Lackey,
            Trace::Drmemtrace(_) => Kind::Drmemtrace,
            Trace::Champsim(_) => Kind::Champsim,
        }
    }

    /// The program, as the trace or its file names it.
    pub fn program(&self) -> Option<&str> {
        self.program.as_deref()
    }

    /// The header of a recording of the trace. The program's name says so if its pages have 2 MB.
    pub fn header(&self) -> Header {
        let program = match self.process.pages() {
            GuestPages::Small => self.program.clone(),
            GuestPages::Large => {
                let program = self.program.as_deref().unwrap_or("a user program");
                Some(format!("{program} on 2 MB guest pages"))
            }
        };
        let source = Source {
            bifold_version: bifold_base::version().into(),
            imported: Some(self.kind().name().into()),
            program,
            memory_mib: Some(self.process.frames() >> 8),
            ..Source::default()
        };
        Header { guest_frames: self.process.frames(), vcpus: 1, source, ..Header::default() }
    }

    /// Instructions so far.
    pub fn instructions(&self) -> u64 {
        self.process.instructions()
    }

    /// Frames that the program and its page tables take so far.
    pub fn frames(&self) -> u64 {
        self.process.taken()
    }

    /// Whether the program is known to have run on after what was imported.
    pub fn partial(&self) -> bool {
        match &self.trace {
            _ if self.limited => true,
            Trace::Lackey(lackey) => !lackey.whole(),
            _ => false,
        }
    }

    /// The next events, which are whole; none at the end.
    ///
    /// # Errors
    /// If the trace is damaged, truncated or of another kind, or the program needs too much memory.
    pub fn next_events(&mut self) -> Result<Option<Vec<u64>>, ImportError> {
        while !self.ended {
            let process = &mut self.process;
            let step = match &mut self.trace {
                Trace::Lackey(trace) => trace.step(process),
                Trace::Drmemtrace(trace) => trace.step(process),
                Trace::Champsim(trace) => trace.step(process),
            };
            match step {
                Ok(Step::End) => self.ended = true,
                Err(Fault::Os(OsError::Limit(_))) => (self.ended, self.limited) = (true, true),
                Err(fault) => return Err(self.error(fault)),
                Ok(Step::Access) => (self.accesses, self.without) = (self.accesses + 1, 0),
                Ok(Step::Other(bytes)) => {
                    self.without += bytes;
                    if self.without > MOST_WITHOUT {
                        let problem = format!("{} MiB without an access", MOST_WITHOUT >> 20);
                        return Err(self
                            .error(Fault::foreign(problem, "look at the file: it may be of another kind")));
                    }
                }
            }
            if let Some(words) = self.process.take(false) {
                return Ok(Some(words));
            }
        }
        if self.accesses == 0 {
            return Err(ImportError::Empty { path: self.path.clone(), hint: "" });
        }
        Ok(self.process.take(true))
    }

    fn error(&self, fault: Fault) -> ImportError {
        let (path, place) = match &self.trace {
            Trace::Lackey(trace) => (self.path.as_path(), trace.place()),
            Trace::Drmemtrace(trace) => (trace.path(), trace.place()),
            Trace::Champsim(trace) => (self.path.as_path(), trace.place()),
        };
        let path = path.to_owned();
        match fault {
            Fault::Io(source) => ImportError::Read { path, source },
            Fault::Os(source) => ImportError::Access { path, place, source },
            Fault::Truncated => ImportError::Truncated { path, within: place },
            Fault::Foreign { problem, remedy } => {
                ImportError::Foreign { path, kind: self.kind(), problem, place, remedy }
            }
        }
    }
}

/// The first bytes, and all bytes again.
fn look(mut bytes: input::Bytes) -> io::Result<(Vec<u8>, input::Bytes)> {
    let mut first = Vec::new();
    bytes.by_ref().take(FIRST as u64).read_to_end(&mut first)?;
    let again = io::Cursor::new(first.clone()).chain(bytes);
    Ok((first, Box::new(again)))
}

/// The kind of trace that a file is of; none if it cannot be read, or is no trace that is recognised.
pub fn kind_of(path: &Path) -> Option<Kind> {
    let bytes = if path.is_file() { input::open(path).ok()? } else { return None };
    let (first, _) = look(bytes).ok()?;
    recognised(path, &first)
}

/// The kind that first bytes are of. ChampSim's records have no mark, but the files have names.
fn recognised(path: &Path, first: &[u8]) -> Option<Kind> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    match () {
        () if Drmemtrace::is(first) => Some(Kind::Drmemtrace),
        () if Lackey::is(first) => Some(Kind::Lackey),
        () if name.contains("champsim") => Some(Kind::Champsim),
        () => None,
    }
}
