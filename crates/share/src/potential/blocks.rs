// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the 2 MB pages that are aligned by guest frame number and have all their 512 pages.
//!
//! Two 2 MB pages are equal if their 4 KB pages have the same contents in the same order. The numbers of the
//! contents are compared, which is exact.

use super::scan::{Scanned, ZERO};
use crate::image::{HUGE, Image};
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::Range;
use twox_hash::XxHash3_64;

/// All 2 MB pages with the numbers of their contents.
pub struct Blocks {
    /// For each 2 MB page in order, the number of the page's content, or [`ZERO`].
    pub ids: Vec<u32>,
    /// For each guest, the range of the guest's pages.
    pub guests: Vec<Range<usize>>,
    /// Distinct contents. The numbers of contents are below this.
    pub contents: usize,
}

/// Finds them.
pub fn blocks(images: &[Image], scanned: &Scanned) -> Blocks {
    let mut numbers: HashMap<&[u32], u32, BuildHasherDefault<XxHash3_64>> = HashMap::default();
    let mut out = Blocks { ids: Vec::new(), guests: Vec::new(), contents: 0 };
    for (image, pages) in images.iter().zip(scanned.guests()) {
        let start = out.ids.len();
        for (gfns, at) in stretches(image) {
            let first = gfns.start.next_multiple_of(HUGE);
            // Frame numbers and pages run in parallel within a stretch.
            let from = pages.start + at + (first - gfns.start) as usize;
            let whole = gfns.end.saturating_sub(first) / HUGE;
            for block in 0..whole as usize {
                let ids = &scanned.ids[from + block * HUGE as usize..][..HUGE as usize];
                let next = numbers.len() as u32;
                let zero = ids.iter().all(|id| *id == ZERO);
                out.ids.push(if zero { ZERO } else { *numbers.entry(ids).or_insert(next) });
            }
        }
        out.guests.push(start..out.ids.len());
    }
    out.contents = numbers.len();
    out
}

/// Frames without a hole, though they may be of several runs, and the first one's place in the image.
fn stretches(image: &Image) -> Vec<(Range<u64>, usize)> {
    let mut out: Vec<(Range<u64>, usize)> = Vec::new();
    let mut at = 0;
    for run in image.runs() {
        match out.last_mut() {
            Some((gfns, _)) if gfns.end == run.gfn => gfns.end += run.pages(),
            _ => out.push((run.gfn..run.gfn + run.pages(), at)),
        }
        at += run.pages() as usize;
    }
    out
}
