// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads every page once and gives it the number of its content.
//!
//! Pages are taken in batches that fit the second-level cache: all are hashed, then all their slots are
//! looked at, then the first lines of the pages to compare with, then they are compared. Each step asks for
//! memory that the next one needs, many at a time, where one page after another would wait for each.
//!
//! An image can change while it is read. What was hashed and what is compared may then differ; a page
//! whose hash is no longer what it was is counted as changed, and as a content of its own.

use super::table::{Key, Table};
use super::{Method, PotentialError, Watch};
use crate::image::{Image, PAGE};
use rayon::prelude::*;
use sha1::Digest as _;
use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The content of pages that are all zeros.
pub const ZERO: u32 = u32::MAX;
/// Pages of a piece of work.
const CHUNK: usize = 1024;
/// Pages between two steps: 64 KB.
const BATCH: usize = 16;
/// Pages of all images. One number less is free in a slot, one is [`ZERO`].
const MOST: u64 = (1 << 32) - 2;
const LINE: usize = 64;

/// Hashes a page.
pub type Hasher = fn(&[u8]) -> u128;

/// The hash of a method.
pub fn hasher(method: Method) -> Hasher {
    match method {
        // This implementation looks for AVX2 when it runs, and is twice as fast with it.
        Method::Verified | Method::Hashed => twox_hash::XxHash3_128::oneshot,
        Method::Sha1 => |page| {
            let digest: [u8; 20] = sha1::Sha1::digest(page).into();
            u128::from_le_bytes(digest[..16].try_into().expect("16 of 20 bytes"))
        },
    }
}

/// All pages with the numbers of their contents.
pub struct Scanned<'a> {
    /// Of every page of every image in order: the number of its content, or [`ZERO`].
    pub ids: Vec<u32>,
    guests: Vec<Range<usize>>,
    pages: Pages<'a>,
    table: Table,
    hash: Hasher,
}

/// Pages by number, and what is known of them.
struct Pages<'a> {
    /// First page and bytes of each run of each image.
    runs: Vec<(usize, &'a [u8])>,
    equality: Equality,
}

/// When two pages with the same key are equal.
enum Equality {
    /// Their bytes are. A bit for each page that was found changed.
    Bytes(Vec<AtomicU64>),
    /// Their hashes are: both halves of each page's.
    Hashes(Vec<[AtomicU64; 2]>),
}

/// A piece of work: part of a run.
struct Chunk<'a, 'i> {
    image: &'a Image,
    bytes: Range<usize>,
    first: usize,
    ids: &'i mut [u32],
}

/// Reads all images.
pub fn scan<'a>(
    images: &'a [Image],
    method: Method,
    hash: Hasher,
    watch: Watch,
) -> Result<Scanned<'a>, PotentialError> {
    let all: u64 = images.iter().map(Image::len).sum();
    if all > MOST {
        return Err(PotentialError::TooManyPages { pages: all, most: MOST });
    }
    let all = all as usize;
    let (mut guests, mut runs, mut chunks) = (Vec::new(), Vec::new(), Vec::new());
    let mut ids = vec![0; all];
    let mut rest = &mut ids[..];
    let mut at = 0;
    for image in images {
        let start = at;
        for run in image.runs() {
            runs.push((at, &image.bytes()[run.bytes.clone()]));
            for from in run.bytes.clone().step_by(CHUNK * PAGE) {
                let bytes = from..(from + CHUNK * PAGE).min(run.bytes.end);
                let (ids, others) = rest.split_at_mut(bytes.len() / PAGE);
                rest = others;
                let n = ids.len();
                chunks.push(Chunk { image, bytes, first: at, ids });
                at += n;
            }
        }
        guests.push(start..at);
    }
    let equality = match method {
        Method::Verified => Equality::Bytes(zeros(all.div_ceil(64))),
        Method::Hashed | Method::Sha1 => Equality::Hashes(zeros(all)),
    };
    let pages = Pages { runs, equality };
    let table = Table::new(all);
    chunks.into_par_iter().try_for_each(|chunk| {
        if watch.stop.load(Ordering::Relaxed) {
            return Err(PotentialError::Stopped);
        }
        let bytes = &chunk.image.bytes()[chunk.bytes];
        let batches = bytes.chunks(BATCH * PAGE).zip(chunk.ids.chunks_mut(BATCH));
        for (i, (bytes, ids)) in batches.enumerate() {
            batch(bytes, ids, chunk.first + i * BATCH, &table, &pages, hash);
        }
        (watch.progress)((bytes.len() / PAGE) as u64);
        Ok(())
    })?;
    Ok(Scanned { ids, guests, pages, table, hash })
}

/// Zeroed memory that costs nothing until it is used.
fn zeros<T: zerocopy::FromZeros>(len: usize) -> Vec<T> {
    T::new_vec_zeroed(len).expect("memory for a part of the images' pages")
}

