// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A set-associative TLB array with true LRU, of sets of up to 16 ways: what second levels are made of.
//!
//! A set has one signature byte per way. Eight signatures are compared at a time in a 64-bit word, and a key
//! is read only where its signature agrees. Recency is a list of way numbers, four bits each, in one word.

use crate::sets::{Part, Sets};
use crate::tag::{Attr, GLOBAL, PAGE, allow, attr, join_sharers, key_of, matches, tag, without_sharers};

/// Words of a set's row before its tags: signatures of ways 0-7 and 8-15 (0 = empty way,
/// 0x7f = no such way), the recency list (most recent in the lowest nibble), and the number of entries.
const SIG: usize = 0;
const ORDER: usize = 2;
const LIVE: usize = 3;
const HEAD: usize = 4;
/// The most ways of a set.
pub(crate) const WAYS: usize = 16;

/// A set-associative array of keys with attributes: [`HEAD`] words of each set and a tag per way.
#[derive(Debug, Clone)]
pub(crate) struct Assoc {
    sets: Sets<u64>,
    sharers: u8,
    ways: usize,
}

const ONES: u64 = 0x0101_0101_0101_0101;
const NIBBLES: u64 = 0x1111_1111_1111_1111;

/// Never 0 (an empty way) nor 0x7f (no such way).
#[inline(always)]
fn signature(key: u64) -> u64 {
    let x = key & PAGE;
    ((x ^ (x >> 7) ^ (x >> 14)) & 0x7f) | 0x80
}

/// High bit set in every byte of `word` that equals `sig`, and possibly in bytes above one that does.
#[inline(always)]
fn equal_bytes(word: u64, sig: u64) -> u64 {
    let x = word ^ (ONES * sig);
    x.wrapping_sub(ONES) & !x & (ONES << 7)
}

fn blank(ways: usize) -> [u64; HEAD] {
    let word = |ways: usize| if ways >= 8 { 0 } else { (ONES * 0x7f) << (8 * ways) };
    [word(ways), word(ways.saturating_sub(8)), 0xfedc_ba98_7654_3210, 0]
}

/// Moves `way` to the front of a recency list.
#[inline(always)]
fn promote(order: &mut u64, way: usize) {
    let old = *order;
    let x = old ^ (NIBBLES * way as u64);
    let zero = x.wrapping_sub(NIBBLES) & !x & (NIBBLES << 3);
    let shift = zero.trailing_zeros() & 60;
    let below = (1u64 << shift) - 1;
    *order = (old & !(below << 4 | 0xf)) | ((old & below) << 4) | way as u64;
}

#[inline(always)]
fn set_sig(head: &mut [u64], way: usize, sig: u64) {
    let shift = 8 * (way & 7) as u32;
    let word = &mut head[SIG + (way >> 3 & 1)];
    *word = (*word & !(0xff << shift)) | sig << shift;
}

#[inline(always)]
fn find(set: &[u64], key: u64) -> Option<usize> {
    let (head, tags) = set.split_first_chunk::<HEAD>()?;
    let sig = signature(key);
    // Ways 0-7 in bit 0 of each byte, ways 8-15 in bit 1: one loop, which mostly runs once, and no
    // branch on which half the way is in.
    let mut m = equal_bytes(head[SIG], sig) >> 7 | equal_bytes(head[SIG + 1], sig) >> 6;
    while m != 0 {
        let bit = m.trailing_zeros() as usize;
        let way = (bit >> 3) + 8 * (bit & 1);
        // Signatures agree by chance, too. An empty way's byte never does: a borrow in
        // `equal_bytes` marks only bytes that differ from `sig` in bit 0.
        match tags.get(way) {
            Some(&tag) if matches(tag, key) => return Some(way),
            _ => m &= m - 1,
        }
    }
    None
}

/// The ways of a set that hold entries, from the most recent on.
#[inline(always)]
fn by_recency(head: &[u64]) -> impl Iterator<Item = usize> + use<> {
    let (sigs, mut order, mut left) = ([head[SIG], head[SIG + 1]], head[ORDER], head[LIVE]);
    std::iter::from_fn(move || {
        while left != 0 {
            let way = order as usize & 0xf;
            order >>= 4;
            if sigs[way >> 3] >> (8 * (way & 7)) & 0x80 != 0 {
                left -= 1;
                return Some(way);
            }
        }
        None
    })
}

