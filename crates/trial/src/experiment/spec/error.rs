// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of an experiment's file and of its plan. Each message names the file and the field.

use super::{SMALLEST_MIB, Scale};
use std::path::PathBuf;

/// Why an experiment's file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not TOML, or has an unknown field.
    #[error("{}: {}", path.display(), text.trim_end())]
    Toml {
        /// The file.
        path: PathBuf,
        /// The parser's message, with the line.
        text: String,
    },
    /// A field has an invalid value.
    #[error("{}: {field}: {why}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// The field's dotted name.
        field: String,
        /// What is wrong, and which values are valid.
        why: String,
    },
    /// The scale makes a guest too small.
    #[error("{}: guest `{guest}` would have {mib} MiB at scale {scale}, and {SMALLEST_MIB} is the least: take a larger --scale", path.display())]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// The guest's name.
        guest: String,
        /// The guest's memory at this scale, MiB.
        mib: u64,
        /// The scale.
        scale: Scale,
    },
    /// The experiment has no case of this name.
    #[error("{}: has no case `{name}`; it has {}", path.display(), known.join(", "))]
    NoCase {
        /// The file.
        path: PathBuf,
        /// The requested name.
        name: String,
        /// Names of all cases.
        known: Vec<String>,
    },
}