/// A few pages.
fn batch(bytes: &[u8], ids: &mut [u32], first: usize, table: &Table, pages: &Pages, hash: Hasher) {
    let mut keys: [Option<(Key, u128)>; BATCH] = [None; BATCH];
    for (key, page) in keys.iter_mut().zip(bytes.chunks_exact(PAGE)) {
        *key = (!is_zero(page)).then(|| {
            let hash = hash(page);
            (table.key(hash), hash)
        });
    }
    let hints = keys.map(|key| key.and_then(|(key, _)| table.hint(key)));
    pages.touch(hints.iter().flatten());
    for (i, ((id, key), page)) in ids.iter_mut().zip(keys).zip(bytes.chunks_exact(PAGE)).enumerate() {
        let number = (first + i) as u32;
        *id = match key {
            None => ZERO,
            Some((key, value)) => {
                pages.note(number, value);
                table.insert(key, number, |other| pages.same(page, number, value, other, hash))
            }
        };
    }
}

/// Whether a page is all zeros; most others say so with their first bytes.
fn is_zero(page: &[u8]) -> bool {
    page.chunks_exact(256).all(|part| {
        let words = part.chunks_exact(8).map(|w| u64::from_ne_bytes(w.try_into().expect("8 bytes")));
        words.fold(0, |a, b| a | b) == 0
    })
}

impl<'a> Pages<'a> {
    /// The bytes of a page.
    fn at(&self, page: u32) -> &'a [u8] {
        let page = page as usize;
        let run = self.runs.partition_point(|(first, _)| *first <= page) - 1;
        let (first, bytes) = self.runs[run];
        &bytes[(page - first) * PAGE..][..PAGE]
    }

    /// Looks at what pages will be compared by, so that it is in the cache soon.
    fn touch<'h>(&self, hints: impl Iterator<Item = &'h u32>) {
        let mut sum = 0;
        for page in hints {
            sum ^= match &self.equality {
                Equality::Hashes(hashes) => hashes[*page as usize][0].load(Ordering::Relaxed) as u8,
                Equality::Bytes(_) => {
                    let page = self.at(*page);
                    page[0] ^ page[LINE] ^ page[2 * LINE] ^ page[3 * LINE]
                }
            };
        }
        black_box(sum);
    }

    /// Keeps a page's hash, if that is what decides.
    fn note(&self, page: u32, hash: u128) {
        if let Equality::Hashes(hashes) = &self.equality {
            let [low, high] = &hashes[page as usize];
            low.store(hash as u64, Ordering::Relaxed);
            high.store((hash >> 64) as u64, Ordering::Relaxed);
        }
    }

    /// Whether a page, just hashed, is equal to another that was.
    fn same(&self, page: &[u8], number: u32, value: u128, other: u32, hash: Hasher) -> bool {
        match &self.equality {
            Equality::Hashes(hashes) => {
                let [low, high] = &hashes[other as usize];
                let (low, high) = (low.load(Ordering::Relaxed), high.load(Ordering::Relaxed));
                u128::from(high) << 64 | u128::from(low) == value
            }
            Equality::Bytes(changed) => {
                let bytes = self.at(other);
                if page == bytes {
                    return true;
                }
                // Different contents with the same 32 bits; or one of them is no longer what was hashed.
                if !is_set(changed, other) && (hash(bytes) >> 64) as u32 != (value >> 64) as u32 {
                    set(changed, other);
                }
                if !is_set(changed, number) && hash(page) != value {
                    set(changed, number);
                }
                false
            }
        }
    }
}

fn is_set(bits: &[AtomicU64], i: u32) -> bool {
    bits[i as usize / 64].load(Ordering::Relaxed) >> (i % 64) & 1 == 1
}

fn set(bits: &[AtomicU64], i: u32) {
    bits[i as usize / 64].fetch_or(1 << (i % 64), Ordering::Relaxed);
}

impl<'a> Scanned<'a> {
    /// Where each image's pages are in the order of all.
    pub fn guests(&self) -> &[Range<usize>] {
        &self.guests
    }

    /// A bound of the contents' numbers.
    pub fn contents(&self) -> usize {
        self.table.len()
    }

    /// The bytes of a page.
    pub fn page(&self, page: u32) -> &'a [u8] {
        self.pages.at(page)
    }

    /// A page's image and guest frame number.
    pub fn place(&self, images: &[Image], page: u32) -> (usize, u64) {
        let image = self.guests.partition_point(|g| g.end <= page as usize);
        let mut left = page as u64 - self.guests[image].start as u64;
        for run in images[image].runs() {
            if left < run.pages() {
                return (image, run.gfn + left);
            }
            left -= run.pages();
        }
        unreachable!("a page of the image is in one of its runs")
    }

    /// The number of a content, if a page has it.
    pub fn find(&self, page: &[u8]) -> Option<u32> {
        let value = (self.hash)(page);
        self.table.find(self.table.key(value), |other| match &self.pages.equality {
            Equality::Bytes(_) => self.pages.at(other) == page,
            // No number of its own is needed to compare hashes.
            Equality::Hashes(_) => self.pages.same(page, 0, value, other, self.hash),
        })
    }

    /// Pages found changed.
    pub fn changed(&self) -> u64 {
        match &self.pages.equality {
            Equality::Bytes(bits) => {
                bits.iter().map(|b| u64::from(b.load(Ordering::Relaxed).count_ones())).sum()
            }
            Equality::Hashes(_) => 0,
        }
    }
}
