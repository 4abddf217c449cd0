// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of holding settings. Each message says what is wrong and what to do.

use std::io;
use std::path::{Path, PathBuf};

/// Why settings cannot be held or restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeldError {
    /// Only root may open the file.
    #[error("cannot open {}: only root may; run the command with sudo", path.display())]
    NotRoot {
        /// The file.
        path: PathBuf,
    },
    /// Another process has the lock.
    #[error(
        "the settings of {what} are held by {} ({} is locked): wait until that process ends",
        pid.map_or("another command of Bifold".into(), |p| format!("process {p}")),
        path.display()
    )]
    Busy {
        /// The subsystem that has the settings.
        what: &'static str,
        /// The lock's file.
        path: PathBuf,
        /// The holder's process id, if its journal can be read.
        pid: Option<u32>,
    },
    /// The journal cannot be parsed.
    #[error(
        "the journal {} of the settings of {what} cannot be used: {why}; set the kernel's files by hand, then remove the journal",
        path.display()
    )]
    Journal {
        /// The subsystem that has the settings.
        what: String,
        /// The journal's file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The guardian did not start.
    #[error("the guardian, which restores the settings if this process is killed, did not start: {why}")]
    Guardian {
        /// What the guardian did instead.
        why: String,
    },
    /// The guardian runs no longer.
    #[error("the guardian, which restores the settings if this process is killed, runs no longer: {why}")]
    NoGuardian {
        /// What is known of its end.
        why: String,
    },
    /// Any other error of a file.
    #[error("cannot use {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

impl HeldError {
    pub(crate) fn io(path: &Path, source: io::Error) -> HeldError {
        match source.kind() {
            io::ErrorKind::PermissionDenied => HeldError::NotRoot { path: path.into() },
            _ => HeldError::Io { path: path.into(), source },
        }
    }
}