/// Files a key that the set does not hold as its most recent.
#[inline(always)]
fn insert(set: &mut [u64], ways: usize, key: u64, attr: Attr) {
    let Some((head, tags)) = set.split_first_chunk_mut::<HEAD>() else { return };
    let way = if head[LIVE] == ways as u64 {
        (head[ORDER] >> ((4 * (ways - 1)) & 63)) as usize & 0xf
    } else {
        head[LIVE] += 1;
        let empty = equal_bytes(head[SIG], 0);
        if empty != 0 {
            (empty.trailing_zeros() >> 3) as usize
        } else {
            8 + (equal_bytes(head[SIG + 1], 0).trailing_zeros() >> 3) as usize
        }
    };
    set_sig(head, way, signature(key));
    promote(&mut head[ORDER], way);
    tags[way] = tag(key, attr);
}

/// Drops the entries of a set whose tags are such.
fn drop_if(set: &mut [u64], mut such: impl FnMut(u64) -> bool) {
    let (head, tags) = set.split_at_mut(HEAD);
    for word in [SIG, SIG + 1] {
        // Most sets of a large array hold little.
        let mut there = head[word] & ONES << 7;
        while there != 0 {
            let way = 8 * (word - SIG) + there.trailing_zeros() as usize / 8;
            there &= there - 1;
            if such(tags[way]) {
                set_sig(head, way, 0);
                head[LIVE] -= 1;
            }
        }
    }
}

impl Part for u64 {
    fn drop_non_global(set: &mut [u64]) {
        if set[LIVE] != 0 {
            drop_if(set, |tag| tag & GLOBAL == 0);
        }
    }

    fn digest(set: &[u64]) -> u64 {
        // The sum of the signatures, those of ways that are no such among them.
        let sum = |word: u64| (word & 0x00ff_00ff_00ff_00ff) + (word >> 8 & 0x00ff_00ff_00ff_00ff);
        (sum(set[SIG]) + sum(set[SIG + 1])).wrapping_mul(0x0001_0001_0001_0001) >> 48
    }

    fn same(ours: &[u64], theirs: &[u64]) -> bool {
        let mut twins = by_recency(theirs);
        let same = |way: usize| {
            let twin = twins.next().unwrap_or(way);
            without_sharers(ours[HEAD + way]) == without_sharers(theirs[HEAD + twin])
        };
        ours[LIVE] == theirs[LIVE] && by_recency(ours).all(same)
    }

    fn join(ours: &mut [u64], holders: u8, theirs: &[u64], others: u8) {
        for (way, twin) in by_recency(ours).zip(by_recency(theirs)) {
            ours[HEAD + way] = join_sharers(ours[HEAD + way], holders, theirs[HEAD + twin], others);
        }
    }
}

impl Assoc {
    /// An empty array of `entries` in sets of `ways`, for the sharers with a bit in `sharers`. `joins`: see
    /// [`Sets::new`].
    ///
    /// # Panics
    /// If `entries` is no multiple of `ways`, or is 0 (profiles are checked before), or there are more than
    /// [`WAYS`] ways.
    pub fn new(entries: usize, ways: usize, sharers: u8, joins: bool) -> Self {
        assert!(entries > 0 && entries % ways == 0, "{entries} entries in sets of {ways}");
        assert!(ways <= WAYS, "{ways} ways");
        let mut empty = blank(ways).to_vec();
        empty.resize(HEAD + ways, 0);
        Assoc { sets: Sets::new(entries / ways, empty, sharers, joins), sharers, ways }
    }

    /// Drops everything of the sharers `of`.
    pub fn flush_all(&mut self, of: u8) {
        self.sets.flush_all(of);
    }

    /// Drops everything of the sharers `of` that is not global.
    pub fn flush_non_global(&mut self, of: u8) {
        self.sets.flush_non_global(of);
    }

