// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of recordings, with the file and the place in the file.

use super::VERSION_OF_PAGES;
use crate::event::DecodeError;
use crate::nodes::MOST_VCPUS;
use std::io;
use std::path::PathBuf;

/// Why a recording could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// An operation of the system failed.
    #[error("cannot {what} recording {path}")]
    Io {
        /// `create`, `write`, `read`, ...
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file does not begin with the magic number.
    #[error("{path} is no bifold recording: wrong bytes at 0; make one with `bifold record -o FILE`")]
    NotARecording {
        /// The file.
        path: PathBuf,
    },
    /// The recording has another format version.
    #[error(
        "recording {path} is of format version {found} (byte 8), this bifold reads up to {VERSION_OF_PAGES}: record it again"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version found.
        found: u32,
    },
    /// The file ends within a part.
    #[error("recording {path} is truncated: it ends at byte {offset}, within {within}")]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Length of the file.
        offset: u64,
        /// The part that is not whole.
        within: &'static str,
    },
    /// A part has impossible contents.
    #[error("recording {path} is corrupt: {what} at byte {offset}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Start of the part that is wrong.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// The header has more vCPUs than a guest may have.
    #[error("recording {path} is of a guest with {found} vCPUs, this bifold reads {MOST_VCPUS} at most")]
    Vcpus {
        /// The file.
        path: PathBuf,
        /// The number found.
        found: u32,
    },
    /// The words to be written are no whole events.
    #[error("cannot write events to recording {path}")]
    Events {
        /// The file.
        path: PathBuf,
        /// What is wrong with the words.
        source: DecodeError,
    },
}
