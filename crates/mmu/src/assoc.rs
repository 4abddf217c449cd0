// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A set-associative array with true LRU: the building block of TLBs and walk
//! caches. Any number of sets and ways, a fully associative array being one set.
//!
//! A set keeps one signature byte per way, 16 to a 128-bit word, so that a look-up
//! compares all ways at once and touches a key only where the byte agrees. Up
//! to 16 ways keep their recency as a list of way numbers, four bits each, in
//! one word (most recent lowest); wider sets keep a time stamp per way.
//! Flushing all but global entries costs one counter: a set that was last used
//! before the flush drops its entries when it is next used.

const LANES: usize = 16;
const ONES: u128 = u128::MAX / 255;
const HIGH: u128 = ONES << 7;

/// What is kept with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attr {
    /// Writes may use the entry as it is (writable and dirty).
    pub writable: bool,
    /// Survives [`Assoc::flush_non_global`].
    pub global: bool,
    /// Free for the user (a walk cache keeps the table's address here).
    pub value: u64,
}

/// A hit: where the entry is, and whether it was the set's most recent one already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit {
    slot: usize,
    /// The entry was the most recently used of its set, so the look-up changed nothing.
    pub was_recent: bool,
}

/// A set-associative array of keys with attributes.
#[derive(Debug, Clone)]
pub struct Assoc {
    sets: usize,
    ways: usize,
    /// 128-bit words of signatures per set.
    words: usize,
    /// Signature bytes; 0 = empty way, lanes beyond `ways` hold 0xff.
    sigs: Vec<u128>,
    /// Up to 16 ways: the recency list per set.
    order: Vec<u64>,
    /// More than 16 ways: a stamp per way.
    stamps: Vec<u64>,
    clock: u64,
    keys: Vec<u64>,
    attrs: Vec<Attr>,
    /// Non-global flushes so far, and how many each set has seen.
    flushes: u32,
    seen: Vec<u32>,
}

/// Key bits that take part in the signature; those above (address-space numbers)
/// do not, so that one look-up finds an entry filed under either of two of them.
pub const SIGNED_BITS: u32 = 48;

