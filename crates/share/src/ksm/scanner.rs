// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Visits pages in batches, in order of guests and addresses, and merges them (`ksm_do_scan`,
//! `scan_get_next_rmap_item`, `cmp_and_merge_page`).

mod visit;

use super::contents::{Contents, ZERO};
use super::stable::StableTree;
use super::unstable::UnstableTree;
use super::{Tuning, Work};
use crate::image::{HUGE, Image};
use rayon::prelude::*;
use std::ops::Range;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128;

/// ksmd's counters under the kernel's names, and the time that has passed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Passes completed.
    pub full_scans: u64,
    /// Frames that merged pages take.
    pub pages_shared: u64,
    /// Pages that share these frames beyond the first page of each.
    pub pages_sharing: u64,
    /// Pages in the unstable tree.
    pub pages_unshared: u64,
    /// Pages on record that are in neither tree.
    pub pages_volatile: u64,
    /// Visits.
    pub pages_scanned: u64,
    /// Visits that smart_scan saved.
    pub pages_skipped: u64,
    /// Pages that are mappings of the kernel's zero page.
    pub ksm_zero_pages: u64,
    /// Contents with several merged copies.
    pub stable_node_chains: u64,
    /// Those copies.
    pub stable_node_dups: u64,
}

/// A guest of the scanner, in order of adding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guest(usize);

/// The tree in which a page is on record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tree {
    Neither,
    /// The unstable one, as this node, if that is of this pass.
    Unstable(u32),
    Stable(u32),
}

/// The page table's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    /// Nothing yet.
    Absent,
    /// A frame of its own.
    Own,
    /// A merged one.
    Merged(u32),
    /// The kernel's zero page.
    Zero,
}

/// A page: its place in the page table, and ksmd's record of it (`ksm_rmap_item`).
#[derive(Debug, Clone, Copy)]
struct Page {
    content: u32,
    /// Content at the last visit, as ksmd's checksum records it; `None` before the first visit.
    checksum: u32,
    /// Number of its huge page.
    huge: u32,
    frame: Frame,
    tree: Tree,
    known: bool,
    age: u8,
    skips: u8,
}

/// A huge page: its parts among the pages, until it is split.
#[derive(Debug)]
struct HugePage {
    parts: Range<usize>,
    split: bool,
}

const NO_CHECKSUM: u32 = u32::MAX;
const NO_HUGE: u32 = u32::MAX;

/// A model of ksmd with the memory that it scans.
#[derive(Debug)]
pub struct Scanner {
    tuning: Tuning,
    contents: Contents,
    pages: Vec<Page>,
    /// First page of each guest, and the end.
    guests: Vec<usize>,
    huge: Vec<HugePage>,
    stable: StableTree,
    unstable: UnstableTree,
    at: usize,
    counts: Counts,
    known: u64,
    work: Work,
    now: Duration,
    pass_began: Duration,
    cpu: Duration,
}

impl Scanner {
    /// A scanner without guests.
    ///
    /// # Panics
    /// If `max_page_sharing` is below 2, which the kernel refuses.
    pub fn new(mut tuning: Tuning) -> Scanner {
        assert!(tuning.max_page_sharing >= 2, "a merged page has two mappings from the start");
        if let Some(advisor) = &tuning.advisor {
            tuning.pages_to_scan = advisor.min_pages_to_scan;
        }
        Scanner {
            stable: StableTree::new(tuning.max_page_sharing),
            tuning,
            contents: Contents::new(),
            pages: Vec::new(),
            guests: vec![0],
            huge: Vec::new(),
            unstable: UnstableTree::new(),
            at: 0,
            counts: Counts::default(),
            known: 0,
            work: Work::default(),
            now: Duration::ZERO,
            pass_began: Duration::ZERO,
            cpu: Duration::ZERO,
        }
    }

    /// Adds a guest whose pages are all present, as 4 KB pages or as huge pages.
    pub fn add(&mut self, image: &Image, huge: bool) -> Guest {
        let pages: Vec<(u64, &[u8])> = image.pages().collect();
        self.add_pages(&pages.into_iter().map(|(gfn, page)| (gfn, Some(page))).collect::<Vec<_>>(), huge)
    }