    /// Drops the entries of the sharers `of` for which `keep`, given the key, the attributes and those of
    /// them that hold it, is false.
    pub fn retain(&mut self, of: u8, mut keep: impl FnMut(u64, Attr, u8) -> bool) {
        self.sets.for_each(of, |set, holders| drop_if(set, |tag| !keep(key_of(tag), attr(tag), holders)));
    }

    /// Looks `key` up in the set selected by `index`, where all sharers hold the same in that set, and makes
    /// it the most recent. None where they do not.
    #[inline(always)]
    pub fn lookup_alike(&mut self, index: u64, key: u64) -> Option<Option<Attr>> {
        let set = self.sets.alike(index)?;
        let Some(way) = find(set, key) else { return Some(None) };
        promote(&mut set[ORDER], way);
        Some(Some(attr(set[HEAD + way])))
    }

    /// Looks `key` up for the sharers `of` in the set selected by `index`, and makes it the most recent.
    /// Calls `found` with what is found, and the sharers that hold it.
    #[inline(always)]
    pub fn lookup(&mut self, index: u64, key: u64, of: u8, mut found: impl FnMut(Attr, u8)) -> u8 {
        let number = self.sets.of(index);
        let use_it = |set: &mut [u64], way: usize, holders| {
            promote(&mut set[ORDER], way);
            found(attr(set[HEAD + way]), holders);
        };
        let held = self.sets.change(number, of, |set| find(set, key), use_it);
        self.sets.changed(number, |_| {});
        held
    }

    /// Is `key` in the set selected by `index`, for some sharer? Nothing becomes more recent.
    #[inline(always)]
    pub fn holds(&mut self, index: u64, key: u64) -> bool {
        if let Some(set) = self.sets.alike(index) {
            return find(set, key).is_some();
        }
        let number = self.sets.of(index);
        self.sets.any(number, |set| find(set, key).is_some())
    }

    /// Gives the sharers `of` with a bit in `writable` the right to write through their entries for `key`, if
    /// they are here. The recency of entries stays as it is. Returns the sharers that hold one.
    pub fn allow(&mut self, index: u64, key: u64, of: u8, writable: u8) -> u8 {
        let number = self.sets.of(index);
        let allow = |set: &mut [u64], way: usize, holders| {
            set[HEAD + way] = allow(set[HEAD + way], writable & holders);
        };
        self.sets.change(number, of, |set| find(set, key), allow)
    }

    /// Files `key`, which the sharers `of` do not hold, as the set's most recent, in an empty way or in place
    /// of the least recently used.
    #[inline(always)]
    pub fn insert_absent(&mut self, index: u64, key: u64, of: u8, attr: Attr) {
        let ways = self.ways;
        if of == self.sharers {
            if let Some(set) = self.sets.alike(index) {
                return insert(set, ways, key, attr);
            }
        }
        let number = self.sets.of(index);
        self.sets.change(number, of, |_| Some(()), |set, (), _| insert(set, ways, key, attr));
        self.sets.changed(number, |_| {});
    }

