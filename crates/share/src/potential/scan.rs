// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads every page once and gives it the number of its content.
//!
//! Pages are taken in batches. All pages of a batch are hashed first, in order, because memory is read
//! fastest in order: going to the table after each page, or after each 16, costs a third of the rate. Then
//! the pages are looked up, some at a time, so that their slots are loaded into the cache at the same time.
//!
//! An image can change while it is read, between hashing and comparing. A page whose hash has changed is
//! counted as changed, and as a content of its own.

use super::table::ContentTable;
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
/// Pages hashed before they are looked up: 1 MB, which the caches keep.
const BATCH: usize = 256;
/// Pages whose slots are looked at together.
const TOGETHER: usize = 16;
/// Pages of all images. One number less is free in a slot, one is [`ZERO`].
const MOST: u64 = (1 << 32) - 2;

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
    /// For each page of each image in order, the number of the page's content, or [`ZERO`].
    pub ids: Vec<u32>,
    guests: Vec<Range<usize>>,
    pages: Pages<'a>,
    table: ContentTable,
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
    /// If their bytes are equal. Holds a bit for each page that was found changed.
    Bytes(Vec<AtomicU64>),
    /// If their hashes are equal. Holds both halves of each page's hash.
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
    let table = ContentTable::new(all);
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
fn batch(bytes: &[u8], ids: &mut [u32], first: usize, table: &ContentTable, pages: &Pages, hash: Hasher) {
    let hash_of = |page| (!is_zero(page)).then(|| hash(page));
    let hashes: Vec<Option<u128>> = bytes.chunks_exact(PAGE).map(hash_of).collect();
    let numbers = (first as u32..).step_by(TOGETHER);
    let parts = bytes.chunks(TOGETHER * PAGE).zip(hashes.chunks(TOGETHER)).zip(ids.chunks_mut(TOGETHER));
    for (first, ((bytes, hashes), ids)) in numbers.zip(parts) {
        let mut hints = [None; TOGETHER];
        for (hint, hash) in hints.iter_mut().zip(hashes) {
            *hint = hash.and_then(|hash| table.hint(table.key(hash)));
        }
        pages.look(&hints);
        let all = bytes.chunks_exact(PAGE).zip(hashes).zip(ids).zip(first..);
        for (((page, hash_of_page), id), number) in all {
            *id = match *hash_of_page {
                None => ZERO,
                Some(value) => {
                    pages.note(number, value);
                    table.insert(table.key(value), number, |other| {
                        pages.same(page, number, value, other, hash)
                    })
                }
            };
        }
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

    /// Looks at the hashes by which pages will be compared, so that they come into the cache together. The
    /// hardware fetches pages best when they are read from one end to the other and not before.
    fn look(&self, hints: &[Option<u32>]) {
        if let Equality::Hashes(hashes) = &self.equality {
            let of = |page: &u32| hashes[*page as usize][0].load(Ordering::Relaxed);
            black_box(hints.iter().flatten().map(of).fold(0, |a, b| a ^ b));
        }
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
