// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A first-level TLB array: true LRU by time of last use. For pages in the [`Filter`] in front, the
//! filter knows that time.
//!
//! A set is a few rows of four ways and one cache line each, so that loops over ways have a length
//! which the compiler knows. The comparison of times has no branch that depends on the data: on a stream that misses
//! often such a branch is mispredicted half the time.

use crate::tag::{Attr, GLOBAL, KEY, allow, attr, join_sharers, keep_sharers, key_of, tag, without_sharers};
use crate::{Filter, PageSize};

/// Size and page number in a key.
const PAGE: u64 = (1 << crate::PAGE_BITS) - 1;
/// Page number in a key.
const NUMBER: u64 = (1 << (crate::PAGE_BITS - 3)) - 1;
/// The tag of an empty way; no other tag has this bit.
const EMPTY: u64 = 1 << 63;
/// Bits for the number of a way below its time.
const WAY_BITS: u32 = 8;
const WAYS: usize = 4;

#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Row {
    tags: [u64; WAYS],
    /// Times of last use as far as they are known here: 0 of an empty way, [`NEVER`] of one that
    /// pads the last row of a set.
    times: [u64; WAYS],
}

/// The time of a way that is never filled. Real times are less.
const NEVER: u64 = u64::MAX >> WAY_BITS;

/// A first-level array.
#[derive(Debug, Clone)]
pub(crate) struct Recent {
    rows: Box<[Row]>,
    sets: usize,
    /// `sets - 1`, or `usize::MAX` where their number is no power of two.
    mask: usize,
    /// Rows per set.
    depth: usize,
    /// Ways in a set's last row.
    last: usize,
    /// Which sides use it, and so whose filters know its entries' times.
    sides: [bool; 2],
    /// Only 4 KB pages are filed here.
    small: bool,
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
    (size, key & NUMBER)
}

/// Is `tag` an entry, and one for `key`?
#[inline(always)]
fn matches(tag: u64, key: u64) -> bool {
    let differ = tag ^ key;
    // Nearly always only the first comparison is made.
    differ & (PAGE | EMPTY) == 0 && (differ & KEY == 0 || tag & GLOBAL != 0)
}

/// The row and the place in it of the entry for `key`.
#[inline(always)]
fn find(set: &mut [Row], key: u64) -> Option<(&mut Row, usize)> {
    set.iter_mut().find_map(|row| {
        let way = row.tags.iter().position(|&tag| matches(tag, key))?;
        Some((row, way))
    })
}

/// The way whose time here is the least. An empty way has time 0, and is older than all others.
#[inline(always)]
fn oldest(set: &[Row]) -> usize {
    let mut oldest = u64::MAX;
    for (i, row) in set.iter().enumerate() {
        for (way, &time) in row.times.iter().enumerate() {
            oldest = oldest.min(time << WAY_BITS | (i * WAYS + way) as u64);
        }
    }
    (oldest & ((1 << WAY_BITS) - 1)) as usize
}

/// The way used least recently in the set that `key` belongs to. `noted(tag)` is the time of last use that filters know for
/// the page of `tag`, or 0. They are asked only for the way that seems oldest. A later time that they know is noted, and the search
/// begins again. The way whose time stands is the oldest: the other ways' times are later, and what filters know of them is
/// later still.
#[inline(always)]
fn least_recent(set: &mut [Row], key: u64, noted: impl Fn(u64) -> u64) -> usize {
    loop {
        let oldest = oldest(set);
        let (row, way) = (&mut set[oldest / WAYS], oldest % WAYS);
        let tag = row.tags[way];
        // The filters know the current address space's pages, which `key` is of, and global ones.
        let known = tag & EMPTY == 0 && ((tag ^ key) & KEY & !PAGE == 0 || tag & GLOBAL != 0);
        let last = if known { noted(tag) } else { 0 };
        if last <= row.times[way] {
            return oldest;
        }
        row.times[way] = last;
    }
}

/// [`least_recent`] of a set with pages of all sizes, or of both sides.
#[inline(never)]
fn least_recent_of_any(set: &mut [Row], key: u64, sides: [bool; 2], filters: &[Filter; 2]) -> usize {
    least_recent(set, key, |tag| {
        let (size, page) = page_of(tag);
        let of_side = |side: usize| if sides[side] { filters[side].last_use(size, page) } else { 0 };
        of_side(0).max(of_side(1))
    })
}