    /// Drops the entries of the sharers `of` for `key`.
    pub fn remove(&mut self, index: u64, key: u64, of: u8) {
        let number = self.sets.of(index);
        let drop = |set: &mut [u64], way, _| {
            set_sig(set, way, 0);
            set[LIVE] -= 1;
        };
        self.sets.change(number, of, |set| find(set, key), drop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The obvious reference: per set a list of keys, most recent first.
    #[derive(Clone)]
    struct Lists {
        sets: Vec<Vec<(u64, Attr)>>,
        ways: usize,
    }

    impl Lists {
        fn set(&mut self, key: u64) -> &mut Vec<(u64, Attr)> {
            let n = self.sets.len() as u64;
            &mut self.sets[(key % n) as usize]
        }
        fn lookup(&mut self, key: u64) -> Option<Attr> {
            let set = self.set(key);
            let at = set.iter().position(|e| e.0 == key)?;
            let e = set.remove(at);
            set.insert(0, e);
            Some(e.1)
        }
        fn insert(&mut self, key: u64, attr: Attr) {
            let ways = self.ways;
            let set = self.set(key);
            set.insert(0, (key, attr));
            set.truncate(ways);
        }
        fn retain(&mut self, keep: impl Fn(&(u64, Attr)) -> bool) {
            self.sets.iter_mut().for_each(|set| set.retain(&keep));
        }
    }

    proptest! {
        /// Three sharers, each of which sees some of the uses and flushes.
        #[test]
        fn behaves_for_each_sharer_as_lists_of_its_own_ordered_by_recency(
            geometry in prop_oneof![
                Just((64, 4)), Just((1536, 12)), Just((32, 4)), Just((16, 16)), Just((24, 8)), Just((1, 1)),
                Just((96, 6)),
            ],
            ops in proptest::collection::vec((0u8..40, 0u64..400, any::<bool>(), 1u8..8), 1..2000),
        ) {
            let (entries, ways) = geometry;
            let mut a = Assoc::new(entries, ways, 7, true);
            let mut lists = vec![Lists { sets: vec![Vec::new(); entries / ways], ways }; 3];
            for (op, key, global, some) in ops {
                // Most uses are of all three.
                let of = if op % 4 == 0 { some } else { 7 };
                let own = |lists: &mut Vec<Lists>, f: &mut dyn FnMut(usize, &mut Lists)| {
                    let sharers = lists.iter_mut().enumerate().filter(|(place, _)| of >> place & 1 != 0);
                    sharers.for_each(|(place, list)| f(place, list));
                };
                match op {
                    0 => {
                        a.flush_non_global(of);
                        own(&mut lists, &mut |_, list| list.retain(|e| e.1.global));
                    }
                    4 if key < 40 => {
                        a.flush_all(of);
                        own(&mut lists, &mut |_, list| list.retain(|_| false));
                    }
                    2 => {
                        a.remove(key, key, of);
                        own(&mut lists, &mut |_, list| list.retain(|e| e.0 != key));
                    }
                    1 | 8 if key < 100 => {
                        let keep = |k: u64| (k ^ key) & 7 != 0;
                        a.retain(of, |k, _, holders| holders & !of != 0 || keep(k));
                        own(&mut lists, &mut |_, list| list.retain(|e| keep(e.0)));
                    }
                    3 => {
                        let allowed = a.allow(key, key, of, some);
                        let mut expected = 0;
                        own(&mut lists, &mut |place, list| {
                            if let Some(e) = list.set(key).iter_mut().find(|e| e.0 == key) {
                                e.1.writable |= some & 1 << place;
                                expected |= 1 << place;
                            }
                        });
                        prop_assert_eq!(allowed, expected);
                    }
                    _ => {
                        let mut found = [None; 3];
                        let held = a.lookup(key, key, of, |attr, holders| {
                            let holds = |(place, _): &(usize, &mut Option<Attr>)| holders >> place & 1 != 0;
                            found.iter_mut().enumerate().filter(holds).for_each(|(_, f)| *f = Some(attr));
                        });
                        let attr = Attr { writable: key as u8 & 7, global, piece: 0 };
                        a.insert_absent(key, key, of & !held, attr);
                        let mut fails = None;
                        own(&mut lists, &mut |place, list| {
                            let own = |attr: Attr| Attr { writable: attr.writable & 1 << place, ..attr };
                            let expected = list.lookup(key);
                            if expected.map(own) != found[place].map(own) {
                                fails = Some((place, expected));
                            }
                            if expected.is_none() {
                                list.insert(key, attr);
                            }
                        });
                        prop_assert_eq!(fails, None, "found {:?}", found);
                    }
                }
            }
            let mut left = [const { Vec::new() }; 3];
            a.retain(7, |key, _, holders| {
                (0..3).filter(|place| holders >> place & 1 != 0).for_each(|place| left[place].push(key));
                true
            });
            for (left, list) in left.iter_mut().zip(&lists) {
                left.sort_unstable();
                let mut expected: Vec<u64> = list.sets.iter().flatten().map(|e| e.0).collect();
                expected.sort_unstable();
                prop_assert_eq!(&*left, &expected);
            }
        }
    }
}
