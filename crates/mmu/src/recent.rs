// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A TLB array with true LRU by time of last use: those of the first level, and those of the second whose
//! sets are wide. For pages in the [`Filter`] in front of the first level, the filter knows that time.
//!
//! A set is a few rows of four ways and one cache line each, so that loops over ways have a length
//! which the compiler knows. The comparison of times has no branch that depends on the data: on a stream that
//! misses often such a branch is mispredicted half the time.

use crate::sets::{Part, Sets};
use crate::tag::{Attr, GLOBAL, KEY, allow, attr, join_sharers, key_of, tag, without_sharers};
use crate::{Filter, PageSize};

/// Size and page number in a key.
const PAGE: u64 = (1 << crate::PAGE_BITS) - 1;
/// Page number in a key.
const NUMBER: u64 = (1 << (crate::PAGE_BITS - 3)) - 1;
/// The tag of an empty way; no other tag has this bit.
const EMPTY: u64 = 1 << 63;
/// Bits for the number of a way below its time.
const WAY_BITS: u32 = 16;
/// The most ways of a TLB's array.
pub const MOST_WAYS: usize = 1 << WAY_BITS;
const WAYS: usize = 4;

#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(crate) struct WayGroup {
    tags: [u64; WAYS],
    /// Times of last use as far as they are known here: 0 of an empty way, [`NEVER`] of one that
    /// pads the last row of a set.
    times: [u64; WAYS],
}

/// The time of a way that is never filled. Real times are less.
const NEVER: u64 = u64::MAX >> WAY_BITS;

/// An array.
#[derive(Debug, Clone)]
pub(crate) struct Recent {
    sets: Sets<WayGroup>,
    sharers: u8,
    /// Which sides use it, and so whose filters know its entries' times.
    sides: [bool; 2],
    /// Only 4 KB pages are filed here.
    small: bool,
}

/// A key's set as some sharers hold it.
pub(crate) struct Set<'a> {
    rows: &'a mut [WayGroup],
    key: u64,
    sides: [bool; 2],
    small: bool,
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
fn find(set: &[WayGroup], key: u64) -> Option<(usize, usize)> {
    set.iter().enumerate().find_map(|(i, row)| {
        let way = row.tags.iter().position(|&tag| matches(tag, key))?;
        Some((i, way))
    })
}

/// The way whose time here is the least. An empty way has time 0, and is older than all others.
#[inline(always)]
fn oldest(set: &[WayGroup]) -> usize {
    let mut oldest = u64::MAX;
    for (i, row) in set.iter().enumerate() {
        for (way, &time) in row.times.iter().enumerate() {
            oldest = oldest.min(time << WAY_BITS | (i * WAYS + way) as u64);
        }
    }
    (oldest & ((1 << WAY_BITS) - 1)) as usize
}

/// The way used least recently in the set that `key` belongs to. `noted(tag)` is the time of last use that
/// filters know for the page of `tag`, or 0. They are asked only for the way that seems oldest. A later time
/// that they know is noted, and the search begins again. The way whose time stands is the oldest: the other
/// ways' times are later, and what filters know of them is later still.
#[inline(always)]
fn least_recent(set: &mut [WayGroup], key: u64, noted: impl Fn(u64) -> u64) -> usize {
    loop {
        let oldest = oldest(set);
        let (row, way) = (&mut set[oldest / WAYS], oldest % WAYS);
        let last = known(row.tags[way], key, &noted);
        if last <= row.times[way] {
            return oldest;
        }
        row.times[way] = last;
    }
}

/// The time of last use that filters know for `tag`, or 0. They know the current address space's pages, which
/// `key` is of, and global ones.
#[inline(always)]
fn known(tag: u64, key: u64, noted: impl Fn(u64) -> u64) -> u64 {
    let known = tag & EMPTY == 0 && ((tag ^ key) & KEY & !PAGE == 0 || tag & GLOBAL != 0);
    if known { noted(tag) } else { 0 }
}

/// The time of last use that the filters of `sides` know for the page of `tag`, of any size.
fn last_use(tag: u64, sides: [bool; 2], filters: &[Filter; 2]) -> u64 {
    let (size, page) = page_of(tag);
    let of_side = |side: usize| if sides[side] { filters[side].last_use(size, page) } else { 0 };
    of_side(0).max(of_side(1))
}

/// [`least_recent`] of a set with pages of all sizes, or of both sides.
#[inline(never)]
fn least_recent_of_any(set: &mut [WayGroup], key: u64, sides: [bool; 2], filters: &[Filter; 2]) -> usize {
    least_recent(set, key, |tag| last_use(tag, sides, filters))
}

/// A set's entries and their times.
fn entries(set: &[WayGroup]) -> impl Iterator<Item = (u64, u64)> {
    let ways = set.iter().flat_map(|row| row.tags.into_iter().zip(row.times));
    ways.filter(|(tag, _)| tag & EMPTY == 0)
}

