// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What ksmd does with one page: it searches both trees, and merges.

use super::{Frame, NO_HUGE, Scanner, Tree, depth};
use crate::ksm::Search;
use crate::ksm::contents::ZERO;
use crate::ksm::unstable::End;

impl Scanner {
    /// `cmp_and_merge_page`.
    pub(super) fn visit(&mut self, at: usize) {
        if matches!(self.pages[at].frame, Frame::Merged(_)) {
            self.work.merged_visits += 1;
            return;
        }
        self.forget(at);
        if self.tuning.search == Search::Always && self.join(at) {
            return;
        }
        let page = &mut self.pages[at];
        let content = page.content;
        self.work.checksums += 1;
        if page.checksum != content {
            page.checksum = content;
            return;
        }
        // A page that a split takes away is not merged; ksmd continues with the page that it holds.
        if self.tuning.use_zero_pages && content == ZERO && self.break_huge(at) {
            self.pages[at].frame = Frame::Zero;
            self.counts.ksm_zero_pages += 1;
            self.work.zero_merges += 1;
            return;
        }
        if self.tuning.search == Search::Always || !self.join(at) {
            self.pair(at);
        }
    }

    /// Joins a merged page of the same content, if one has room.
    fn join(&mut self, at: usize) -> bool {
        self.work.stable_compares += depth(self.stable.contents);
        let seen = self.stable.seen;
        let found = self.stable.search(self.pages[at].content, self.now, self.tuning.chains_prune);
        self.work.copies_seen += self.stable.seen - seen;
        let Some(node) = found else { return false };
        // What a split took away fails to merge, and is left (cmp_and_merge_page).
        if self.break_huge(at) {
            self.map(at, node);
        }
        true
    }

    /// Merges with a page of the same content in the unstable tree, or goes into it.
    fn pair(&mut self, at: usize) {
        let content = self.pages[at].content;
        let mut compares = 0;
        let end = self.unstable.search(|other| {
            compares += 1;
            let other = &self.pages[other as usize];
            let there = !matches!(other.frame, Frame::Absent | Frame::Zero);
            there.then(|| self.contents.compare(content, other.content))
        });
        self.work.unstable_compares += compares;
        let other = match end {
            End::Lost => return,
            End::Free(place) => {
                let node = self.unstable.insert(at as u32, place);
                self.pages[at].tree = Tree::Unstable(node);
                self.counts.pages_unshared += 1;
                return;
            }
            End::Found(other) => other as usize,
        };
        let huge = self.pages[at].huge;
        if huge != NO_HUGE && huge == self.pages[other].huge && !self.huge[huge as usize].split {
            // Both hold a reference of the same huge page, which therefore cannot be split in time: it
            // is split afterwards, and this page has to wait for the next pass.
            self.break_huge(at);
            return;
        }
        if !self.break_huge(at) || !self.break_huge(other) {
            // Of two the first may be a merged page of one by now: it gets a frame of its own again.
            return;
        }
        self.forget(other);
        let seen = self.stable.seen;
        let node = self.stable.insert(content, self.now);
        self.work.copies_seen += self.stable.seen - seen;
        self.work.stable_compares += depth(self.stable.contents);
        self.map(other, node);
        self.map(at, node);
    }

    fn map(&mut self, at: usize, node: u32) {
        self.work.merges += 1;
        self.stable.append(node);
        (self.pages[at].tree, self.pages[at].frame) = (Tree::Stable(node), Frame::Merged(node));
    }

    /// Splits the page's huge page, if it is part of one. Parts of zeros become mappings of the zero
    /// page then, which are not KSM's (`try_to_map_unused_to_zeropage`, in Linux 6.12 but not in 6.1).
    /// Whether the page itself is still there.
    fn break_huge(&mut self, at: usize) -> bool {
        let huge = self.pages[at].huge;
        if huge == NO_HUGE || std::mem::replace(&mut self.huge[huge as usize].split, true) {
            return self.pages[at].frame == Frame::Own;
        }
        self.work.splits += 1;
        if self.tuning.split_drops_zeros {
            for part in self.huge[huge as usize].parts.clone() {
                let page = &mut self.pages[part];
                if page.content == ZERO && page.frame == Frame::Own {
                    page.frame = Frame::Absent;
                }
            }
        }
        self.pages[at].frame == Frame::Own
    }
}
