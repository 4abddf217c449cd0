// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A set-associative array with true LRU: the building block of TLBs and walk caches. A fully
//! associative array is one set.
//!
//! A set of up to 16 ways has one signature byte per way. Eight signatures are compared at a time in
//! a 64-bit word, and a key is read only where its signature agrees. Recency is a list of way
//! numbers, four bits each, in one word. Wider sets are in [`crate::wide`]. Flushing all entries but
//! the global ones increments one counter: a set last used before the flush drops its entries at its
//! next use.

use crate::tag::{
    Attr, GLOBAL, PAGE, allow, attr, join_sharers, keep_sharers, key_of, matches, tag, without_sharers,
};
use crate::wide::Wide;

/// Words of a set's row before its tags: signatures of ways 0-7 and 8-15 (0 = empty way,
/// 0x7f = no such way), the recency list (most recent in the lowest nibble), and
/// how many non-global flushes the set has seen with the number of its entries.
const SIG: usize = 0;
const ORDER: usize = 2;
const STATE: usize = 3;
const HEAD: usize = 4;
/// One entry in [`STATE`], which holds the flushes in its low 32 bits.
const ONE_LIVE: u64 = 1 << 32;

/// A set-associative array of keys with attributes.
#[derive(Debug, Clone)]
pub struct Assoc {
    /// A row per set: [`HEAD`] words and a tag per way. Of wide sets, nothing.
    rows: Box<[u64]>,
    stride: usize,
    sets: usize,
    ways: usize,
    /// `sets - 1`; where their number is no power of two, the index is taken modulo.
    mask: usize,
    flushes: u32,
    /// Something was filed since the last whole flush.
    used: bool,
    wide: Option<Box<Wide>>,
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
fn set_sig(head: &mut [u64; HEAD], way: usize, sig: u64) {
    let shift = 8 * (way & 7) as u32;
    let word = &mut head[SIG + (way >> 3 & 1)];
    *word = (*word & !(0xff << shift)) | sig << shift;
}

#[inline(always)]
fn find(head: &[u64; HEAD], tags: &[u64], key: u64) -> Option<usize> {
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
fn by_recency(head: &[u64; HEAD]) -> impl Iterator<Item = usize> + use<> {
    let (sigs, order) = ([head[SIG], head[SIG + 1]], head[ORDER]);
    let ways = (0..16).map(move |place| (order >> (4 * place)) as usize & 0xf);
    ways.filter(move |way| sigs[way >> 3] >> (8 * (way & 7)) & 0x80 != 0)
}

impl Assoc {
    /// An empty array of `entries` in sets of `ways`; `ways` 0 means fully associative.
    ///
    /// # Panics
    /// If `entries` is no multiple of `ways`, or is 0 (profiles are checked before).
    pub fn new(entries: usize, ways: usize) -> Self {
        let ways = if ways == 0 { entries } else { ways };
        assert!(entries > 0 && entries % ways == 0, "{entries} entries in sets of {ways}");
        let sets = entries / ways;
        let narrow = ways <= 16;
        let stride = if narrow { HEAD + ways } else { HEAD };
        let mut a = Assoc {
            rows: vec![0; if narrow { sets * stride } else { 0 }].into(),
            stride,
            sets,
            ways,
            mask: if sets.is_power_of_two() { sets - 1 } else { usize::MAX },
            flushes: 0,
            used: true,
            wide: (!narrow).then(|| Box::new(Wide::new(sets, ways))),
        };
        a.flush_all();
        a
    }

    #[inline(always)]
    fn set_of(&self, index: u64) -> usize {
        if self.mask != usize::MAX { index as usize & self.mask } else { (index % self.sets as u64) as usize }
    }

    /// The head and the tags of a set, after the flushes it has not seen.
    #[inline(always)]
    fn row(&mut self, set: usize) -> (&mut [u64; HEAD], &mut [u64]) {
        if self.rows[set * self.stride + STATE] as u32 != self.flushes {
            self.drop_non_global(set);
        }
        let row = &mut self.rows[set * self.stride..][..self.stride];
        row.split_first_chunk_mut::<HEAD>().expect("a row starts with its head")
    }

    /// Empties the array.
    pub fn flush_all(&mut self) {
        if !self.used {
            return;
        }
        self.used = false;
        let mut fresh = blank(self.ways.min(16));
        fresh[STATE] = u64::from(self.flushes);
        for row in self.rows.chunks_exact_mut(self.stride) {
            row[..HEAD].copy_from_slice(&fresh);
        }
        if let Some(w) = &mut self.wide {
            w.retain(|_| false);
        }
    }

    /// Drops every entry that is not global.
    #[inline]
    pub fn flush_non_global(&mut self) {
        self.flushes = self.flushes.wrapping_add(1);
        if let Some(w) = &mut self.wide {
            w.retain(|tag| tag & GLOBAL != 0);
        }
    }

    /// Drops the entries for which `keep`, given key and attributes, is false.
    pub fn retain(&mut self, mut keep: impl FnMut(u64, Attr) -> bool) {
        if let Some(w) = &mut self.wide {
            return w.retain(|tag| keep(key_of(tag), attr(tag)));
        }
        for set in 0..self.sets {
            self.row(set);
            self.retain_in(set, |tag| keep(key_of(tag), attr(tag)));
        }
    }

    fn retain_in(&mut self, set: usize, mut keep: impl FnMut(u64) -> bool) {
        let row = &mut self.rows[set * self.stride..][..self.stride];
        let (head, tags) = row.split_first_chunk_mut::<HEAD>().expect("a row starts with its head");
        for (way, &tag) in tags.iter().enumerate() {
            let there = head[SIG + (way >> 3)] >> (8 * (way & 7)) & 0x80 != 0;
            if there && !keep(tag) {
                set_sig(head, way, 0);
                head[STATE] -= ONE_LIVE;
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn drop_non_global(&mut self, set: usize) {
        let state = &mut self.rows[set * self.stride + STATE];
        *state = *state >> 32 << 32 | u64::from(self.flushes);
        if *state >= ONE_LIVE {
            self.retain_in(set, |tag| tag & GLOBAL != 0);
        }
    }

    /// Removes all sharers but those at `places` from every entry. Those get the places from 0 on.
    pub fn keep_sharers(&mut self, places: u8) {
        for row in self.rows.chunks_exact_mut(self.stride) {
            row[HEAD..].iter_mut().for_each(|tag| *tag = keep_sharers(*tag, places));
        }
        if let Some(w) = &mut self.wide {
            w.tags_mut().for_each(|tag| *tag = keep_sharers(*tag, places));
        }
    }

    /// Does `other`, of the same geometry, hold the same entries in the same order of recency? Where in
    /// a set they are, and who may write through them, does not matter.
    pub fn holds_same(&mut self, other: &mut Assoc) -> bool {
        if let (Some(ours), Some(theirs)) = (&self.wide, &other.wide) {
            return ours.holds_same(theirs);
        }
        self.used == other.used
            && (0..self.sets).all(|set| {
                let (ours, theirs) = (self.row(set), other.row(set));
                let tags = by_recency(theirs.0).map(|way| without_sharers(theirs.1[way]));
                by_recency(ours.0).map(|way| without_sharers(ours.1[way])).eq(tags)
            })
    }

    /// Adds the sharers of `other`, which holds the same, after the first `places` ones.
    pub fn join(&mut self, other: &mut Assoc, places: usize) {
        if let (Some(ours), Some(theirs)) = (&mut self.wide, &other.wide) {
            return ours.join(theirs, places);
        }
        for set in 0..self.sets {
            let (head, tags) = self.row(set);
            let (their_head, their_tags) = other.row(set);
            for (way, twin) in by_recency(head).zip(by_recency(their_head)) {
                tags[way] = join_sharers(tags[way], their_tags[twin], places);
            }
        }
    }

    /// Every entry's key, in no particular order.
    pub fn keys(&mut self) -> Vec<u64> {
        let mut keys = Vec::new();
        self.retain(|k, _| {
            keys.push(k);
            true
        });
        keys
    }

    /// Looks `key` up in the set selected by `index` and makes it the most recent: its attributes.
    #[inline(always)]
    pub fn lookup(&mut self, index: u64, key: u64) -> Option<Attr> {
        let set = self.set_of(index);
        if self.wide.is_some() {
            return self.lookup_wide(set, key);
        }
        let (head, tags) = self.row(set);
        let way = find(head, tags, key)?;
        promote(&mut head[ORDER], way);
        Some(attr(tags[way]))
    }

    #[cold]
    #[inline(never)]
    fn lookup_wide(&mut self, set: usize, key: u64) -> Option<Attr> {
        let wide = self.wide.as_mut()?;
        wide.lookup(set, key).map(|slot| attr(wide.at(slot)))
    }

    /// Is `key` in the set selected by `index`? Nothing becomes more recent. Says yes of sets that are [`Wide`].
    #[inline(always)]
    pub fn holds(&mut self, index: u64, key: u64) -> bool {
        if self.wide.is_some() {
            return true;
        }
        let set = self.set_of(index);
        let (head, tags) = self.row(set);
        find(head, tags, key).is_some()
    }

    /// Gives further configurations the right to write through the entry for `key`, if it
    /// is there; its recency stays as it is.
    pub fn allow(&mut self, index: u64, key: u64, writable: u8) -> bool {
        let set = self.set_of(index);
        if let Some(w) = &mut self.wide {
            return w.allow(set, key, writable);
        }
        let (head, tags) = self.row(set);
        match find(head, tags, key) {
            Some(way) => {
                tags[way] = allow(tags[way], writable);
                true
            }
            None => false,
        }
    }

    /// Files `key`, which the set does not hold, as its most recent, in an empty way or
    /// in place of the least recently used.
    #[inline(always)]
    pub fn insert_absent(&mut self, index: u64, key: u64, attr: Attr) {
        self.used = true;
        let set = self.set_of(index);
        if let Some(w) = &mut self.wide {
            return w.insert_absent(set, tag(key, attr));
        }
        let ways = self.ways;
        let (head, tags) = self.row(set);
        let way = if head[STATE] >> 32 == ways as u64 {
            (head[ORDER] >> ((4 * (ways - 1)) & 63)) as usize & 0xf
        } else {
            head[STATE] += ONE_LIVE;
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

    /// Drops `key` if it is there.
    pub fn remove(&mut self, index: u64, key: u64) {
        if !self.used {
            return;
        }
        let set = self.set_of(index);
        if let Some(w) = &mut self.wide {
            return w.retain(|tag| !matches(tag, key));
        }
        let (head, tags) = self.row(set);
        if let Some(way) = find(head, tags, key) {
            set_sig(head, way, 0);
            head[STATE] -= ONE_LIVE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The obvious reference: per set a list of keys, most recent first.
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
            set.retain(|e| e.0 != key);
            set.insert(0, (key, attr));
            set.truncate(ways);
        }
    }

    proptest! {
        #[test]
        fn behaves_as_lists_ordered_by_recency(
            geometry in prop_oneof![
                Just((64, 4)), Just((1536, 12)), Just((32, 4)), Just((48, 0)), Just((16, 16)),
                Just((72, 0)), Just((24, 8)), Just((1, 1)), Just((34, 17)), Just((96, 6)),
            ],
            ops in proptest::collection::vec((0u8..20, 0u64..400, any::<bool>()), 1..2000),
        ) {
            let (entries, ways) = geometry;
            let mut a = Assoc::new(entries, ways);
            let ways = if ways == 0 { entries } else { ways };
            let mut r = Lists { sets: vec![Vec::new(); entries / ways], ways };
            for (op, key, global) in ops {
                match op {
                    0 => { a.flush_non_global(); r.sets.iter_mut().for_each(|s| s.retain(|e| e.1.global)); }
                    1 if key < 20 => { a.flush_all(); r.sets.iter_mut().for_each(Vec::clear); }
                    2 => { a.remove(key, key); r.set(key).retain(|e| e.0 != key); }
                    _ => {
                        let hit = a.lookup(key, key);
                        prop_assert_eq!(hit, r.lookup(key));
                        if hit.is_none() {
                            let attr = Attr { writable: key as u8, global, piece: 0 };
                            a.insert_absent(key, key, attr);
                            r.insert(key, attr);
                        }
                    }
                }
            }
            let mut left = a.keys();
            left.sort_unstable();
            let mut expected: Vec<u64> = r.sets.iter().flatten().map(|e| e.0).collect();
            expected.sort_unstable();
            prop_assert_eq!(left, expected);
        }
    }
}
