// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds equal pages with a hash table that all threads fill at once, without locks.
//!
//! A slot is one word: the number of the first page with a content plus one, and 32 bits of the content's
//! hash. Other bits of the hash choose the first slot of a search, and the next slots follow in order. A slot
//! is claimed by one compare-and-swap and never changes again, so its index is the content's number. There
//! are a quarter more slots than pages, which takes 10 bytes per page.
//!
//! The caller decides whether two pages with the same 32 bits are equal, by comparing their bytes or the rest
//! of their hashes. The table is exact if the caller's decision is.

use rayon::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// The hash table of contents.
#[derive(Debug)]
pub struct ContentTable {
    slots: Vec<AtomicU64>,
}

/// A page's hash as the table uses it.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    home: usize,
    tag: u32,
}

impl ContentTable {
    /// A table for this many pages, fewer than 2^32 - 1.
    pub fn new(pages: usize) -> ContentTable {
        let len = (pages + pages / 4 + 16).min(u32::MAX as usize);
        ContentTable { slots: (0..len).into_par_iter().map(|_| AtomicU64::new(0)).collect() }
    }

    /// Number of slots. Contents have smaller numbers.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// The key of a hash.
    pub fn key(&self, hash: u128) -> Key {
        // The upper half of a product spreads 64 even bits over any number of slots.
        let home = (hash as u64 as u128 * self.slots.len() as u128) >> 64;
        Key { home: home as usize, tag: (hash >> 64) as u32 }
    }

    /// The first page that may have the key's content, if the key's first slot has a match. A loop over many
    /// keys loads their slots into the cache at the same time, because no load waits for another.
    pub fn hint(&self, key: Key) -> Option<u32> {
        let word = self.slots[key.home].load(Ordering::Relaxed);
        (word != 0 && word as u32 == key.tag).then(|| page_of(word))
    }

    /// The number of a page's content: that of the first page with this key that is `same`, else a new
    /// number.
    pub fn insert(&self, key: Key, page: u32, mut same: impl FnMut(u32) -> bool) -> u32 {
        let mine = (u64::from(page) + 1) << 32 | u64::from(key.tag);
        let mut at = key.home;
        loop {
            let slot = &self.slots[at];
            // Acquire and release: a thread that finds a page sees what was written about it before.
            let mut word = slot.load(Ordering::Acquire);
            if word == 0 {
                match slot.compare_exchange(0, mine, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return at as u32,
                    Err(other) => word = other,
                }
            }
            if word as u32 == key.tag && same(page_of(word)) {
                return at as u32;
            }
            at = if at + 1 == self.slots.len() { 0 } else { at + 1 };
        }
    }

    /// The number of the content with this key that is `same`, if the table has it.
    pub fn find(&self, key: Key, mut same: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = key.home;
        loop {
            let word = self.slots[at].load(Ordering::Acquire);
            if word == 0 {
                return None;
            }
            if word as u32 == key.tag && same(page_of(word)) {
                return Some(at as u32);
            }
            at = if at + 1 == self.slots.len() { 0 } else { at + 1 };
        }
    }
}

fn page_of(word: u64) -> u32 {
    ((word >> 32) - 1) as u32
}
