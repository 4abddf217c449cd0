// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads files of experiments. Each error names the file and the field.

use crate::rate::Scale;
use bifold_base::bounded;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// The smallest guest that boots Debian's kernel with room for a workload, MiB.
pub const SMALLEST_MIB: u64 = 96;

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

/// A field and what is wrong with its value.
pub(crate) type Refusal = (String, String);

/// Refuses a field where something is wrong with its value.
pub(crate) fn refuse(wrong: bool, field: impl Into<String>, why: impl Into<String>) -> Result<(), Refusal> {
    if wrong { Err((field.into(), why.into())) } else { Ok(()) }
}

/// Refuses names of cases that an experiment does not have.
pub(crate) fn known<'a>(
    path: &Path,
    names: &[String],
    cases: impl Iterator<Item = &'a String> + Clone,
) -> Result<(), SpecError> {
    match names.iter().find(|name| !cases.clone().any(|case| case == *name)) {
        Some(name) => {
            Err(SpecError::NoCase { path: path.into(), name: name.clone(), known: cases.cloned().collect() })
        }
        None => Ok(()),
    }
}

/// The text of an experiment's file.
pub(crate) fn text_of(path: &Path) -> Result<String, SpecError> {
    bounded::read_to_string(path, bounded::TEXT)
        .map_err(|source| SpecError::Read { path: path.into(), source })
}

/// An experiment of some kind, which `validate` accepts; or the first invalid field, and what is wrong with
/// that.
pub(crate) fn parsed<T: DeserializeOwned>(
    path: &Path,
    text: &str,
    validate: impl Fn(&T) -> Result<(), Refusal>,
) -> Result<T, SpecError> {
    let spec =
        toml::from_str(text).map_err(|e| SpecError::Toml { path: path.into(), text: e.to_string() })?;
    validate(&spec).map_err(|(field, why)| SpecError::Field { path: path.into(), field, why })?;
    Ok(spec)
}