/// The entry of a set that equals the given one but for its sharers.
fn twin(set: &[WayGroup], tag: u64, time: u64) -> Option<u64> {
    let wanted = (without_sharers(tag), time);
    entries(set).find(|&(tag, time)| (without_sharers(tag), time) == wanted).map(|(tag, _)| tag)
}

impl Part for WayGroup {
    fn drop_non_global(set: &mut [WayGroup]) {
        set.iter_mut().for_each(|row| row.drop_if(|tag| tag & GLOBAL == 0));
    }

    fn digest(set: &[WayGroup]) -> u64 {
        let tags = set.iter().flat_map(|row| row.tags);
        tags.fold(0, |sum, tag| sum.wrapping_add(without_sharers(tag)))
    }

    fn same(ours: &[WayGroup], theirs: &[WayGroup]) -> bool {
        entries(ours).all(|(tag, time)| twin(theirs, tag, time).is_some())
            && entries(ours).count() == entries(theirs).count()
    }

    fn join(ours: &mut [WayGroup], holders: u8, theirs: &[WayGroup], others: u8) {
        for row in ours {
            for (tag, time) in row.tags.iter_mut().zip(row.times) {
                if let (0, Some(twin)) = (*tag & EMPTY, twin(theirs, *tag, time)) {
                    *tag = join_sharers(*tag, holders, twin, others);
                }
            }
        }
    }
}

impl Recent {
    /// An empty array of the sharers with a bit in `sharers`; `ways` 0 means fully associative. `sides`:
    /// those whose filters know times of last use. `small`: only 4 KB pages are filed. `joins`: see
    /// [`Sets::new`].
    pub fn new(
        (entries, ways): (usize, usize),
        sides: [bool; 2],
        small: bool,
        sharers: u8,
        joins: bool,
    ) -> Self {
        let ways = if ways == 0 { entries } else { ways };
        assert!(entries > 0 && entries % ways == 0, "{entries} entries in sets of {ways}");
        assert!(ways <= MOST_WAYS, "{ways} ways of a TLB's array");
        let depth = ways.div_ceil(WAYS);
        let mut empty = vec![WayGroup { tags: [EMPTY; WAYS], times: [0; WAYS] }; depth];
        empty[depth - 1].times[ways - (depth - 1) * WAYS..].fill(NEVER);
        Recent { sets: Sets::new(entries / ways, empty, sharers, joins), sharers, sides, small }
    }

    /// The key's set.
    #[inline(always)]
    fn set(&mut self, key: u64) -> usize {
        // The low bits of a key are those of its page number.
        self.sets.of(key & NUMBER)
    }