/// A set's entries and their times.
fn entries(set: &[Row]) -> impl Iterator<Item = (u64, u64)> {
    let ways = set.iter().flat_map(|row| row.tags.into_iter().zip(row.times));
    ways.filter(|(tag, _)| tag & EMPTY == 0)
}

/// The entry of a set that equals the given one but for its sharers.
fn twin(set: &[Row], tag: u64, time: u64) -> Option<u64> {
    let wanted = (without_sharers(tag), time);
    entries(set).find(|&(tag, time)| (without_sharers(tag), time) == wanted).map(|(tag, _)| tag)
}

impl Recent {
    /// An empty array; `ways` 0 means fully associative. `small`: only 4 KB pages are filed.
    pub fn new(entries: usize, ways: usize, sides: [bool; 2], small: bool) -> Self {
        let ways = if ways == 0 { entries } else { ways };
        assert!(entries > 0 && entries % ways == 0, "{entries} entries in sets of {ways}");
        assert!(ways <= 1 << WAY_BITS, "{ways} ways in the first level");
        let (sets, depth) = (entries / ways, ways.div_ceil(WAYS));
        let mut array = Recent {
            rows: vec![Row { tags: [EMPTY; WAYS], times: [0; WAYS] }; sets * depth].into(),
            sets,
            mask: if sets.is_power_of_two() { sets - 1 } else { usize::MAX },
            depth,
            last: ways - (depth - 1) * WAYS,
            sides,
            small,
            used: true,
        };
        array.flush_all();
        array
    }

    /// The key's set.
    #[inline(always)]
    fn set(&mut self, key: u64) -> &mut [Row] {
        // The low bits of a key are those of its page number.
        let page = (key & NUMBER) as usize;
        let set = if self.mask != usize::MAX { page & self.mask } else { page % self.sets };
        &mut self.rows[set * self.depth..][..self.depth]
    }

    /// Looks `key` up; a hit is a use at `time`.
    #[inline(always)]
    pub fn lookup(&mut self, key: u64, time: u64) -> Option<Attr> {
        let (row, way) = find(self.set(key), key)?;
        row.times[way] = time;
        Some(attr(row.tags[way]))
    }

    /// Is `key` here? Its time of last use stays.
    #[inline(always)]
    pub fn holds(&mut self, key: u64) -> bool {
        find(self.set(key), key).is_some()
    }

    /// `key` was last used at `time`, if it is still here.
    #[inline(always)]
    pub fn used_at(&mut self, key: u64, time: u64) {
        if let Some((row, way)) = find(self.set(key), key) {
            row.times[way] = row.times[way].max(time);
        }
    }

    /// Gives further configurations the right to write through the entry for `key`, if it is here.
    pub fn allow(&mut self, key: u64, writable: u8, time: u64) -> bool {
        let Some((row, way)) = find(self.set(key), key) else { return false };
        (row.tags[way], row.times[way]) = (allow(row.tags[way], writable), time);
        true
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
        let (sides, small) = (self.sides, self.small);
        let set = self.set(key);
        let victim = if small && sides[0] != sides[1] {
            let filter = &filters[usize::from(sides[1])];
            let noted = |tag| filter.last_use_small(tag & NUMBER);
            // Of one row, as most first levels are, the loop over rows goes too.
            match set {
                [row] => least_recent(std::slice::from_mut(row), key, noted),
                _ => least_recent(set, key, noted),
            }
        } else {
            least_recent_of_any(set, key, sides, filters)
        };
        let (row, way) = (&mut set[victim / WAYS], victim % WAYS);
        row.times[way] = time;
        let was = std::mem::replace(&mut row.tags[way], tag(key, attr));
        (was & EMPTY == 0).then(|| page_of(was))
    }

    /// Drops the entries for `key`.
    pub fn remove(&mut self, key: u64) {
        if self.used {
            self.set(key).iter_mut().for_each(|row| row.drop_if(|tag| matches(tag, key)));
        }
    }

    pub fn retain(&mut self, mut keep: impl FnMut(u64, Attr) -> bool) {
        if self.used {
            self.rows.iter_mut().for_each(|row| row.drop_if(|tag| !keep(key_of(tag), attr(tag))));
        }
    }

    /// Removes all sharers but those at `places` from every entry. Those get the places from 0 on.
    pub fn keep_sharers(&mut self, places: u8) {
        let tags = self.rows.iter_mut().flat_map(|row| &mut row.tags);
        tags.for_each(|tag| *tag = keep_sharers(*tag, places));
    }