#[inline]
fn signature(key: u64) -> u8 {
    // 1..=254: 0 is an empty way, 0xff a lane that does not exist.
    let h = ((key & ((1 << SIGNED_BITS) - 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    h.clamp(1, 254)
}

/// High bit set in every byte of `word` that equals `sig`, and possibly in bytes above one that does.
#[inline]
fn equal_bytes(word: u128, sig: u8) -> u128 {
    let x = word ^ (ONES * u128::from(sig));
    x.wrapping_sub(ONES) & !x & HIGH
}

impl Assoc {
    /// An empty array of `entries` in sets of `ways`; `ways` 0 means fully associative.
    ///
    /// # Panics
    /// If `entries` is no multiple of `ways`, or one of them is 0 (profiles are checked before).
    pub fn new(entries: usize, ways: usize) -> Self {
        let ways = if ways == 0 { entries } else { ways };
        assert!(entries > 0 && entries % ways == 0, "{entries} entries in sets of {ways}");
        let sets = entries / ways;
        let words = ways.div_ceil(LANES);
        let mut a = Assoc {
            sets,
            ways,
            words,
            sigs: vec![0; sets * words],
            order: if ways <= 16 { vec![0; sets] } else { Vec::new() },
            stamps: if ways > 16 { vec![0; entries] } else { Vec::new() },
            clock: 0,
            keys: vec![0; entries],
            attrs: vec![Attr::default(); entries],
            flushes: 0,
            seen: vec![0; sets],
        };
        a.flush_all();
        a
    }

    /// Number of sets.
    pub fn sets(&self) -> usize {
        self.sets
    }

    #[inline]
    fn set_of(&self, index: u64) -> usize {
        if self.sets.is_power_of_two() {
            (index as usize) & (self.sets - 1)
        } else {
            (index % self.sets as u64) as usize
        }
    }

    /// Empties the array.
    pub fn flush_all(&mut self) {
        for set in 0..self.sets {
            for w in 0..self.words {
                let used = self.ways - (w * LANES).min(self.ways);
                self.sigs[set * self.words + w] =
                    if used >= LANES { 0 } else { u128::MAX << (8 * used as u32) };
            }
        }
        for o in &mut self.order {
            *o = 0xfedc_ba98_7654_3210;
        }
        self.seen.fill(self.flushes);
    }

    /// Drops every entry that is not global.
    pub fn flush_non_global(&mut self) {
        self.flushes = self.flushes.wrapping_add(1);
    }

    #[inline]
    fn catch_up(&mut self, set: usize) {
        if self.seen[set] != self.flushes {
            self.seen[set] = self.flushes;
            self.retain_in(set, |_, a| a.global);
        }
    }

    #[cold]
    fn retain_in(&mut self, set: usize, mut keep: impl FnMut(u64, &Attr) -> bool) {
        for way in 0..self.ways {
            let word = set * self.words + way / LANES;
            let shift = 8 * (way % LANES) as u32;
            let slot = set * self.ways + way;
            if (self.sigs[word] >> shift) & 0xff != 0 && !keep(self.keys[slot], &self.attrs[slot]) {
                self.sigs[word] &= !(0xff << shift);
            }
        }
    }

    /// Drops the entries for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(u64, &Attr) -> bool) {
        for set in 0..self.sets {
            self.catch_up(set);
            self.retain_in(set, &mut keep);
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

    #[inline]
    fn find(&self, set: usize, key: u64, other: u64) -> Option<usize> {
        let sig = signature(key);
        for w in 0..self.words {
            let mut m = equal_bytes(self.sigs[set * self.words + w], sig);
            while m != 0 {
                let way = w * LANES + (m.trailing_zeros() / 8) as usize;
                m &= m - 1;
                // The key decides: a byte may agree by chance, or by the borrow in `equal_bytes`.
                let slot = set * self.ways + way;
                if way < self.ways
                    && (self.keys[slot] == key || self.keys[slot] == other)
                    && (self.sigs[set * self.words + w] >> (8 * (way % LANES))) as u8 == sig
                {
                    return Some(way);
                }
            }
        }
        None
    }

    #[inline]
    fn promote(&mut self, set: usize, way: usize) -> bool {
        if self.ways <= 16 {
            let order = self.order[set];
            if order & 0xf == way as u64 {
                return true;
            }
            // Position of `way` in the list: the nibble that becomes 0.
            let x = order ^ (0x1111_1111_1111_1111 * way as u64);
            let zero = x.wrapping_sub(0x1111_1111_1111_1111) & !x & 0x8888_8888_8888_8888;
            let shift = zero.trailing_zeros() & !3;
            let below = (1u64 << shift) - 1;
            let through = below << 4 | 0xf;
            self.order[set] = (order & !through) | ((order & below) << 4) | way as u64;
            false
        } else {
            let recent = self.clock != 0 && self.stamps[set * self.ways + way] == self.clock;
            if !(recent && self.sets == 1) {
                self.clock += 1;
                self.stamps[set * self.ways + way] = self.clock;
            }
            recent && self.sets == 1
        }
    }

    /// Looks `key` up in the set selected by `index` and makes it the most recent.
    #[inline]
    pub fn lookup(&mut self, index: u64, key: u64) -> Option<Hit> {
        self.lookup_either(index, key, key)
    }

    /// As [`Assoc::lookup`], for an entry filed under either of two keys that agree
    /// in their low [`SIGNED_BITS`].
    #[inline]
    pub fn lookup_either(&mut self, index: u64, key: u64, other: u64) -> Option<Hit> {
        let set = self.set_of(index);
        self.catch_up(set);
        let way = self.find(set, key, other)?;
        let was_recent = self.promote(set, way);
        Some(Hit { slot: set * self.ways + way, was_recent })
    }

    /// The attributes of an entry just found.
    #[inline]
    pub fn attr(&self, hit: Hit) -> Attr {
        self.attrs[hit.slot]
    }

    /// Files `key` as the most recent of its set; replaces an entry of the same key,
    /// else an empty way, else the least recently used.
    #[inline]
    pub fn insert(&mut self, index: u64, key: u64, attr: Attr) {
        let set = self.set_of(index);
        self.catch_up(set);
        let way = match self.find(set, key, key) {
            Some(way) => way,
            None => self.victim(set),
        };
        let word = set * self.words + way / LANES;
        let shift = 8 * (way % LANES) as u32;
        self.sigs[word] = (self.sigs[word] & !(0xff << shift)) | (u128::from(signature(key)) << shift);
        let slot = set * self.ways + way;
        self.keys[slot] = key;
        self.attrs[slot] = attr;
        self.promote(set, way);
    }

    #[inline]
    fn victim(&self, set: usize) -> usize {
        for w in 0..self.words {
            let empty = equal_bytes(self.sigs[set * self.words + w], 0);
            if empty != 0 {
                return w * LANES + (empty.trailing_zeros() / 8) as usize;
            }
        }
        if self.ways <= 16 {
            (self.order[set] >> (4 * (self.ways - 1))) as usize & 0xf
        } else {
            let stamps = &self.stamps[set * self.ways..(set + 1) * self.ways];
            (0..self.ways).min_by_key(|&w| stamps[w]).unwrap_or(0)
        }
    }

    /// Drops `key` if it is there.
    pub fn remove(&mut self, index: u64, key: u64) {
        let set = self.set_of(index);
        self.catch_up(set);
        if let Some(way) = self.find(set, key, key) {
            self.sigs[set * self.words + way / LANES] &= !(0xff << (8 * (way % LANES)));
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
                        let hit = a.lookup(key, key).map(|h| a.attr(h));
                        prop_assert_eq!(hit, r.lookup(key));
                        if hit.is_none() {
                            let attr = Attr { writable: !global, global, value: key * 3 };
                            a.insert(key, key, attr);
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
