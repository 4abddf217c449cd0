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

const SLOTS: usize = 1024;
const PAGE_BITS: u32 = 45;
const EPOCH_SHIFT: u32 = PAGE_BITS + 1;
const PAGES: u64 = (1 << PAGE_BITS) - 1;

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// Epoch, 4 KB page number, and in bit 0 whether writes are answered. Epochs before [`FIRST`] answer for
    /// no page.
    tag: u64,
    /// Time of the last access; 0 = none.
    time: u64,
}

/// The first epoch. The one before is that of an empty slot, of a page that a TLB has dropped, and of pages
/// filed before the epochs were used up.
const FIRST: u64 = 1 << EPOCH_SHIFT;

/// `value` if `x` is 0, else 0. An `if` would become a branch, which is mispredicted often where many
/// accesses miss.
#[inline(always)]
pub(crate) fn if_zero(x: u64, value: u64) -> u64 {
    value & ((x | x.wrapping_neg()) >> 63).wrapping_sub(1)
}

/// Pages of one CPU that its TLBs hold on one side (data or code).
#[derive(Debug, Clone)]
pub struct Filter {
    slots: Box<[Slot; SLOTS]>,
    /// In the bits above the page; slots of another epoch no longer answer, but keep times.
    epoch: u64,
    /// A bit per slot: its page may be part of an entry larger than 4 KB.
    large: [u64; SLOTS / 64],
}

impl Default for Filter {
    fn default() -> Self {
        Filter { slots: Box::new([Slot::default(); SLOTS]), epoch: FIRST, large: [0; SLOTS / 64] }
    }
}

impl Filter {
    /// Is an access to 4 KB page `page` at `time` answered here? A write needs a page
    /// that was filed for writes.
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
    /// access, which must be passed to the TLBs that still hold that page.
    #[inline]
    pub fn take(&mut self, page: u64) -> Option<(u64, u64)> {
        let slot = std::mem::take(&mut self.slots[page as usize % SLOTS]);
        (slot.time != 0).then_some((slot.tag >> 1 & PAGES, slot.time))
    }

    /// Files a page that every TLB holds now, in a slot that was emptied before. `writable` if every first
    /// level holds it so that writes may go through its entry as it is, and `large` if some TLB may hold it
    /// in an entry larger than 4 KB.
    #[inline]
    pub fn file(&mut self, page: u64, writable: bool, large: bool, time: u64) {
        let (word, bit) = (page as usize % SLOTS / 64, page % 64);
        self.large[word] = (self.large[word] & !(1 << bit)) | u64::from(large) << bit;
        self.slots[page as usize % SLOTS] = Slot { tag: self.epoch | page << 1 | u64::from(writable), time };
    }

    /// A TLB dropped page number `page` of `size`: it is not known to be held any more.
    #[inline]
    pub fn dropped(&mut self, size: PageSize, page: u64) {
        if size != PageSize::Size4K {
            return self.forget();
        }
        let slot = &mut self.slots[page as usize % SLOTS];
        if slot.tag >> 1 & PAGES == page {
            slot.tag &= (1 << EPOCH_SHIFT) - 1; // No epoch.
        }
    }

    /// No page is known to be held any more (a flush). Times are kept, for entries that
    /// survive the flush.
    pub fn forget(&mut self) {
        self.epoch = self.epoch.wrapping_add(1 << EPOCH_SHIFT);
        if self.epoch == 0 {
            // The epochs are used up: slots of the oldest would answer again.
            for slot in self.slots.iter_mut() {
                slot.tag &= (1 << EPOCH_SHIFT) - 1;
            }
            self.epoch = FIRST;
        }
    }

    /// Every page and time kept, the slots emptied.
    pub fn drain(&mut self) -> Vec<(u64, u64)> {
        (0..SLOTS as u64).filter_map(|page| self.take(page)).collect()
    }

    /// Time of the last access noted here to page number `page` of `size`; 0 = none.
    #[inline(always)]
    pub fn last_use(&self, size: PageSize, page: u64) -> u64 {
        match size {
            PageSize::Size4K => self.last_use_small(page),
            PageSize::Size2M | PageSize::Size1G => self.last_use_large(size, page),
        }
    }

    /// [`Filter::last_use`] of a 4 KB page.
    #[inline(always)]
    pub fn last_use_small(&self, page: u64) -> u64 {
        let slot = &self.slots[page as usize % SLOTS];
        if_zero((slot.tag >> 1 ^ page) & PAGES, slot.time)
    }

    /// Looks only at the slots whose pages may be in large entries.
    #[inline(never)]
    fn last_use_large(&self, size: PageSize, page: u64) -> u64 {
        let shift = size.shift() - 12;
        let mut last = 0;
        for (word, &bits) in self.large.iter().enumerate() {
            let mut bits = bits;
            while bits != 0 {
                let slot = &self.slots[64 * word + bits.trailing_zeros() as usize];
                let same = (slot.tag >> 1 & PAGES) >> shift == page;
                last = last.max(if same { slot.time } else { 0 });
                bits &= bits - 1;
            }
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_left_behind_by_used_up_epochs_keeps_its_time() {
        let mut filter = Filter::default();
        filter.file(1, false, false, 10);
        filter.file(2, false, false, 20);
        filter.dropped(PageSize::Size4K, 2);
        filter.epoch = 0u64.wrapping_sub(1 << EPOCH_SHIFT);
        filter.forget();
        assert!(filter.epoch >= FIRST);
        assert!(!filter.hit(1, false, 30) && !filter.hit(2, false, 30));
        assert_eq!((filter.take(1), filter.take(1)), (Some((1, 10)), None));
        assert_eq!(filter.take(2), Some((2, 20)));
    }
}
