// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of reading a guest's memory from a file or process. Each message says what is wrong and what to do.

use super::PAGE;
use std::io;
use std::path::{Path, PathBuf};

/// Why a guest's memory could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The file cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file cannot be read or mapped.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The path is a directory, a pipe or a device.
    #[error("{} is not a plain file: an image is mapped, so write it to a file first", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file is empty.
    #[error("{} is empty", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file has a format that another program can convert.
    #[error("{} is {what}, not a guest's memory; {then}", path.display())]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// The file's format.
        what: &'static str,
        /// What to do, with the command to run.
        then: String,
    },
    /// The length of raw RAM is not a multiple of the page size.
    #[error(
        "{} has {len} bytes, which is no multiple of {PAGE}: neither raw RAM nor an ELF core; \
         if a dump was cut off, make it again",
        path.display()
    )]
    NotWholePages {
        /// The file.
        path: PathBuf,
        /// The file's length in bytes.
        len: u64,
    },
    /// The segments of an ELF core reach beyond the file's end.
    #[error(
        "{} is an ELF core that was cut off: its segments need {need} bytes, it has {len}; check that the disk \
         is not full and dump again (virsh dump --memory-only DOMAIN FILE, or dump-guest-memory FILE in QEMU's monitor)",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes that the file should have at least.
        need: u64,
        /// Bytes that the file has.
        len: u64,
    },
    /// The file is an ELF file, but not a supported dump.
    #[error("{} is an ELF file, but {why}", path.display())]
    Elf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The file lost bytes while they were read.
    #[error(
        "{} changed its length or could not be read while it was being read: pages of it are lost; \
         count again when nothing writes to it",
        path.display()
    )]
    Lost {
        /// The file.
        path: PathBuf,
    },
    /// Too many files are mapped at once.
    #[error("{}: more than {most} images at once", path.display())]
    TooMany {
        /// The file that was not mapped.
        path: PathBuf,
        /// The limit.
        most: usize,
    },
    /// There is no such process.
    #[error("there is no process {pid}")]
    NoProcess {
        /// The process's id.
        pid: u32,
    },
    /// The process has no mapping that could be guest memory.
    #[error("process {pid} has no memory that could be a guest's RAM")]
    NoGuest {
        /// The process's id.
        pid: u32,
    },
    /// This user may not read the process's memory.
    #[error(
        "cannot read the memory of process {pid}: run the command as root, or as the process's user where \
         kernel.yama.ptrace_scope is 0"
    )]
    Process {
        /// The process's id.
        pid: u32,
        /// What the system said.
        source: io::Error,
    },
}

impl ImageError {
    pub(super) fn open(path: &Path, source: io::Error) -> ImageError {
        ImageError::Open { path: path.into(), source }
    }

    pub(super) fn read(path: &Path, source: io::Error) -> ImageError {
        ImageError::Read { path: path.into(), source }
    }

    /// Whether the error is a missing privilege.
    pub fn is_privilege(&self) -> bool {
        match self {
            ImageError::Open { source, .. }
            | ImageError::Read { source, .. }
            | ImageError::Process { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }
}
