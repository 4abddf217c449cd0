// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of reading and driving KSM. Each message says what is wrong and what to do.

use super::{Setting, shown};
use crate::held::HeldError;
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};

/// Why KSM cannot be read or driven.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KsmError {
    /// The kernel was built without CONFIG_KSM.
    #[error("this kernel has no KSM ({} does not exist): run a kernel built with CONFIG_KSM=y", path.display())]
    NoKsm {
        /// The missing directory.
        path: PathBuf,
    },
    /// Only root may open the file.
    #[error("cannot open {}: only root may; run the command with sudo", path.display())]
    NotRoot {
        /// The file.
        path: PathBuf,
    },
    /// The settings cannot be held or restored.
    #[error(transparent)]
    Held(#[from] HeldError),
    /// This kernel's KSM lacks the setting.
    #[error("this kernel's KSM has no setting `{}`: leave it out", setting.name())]
    NoSetting {
        /// The setting.
        setting: Setting,
    },
    /// The kernel refused a value.
    #[error("the kernel's KSM refused {} = {text}{}", setting.name(), hint(*setting, source))]
    Refused {
        /// The setting.
        setting: Setting,
        /// The value.
        text: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The user's word is neither a setting nor a setting with a valid value.
    #[error("`{}` is no setting of KSM: {}", word.escape_debug(), why)]
    NoSuch {
        /// The user's word.
        word: String,
        /// The valid names or values.
        why: String,
    },
    /// The kernel accepted values, but the settings did not change.
    #[error("the kernel's KSM has not taken the new value of {}", names.join(", "))]
    NotTaken {
        /// The names of the settings.
        names: Vec<String>,
    },
    /// A kernel file's text cannot be parsed.
    #[error("{} says {text}, which Bifold cannot parse", path.display())]
    Bad {
        /// The file.
        path: PathBuf,
        /// The file's text.
        text: String,
    },
    /// ksmd makes no progress.
    #[error("ksmd does not begin or end a pass: does any process have mergeable memory?")]
    NoPass,
    /// Any other error of a file.
    #[error("cannot use {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
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

    /// Whether this machine, or this user's rights, lack something (exit status 77).
    pub fn cannot_work_here(&self) -> bool {
        use KsmError::*;
        matches!(self, NoKsm { .. } | NotRoot { .. } | Held(HeldError::NotRoot { .. }) | NoSetting { .. })
    }
}
