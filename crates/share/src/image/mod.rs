// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's memory as pages.
//!
//! An image holds runs of consecutive guest frames; holes between them (device windows, and what a dump
//! left out) are no pages and count nowhere. The frame number is the guest's own where the source knows it
//! (an ELF core's physical addresses), so 2 MB pages are aligned as the guest's are, not as the file is. Of
//! a raw file, and of a process's memory, it is the place in the file or the mapping: QEMU splits a guest's
//! RAM below 4 GB at a multiple of 1 GB or 512 MB, which leaves 2 MB pages aligned.
//!
//! Files are mapped, not read ([`map`]); a process's own memory is copied ([`process`]). The bytes of a
//! mapped image can change under the reader if someone writes to the file, as a running guest does to its
//! RAM: code here must not depend on reading the same twice.

mod elf;
mod error;
mod file;
mod map;
mod process;

pub use error::ImageError;

use map::Mapped;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// 4 KB pages of a 2 MB page.
pub const HUGE: u64 = 512;

/// Consecutive guest frames and where their bytes lie in the image's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// First guest frame number.
    pub gfn: u64,
    /// Its bytes, a multiple of [`PAGE`].
    pub bytes: Range<usize>,
}

impl Run {
    /// Number of 4 KB pages.
    pub fn pages(&self) -> u64 {
        (self.bytes.len() / PAGE) as u64
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
    /// Memory made by a program: frames from 0 on.
    ///
    /// # Panics
    /// If the bytes are no whole number of pages.
    pub fn of_bytes(name: impl Into<String>, bytes: Vec<u8>) -> Image {
        assert_eq!(bytes.len() % PAGE, 0, "whole pages");
        let runs = vec![Run { gfn: 0, bytes: 0..bytes.len() }];
        Image { name: name.into(), memory: Memory::Owned(bytes), runs }
    }

    /// What would be read from a file with this content.
    ///
    /// # Errors
    /// As [`Image::open`], for all that the content decides.
    pub fn of_content(name: impl Into<String>, bytes: Vec<u8>) -> Result<Image, ImageError> {
        let name = name.into();
        let runs = file::layout(&bytes[..], bytes.len() as u64, Path::new(&name))?;
        Ok(Image { name, memory: Memory::Owned(bytes), runs })
    }

    /// A file: raw RAM, an ELF core of QEMU or libvirt, or the shared memory of a running QEMU. It is
    /// mapped, and named after the file.
    ///
    /// # Errors
    /// If it cannot be read, or holds something else; the error says what to do.
    pub fn open(path: impl AsRef<Path>) -> Result<Image, ImageError> {
        let path = path.as_ref();
        let name = path.file_name().map_or_else(|| path.to_string_lossy(), |n| n.to_string_lossy());
        Image::of_file(name, path, &File::open(path).map_err(|e| ImageError::open(path, e))?)
    }

    /// Any file, of any length, whose bytes are wanted and not its pages: its only run is what is whole.
    pub(crate) fn open_plain(path: &Path) -> Result<Image, ImageError> {
        let file = File::open(path).map_err(|e| ImageError::open(path, e))?;
        let len = file::length(path, &file)?;
        let mapped = Mapped::new(path, &file, len)?;
        let whole = mapped.bytes().len() / PAGE * PAGE;
        let name = path.file_name().map_or_else(|| path.to_string_lossy(), |n| n.to_string_lossy());
        Ok(Image {
            name: name.into(),
            memory: Memory::Mapped(mapped),
            runs: vec![Run { gfn: 0, bytes: 0..whole }],
        })
    }

    fn of_file(name: impl Into<String>, path: &Path, file: &File) -> Result<Image, ImageError> {
        let len = file::length(path, file)?;
        // From the file and not from the mapping, whose bytes may change between two looks.
        let runs = file::layout(&object::ReadCache::new(file), len, path)?;
        let mapped = Mapped::new(path, file, len)?;
        Ok(Image { name: name.into(), memory: Memory::Mapped(mapped), runs })
    }

    /// The guest memory of a process, such as QEMU: its largest writable mapping that holds no code. One
    /// that is a shared file is mapped; anonymous memory, which is what the kernel's KSM merges, is copied.
    ///
    /// Pages that the process never touched are read as zeros. A copy of a guest that runs is no state that
    /// it ever was in: pause it first where that matters.
    ///
    /// # Errors
    /// If there is no such process, or it cannot be read (ptrace's rules apply: root, or the same user
    /// where kernel.yama.ptrace_scope allows it).
    pub fn of_process(pid: u32) -> Result<Image, ImageError> {
        process::whole(pid)
    }

    /// As [`Image::of_process`], always copied, without the pages that the process has never touched: those
    /// are holes. These pages are what a scanner such as KSM can see.
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

    /// The same image at other frames, as if its first one were this.
    #[must_use]
    pub fn moved(mut self, gfn: u64) -> Image {
        let first = self.runs.first().map_or(0, |r| r.gfn);
        self.runs.iter_mut().for_each(|r| r.gfn = r.gfn - first + gfn);
        self
    }

    /// What it is called in results: the guest's name or the file's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its runs, in order of guest frame number.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The bytes into which the runs point.
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

    /// Whether it has no page.
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

    /// Whether all that was read so far was in the file. To be asked when everything has been read: a page
    /// that the file lost in the meantime (it was cut off, or the disk failed) reads as zeros.
    ///
    /// # Errors
    /// Naming the file, if such a page was read.
    pub fn check(&self) -> Result<(), ImageError> {
        match &self.memory {
            Memory::Owned(_) => Ok(()),
            Memory::Mapped(mapped) => mapped.check(),
        }
    }
}

#[cfg(test)]
mod tests;