    /// Adds memory page by page: the page's number within the guest, by which huge pages are aligned, and the
    /// page's bytes, or `None` if the page table has no page yet.
    pub fn add_pages(&mut self, pages: &[(u64, Option<&[u8]>)], huge: bool) -> Guest {
        let mixed: Vec<_> = pages.iter().map(|(number, page)| (*number, *page, huge)).collect();
        self.add_mixed(&mixed)
    }

    /// As [`add_pages`](Scanner::add_pages). The third value says whether the page is part of a huge page.
    pub fn add_mixed(&mut self, pages: &[(u64, Option<&[u8]>, bool)]) -> Guest {
        let hashes: Vec<Option<u128>> = pages.par_iter().map(|(_, p, _)| p.map(xxh3_128)).collect();
        let mut last = None;
        for ((number, page, huge), hash) in pages.iter().zip(hashes) {
            if *huge && last != Some(number / HUGE) {
                last = Some(number / HUGE);
                self.huge.push(HugePage { parts: self.pages.len()..self.pages.len(), split: false });
            }
            if let (true, Some(of)) = (*huge, self.huge.last_mut()) {
                of.parts.end = self.pages.len() + 1;
            }
            let content = hash.zip(*page).map(|(hash, page)| self.contents.of_hash(hash, page));
            let frame = if content.is_some() { Frame::Own } else { Frame::Absent };
            self.pages.push(Page {
                content: content.unwrap_or(ZERO),
                checksum: NO_CHECKSUM,
                huge: if *huge { self.huge.len() as u32 - 1 } else { NO_HUGE },
                frame,
                tree: Tree::Neither,
                known: false,
                age: 0,
                skips: 0,
            });
        }
        self.stable.reserve(self.contents.len());
        self.guests.push(self.pages.len());
        Guest(self.guests.len() - 2)
    }

    /// Lets a guest write to its `index`th page, whose new content is `page`.
    ///
    /// # Panics
    /// If the guest has no such page.
    pub fn write(&mut self, guest: Guest, index: usize, page: &[u8]) {
        let at = self.guests[guest.0] + index;
        assert!(at < self.guests[guest.0 + 1], "a page of the guest");
        let content = self.contents.of(page);
        self.stable.reserve(self.contents.len());
        match self.pages[at].frame {
            Frame::Merged(node) => self.stable.unmap(node),
            Frame::Zero => self.counts.ksm_zero_pages -= 1,
            Frame::Own | Frame::Absent => {}
        }
        (self.pages[at].frame, self.pages[at].content) = (Frame::Own, content);
    }

    /// Lets time pass in which ksmd does nothing.
    pub fn elapse(&mut self, time: Duration) {
        self.now += time;
    }

    /// Time since the start: batches, pauses between them, and elapsed time.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Work since the start.
    pub fn work(&self) -> Work {
        self.work
    }

    /// CPU time since the start, by the tuning's costs.
    pub fn cpu(&self) -> Duration {
        self.work.cpu(&self.tuning.costs)
    }

    /// The present number of pages per batch, which the advisor sets if one is on.
    pub fn pages_to_scan(&self) -> u64 {
        self.tuning.pages_to_scan
    }

    /// ksmd's counters.
    pub fn counts(&self) -> Counts {
        let (shared, sharing) = (self.stable.shared, self.stable.sharing);
        Counts {
            pages_shared: shared,
            pages_sharing: sharing,
            pages_volatile: self.known - shared - sharing - self.counts.pages_unshared,
            stable_node_chains: self.stable.chains,
            stable_node_dups: self.stable.dups,
            ..self.counts
        }
    }

    /// Scans until a pass is complete.
    pub fn pass(&mut self) {
        while !self.batch() {}
    }

