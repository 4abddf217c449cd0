// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's memory as pages.
//!
//! An image holds runs of consecutive guest frames; holes between them (ROMs, device windows) are no
//! pages and count nowhere. The frame number is the guest's own, so 2 MB pages are aligned as the guest's
//! are, not as the file is.

use std::ops::Range;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// 4 KB pages of a 2 MB page.
pub const HUGE: u64 = 512;

/// Consecutive guest frames and where their bytes lie in [`Image::bytes`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// First guest frame number.
    pub gfn: u64,
    /// Its bytes, a multiple of [`PAGE`].
    pub bytes: Range<usize>,
}

/// One guest's memory.
#[derive(Debug)]
pub struct Image {
    name: String,
    bytes: Vec<u8>,
    runs: Vec<Run>,
}

impl Image {
    /// Memory made by a program: frames from 0 on.
    ///
    /// # Panics
    /// If the bytes are no whole number of pages.
    pub fn of_bytes(name: impl Into<String>, bytes: Vec<u8>) -> Image {
        assert_eq!(bytes.len() % PAGE, 0, "whole pages");
        let runs = vec![Run { gfn: 0, bytes: 0..bytes.len() }];
        Image { name: name.into(), bytes, runs }
    }

    /// What it is called in results: the guest's name or the file's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its runs, in order of guest frame number.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Number of 4 KB pages.
    pub fn len(&self) -> u64 {
        self.runs.iter().map(|r| (r.bytes.len() / PAGE) as u64).sum()
    }

    /// Whether it has no page.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// All pages with their guest frame numbers, in order.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.runs.iter().flat_map(|run| {
            let pages = self.bytes[run.bytes.clone()].chunks_exact(PAGE);
            (run.gfn..).zip(pages)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_with_their_frame_numbers() {
        let mut bytes = vec![0; 2 * PAGE];
        bytes[PAGE] = 7;
        let image = Image::of_bytes("a", bytes);
        let seen: Vec<(u64, u8)> = image.pages().map(|(gfn, page)| (gfn, page[0])).collect();
        assert_eq!(seen, [(0, 0), (1, 7)]);
        assert_eq!(image.len(), 2);
    }
}
