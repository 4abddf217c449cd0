// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of the configuration.

use std::io;
use std::path::PathBuf;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read configuration {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not TOML, an unknown key, or a value of another type.
    #[error("configuration {}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the place.
        message: String,
    },
    /// Values that cannot be used, each with its key.
    #[error("configuration {}:{}", path.display(), listed(wrong))]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        wrong: Vec<String>,
    },
}

fn listed(wrong: &[String]) -> String {
    match wrong {
        [one] => format!(" {one}"),
        all => all.iter().map(|w| format!("\n  {w}")).collect(),
    }
}
