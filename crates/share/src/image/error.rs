// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of images: why a file or process is no image of a guest's memory, and what to do.

use super::PAGE;
use std::io;
use std::path::{Path, PathBuf};

/// Why a guest's memory could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// It cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It cannot be read or mapped.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A directory, a pipe, a device.
    #[error("{} is no plain file: an image is mapped, so write it to a file first", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// No bytes.
    #[error("{} is empty", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Another format, which something else can turn into memory.
    #[error("{} is {what}, not a guest's memory; {then}", path.display())]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: &'static str,
        /// What to do, with the command.
        then: String,
    },
    /// Raw RAM is whole pages.
    #[error(
        "{} has {len} bytes, which is no multiple of {PAGE}: neither raw RAM nor an ELF core; \
         if a dump was cut off, make it again",
        path.display()
    )]
    NotWholePages {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        len: u64,
    },
    /// An ELF core whose segments reach beyond its end.
    #[error(
        "{} is an ELF core that was cut off: its segments need {need} bytes, it has {len}; check that the disk \
         is not full and dump again (virsh dump --memory-only DOMAIN FILE, or dump-guest-memory FILE in QEMU's monitor)",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes that it should have at least.
        need: u64,
        /// Bytes that it has.
        len: u64,
    },
    /// An ELF file that is no dump of a machine that Bifold knows.
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
    /// More files mapped than there is room for.
    #[error("{}: more than {most} images at once", path.display())]
    TooMany {
        /// The file that was one too many.
        path: PathBuf,
        /// Images that there is room for.
        most: usize,
    },
    /// No such process.
    #[error("there is no process {pid}")]
    NoProcess {
        /// Its id.
        pid: u32,
    },
    /// A process without memory that could be a guest's.
    #[error("process {pid} has no memory that could be a guest's RAM")]
    NoGuest {
        /// Its id.
        pid: u32,
    },
    /// Memory of a process that may not be read.
    #[error(
        "cannot read the memory of process {pid}: run the command as root, or as the process's user where \
         kernel.yama.ptrace_scope is 0"
    )]
    Process {
        /// Its id.
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

    /// Whether what is missing is a privilege, which another user has.
    pub fn is_privilege(&self) -> bool {
        match self {
            ImageError::Open { source, .. }
            | ImageError::Read { source, .. }
            | ImageError::Process { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }
}
