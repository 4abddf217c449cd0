// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes memory with known contents, on which the model is checked against the kernel.

use crate::image::PAGE;
use rand::{Rng as _, RngCore as _, SeedableRng as _};
use rand_pcg::Pcg64;

/// A kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synthetic {
    /// All pages equal.
    AllEqual,
    /// All pages different.
    AllDifferent,
    /// Every other page equal, the rest different.
    HalfAndHalf,
    /// Four contents, in turns.
    FewContents,
    /// Each content three times, far apart.
    ManyContents,
    /// 64 contents, in turns; between passes one page in 32 becomes new, and one in 32 another's equal.
    SlowlyChanging,
    /// Three of four pages zero, the rest equal or different by turns.
    ZeroPages,
}

/// A change to one page: its number and its content's.
pub type Change = (usize, u64);

impl Synthetic {
    /// All kinds.
    pub const ALL: [Synthetic; 7] = [
        Synthetic::AllEqual,
        Synthetic::AllDifferent,
        Synthetic::HalfAndHalf,
        Synthetic::FewContents,
        Synthetic::ManyContents,
        Synthetic::SlowlyChanging,
        Synthetic::ZeroPages,
    ];

    /// The kind's name.
    pub const fn name(self) -> &'static str {
        match self {
            Synthetic::AllEqual => "all-equal",
            Synthetic::AllDifferent => "all-different",
            Synthetic::HalfAndHalf => "half-and-half",
            Synthetic::FewContents => "few-contents",
            Synthetic::ManyContents => "many-contents",
            Synthetic::SlowlyChanging => "slowly-changing",
            Synthetic::ZeroPages => "zero-pages",
        }
    }

    /// Number of each page's content; 0 is zeros.
    pub fn pages(self, pages: usize) -> Vec<u64> {
        let different = |n: usize| 1_000 + n as u64;
        let of = |n: usize| match self {
            Synthetic::AllEqual => 1,
            Synthetic::AllDifferent => different(n),
            Synthetic::HalfAndHalf if n % 2 == 0 => 1,
            Synthetic::HalfAndHalf => different(n),
            Synthetic::FewContents => 1 + n as u64 % 4,
            Synthetic::ManyContents => different(n % pages.div_ceil(3)),
            Synthetic::SlowlyChanging => 1 + n as u64 % 64,
            Synthetic::ZeroPages => match n % 8 {
                0..=5 => 0,
                6 => 1,
                _ => different(n),
            },
        };
        (0..pages).map(of).collect()
    }

    /// Changes before a pass. The first pass has number 1.
    pub fn changes(self, pages: usize, pass: u64) -> Vec<Change> {
        if self != Synthetic::SlowlyChanging || pass == 1 {
            return Vec::new();
        }
        let mut rng = Pcg64::seed_from_u64(pass);
        let mut changes: Vec<Change> = Vec::new();
        for n in 0..pages / 16 {
            let page = rng.random_range(0..pages);
            let content =
                if n % 2 == 0 { rng.random_range(1..65) } else { rng.random_range(1 << 32..1 << 48) };
            changes.push((page, content));
        }
        changes
    }
}

/// Fills a page with the bytes of a content.
pub fn fill(content: u64, page: &mut [u8]) {
    if content == 0 {
        page.fill(0);
    } else {
        Pcg64::seed_from_u64(content).fill_bytes(page);
    }
}

/// A new page with the bytes of a content.
pub fn page(content: u64) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    fill(content, &mut page);
    page
}
