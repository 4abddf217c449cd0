// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The filter in front of the TLBs: pages that every TLB is known to hold.
//!
//! Most accesses go to a page that was used a moment ago. Such an access hits the first level in
//! every configuration and changes only the order of recency, which matters when an entry is
//! replaced. So a hit in the filter notes only the time. A first-level array that looks for its
//! least recently used entry asks the filter for later times than its own ([`Filter::last_use`]), and
//! a page that leaves the filter hands its time over ([`Filter::take`]). Counts are exactly those
//! without a filter, for every geometry.

use crate::PageSize;

const SLOTS: usize = 256;
const PAGE_BITS: u32 = 45;
const EPOCH_SHIFT: u32 = PAGE_BITS + 1;
const PAGES: u64 = (1 << PAGE_BITS) - 1;

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// Epoch, 4 KB page number, and in bit 0 whether it was written. Epoch 0 never answers.
    tag: u64,
    /// Time of the last access; 0 = none.
    time: u64,
}

/// Pages of one CPU that its TLBs hold on one side (data or code).
#[derive(Debug, Clone)]
pub struct Filter {
    slots: Box<[Slot; SLOTS]>,
    /// In the bits above the page; slots of another epoch no longer answer, but keep times.
    epoch: u64,
}

impl Default for Filter {
    fn default() -> Self {
        Filter { slots: Box::new([Slot::default(); SLOTS]), epoch: 1 << EPOCH_SHIFT }
    }
}

impl Filter {
    /// Is an access to 4 KB page `page` at `time` answered here? A write needs a page
    /// that was written before.
    #[inline(always)]
    pub fn hit(&mut self, page: u64, write: bool, time: u64) -> bool {
        let want = self.epoch | page << 1 | 1;
        let slot = &mut self.slots[page as usize % SLOTS];
        let same = if write { slot.tag == want } else { slot.tag | 1 == want };
        if same {
            slot.time = time;
        }
        same
    }

    /// Would a read of `page` be answered here?
    #[inline(always)]
    pub fn answers(&self, page: u64) -> bool {
        self.slots[page as usize % SLOTS].tag | 1 == self.epoch | page << 1 | 1
    }

    /// Empties the slot for `page`: the page that was in it and the time of its last
    /// access, which the TLBs that still hold that page must be told.
    #[inline]
    pub fn take(&mut self, page: u64) -> Option<(u64, u64)> {
        let slot = std::mem::take(&mut self.slots[page as usize % SLOTS]);
        (slot.time != 0).then_some((slot.tag >> 1 & PAGES, slot.time))
    }

    /// Files a page that every TLB holds now, in a slot that was emptied before.
    #[inline]
    pub fn file(&mut self, page: u64, written: bool, time: u64) {
        self.slots[page as usize % SLOTS] = Slot { tag: self.epoch | page << 1 | u64::from(written), time };
    }

    /// A TLB dropped page number `page` of `size`: it is not known to be held any more.
    #[inline]
    pub fn dropped(&mut self, size: PageSize, page: u64) {
        if size != PageSize::Size4K {
            return self.forget();
        }
        let slot = &mut self.slots[page as usize % SLOTS];
        if slot.tag >> 1 & PAGES == page {
            slot.tag &= (1 << EPOCH_SHIFT) - 1; // an epoch that never answers
        }
    }

    /// No page is known to be held any more (a flush). Times are kept, for entries that
    /// survive the flush.
    pub fn forget(&mut self) {
        self.epoch = self.epoch.wrapping_add(1 << EPOCH_SHIFT);
        if self.epoch == 0 {
            // The epochs are used up: slots of the oldest would answer again.
            self.slots.iter_mut().for_each(|s| s.tag &= (1 << EPOCH_SHIFT) - 1);
            self.epoch = 1 << EPOCH_SHIFT;
        }
    }

    /// Every page and time kept, the slots emptied.
    pub fn drain(&mut self) -> Vec<(u64, u64)> {
        (0..SLOTS as u64).filter_map(|page| self.take(page)).collect()
    }

    /// Time of the last access noted here to page number `page` of `size`; 0 = none.
    #[inline(always)]
    pub fn last_use(&self, size: PageSize, page: u64) -> u64 {
        if size == PageSize::Size4K {
            let slot = &self.slots[page as usize % SLOTS];
            return if (slot.tag >> 1 ^ page) & PAGES == 0 { slot.time } else { 0 };
        }
        self.last_use_large(size, page)
    }

    #[inline(never)]
    fn last_use_large(&self, size: PageSize, page: u64) -> u64 {
        let shift = size.shift() - 12;
        let of_page = |s: &&Slot| (s.tag >> 1 & PAGES) >> shift == page;
        self.slots.iter().filter(of_page).map(|s| s.time).max().unwrap_or(0)
    }
}
