// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads a guest's memory as pages, from a dump, a raw file or a process.
//!
//! An image holds runs of consecutive guest frames. Holes between them (device windows, and memory that a
//! dump left out) are not counted. If the source has guest frame numbers (an ELF core's physical addresses),
//! they are used, so 2 MB pages are aligned as in the guest and not as in the file. In a raw file or a
//! process's memory, the frame number is the place in the file or the mapping: QEMU splits a guest's RAM
//! below 4 GB at a multiple of 1 GB or 512 MB, which keeps 2 MB pages aligned.
//!
//! Files are mapped, not read ([`map`]); a process's anonymous memory is copied ([`process`]). The bytes of a
//! mapped image change while another process writes to the file, as a running guest does. Code here must
//! therefore not depend on reading the same bytes twice.

mod elf;
mod error;
mod file;
mod map;
mod process;

pub use error::ImageError;

use map::Mapped;
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Number of 4 KB pages in a 2 MB page.
pub const HUGE: u64 = 512;

/// Consecutive guest frames, and the place of their bytes in the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// First guest frame number.
    pub gfn: u64,
    /// Place of the run's bytes. The length is a multiple of [`PAGE`].
    pub bytes: Range<usize>,
}

impl Run {
    /// Number of 4 KB pages.
    pub fn pages(&self) -> u64 {
        (self.bytes.len() / PAGE) as u64
    }
}

/// The name of a guest of which only the file is known.
pub fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.to_string_lossy(), |n| n.to_string_lossy()).into_owned()
}

/// Splits a guest as a user names it, `NAME=SOURCE`, unless a file in `folder` has this name. An empty folder
/// is the current one.
///
/// ```
/// use bifold_share::image::name_and_source;
/// let (name, source) = name_and_source("web=host1/web.core".as_ref(), "".as_ref());
/// assert_eq!((name.as_deref(), source), (Some("web"), "host1/web.core".as_ref()));
/// ```
pub fn name_and_source<'a>(word: &'a OsStr, folder: &Path) -> (Option<String>, &'a OsStr) {
    let bytes = word.as_bytes();
    match bytes.iter().position(|b| *b == b'=') {
        Some(at) if at > 0 && !folder.join(word).exists() => {
            let name = String::from_utf8_lossy(&bytes[..at]);
            // `./a=b/c` is a path without a name.
            if name.contains('/') {
                return (None, word);
            }
            (Some(name.into_owned()), OsStr::from_bytes(&bytes[at + 1..]))
        }
        _ => (None, word),
    }
}

/// One guest's memory.
#[derive(Debug)]
pub struct Image {
    name: String,
    memory: Memory,
    runs: Vec<Run>,
}

#[derive(Debug)]
enum Memory {
    Owned(Vec<u8>),
    Mapped(Mapped),
}

impl Image {
    /// An image of these bytes, with frames from 0 on.
    ///
    /// # Panics
    /// If the length is not a multiple of [`PAGE`].
    pub fn of_bytes(name: impl Into<String>, bytes: Vec<u8>) -> Image {
        assert_eq!(bytes.len() % PAGE, 0, "whole pages");
        let runs = vec![Run { gfn: 0, bytes: 0..bytes.len() }];
        Image { name: name.into(), memory: Memory::Owned(bytes), runs }
    }

    /// The image of a file with these bytes.
    ///
    /// # Errors
    /// If the bytes are in a format that [`Image::open`] refuses.
    pub fn of_content(name: impl Into<String>, bytes: Vec<u8>) -> Result<Image, ImageError> {
        let name = name.into();
        let runs = file::layout(&bytes[..], bytes.len() as u64, Path::new(&name))?;
        Ok(Image { name, memory: Memory::Owned(bytes), runs })
    }

    /// Maps a file: raw RAM, an ELF core of QEMU or libvirt, or the shared memory of a running QEMU. The
    /// image is named after the file.
    ///
    /// # Errors
    /// If the file cannot be read or has another format. The error says what to do.
    pub fn open(path: impl AsRef<Path>) -> Result<Image, ImageError> {
        let path = path.as_ref();
        Image::of_file(file_name(path), path, &File::open(path).map_err(|e| ImageError::open(path, e))?)
    }

    /// Maps a file of any format and length. Its single run has all whole pages.
    pub(crate) fn open_plain(path: &Path) -> Result<Image, ImageError> {
        let file = File::open(path).map_err(|e| ImageError::open(path, e))?;
        let len = file::length(path, &file)?;
        let mapped = Mapped::new(path, &file, len)?;
        let whole = mapped.bytes().len() / PAGE * PAGE;
        Ok(Image {
            name: file_name(path),
            memory: Memory::Mapped(mapped),
            runs: vec![Run { gfn: 0, bytes: 0..whole }],
        })
    }

    fn of_file(name: impl Into<String>, path: &Path, file: &File) -> Result<Image, ImageError> {
        let len = file::length(path, file)?;
        // Read from the file, because the mapping's bytes may change between two reads.
        let runs = file::layout(&object::ReadCache::new(file), len, path)?;
        let mapped = Mapped::new(path, file, len)?;
        Ok(Image { name: name.into(), memory: Memory::Mapped(mapped), runs })
    }

    /// The guest memory of a process such as QEMU: its largest writable mapping without code. A shared file
    /// is mapped; anonymous memory, which the kernel's KSM merges, is copied.
    ///
    /// Pages that the process never touched are zeros. The copy of a running guest mixes states of different
    /// times; pause the guest first if that matters.
    ///
    /// # Errors
    /// If there is no such process, or it cannot be read (ptrace's rules apply: root, or the same user
    /// where kernel.yama.ptrace_scope allows it).
    pub fn of_process(pid: u32) -> Result<Image, ImageError> {
        process::whole(pid)
    }

    /// As [`Image::of_process`], but always copied, and pages that the process never touched are holes. The
    /// image has the pages that a scanner such as KSM can see.
    ///
    /// # Errors
    /// As [`Image::of_process`].
    pub fn of_process_resident(pid: u32) -> Result<Image, ImageError> {
        process::resident(pid)
    }

    /// The same image under another name.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Image {
        Image { name: name.into(), ..self }
    }

    /// The same image, moved so that its first frame is `gfn`.
    #[must_use]
    pub fn moved(mut self, gfn: u64) -> Image {
        let first = self.runs.first().map_or(0, |r| r.gfn);
        self.runs.iter_mut().for_each(|r| r.gfn = r.gfn - first + gfn);
        self
    }

    /// The image's name in results: the guest's or the file's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The runs, in order of guest frame number.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The bytes in which the runs have their places.
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Owned(bytes) => bytes,
            Memory::Mapped(mapped) => mapped.bytes(),
        }
    }

    /// Number of 4 KB pages.
    pub fn len(&self) -> u64 {
        self.runs.iter().map(Run::pages).sum()
    }

    /// Whether the image has no page.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All pages with their guest frame numbers, in order.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let bytes = self.bytes();
        self.runs.iter().flat_map(|run| {
            let pages = bytes[run.bytes.clone()].chunks_exact(PAGE);
            (run.gfn..).zip(pages)
        })
    }

    /// Checks that the file held every page that was read so far. Call it when everything has been read: a
    /// page that the file lost meanwhile (the file was truncated, or the disk failed) reads as zeros.
    ///
    /// # Errors
    /// If such a page was read.
    pub fn check(&self) -> Result<(), ImageError> {
        match &self.memory {
            Memory::Owned(_) => Ok(()),
            Memory::Mapped(mapped) => mapped.check(),
        }
    }
}

#[cfg(test)]
mod tests;
