// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can be wrong with a recording: each with the file and the place in it.

use super::VERSION;
use crate::event::DecodeError;
use std::io;
use std::path::PathBuf;

/// Why a recording could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system refused.
    #[error("cannot {what} recording {path}")]
    Io {
        /// `create`, `write`, `read`, ...
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It does not begin as a recording does.
    #[error("{path} is no bifold recording: wrong bytes at 0; make one with `bifold record -o FILE`")]
    NotARecording {
        /// The file.
        path: PathBuf,
    },
    /// It is of another format version.
    #[error(
        "recording {path} is of format version {found} (byte 8), this bifold reads {VERSION}: record it anew"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version found.
        found: u32,
    },
    /// It ends too early.
    #[error("recording {path} is truncated: it ends at byte {offset}, within {within}")]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Where it ends.
        offset: u64,
        /// The part that is not whole.
        within: &'static str,
    },
    /// Something in it cannot be.
    #[error("recording {path} is corrupt: {what} at byte {offset}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Start of the part that is wrong.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// What was to be written is no sequence of whole events.
    #[error("cannot write events to recording {path}")]
    Events {
        /// The file.
        path: PathBuf,
        /// What is wrong with them.
        source: DecodeError,
    },
}
