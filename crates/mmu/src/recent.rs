// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A first-level TLB array: true LRU by time of last use. For pages in the [`Filter`] in front, the
//! filter knows that time.

use crate::tag::{Attr, allow, attr, keep_sharers, matches, tag};
use crate::{Filter, PageSize};

/// Size and page number in a key.
const PAGE: u64 = (1 << crate::PAGE_BITS) - 1;

#[derive(Debug, Clone, Copy, Default)]
struct Way {
    tag: u64,
    /// Time of last use as far as it is known here; 0 = empty.
    time: u64,
}

/// A first-level array.
#[derive(Debug, Clone)]
pub(crate) struct Recent {
    entries: Box<[Way]>,
    ways: usize,
    sets: usize,
    /// `sets - 1`, or `usize::MAX` where their number is no power of two.
    mask: usize,
    /// Which sides use it, and so whose filters know its entries' times.
    sides: [bool; 2],
    used: bool,
}

/// Size and page number in a key, see `tlb::key`.
#[inline(always)]
fn page_of(key: u64) -> (PageSize, u64) {
    let size = match key >> (crate::PAGE_BITS - 3) & 3 {
        0 => PageSize::Size4K,
        1 => PageSize::Size2M,
        _ => PageSize::Size1G,
    };
    (size, key & ((1 << (crate::PAGE_BITS - 3)) - 1))
}

impl Recent {
    pub fn new(entries: usize, ways: usize, sides: [bool; 2]) -> Self {
        let ways = if ways == 0 { entries } else { ways };
        assert!(entries > 0 && entries % ways == 0, "{entries} entries in sets of {ways}");
        let sets = entries / ways;
        Recent {
            entries: vec![Way::default(); entries].into(),
            ways,
            sets,
            mask: if sets.is_power_of_two() { sets - 1 } else { usize::MAX },
            sides,
            used: false,
        }
    }

    #[inline(always)]
    pub fn is_unused(&self) -> bool {
        !self.used
    }

    #[inline(always)]
    fn set(&mut self, key: u64) -> &mut [Way] {
        // The low bits of a key are those of its page number.
        let page = (key & ((1 << (crate::PAGE_BITS - 3)) - 1)) as usize;
        let set = if self.mask != usize::MAX { page & self.mask } else { page % self.sets };
        &mut self.entries[set * self.ways..][..self.ways]
    }

    #[inline(always)]
    fn find(&mut self, key: u64) -> Option<&mut Way> {
        self.set(key).iter_mut().find(|w| matches(w.tag, key) && w.time != 0)
    }

    /// Looks `key` up; a hit is a use at `time`.
    #[inline(always)]
    pub fn lookup(&mut self, key: u64, time: u64) -> Option<Attr> {
        let way = self.find(key)?;
        way.time = time;
        Some(attr(way.tag))
    }

    /// `key` was last used at `time`, if it is still here.
    #[inline(always)]
    pub fn used_at(&mut self, key: u64, time: u64) {
        if let Some(way) = self.find(key) {
            way.time = way.time.max(time);
        }
    }

    /// Gives further configurations the right to write through the entry for `key`, if it is here.
    pub fn allow(&mut self, key: u64, writable: u8, time: u64) -> bool {
        match self.find(key) {
            Some(way) => {
                *way = Way { tag: allow(way.tag, writable), time };
                true
            }
            None => false,
        }
    }

    /// Files `key`, which is not here, in place of the least recently used, whose page it returns.
    #[inline(always)]
    pub fn insert_absent(
        &mut self,
        key: u64,
        attr: Attr,
        time: u64,
        filters: &[Filter; 2],
    ) -> Option<(PageSize, u64)> {
        self.used = true;
        let sides = self.sides;
        let set = self.set(key);
        let (mut victim, mut oldest) = (0, u64::MAX);
        for (i, way) in set.iter().enumerate() {
            let mut last = way.time;
            // The filters know the current address space's pages, which `key` is of, and global ones.
            if last != 0 && matches(way.tag, (key & !PAGE) | (way.tag & PAGE)) {
                let (size, page) = page_of(way.tag);
                if sides[0] {
                    last = last.max(filters[0].last_use(size, page));
                }
                if sides[1] {
                    last = last.max(filters[1].last_use(size, page));
                }
            }
            if last < oldest {
                (victim, oldest) = (i, last);
            }
        }
        let was = std::mem::replace(&mut set[victim], Way { tag: tag(key, attr), time });
        (was.time != 0).then(|| page_of(was.tag))
    }

    pub fn retain(&mut self, mut keep: impl FnMut(u64, Attr) -> bool) {
        if !self.used {
            return;
        }
        for way in self.entries.iter_mut() {
            if way.time != 0 && !keep(crate::tag::key_of(way.tag), attr(way.tag)) {
                way.time = 0;
            }
        }
    }

    /// Removes all sharers but those at `places` from every entry. Those get the places from 0 on.
    pub fn keep_sharers(&mut self, places: u8) {
        self.entries.iter_mut().for_each(|way| way.tag = keep_sharers(way.tag, places));
    }

    pub fn flush_all(&mut self) {
        if self.used {
            self.entries.fill(Way::default());
            self.used = false;
        }
    }
}
