// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Recognises the pages of known files in guests: a kernel image, a library, a database.
//!
//! Pages begin at multiples of 4096 bytes of the file. A page cache holds them so, and a kernel is loaded so
//! if its segments are aligned (vmlinux aligns them to 2 MB). A running kernel has patched a part of its code
//! (alternatives, static keys, tracing), so not all of its pages are found.

use super::scan::Scanned;
use super::{Found, What};
use crate::image::{Image, ImageError, PAGE};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// A file, mapped.
#[derive(Debug)]
pub struct Known {
    image: Image,
}

impl Known {
    /// Any file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Known, ImageError> {
        Ok(Known { image: Image::open_plain(path.as_ref())? })
    }

    /// An uncompressed kernel.
    ///
    /// # Errors
    /// If the file cannot be read or is compressed. The error has the command that unpacks it.
    pub fn open_kernel(path: impl AsRef<Path>) -> Result<Known, ImageError> {
        let path = path.as_ref();
        let known = Known::open(path)?;
        // Documentation/arch/x86/boot.rst: the header of a bzImage.
        if known.image.bytes().get(0x202..0x206) == Some(b"HdrS") {
            return Err(ImageError::OtherFormat {
                path: path.into(),
                what: "a compressed kernel",
                then: format!(
                    "unpack it with: /usr/src/linux-headers-$(uname -r)/scripts/extract-vmlinux {} >vmlinux",
                    path.display()
                ),
            });
        }
        Ok(known)
    }

    /// The file's pages without zero pages.
    fn pages(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let pages = (0..).step_by(PAGE).zip(self.image.bytes().chunks_exact(PAGE));
        pages.filter(|(_, page)| page.iter().any(|b| *b != 0))
    }
}

/// Pages of known files in the guests.
pub struct Lookup<'a> {
    files: &'a [Known],
    /// Distinct contents of each file.
    contents: Vec<u64>,
    /// By number of the content: the first file that has it, and where.
    ids: HashMap<u32, (usize, u64)>,
}

/// Looks for the files' pages.
pub fn find<'a>(files: &'a [Known], scanned: &Scanned) -> Lookup<'a> {
    let mut ids = HashMap::new();
    let mut contents = Vec::new();
    for (i, file) in files.iter().enumerate() {
        let mut distinct = HashSet::new();
        for (offset, page) in file.pages() {
            distinct.insert(page);
            if let Some(id) = scanned.find(page) {
                ids.entry(id).or_insert((i, offset));
            }
        }
        contents.push(distinct.len() as u64);
    }
    Lookup { files, contents, ids }
}

impl Lookup<'_> {
    /// Numbers of the contents found.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.ids.keys().copied()
    }

    /// What a content is, if it is in a file.
    pub fn what(&self, id: u32) -> Option<What> {
        let (file, offset) = *self.ids.get(&id)?;
        Some(What::Known { file: self.files[file].image.name().to_string(), offset })
    }

    /// The pages found of each file, given the pages of each content. A content of several files counts
    /// for the first.
    pub fn found(&self, pages: &HashMap<u32, u64>) -> Vec<Found> {
        let name = |known: &Known| known.image.name().to_string();
        let mut out: Vec<Found> = self
            .files
            .iter()
            .zip(&self.contents)
            .map(|(file, contents)| Found { name: name(file), contents: *contents, found: 0, pages: 0 })
            .collect();
        for (id, (file, _)) in &self.ids {
            out[*file].found += 1;
            out[*file].pages += pages.get(id).copied().unwrap_or(0);
        }
        out
    }
}
