// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of KSM: what is wrong, and what to do.

use super::{Setting, shown};
use crate::held::HeldError;
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};

/// Why KSM cannot be read or driven.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KsmError {
    /// A kernel without CONFIG_KSM.
    #[error("this kernel has no KSM ({} does not exist): run a kernel built with CONFIG_KSM=y", path.display())]
    NoKsm {
        /// Where its files would be.
        path: PathBuf,
    },
    /// Not for this user.
    #[error("cannot open {}: only root may; run the command with sudo", path.display())]
    NotRoot {
        /// What.
        path: PathBuf,
    },
    /// The settings cannot be held or restored.
    #[error(transparent)]
    Held(#[from] HeldError),
    /// A kernel without that setting.
    #[error("this kernel's KSM has no setting `{}`: leave it out", setting.name())]
    NoSetting {
        /// Which.
        setting: Setting,
    },
    /// The kernel did not take a value.
    #[error("the kernel's KSM refused {} = {text}{}", setting.name(), hint(*setting, source))]
    Refused {
        /// Which.
        setting: Setting,
        /// The value.
        text: String,
        /// What the write gave.
        source: io::Error,
    },
    /// A name or value that is no setting.
    #[error("`{}` is no setting of KSM: {}", word.escape_debug(), why)]
    NoSuch {
        /// The user's word.
        word: String,
        /// What would be.
        why: String,
    },
    /// Settings did not become what they should be.
    #[error("the kernel's KSM has not taken the new value of {}", names.join(", "))]
    NotTaken {
        /// Their names.
        names: Vec<String>,
    },
    /// A file of the kernel with something else in it.
    #[error("{} says {text}, which Bifold cannot parse", path.display())]
    Bad {
        /// Which.
        path: PathBuf,
        /// Its text.
        text: String,
    },
    /// ksmd does not go through memory.
    #[error("ksmd does not begin or end a pass: does any process have mergeable memory?")]
    NoPass,
    /// Something else in the file system.
    #[error("cannot use {}", path.display())]
    Io {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn hint(setting: Setting, e: &io::Error) -> &'static str {
    match (setting, Errno::from_io_error(e)) {
        (Setting::MaxPageSharing | Setting::MergeAcrossNodes, Some(Errno::BUSY)) => {
            ": pages are still shared, for example by a process that is ending; try again"
        }
        (Setting::PagesToScan, Some(Errno::INVAL)) => ": set advisor_mode = none with it",
        _ => "",
    }
}

impl KsmError {
    pub(crate) fn io(path: &Path, source: io::Error) -> KsmError {
        match source.kind() {
            io::ErrorKind::PermissionDenied => KsmError::NotRoot { path: path.into() },
            _ => KsmError::Io { path: path.into(), source },
        }
    }

    pub(crate) fn bad(path: &Path, text: &str) -> KsmError {
        KsmError::Bad { path: path.into(), text: shown(text) }
    }

    /// Whether it is this machine, or this user's rights on it, that lack something.
    pub fn cannot_work_here(&self) -> bool {
        use KsmError::*;
        matches!(self, NoKsm { .. } | NotRoot { .. } | Held(HeldError::NotRoot { .. }) | NoSetting { .. })
    }
}
