// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The journal: the settings that a guard found, until they are restored.
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
//! Written whole under another name, then renamed, so that a reader finds all of it or none. Whoever
//! restores removes it afterwards, never before.

use super::{KsmError, Setting, Settings};
use crate::read;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

const HEAD: &str = "bifold-ksm 1";
const END: &str = "end";

/// What a guard found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journal {
    /// The guard's process.
    pub pid: u32,
    /// The settings before it changed any.
    pub found: Settings,
}

impl Journal {
    /// A journal's text.
    pub fn text(&self) -> String {
        let mut text = format!("{HEAD}\npid {}\n", self.pid);
        for (setting, value) in self.found.iter() {
            text += &format!("{setting} {}\n", setting.text(value));
        }
        text + END + "\n"
    }

    /// A journal in text.
    ///
    /// # Errors
    /// In words, where the text is none.
    pub fn parse(text: &str) -> Result<Journal, String> {
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            return Err(format!("its first line is not `{HEAD}`"));
        }
        let mut journal = Journal { pid: 0, found: Settings::default() };
        loop {
            let line = lines.next().ok_or("its end is missing")?;
            if line == END {
                break;
            }
            let wrong = || format!("`{}` is no line of it", line.escape_debug());
            let (name, value) = line.split_once(' ').ok_or_else(wrong)?;
            if name == "pid" {
                journal.pid = value.parse().map_err(|_| wrong())?;
            } else {
                let setting = Setting::named(name).map_err(|_| wrong())?;
                journal.found.put(setting, setting.parse(value).ok_or_else(wrong)?);
            }
        }
        if lines.next().is_some() {
            return Err("something follows its end".into());
        }
        match journal.found.get(Setting::Run) {
            Some(0..=2) => Ok(journal),
            _ => Err("it does not say what `run` was".into()),
        }
    }

    /// The journal in a file; `None` if there is none.
    pub(crate) fn read(path: &Path) -> Result<Option<Journal>, KsmError> {
        let bytes = match read(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(KsmError::io(path, e)),
        };
        let journal = Journal::parse(&String::from_utf8_lossy(&bytes));
        journal.map(Some).map_err(|why| KsmError::Journal { path: path.into(), why })
    }

    pub(crate) fn write(&self, path: &Path) -> Result<(), KsmError> {
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        let new = PathBuf::from(name);
        let written = File::create(&new).and_then(|mut file| {
            file.write_all(self.text().as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, path)
        });
        written.map_err(|e| KsmError::io(path, e))
    }

    pub(crate) fn remove(path: &Path) -> Result<(), KsmError> {
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(KsmError::io(path, e)),
            _ => Ok(()),
        }
    }
}
