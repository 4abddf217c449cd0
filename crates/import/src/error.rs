// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a trace cannot be imported: each error names the file, the place in it, and what to do.

use crate::Kind;
use bifold_trace::OsError;
use std::io;
use std::path::PathBuf;

/// Why a trace could not be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file cannot be opened or read, or is damaged where it is packed.
    #[error("cannot read trace {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system or of the decompressor.
        source: io::Error,
    },
    /// The file is packed by a program that is not supported.
    #[error("{} is packed by {by}: unpack it first, with `{remedy}`", path.display())]
    Packed {
        /// The file.
        path: PathBuf,
        /// The format.
        by: &'static str,
        /// The command that unpacks.
        remedy: &'static str,
    },
    /// The file's first bytes do not tell its format.
    #[error(
        "cannot tell what kind of trace {} is: give --from lackey, drmemtrace or champsim (ChampSim's traces have no mark of their own)",
        path.display()
    )]
    Unknown {
        /// The file.
        path: PathBuf,
    },
    /// The file does not hold what its format has.
    #[error("{} is no trace of {kind} that can be imported: {problem} at {place}; {remedy}", path.display(), kind = .kind.tool())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The format.
        kind: Kind,
        /// What is wrong.
        problem: String,
        /// Line, record or byte.
        place: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The file ends within a record.
    #[error("trace {} is truncated: it ends within {within}; record or copy it again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Line, record or the whole.
        within: String,
    },
    /// The trace has no access.
    #[error("trace {} has no instruction and no access{hint}", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What to do.
        hint: &'static str,
    },
    /// An access has no place in the process.
    #[error("trace {}, {place}", path.display())]
    Access {
        /// The file.
        path: PathBuf,
        /// Line or record.
        place: String,
        /// What is wrong with the access.
        source: OsError,
    },
    /// Several files that do not belong together, or too many.
    #[error("{}: {problem}", path.display())]
    Files {
        /// The directory or file.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
}
