// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Contents of pages as small numbers: the same number, the same bytes.

use crate::image::PAGE;
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_128;

/// The content of zeros.
pub(super) const ZERO: u32 = 0;

/// Numbers of contents, by XXH3-128: two contents of one hash would take some 2^64 pages.
#[derive(Debug)]
pub(super) struct Contents {
    numbers: HashMap<u128, u32>,
}

impl Contents {
    pub fn new() -> Contents {
        Contents { numbers: HashMap::from([(xxh3_128(&[0; PAGE]), ZERO)]) }
    }

    /// The number of a page's content.
    pub fn of(&mut self, page: &[u8]) -> u32 {
        self.of_hash(xxh3_128(page))
    }

    pub fn of_hash(&mut self, hash: u128) -> u32 {
        let next = self.numbers.len() as u32; // a page each: 16 TiB of different contents at most
        *self.numbers.entry(hash).or_insert(next)
    }

    /// Contents seen, zeros included whether seen or not.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }
}
