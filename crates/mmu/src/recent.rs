// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A first-level TLB array: true LRU by time of last use, part of which the
//! [`Filter`] in front may know better.

use crate::assoc::{Attr, attr, matches, tag};
use crate::{Filter, PageSize};

/// A first-level array.
#[derive(Debug, Clone)]
pub(crate) struct Recent {
    tags: Box<[u64]>,
    /// Time of last use as far as it is known here; 0 = empty.
    times: Box<[u64]>,
    ways: usize,
    sets: usize,
    /// Which sides use it, and so whose filters know its entries' times.
    sides: [bool; 2],
    used: bool,
}

/// Size and page number in a key, see `tlb::key`.
fn page_of(key: u64) -> (PageSize, u64) {
    let key = key & ((1 << crate::PAGE_BITS) - 1);
    let size = PageSize::ALL[(key >> (crate::PAGE_BITS - 3)) as usize % 3];
    (size, key & ((1 << (crate::PAGE_BITS - 3)) - 1))
}

impl Recent {
    pub fn new(entries: usize, ways: usize, sides: [bool; 2]) -> Self {
        let ways = if ways == 0 { entries } else { ways };
        assert!(entries > 0 && entries % ways == 0, "{entries} entries in sets of {ways}");
        Recent {
            tags: vec![0; entries].into(),
            times: vec![0; entries].into(),
            ways,
            sets: entries / ways,
            sides,
            used: false,
        }
    }

    #[inline(always)]
    pub fn is_unused(&self) -> bool {
        !self.used
    }

    #[inline(always)]
    fn first(&self, key: u64) -> usize {
        // The low bits of a key are those of its page number.
        let page = key & ((1 << (crate::PAGE_BITS - 3)) - 1);
        let set = if self.sets.is_power_of_two() { page & (self.sets as u64 - 1) } else { page % self.sets as u64 };
        set as usize * self.ways
    }

    #[inline(always)]
    fn find(&self, key: u64) -> Option<usize> {
        let first = self.first(key);
        let tags = &self.tags[first..first + self.ways];
        let times = &self.times[first..first + self.ways];
        (0..tags.len()).find(|&w| matches(tags[w], key) && times[w] != 0).map(|w| first + w)
    }

    /// Looks `key` up; a hit is a use at `time`.
    #[inline(always)]
    pub fn lookup(&mut self, key: u64, time: u64) -> Option<Attr> {
        let slot = self.find(key)?;
        self.times[slot] = time;
        Some(attr(self.tags[slot], 0))
    }

    /// `key` was last used at `time`, if it is still here.
    #[inline]
    pub fn used_at(&mut self, key: u64, time: u64) {
        if let Some(slot) = self.find(key) {
            self.times[slot] = self.times[slot].max(time);
        }
    }

    /// Files `key`, in place of itself or of the least recently used, whose page it returns.
    #[inline]
    pub fn insert(&mut self, key: u64, attr: Attr, time: u64, filters: &[Filter; 2]) -> Option<(PageSize, u64)> {
        self.used = true;
        let slot = self.find(key).unwrap_or_else(|| {
            let first = self.first(key);
            let last_use = |&slot: &usize| {
                let known = self.times[slot];
                if known == 0 {
                    return 0;
                }
                let (size, page) = page_of(self.tags[slot]);
                let [data, code] = filters;
                let data = if self.sides[0] { data.last_use(size, page) } else { 0 };
                let code = if self.sides[1] { code.last_use(size, page) } else { 0 };
                known.max(data).max(code)
            };
            (first..first + self.ways).min_by_key(last_use).unwrap_or(first)
        });
        let was = std::mem::replace(&mut self.tags[slot], tag(key, attr));
        let last = std::mem::replace(&mut self.times[slot], time);
        (last != 0).then(|| page_of(was))
    }

    pub fn retain(&mut self, mut keep: impl FnMut(u64, Attr) -> bool) {
        for (&t, time) in self.tags.iter().zip(self.times.iter_mut()) {
            if *time != 0 && !keep(crate::assoc::key_of(t), attr(t, 0)) {
                *time = 0;
            }
        }
    }

    pub fn flush_all(&mut self) {
        if self.used {
            self.times.fill(0);
            self.used = false;
        }
    }
}
