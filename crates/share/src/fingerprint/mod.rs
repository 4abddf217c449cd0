// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts equal pages over many machines by fingerprints, without moving memory.
//!
//! `bifold share fingerprint` writes a directory of Parquet files, one per part of the hash's range, with
//! columns `fingerprint` (16 bytes), `page_bytes` (4096 or 2097152), `guest` and `count` (pages of that guest
//! with that content). The rows of a content are in the file with the same number in every directory, so each
//! part is counted alone, without a shuffle, and the results are added ([`Part`], [`merge`]).
//!
//! A fingerprint is the first 128 bits of BLAKE3 with a secret key. Without the key it cannot be tested
//! whether a guest holds a known page. Among n contents, two have the same fingerprint with probability n^2 /
//! 2^129: 1.5e-15 for 10^12 contents (4 PB of distinct pages). Zero pages have the fingerprint zero. The
//! fingerprint of a 2 MB page is made of its 512 fingerprints.

mod count;
mod file;
mod import;
mod key;
mod sort;
mod write;

pub use count::{GuestPart, Part, PartError, count_part, directory, merge};
pub use import::{Imported, import};
pub use key::Key;
pub use sort::{ContentCount, Sorter};
pub use write::{Destination, Watch, fingerprint, write_rows};

use crate::image::ImageError;
use parquet::errors::ParquetError;
use std::io;
use std::path::{Path, PathBuf};

/// Version of the files' format.
pub const VERSION: u32 = 1;
/// Default number of parts.
pub const PARTS: u32 = 256;
/// Bits of a fingerprint made from pages.
pub const BITS: u32 = 128;
/// Contents that a part's result lists.
pub const LISTED: usize = 100;

/// Metadata of a directory. All but the guests must be equal in directories that are counted together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// Version of the format.
    pub version: u32,
    /// Identifier of the key (not the key): 16 hexadecimal digits, or a word if there is no key.
    pub key_id: String,
    /// Bits of a fingerprint.
    pub bits: u32,
    /// Parts of the range of fingerprints.
    pub parts: u32,
    /// The guests, in order.
    pub guests: Vec<String>,
}

/// Why fingerprints cannot be written or counted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FingerprintError {
    /// A guest's memory cannot be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A file or directory cannot be read or written.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The directory exists already.
    #[error("{} is already there: fingerprints go into a directory of their own, name another", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// Other users can read the key.
    #[error("{} can be read by others (mode {mode:03o}): chmod 600 it, or make another key", path.display())]
    OpenKey {
        /// The key's file.
        path: PathBuf,
        /// The file's permission bits.
        mode: u32,
    },
    /// The file holds no key.
    #[error("{} is not a key: a key has 64 hexadecimal digits", path.display())]
    BadKey {
        /// The key's file.
        path: PathBuf,
    },
    /// A Parquet file cannot be read.
    #[error("cannot read fingerprints from {}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: ParquetError,
    },
    /// A file does not hold fingerprints of this format.
    #[error("{}: {what}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Two files cannot be counted together.
    #[error("{} and {} cannot be counted together: {what}", a.display(), b.display())]
    Mixed {
        /// The first file.
        a: PathBuf,
        /// The second file.
        b: PathBuf,
        /// Why not.
        what: String,
    },
    /// Two directories have a guest with the same name.
    #[error("a guest called {name} is in {} and in {}: give guests names of their own (NAME=IMAGE)", a.display(), b.display())]
    Twice {
        /// The guest's name.
        name: String,
        /// The first directory.
        a: PathBuf,
        /// The other.
        b: PathBuf,
    },
    /// Results of parts that do not fit together.
    #[error("{0}")]
    Parts(String),
    /// The caller stopped the work.
    #[error("stopped before all pages were read")]
    Stopped,
}

impl FingerprintError {
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FingerprintError {
        move |source| FingerprintError::Io { what, path: path.into(), source }
    }
}

impl About {
    /// Checks that the fingerprints of `a` and `b` can be counted together, apart from the guests' names.
    fn fits(&self, other: &About, a: &Path, b: &Path) -> Result<(), FingerprintError> {
        let differ = |name: &str, one: &dyn std::fmt::Display, two: &dyn std::fmt::Display| {
            Err(FingerprintError::Mixed {
                a: a.into(),
                b: b.into(),
                what: format!("{name} {one} and {two} differ"),
            })
        };
        if self.version != other.version {
            return differ("versions", &self.version, &other.version);
        }
        if self.key_id != other.key_id {
            return differ("keys", &self.key_id, &other.key_id);
        }
        if self.bits != other.bits {
            return differ("lengths of fingerprints,", &self.bits, &other.bits);
        }
        if self.parts != other.parts {
            return differ("numbers of parts,", &self.parts, &other.parts);
        }
        Ok(())
    }
}

/// The part to which a fingerprint belongs.
pub(crate) fn part_of(fingerprint: [u64; 2], parts: u32) -> u32 {
    ((u128::from(fingerprint[0]) * u128::from(parts)) >> 64) as u32
}

/// A part's file in a directory.
fn part_file(dir: &Path, part: u32) -> PathBuf {
    dir.join(format!("part-{part:05}.parquet"))
}

#[cfg(test)]
mod tests;
