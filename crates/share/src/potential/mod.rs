// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much memory guests could share at most: an exact count of their pages' contents.
//!
//! The terms are those of the published measurements: *zero* pages are all zeros; the *minimum* is the
//! number of distinct contents among the others; *intra* counts the repeats of a content inside a guest;
//! *inter* counts what is left, the further guests that have it. So pages = zero + minimum + intra + inter,
//! for all guests together and for each, where a content's frame is charged to the first guest that has it.
//!
//! [`scan`] gives every page the number of its content, [`tally`] counts over these numbers, once by
//! 4 KB pages and once by 2 MB pages. A snapshot count is an upper bound: it says nothing of how fast
//! contents change, nor of what a scanner does not reach.

mod blocks;
mod known;
mod scan;
mod table;
mod tally;
mod what;

pub use known::Known;
pub use what::What;

use crate::image::{HUGE, Image, ImageError};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::sync::atomic::AtomicBool;

/// Up to this many guests, pairs are counted. Every pair costs time where many guests share many contents.
pub const MOST_PAIRED: usize = 256;

/// Why a count was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PotentialError {
    /// More pages than a number of a page has room for.
    #[error(
        "{pages} pages are too many for one count, which takes {most}: count fingerprints instead (bifold share fingerprint)"
    )]
    TooManyPages {
        /// Pages of all images.
        pages: u64,
        /// Pages that can be counted.
        most: u64,
    },
    /// An image lost pages while it was read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Someone asked to stop.
    #[error("stopped before all pages were counted")]
    Stopped,
}

/// How equal pages are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// XXH3-128, and every repeat compared byte by byte with the first page of its content: exact, whatever
    /// the guests hold.
    Verified,
    /// XXH3-128 alone. Exact unless someone made pages that collide, which is possible with this hash.
    Hashed,
    /// SHA-1 alone, as the published measurements have it (its first 128 bits).
    Sha1,
}

impl Method {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Method::Verified => "xxh3-128, every repeat compared",
            Method::Hashed => "xxh3-128, not compared",
            Method::Sha1 => "sha1, not compared",
        }
    }
}

/// What is counted.
#[derive(Debug)]
pub struct Options {
    /// How equal pages are found.
    pub method: Method,
    /// Number of most repeated contents to list.
    pub top: usize,
    /// Files whose pages are recognised.
    pub known: Vec<Known>,
}

impl Default for Options {
    fn default() -> Options {
        Options { method: Method::Verified, top: 10, known: Vec::new() }
    }
}

/// Pages of one size by what sharing makes of them. `pages` is the sum of the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// All of them.
    pub pages: u64,
    /// All zeros.
    pub zero: u64,
    /// Frames needed: distinct contents without zeros.
    pub minimum: u64,
    /// Repeats inside a guest.
    pub intra: u64,
    /// Further repeats across guests.
    pub inter: u64,
}

impl Counts {
    /// Pages that need no frame of their own.
    pub fn saved(&self) -> u64 {
        self.pages - self.minimum
    }

    /// Adds what is counted elsewhere.
    pub fn add(&mut self, other: &Counts) {
        self.pages += other.pages;
        self.zero += other.zero;
        self.minimum += other.minimum;
        self.intra += other.intra;
        self.inter += other.inter;
    }
}

/// One guest's figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// Its name.
    pub name: String,
    /// By 4 KB pages. A content's frame is charged to the first guest that has it.
    pub small: Counts,
    /// By 2 MB pages, those that are aligned and whole.
    pub huge: Counts,
    /// Distinct contents that it has, without zeros.
    pub contents: u64,
    /// Of these, those that another guest has, too.
    pub with_others: u64,
}

/// A content and how often it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// What it is.
    pub what: What,
    /// Pages that hold it.
    pub pages: u64,
    /// Guests that hold it.
    pub guests: u64,
    /// The first page that holds it: index of the guest and guest frame number. Fingerprints do not say.
    pub first: Option<(usize, u64)>,
}

/// How much of a known file is in the guests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The file's name.
    pub name: String,
    /// Its distinct contents of whole pages, without zeros.
    pub contents: u64,
    /// Of these, those that some guest holds.
    pub found: u64,
    /// Guest pages that hold them.
    pub pages: u64,
}

