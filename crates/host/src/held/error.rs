// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can go wrong when settings are held, in words that say what to do.

use std::io;
use std::path::{Path, PathBuf};

/// Why settings cannot be held or restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeldError {
    /// Not for this user.
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
        /// Whose settings.
        what: &'static str,
        /// The lock's file.
        path: PathBuf,
        /// The process, if its journal says so.
        pid: Option<u32>,
    },
    /// A journal that cannot be used.
    #[error(
        "the journal {} of the settings of {what} cannot be used: {why}; set the kernel's files by hand, then remove the journal",
        path.display()
    )]
    Journal {
        /// Whose settings.
        what: String,
        /// The journal's file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The guardian did not start.
    #[error("the guardian, which restores the settings if this process is killed, did not start: {why}")]
    Guardian {
        /// What it did instead.
        why: String,
    },
    /// Something else in the file system.
    #[error("cannot use {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
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
