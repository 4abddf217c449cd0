// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can be wrong with an experiment's file, or with a plan of it.

use super::{SMALLEST_MIB, Scale};
use std::path::PathBuf;

/// Why a file is no experiment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not TOML, or has a field that no experiment has.
    #[error("{}: {}", path.display(), text.trim_end())]
    Toml {
        /// The file.
        path: PathBuf,
        /// What the parser says, with the line.
        text: String,
    },
    /// A field's value makes no sense.
    #[error("{}: {field}: {why}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// Its dotted name.
        field: String,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// A guest becomes too small.
    #[error("{}: guest `{guest}` would have {mib} MiB at scale {scale}, and {SMALLEST_MIB} is the least: take a larger --scale", path.display())]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// Its name.
        guest: String,
        /// Its memory.
        mib: u64,
        /// At this scale.
        scale: Scale,
    },
    /// No case of that name.
    #[error("{}: has no case `{name}`; it has {}", path.display(), known.join(", "))]
    NoCase {
        /// The file.
        path: PathBuf,
        /// As asked for.
        name: String,
        /// Those that it has.
        known: Vec<String>,
    },
}