/// What guests could share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Potential {
    /// How equal pages were found, in words.
    pub method: String,
    /// What makes the count less than exact, in a sentence.
    pub warning: Option<String>,
    /// Each guest, in the order given.
    pub guests: Vec<Guest>,
    /// All guests by 4 KB pages.
    pub small: Counts,
    /// All guests by 2 MB pages, those that are aligned and whole.
    pub huge: Counts,
    /// The most repeated contents, zeros included, most pages first.
    pub top: Vec<Content>,
    /// What is found of the known files.
    pub known: Vec<Found>,
    /// Distinct contents, without zeros, that guests i and j both have; those that i has on the diagonal.
    /// None for more than [`MOST_PAIRED`] guests.
    pub pairs: Option<Vec<Vec<u64>>>,
    /// Pages that were found changed between two looks at them. Noticed only where repeats are compared.
    pub changed: u64,
}

impl Potential {
    /// 4 KB pages in no whole aligned 2 MB page.
    pub fn loose(&self) -> u64 {
        self.small.pages - HUGE * self.huge.pages
    }

    /// 4 KB pages that sharing by 4 KB saves and sharing by 2 MB does not, if every 2 MB page is kept whole
    /// and the loose pages are not shared.
    pub fn lost_to_huge(&self) -> u64 {
        self.small.saved() - HUGE * self.huge.saved()
    }
}

/// Told how many pages have been read, and asked whether to go on.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// Called with the number of pages that were read since the last call, from any thread.
    pub progress: &'a (dyn Fn(u64) + Sync),
    /// Set to stop the count.
    pub stop: &'a AtomicBool,
}

/// Counts, without being watched.
///
/// # Errors
/// As [`count_watched`].
pub fn count(images: &[Image], options: &Options) -> Result<Potential, PotentialError> {
    count_watched(images, options, Watch { progress: &|_| (), stop: &AtomicBool::new(false) })
}

/// Counts all pages of all images, on rayon's threads.
///
/// # Errors
/// If an image loses pages meanwhile, if there are more than 2^32 - 2 pages (16 TiB), or when stopped.
pub fn count_watched(images: &[Image], options: &Options, watch: Watch) -> Result<Potential, PotentialError> {
    count_by(images, options, watch, scan::hasher(options.method))
}

fn count_by(
    images: &[Image],
    options: &Options,
    watch: Watch,
    hash: scan::Hasher,
) -> Result<Potential, PotentialError> {
    let scanned = scan::scan(images, options.method, hash, watch)?;
    for image in images {
        image.check()?;
    }
    let known = known::find(&options.known, &scanned);
    let wanted: HashSet<u32> = known.ids().collect();
    let spans = scanned.guests();
    let small = tally::tally(&scanned.ids, spans, scanned.contents(), options.top, &wanted);
    let blocks = blocks::blocks(images, &scanned);
    let huge = tally::tally(&blocks.ids, &blocks.guests, blocks.contents, 0, &HashSet::new());

    let mut top: Vec<Content> = small
        .top
        .iter()
        .map(|t| {
            let (image, gfn) = scanned.place(images, t.first);
            let what = known.what(t.id).unwrap_or_else(|| What::of(scanned.page(t.first)));
            Content { what, pages: t.pages, guests: t.guests, first: Some((image, gfn)) }
        })
        .collect();
    if let Some(first) = scanned.ids.iter().position(|id| *id == scan::ZERO) {
        let guests = small.guests.iter().filter(|g| g.counts.zero > 0).count() as u64;
        let pages = small.guests.iter().map(|g| g.counts.zero).sum();
        let first = Some(scanned.place(images, first as u32));
        top.push(Content { what: What::Zero, pages, guests, first });
    }
    top.sort_by_key(|c| (std::cmp::Reverse(c.pages), c.first));
    top.truncate(options.top);

    let guests: Vec<Guest> = images
        .iter()
        .zip(small.guests.iter().zip(&huge.guests))
        .map(|(image, (small, huge))| Guest {
            name: image.name().to_string(),
            small: small.counts,
            huge: huge.counts,
            contents: small.contents,
            with_others: small.with_others,
        })
        .collect();
    let sum = |of: fn(&Guest) -> &Counts| {
        let mut all = Counts::default();
        guests.iter().for_each(|g| all.add(of(g)));
        all
    };
    Ok(Potential {
        method: options.method.name().to_string(),
        warning: None,
        small: sum(|g| &g.small),
        huge: sum(|g| &g.huge),
        top,
        known: known.found(&small.wanted),
        pairs: small.pairs,
        changed: scanned.changed(),
        guests,
    })
}

#[cfg(test)]
mod tests;
