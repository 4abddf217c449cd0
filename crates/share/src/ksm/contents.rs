// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbers the contents of pages: equal numbers mean equal bytes.

use crate::image::PAGE;
use std::cmp::Ordering;
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_128;

/// The content of zeros.
pub(super) const ZERO: u32 = 0;

/// Numbers of contents, by XXH3-128. A collision is expected only among some 2^64 pages.
#[derive(Debug)]
pub(super) struct Contents {
    numbers: HashMap<u128, u32>,
    /// By number: as much of the content as puts most pages in order.
    heads: Vec<u128>,
}

impl Contents {
    pub fn new() -> Contents {
        Contents { numbers: HashMap::from([(xxh3_128(&[0; PAGE]), ZERO)]), heads: vec![head(&[0; PAGE])] }
    }

    /// The number of a page's content.
    pub fn of(&mut self, page: &[u8]) -> u32 {
        self.of_hash(xxh3_128(page), page)
    }

    /// The number of a page's content, if the page's hash is known.
    pub fn of_hash(&mut self, hash: u128, page: &[u8]) -> u32 {
        let next = self.numbers.len() as u32; // a page each: 16 TiB of different contents at most
        let number = *self.numbers.entry(hash).or_insert(next);
        if number == next {
            self.heads.push(head(page));
        }
        number
    }

    /// The order of two contents byte by byte, as far as their heads decide it; else an arbitrary order.
    pub fn compare(&self, a: u32, b: u32) -> Ordering {
        self.heads[a as usize].cmp(&self.heads[b as usize]).then(a.cmp(&b))
    }

    /// Number of contents so far. Zeros always count.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }
}

/// The first byte that is not zero, by how far it is from the page's end, and 13 more: so many pages begin
/// with zeros that their first bytes alone would not tell them apart.
fn head(page: &[u8]) -> u128 {
    let zeros = page.iter().take_while(|b| **b == 0).count();
    let rest = &page[zeros..];
    let byte = |n: usize| u128::from(rest.get(n).copied().unwrap_or(0));
    (0..14).fold(rest.len() as u128, |head, n| head << 8 | byte(n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn contents_compare_as_their_bytes_do(
            zeros in proptest::array::uniform2(0..6_usize), rest in proptest::array::uniform2(proptest::collection::vec(any::<u8>(), 0..9))
        ) {
            let page = |n: usize| -> Vec<u8> {
                let bytes = std::iter::repeat_n(0, zeros[n] * 1000).chain(rest[n].iter().copied());
                bytes.chain(std::iter::repeat(0)).take(PAGE).collect()
            };
            let mut contents = Contents::new();
            let (a, b) = (contents.of(&page(0)), contents.of(&page(1)));
            prop_assert_eq!(contents.compare(a, b), page(0).cmp(&page(1)));
        }
    }
}