    /// Runs one batch and the pause after it. True if the batch completed a pass, which ends the batch.
    pub fn batch(&mut self) -> bool {
        let mut left = self.tuning.pages_to_scan;
        let mut ended = false;
        while left > 0 && !ended {
            left -= 1;
            match self.next() {
                Some(at) => {
                    self.visit(at);
                    self.counts.pages_scanned += 1;
                }
                None => ended = true,
            }
        }
        let cpu = self.cpu();
        self.now += cpu - self.cpu;
        self.cpu = cpu;
        if ended {
            self.end_pass();
        }
        self.now += self.tuning.sleep;
        ended
    }

    fn end_pass(&mut self) {
        self.counts.full_scans += 1;
        self.at = 0;
        self.unstable.clear();
        let took = self.now - self.pass_began;
        if let Some(advisor) = &mut self.tuning.advisor {
            self.tuning.pages_to_scan = advisor.next(self.tuning.pages_to_scan, took, self.cpu);
        }
        self.pass_began = self.now + self.tuning.sleep;
    }

    /// The next page that is present and not skipped.
    fn next(&mut self) -> Option<usize> {
        while self.at < self.pages.len() {
            let at = self.at;
            self.at += 1;
            let page = &mut self.pages[at];
            if matches!(page.frame, Frame::Absent | Frame::Zero) {
                // No page of KSM's: the record goes (get_next_rmap_item).
                if page.known {
                    page.known = false;
                    self.known -= 1;
                    self.forget(at);
                }
                continue;
            }
            if !page.known {
                (page.known, page.checksum, page.age, page.skips) = (true, NO_CHECKSUM, 0, 0);
                self.known += 1;
            }
            if self.tuning.smart_scan && self.skipped(at) {
                continue;
            }
            return Some(at);
        }
        None
    }

    /// `should_skip_rmap_item`.
    fn skipped(&mut self, at: usize) -> bool {
        let page = &mut self.pages[at];
        if matches!(page.frame, Frame::Merged(_)) {
            return false;
        }
        let age = page.age;
        page.age = age.saturating_add(1);
        if age < 3 {
            return false;
        }
        if page.skips == 0 {
            page.skips = match age {
                ..=3 => 1,
                4..=5 => 2,
                6..=8 => 4,
                _ => 8,
            };
            return false;
        }
        page.skips -= 1;
        self.counts.pages_skipped += 1;
        self.work.skips += 1;
        self.forget(at);
        true
    }

    /// `remove_rmap_item_from_tree`.
    fn forget(&mut self, at: usize) {
        match std::mem::replace(&mut self.pages[at].tree, Tree::Neither) {
            Tree::Stable(node) => self.stable.forget(node),
            Tree::Unstable(node) => {
                self.counts.pages_unshared -= 1;
                if self.unstable.holds(node, at as u32) {
                    self.unstable.erase(node);
                }
            }
            Tree::Neither => {}
        }
    }
}

#[cfg(test)]
impl Scanner {
    /// For each page: whether the page is in the unstable tree, the stable node that records the page,
    /// and the stable node that the page maps.
    pub(super) fn audit_pages(&self) -> Vec<(bool, Option<u32>, Option<u32>)> {
        let of = |p: &Page| {
            let recorded = if let Tree::Stable(n) = p.tree { Some(n) } else { None };
            let mapped = if let Frame::Merged(n) = p.frame { Some(n) } else { None };
            // A record of a node that went is taken off at the next visit.
            let gone = |n: &u32| self.stable.nodes[*n as usize].gone;
            (matches!(p.tree, Tree::Unstable(_)), recorded.filter(|n| !gone(n)), mapped)
        };
        self.pages.iter().map(of).collect()
    }

    /// Pages that a split took away.
    pub(super) fn audit_absent(&self) -> u64 {
        self.pages.iter().filter(|p| p.frame == Frame::Absent).count() as u64
    }

    pub(super) fn audit_passing(&self) {
        self.stable.audit_passing();
    }

    pub(super) fn audit_nodes(&self) -> &[super::stable::Node] {
        &self.stable.nodes
    }
}

/// Compares on the way down a balanced tree of that size.
fn depth(size: u64) -> u64 {
    u64::from(u64::BITS - size.leading_zeros())
}
