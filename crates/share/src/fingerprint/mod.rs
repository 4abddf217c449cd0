// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fingerprints of pages: counting over many machines without moving memory.
//!
//! `bifold share fingerprint` writes a directory of Parquet files, one per part of the hash's range, with
//! columns `fingerprint` (16 bytes), `page_bytes` (4096 or 2097152), `guest` and `count` (pages of that guest
//! with that content). A content's rows of all guests and directories are in files of the same number, so
//! each part is counted by itself, with no shuffle, and the results are added ([`Part`], [`merge`]).
//!
//! A fingerprint is BLAKE3 keyed with a secret, cut to 128 bits; without the key nobody can test whether a
//! guest holds a known page. Among n contents, two are taken for one with probability n^2 / 2^129:
//! 1.5e-15 for 10^12 contents (4 PB of distinct pages). All-zero pages have the fingerprint zero. A 2 MB page
//! has the fingerprint of its 512 fingerprints.

mod count;
mod file;
mod import;
mod key;
mod sort;
mod write;

pub use count::{GuestPart, Part, count_part, directory, merge};
pub use import::{Imported, import};
pub use key::Key;
pub use sort::{Row, Sorter};
pub use write::{Watch, fingerprint, write_rows};

use crate::image::ImageError;
use parquet::errors::ParquetError;
use std::io;
use std::path::{Path, PathBuf};

/// Version of the files.
pub const VERSION: u32 = 1;
/// Parts, unless asked for another number.
pub const PARTS: u32 = 256;
/// Bits of a fingerprint made from pages.
pub const BITS: u32 = 128;
/// Contents that a part's result lists.
pub const LISTED: usize = 100;

/// What is true of all files of a directory, and must be of all that are counted together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// Of the format.
    pub version: u32,
    /// Which key, not the key: 16 hexadecimal digits, or a word where there is none.
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
    /// A file or directory failed.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The directory is there.
    #[error("{} is already there: fingerprints go into a directory of their own, name another", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// A key that others can read.
    #[error("{} can be read by others (mode {mode:03o}): chmod 600 it, or make another key", path.display())]
    OpenKey {
        /// The key's file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Something that is no key.
    #[error("{} is no key: 64 hexadecimal digits are wanted", path.display())]
    BadKey {
        /// The key's file.
        path: PathBuf,
    },
    /// A Parquet file that is not what it should be.
    #[error("cannot read fingerprints from {}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: ParquetError,
    },
    /// A file that holds something else.
    #[error("{}: {what}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Things that cannot be counted together.
    #[error("{} and {} cannot be counted together: {what}", a.display(), b.display())]
    Mixed {
        /// One.
        a: PathBuf,
        /// The other.
        b: PathBuf,
        /// Why.
        what: String,
    },
    /// A guest twice.
    #[error("a guest called {name} is in {} and in {}: give guests names of their own (NAME=IMAGE)", a.display(), b.display())]
    Twice {
        /// The guest.
        name: String,
        /// One place.
        a: PathBuf,
        /// The other.
        b: PathBuf,
    },
    /// Results that do not make a whole.
    #[error("{0}")]
    Parts(String),
    /// Someone asked to stop.
    #[error("stopped before all pages were read")]
    Stopped,
}

impl FingerprintError {
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FingerprintError {
        move |source| FingerprintError::Io { what, path: path.into(), source }
    }
}

impl About {
    /// Whether what `b` holds can be counted with what `a` holds, but for the guests.
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
