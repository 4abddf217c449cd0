// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts exactly how much memory guests could share at most, from the contents of their pages.
//!
//! The terms are those of published measurements. *Zero* pages are all zeros. The *minimum* is the number of
//! distinct contents among the other pages. *Intra* counts repeats of a content inside a guest. *Inter*
//! counts the further guests that have the content. So pages = zero + minimum + intra + inter, for all guests
//! together and for each guest, where a content's frame is charged to the first guest that has it.
//!
//! [`scan`] gives every page the number of its content. [`tally`] counts over these numbers, once by 4 KB
//! pages and once by 2 MB pages. The count of a snapshot is an upper bound: it ignores how fast contents
//! change, and which pages a scanner does not reach.

mod blocks;
mod known;
mod scan;
mod table;
mod tally;
mod what;

pub use known::Known;
pub use what::What;

use crate::image::{HUGE, Image, ImageError};
use known::Lookup;
use scan::Scanned;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use tally::Tally;

/// Most guests for which pairs are counted, because every pair costs time.
pub const MOST_PAIRED: usize = 256;

/// Why a count failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PotentialError {
    /// The images have more pages than a page number can hold.
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
    /// The caller stopped the count.
    #[error("stopped before all pages were counted")]
    Stopped,
}

/// How equal pages are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// XXH3-128, and every repeat is compared byte by byte with the first page of its content. Always exact.
    Verified,
    /// XXH3-128 alone. Exact unless a guest holds pages that were made to collide, which this hash allows.
    Hashed,
    /// SHA-1 alone (its first 128 bits), as in the published measurements.
    Sha1,
}

impl Method {
    /// The method's name in results.
    pub fn name(self) -> &'static str {
        match self {
            Method::Verified => "xxh3-128, every repeat compared",
            Method::Hashed => "xxh3-128, not compared",
            Method::Sha1 => "sha1, not compared",
        }
    }
}

/// Options of a count.
#[derive(Debug)]
pub struct Options {
    /// How equal pages are found.
    pub method: Method,
    /// How many of the most repeated contents to list.
    pub top: usize,
    /// Files whose pages are recognised.
    pub known: Vec<Known>,
}

impl Default for Options {
    fn default() -> Options {
        Options { method: Method::Verified, top: 10, known: Vec::new() }
    }
}

/// Pages of one size by what sharing does with them. `pages` is the sum of the other counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// All pages: the sum of the other counts.
    pub pages: u64,
    /// Pages that are all zeros.
    pub zero: u64,
    /// Distinct contents without zeros: the frames needed.
    pub minimum: u64,
    /// Repeats of contents inside a guest.
    pub intra: u64,
    /// Further guests that have a content.
    pub inter: u64,
}

impl Counts {
    /// Pages that need no frame of their own.
    pub fn saved(&self) -> u64 {
        self.pages - self.minimum
    }

    /// Adds other counts.
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
    /// The guest's name.
    pub name: String,
    /// Counts by 4 KB pages. A content's frame is charged to the first guest that has it.
    pub small: Counts,
    /// Counts by aligned and whole 2 MB pages.
    pub huge: Counts,
    /// Distinct contents of the guest, without zeros.
    pub contents: u64,
    /// Distinct contents that another guest has too.
    pub with_others: u64,
}

/// A content and its number of pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// What the content is.
    pub what: What,
    /// Pages with this content.
    pub pages: u64,
    /// Guests with this content.
    pub guests: u64,
    /// The first page: index of the guest, and guest frame number. `None` in counts of fingerprints.
    pub first: Option<(usize, u64)>,
}

/// Pages of a known file that were found in the guests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The file's name.
    pub name: String,
    /// Distinct contents of the file's whole pages, without zeros.
    pub contents: u64,
    /// Distinct contents of the file that some guest has.
    pub found: u64,
    /// Guest pages with these contents.
    pub pages: u64,
}

/// What guests could share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Potential {
    /// How equal pages were found, as text.
    pub method: String,
    /// Why the count is not exact, as a sentence; `None` if it is exact.
    pub warning: Option<String>,
    /// Each guest, in the caller's order.
    pub guests: Vec<Guest>,
    /// Counts of all guests by 4 KB pages.
    pub small: Counts,
    /// Counts of all guests by aligned and whole 2 MB pages.
    pub huge: Counts,
    /// The most repeated contents including zeros, most pages first.
    pub top: Vec<Content>,
    /// Pages of the known files.
    pub known: Vec<Found>,
    /// Distinct contents, without zeros, that guests i and j both have; on the diagonal those that i has.
    /// `None` for more than [`MOST_PAIRED`] guests.
    pub pairs: Option<Vec<Vec<u64>>>,
    /// Pages that changed between two reads. Noticed only by methods that compare repeats.
    pub changed: u64,
}

impl Potential {
    /// 4 KB pages outside whole aligned 2 MB pages.
    pub fn loose(&self) -> u64 {
        self.small.pages - HUGE * self.huge.pages
    }

    /// 4 KB pages that sharing by 4 KB saves and sharing by 2 MB does not, if every 2 MB page stays whole and
    /// loose pages are not shared.
    pub fn lost_to_huge(&self) -> u64 {
        self.small.saved() - HUGE * self.huge.saved()
    }
}

/// How a caller follows and stops a count.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// Called with the number of pages that were read since the last call, from any thread.
    pub progress: &'a (dyn Fn(u64) + Sync),
    /// Set to stop the count.
    pub stop: &'a AtomicBool,
}

/// Counts all pages of all images, without progress.
///
/// # Errors
/// As [`count_watched`].
pub fn count(images: &[Image], options: &Options) -> Result<Potential, PotentialError> {
    count_watched(images, options, Watch { progress: &|_| (), stop: &AtomicBool::new(false) })
}

/// Counts all pages of all images, on rayon's threads.
///
/// # Errors
/// If an image loses pages during the count, if there are more than 2^32 - 2 pages (16 TiB), or if the caller
/// stops the count.
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

    let top = top(images, &scanned, &small, &known, options.top);

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

/// The contents that most pages have, zeros among them.
fn top(images: &[Image], scanned: &Scanned, small: &Tally, known: &Lookup, most: usize) -> Vec<Content> {
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
    top.truncate(most);
    top
}

#[cfg(test)]
mod tests;
