// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads and writes the journal: the settings that a holder found, kept until they are restored.
//!
//! ```text
//! bifold-ksm 1
//! pid 4242
//! run 0
//! advisor_mode none
//! ...
//! end
//! ```
//!
//! The first line names the subsystem. A journal is written under a temporary name and then renamed, so that
//! a reader finds all of it or none. It is removed only after the settings are restored.

use super::HeldError;
use crate::read_up_to;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

const END: &str = "end";
const PID: &str = "pid";
/// Longest journal, in bytes: a longer one would not be read back.
const MOST_BYTES: u64 = 4 << 20;

/// The settings that a holder found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journal {
    /// The subsystem that has the settings: a word such as `ksm`.
    pub what: String,
    /// Process id of the holder.
    pub pid: u32,
    /// Names (without spaces) and values (on one line) of the settings.
    pub found: Vec<(String, String)>,
}

/// Why a text is no journal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// It is of another subsystem or version, or something else; the right first line.
    #[error("its first line is not `{0}`")]
    FirstLine(String),
    /// A line is no setting with a value.
    #[error("`{}` is no line of a journal", .0.escape_debug())]
    Line(String),
    /// It is cut off.
    #[error("its end is missing")]
    NoEnd,
    /// It has lines after its last.
    #[error("something follows its end")]
    AfterEnd,
    /// KSM's journal lacks the setting that starts and stops KSM.
    #[error("it does not say what `run` was")]
    NoRun,
}

impl Journal {
    /// The journal's text.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n{PID} {}\n", head(&self.what), self.pid);
        for (name, value) in &self.found {
            text += &format!("{name} {value}\n");
        }
        text + END + "\n"
    }

    /// Parses the journal of the subsystem `what`.
    ///
    /// # Errors
    /// If the text is not such a journal.
    pub fn parse(text: &str, what: &str) -> Result<Journal, JournalError> {
        let mut lines = text.lines();
        if lines.next() != Some(&head(what)) {
            return Err(JournalError::FirstLine(head(what)));
        }
        let mut journal = Journal { what: what.into(), pid: 0, found: Vec::new() };
        loop {
            let line = lines.next().ok_or(JournalError::NoEnd)?;
            if line == END {
                break;
            }
            let wrong = || JournalError::Line(line.into());
            match line.split_once(' ').ok_or_else(wrong)? {
                (PID, value) => journal.pid = value.parse().map_err(|_| wrong())?,
                (name, value) => journal.found.push((name.into(), value.into())),
            }
        }
        if lines.next().is_some() {
            return Err(JournalError::AfterEnd);
        }
        Ok(journal)
    }

    /// The journal in a file; `None` if there is no such file.
    ///
    /// # Errors
    /// If the file cannot be read, or has no journal of the subsystem `what`.
    pub fn read(path: &Path, what: &str) -> Result<Option<Journal>, HeldError> {
        let bytes = match read_up_to(path, MOST_BYTES) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(HeldError::io(path, e)),
        };
        let journal = Journal::parse(&String::from_utf8_lossy(&bytes), what);
        let bad = |why: JournalError| HeldError::Journal {
            what: what.into(),
            path: path.into(),
            why: why.to_string(),
        };
        journal.map(Some).map_err(bad)
    }

    /// Writes the journal in place of the file's last one, all of it or none.
    ///
    /// # Errors
    /// If the file cannot be written, or the journal has more than 4 MiB.
    pub fn write(&self, path: &Path) -> Result<(), HeldError> {
        self.write_as(path, 0o666)
    }

    /// The same, for no other user to read.
    ///
    /// # Errors
    /// As [`write`](Journal::write).
    pub fn write_private(&self, path: &Path) -> Result<(), HeldError> {
        self.write_as(path, 0o600)
    }

    fn write_as(&self, path: &Path, mode: u32) -> Result<(), HeldError> {
        let text = self.text();
        if text.len() as u64 > MOST_BYTES {
            return Err(HeldError::io(path, io::ErrorKind::FileTooLarge.into()));
        }
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        let new = PathBuf::from(name);
        let open = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&new);
        let written = open.map_err(|e| HeldError::io(path, e)).map(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, path)
        })?;
        written.map_err(|e| {
            // Nothing else removes it, as on a full disk.
            let _ = fs::remove_file(&new);
            HeldError::io(path, e)
        })
    }

    /// Removes a journal, if there is one.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn remove(path: &Path) -> Result<(), HeldError> {
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(HeldError::io(path, e)),
            _ => Ok(()),
        }
    }
}

fn head(what: &str) -> String {
    format!("bifold-{what} 1")
}