    /// Does `other`, of the same geometry, hold the same entries, used at the same times? Where in a
    /// set they are, and who may write through them, does not matter.
    pub fn holds_same(&self, other: &Recent) -> bool {
        let same = |(ours, theirs): (&[Row], &[Row])| {
            entries(ours).count() == entries(theirs).count()
                && entries(ours).all(|(tag, time)| twin(theirs, tag, time).is_some())
        };
        let sets = self.rows.chunks_exact(self.depth).zip(other.rows.chunks_exact(self.depth));
        self.used == other.used && { sets }.all(same)
    }

    /// Adds the sharers of `other`, which holds the same, after the first `places` ones.
    pub fn join(&mut self, other: &Recent, places: usize) {
        for (ours, theirs) in self.rows.chunks_exact_mut(self.depth).zip(other.rows.chunks_exact(self.depth))
        {
            for row in ours {
                for (tag, time) in row.tags.iter_mut().zip(row.times) {
                    let twin = if *tag & EMPTY == 0 { twin(theirs, *tag, time) } else { None };
                    *tag = join_sharers(*tag, twin.unwrap_or_default(), places);
                }
            }
        }
    }

    pub fn flush_all(&mut self) {
        if !self.used {
            return;
        }
        self.used = false;
        for set in self.rows.chunks_exact_mut(self.depth) {
            set.fill(Row { tags: [EMPTY; WAYS], times: [0; WAYS] });
            set[self.depth - 1].times[self.last..].fill(NEVER);
        }
    }
}

impl Row {
    /// Empties the ways whose tags are such.
    fn drop_if(&mut self, mut such: impl FnMut(u64) -> bool) {
        for (tag, time) in self.tags.iter_mut().zip(&mut self.times) {
            if *tag & EMPTY == 0 && such(*tag) {
                (*tag, *time) = (EMPTY, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against lists in order of recency. Half the uses are known to the filter alone.
        #[test]
        fn behaves_as_lists_ordered_by_recency_with_uses_that_only_the_filter_sees(
            geometry in prop_oneof![Just((16, 4)), Just((32, 8)), Just((6, 2)), Just((12, 0)), Just((1, 1))],
            small in any::<bool>(),
            ops in proptest::collection::vec((0u8..12, 0u64..600, any::<bool>()), 1..1500),
        ) {
            let (entries, ways) = geometry;
            let mut a = Recent::new(entries, ways, [true, false], small);
            let mut filters = [Filter::default(), Filter::default()];
            let ways = if ways == 0 { entries } else { ways };
            let sets = (entries / ways) as u64;
            let mut lists: Vec<Vec<(u64, bool)>> = vec![Vec::new(); sets as usize];
            for (time, (op, page, global)) in (1u64..).zip(ops) {
                // Few pages per set, so that they come back.
                let page = if op % 2 == 0 { page % 24 } else { page };
                let list = &mut lists[(page % sets) as usize];
                let at = list.iter().position(|e| e.0 == page);
                if op == 0 {
                    a.remove(page);
                    list.retain(|e| e.0 != page);
                    filters[0].dropped(PageSize::Size4K, page);
                    continue;
                }
                if op == 1 && page < 30 {
                    a.retain(|_, attr| attr.global);
                    lists.iter_mut().for_each(|l| l.retain(|e| e.1));
                    filters[0].forget();
                    continue;
                }
                if filters[0].hit(page, false, time) {
                    let e = list.remove(at.expect("the filter answers for pages that are held"));
                    list.insert(0, e);
                    continue;
                }
                if let Some((other, last)) = filters[0].take(page) {
                    a.used_at(other, last);
                }
                let held = a.lookup(page, time).map(|attr| attr.global);
                prop_assert_eq!(held, at.map(|i| list[i].1));
                let e = match at {
                    Some(i) => list.remove(i),
                    None => {
                        let attr = Attr { global, ..Attr::default() };
                        let out = a.insert_absent(page, attr, time, &filters);
                        let expected = if list.len() == ways { list.pop() } else { None };
                        prop_assert_eq!(out, expected.map(|e| (PageSize::Size4K, e.0)));
                        if let Some((size, page)) = out {
                            filters[0].dropped(size, page);
                        }
                        (page, global)
                    }
                };
                list.insert(0, e);
                filters[0].file(page, false, false, time);
            }
        }
    }
}