    /// The key's set, if all sharers hold the same in this set.
    #[inline(always)]
    pub fn alike(&mut self, key: u64) -> Option<Set<'_>> {
        let (sides, small) = (self.sides, self.small);
        self.sets.alike(key & NUMBER).map(|rows| Set { rows, key, sides, small })
    }

    /// Looks `key` up for the sharers `of`; a hit is a use at `time`. Calls `found` with what is found, and
    /// the sharers that hold it.
    #[inline(always)]
    pub fn lookup(&mut self, key: u64, of: u8, time: u64, mut found: impl FnMut(Attr, u8)) -> u8 {
        let set = self.set(key);
        self.sets.change(
            set,
            of,
            |rows| find(rows, key),
            |rows, (row, way), holders| {
                rows[row].times[way] = time;
                found(attr(rows[row].tags[way]), holders);
            },
        )
    }

    /// Is `key` here, for some sharer? Its time of last use stays.
    #[inline(always)]
    pub fn holds(&mut self, key: u64) -> bool {
        if let Some(rows) = self.sets.alike(key & NUMBER) {
            return find(rows, key).is_some();
        }
        let set = self.set(key);
        self.sets.any(set, |rows| find(rows, key).is_some())
    }

    /// `key` was last used at `time`, if it is still here.
    #[inline(always)]
    pub fn used_at(&mut self, key: u64, time: u64) {
        let later = |rows: &mut [WayGroup], (row, way): (usize, usize)| {
            rows[row].times[way] = rows[row].times[way].max(time);
        };
        if let Some(rows) = self.sets.alike(key & NUMBER) {
            if let Some(at) = find(rows, key) {
                later(rows, at);
            }
            return;
        }
        let set = self.set(key);
        self.sets.change(set, u8::MAX, |rows| find(rows, key), |rows, at, _| later(rows, at));
    }

    /// Gives the sharers `of` with a bit in `writable` the right to write through their entries for `key`, if
    /// they are here: a use at `time`, or none if that is 0. Returns the sharers that hold one.
    pub fn allow(&mut self, key: u64, of: u8, writable: u8, time: u64) -> u8 {
        let set = self.set(key);
        let allow = |rows: &mut [WayGroup], (row, way): (usize, usize), holders| {
            let WayGroup { tags, times } = &mut rows[row];
            (tags[way], times[way]) = (allow(tags[way], writable & holders), times[way].max(time));
        };
        self.sets.change(set, of, |rows| find(rows, key), allow)
    }

    /// Files `key`, which the sharers `of` do not hold, in place of the least recently used. `filters` do not
    /// answer for its page any more.
    #[inline]
    pub fn insert_absent(&mut self, key: u64, of: u8, attr: Attr, time: u64, filters: &mut [Filter; 2]) {
        let Recent { sharers, sides, small, .. } = *self;
        if of == sharers {
            if let Some(mut alike) = self.alike(key) {
                return alike.insert_absent(attr, time, filters);
            }
        }
        let set = self.set(key);
        let insert = |rows: &mut [WayGroup], (), _| {
            Set { rows, key, sides, small }.insert_absent(attr, time, filters);
        };
        self.sets.change(set, of, |_| Some(()), insert);
        // Times that filters know are noted before times are compared.
        self.sets.changed(set, |rows| {
            let ways = rows.iter_mut().flat_map(|row| row.tags.iter().zip(&mut row.times));
            ways.for_each(|(&tag, time)| {
                *time = (*time).max(known(tag, key, |tag| last_use(tag, sides, filters)));
            });
        });
    }

    /// Drops the entries of the sharers `of` for `key`.
    pub fn remove(&mut self, key: u64, of: u8) {
        let set = self.set(key);
        let drop = |rows: &mut [WayGroup], _, _| {
            rows.iter_mut().for_each(|row| row.drop_if(|tag| matches(tag, key)))
        };
        self.sets.change(set, of, |rows| find(rows, key), drop);
    }

    /// Drops the entries of the sharers `of` for which `keep`, given the key, the attributes and those of
    /// them that hold it, is false.
    pub fn retain(&mut self, of: u8, mut keep: impl FnMut(u64, Attr, u8) -> bool) {
        self.sets.for_each(of, |rows, holders| {
            rows.iter_mut().for_each(|row| row.drop_if(|tag| !keep(key_of(tag), attr(tag), holders)));
        });
    }

    /// Drops everything of the sharers `of`.
    pub fn flush_all(&mut self, of: u8) {
        self.sets.flush_all(of);
    }

    /// Drops everything of the sharers `of` that is not global.
    pub fn flush_non_global(&mut self, of: u8) {
        self.sets.flush_non_global(of);
    }
}

impl Set<'_> {
    /// Looks the key up; a hit is a use at `time`.
    #[inline(always)]
    pub fn lookup(&mut self, time: u64) -> Option<Attr> {
        let (row, way) = find(self.rows, self.key)?;
        let WayGroup { tags, times } = &mut self.rows[row];
        times[way] = time;
        Some(attr(tags[way]))
    }

    /// See [`Recent::insert_absent`].
    #[inline(always)]
    pub fn insert_absent(&mut self, attr: Attr, time: u64, filters: &mut [Filter; 2]) {
        let Set { rows, key, sides, small } = self;
        let key = *key;
        let victim = if *small && sides[0] != sides[1] {
            let filter = &filters[usize::from(sides[1])];
            let noted = |tag| filter.last_use_small(tag & NUMBER);
            // Of one row, as most first levels are, the loop over rows goes too.
            match rows {
                [row] => least_recent(std::slice::from_mut(row), key, noted),
                _ => least_recent(rows, key, noted),
            }
        } else {
            least_recent_of_any(rows, key, *sides, filters)
        };
        let WayGroup { tags, times } = &mut rows[victim / WAYS];
        times[victim % WAYS] = time;
        let was = std::mem::replace(&mut tags[victim % WAYS], tag(key, attr));
        if was & EMPTY == 0 && (sides[0] || sides[1]) {
            let (size, page) = page_of(was);
            filters.iter_mut().for_each(|filter| filter.dropped(size, page));
        }
    }
}

impl WayGroup {
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
            let mut a = Recent::new((entries, ways), [true, false], small, 1, true);
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
                    a.remove(page, 1);
                    list.retain(|e| e.0 != page);
                    filters[0].dropped(PageSize::Size4K, page);
                    continue;
                }
                if op == 1 && page < 30 {
                    a.flush_non_global(1);
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
                let mut held = None;
                a.lookup(page, 1, time, |attr, _| held = Some(attr.global));
                prop_assert_eq!(held, at.map(|i| list[i].1));
                let e = match at {
                    Some(i) => list.remove(i),
                    None => {
                        let attr = Attr { global, ..Attr::default() };
                        a.insert_absent(page, 1, attr, time, &mut filters);
                        if list.len() == ways {
                            let (out, _) = list.pop().expect("a full set");
                            prop_assert!(!a.holds(out) && !filters[0].answers(out));
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
