// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A set-associative array with true LRU: the building block of TLBs and walk
//! caches. Any number of sets and ways, a fully associative array being one set.
//!
//! Three layouts by associativity, chosen for the cost of a miss, which is what a
//! walk-bound program pays: up to 4 ways a set is a list ordered by recency; up
//! to 16 it has one signature byte per way, compared all at once in a 128-bit
//! word, and its recency as a list of way numbers, four bits each, in one word;
//! wider sets have several such signature words and a time stamp per way.
//! Flushing all but global entries costs one counter: a set that was last used
//! before the flush drops its entries when it is next used.

/// Key bits that take part in choosing signatures; those above (address-space
/// numbers) do not, so that one look-up finds an entry filed under either of two.
pub const SIGNED_BITS: u32 = 48;

/// Flags kept with a key, in its top bits. Keys themselves have 61 bits.
const WRITABLE: u64 = 1 << 63;
const GLOBAL: u64 = 1 << 62;
const VALID: u64 = 1 << 61;
const KEY: u64 = VALID - 1;

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

/// A hit: what was found, and whether it was the set's most recent entry already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit {
    /// The entry's attributes.
    pub attr: Attr,
    /// The look-up changed nothing.
    pub was_recent: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Entry {
    /// Key and flags; 0 = empty.
    tag: u64,
    value: u64,
}

impl Entry {
    #[inline]
    fn new(key: u64, attr: Attr) -> Entry {
        let flags = if attr.writable { WRITABLE } else { 0 } | if attr.global { GLOBAL } else { 0 };
        Entry { tag: key | VALID | flags, value: attr.value }
    }

    #[inline]
    fn attr(self) -> Attr {
        Attr { writable: self.tag & WRITABLE != 0, global: self.tag & GLOBAL != 0, value: self.value }
    }

    #[inline]
    fn is(self, key: u64) -> bool {
        self.tag & (KEY | VALID) == key | VALID
    }
}

/// Up to 4 ways: most recent first.
#[derive(Debug, Clone, Copy, Default)]
struct Quad {
    entries: [Entry; 4],
    seen: u32,
}

/// Up to 16 ways: signatures and the recency list (most recent way in the lowest nibble).
#[derive(Debug, Clone, Copy)]
struct Signed {
    sigs: u128,
    order: u64,
    seen: u32,
}

#[derive(Debug, Clone)]
enum Layout {
    Quad(Vec<Quad>),
    Signed { sets: Vec<Signed>, entries: Vec<Entry> },
    Wide { sigs: Vec<u128>, stamps: Vec<u64>, seen: Vec<u32>, entries: Vec<Entry>, clock: u64 },
}

/// A set-associative array of keys with attributes.
#[derive(Debug, Clone)]
pub struct Assoc {
    sets: usize,
    /// `sets - 1` where that is a power of two, else 0 with `sets` > 1.
    mask: usize,
    ways: usize,
    /// Something was filed since the last whole flush.
    used: bool,
    flushes: u32,
    layout: Layout,
}

const LANES: usize = 16;
const ONES: u128 = u128::MAX / 255;
const NIBBLES: u64 = 0x1111_1111_1111_1111;
const FIRST_ORDER: u64 = 0xfedc_ba98_7654_3210;

/// Never 0, which is an empty way, nor 0x7f, which is a lane that does not exist.
#[inline]
fn signature(key: u64) -> u8 {
    let x = key & ((1 << SIGNED_BITS) - 1);
    (x ^ (x >> 7) ^ (x >> 14) ^ (x >> 28)) as u8 | 0x80
}

/// High bit set in every byte of `word` that equals `sig`, and possibly in bytes above one that does.
#[inline]
fn equal_bytes(word: u128, sig: u8) -> u128 {
    let x = word ^ (ONES * u128::from(sig));
    x.wrapping_sub(ONES) & !x & (ONES << 7)
}

/// Empty ways 0 and lanes beyond `ways` 0x7f.
fn blank(ways: usize) -> u128 {
    if ways >= LANES { 0 } else { (ONES * 0x7f) << (8 * ways as u32) }
}

/// Moves `way` to the front of a recency list; true if it was there already.
#[inline]
fn promote(order: &mut u64, way: usize) -> bool {
    let old = *order;
    if old & 0xf == way as u64 {
        return true;
    }
    let x = old ^ (NIBBLES * way as u64);
    let zero = x.wrapping_sub(NIBBLES) & !x & (NIBBLES << 3);
    let shift = zero.trailing_zeros() & !3;
    let below = (1u64 << shift) - 1;
    *order = (old & !(below << 4 | 0xf)) | ((old & below) << 4) | way as u64;
    false
}

impl Quad {
    #[inline]
    fn catch_up(&mut self, flushes: u32) {
        if self.seen != flushes {
            self.seen = flushes;
            self.retain(|e| e.tag & GLOBAL != 0);
        }
    }

    #[cold]
    fn retain(&mut self, mut keep: impl FnMut(&Entry) -> bool) {
        let mut kept = [Entry::default(); 4];
        let mut n = 0;
        for e in self.entries {
            if e.tag & VALID != 0 && keep(&e) {
                kept[n] = e;
                n += 1;
            }
        }
        self.entries = kept;
    }

    #[inline]
    fn lookup(&mut self, key: u64, other: u64) -> Option<Hit> {
        let e = self.entries;
        let is = |i: usize| e[i].is(key) || e[i].is(other);
        let (hit, rest) = if is(0) {
            return Some(Hit { attr: e[0].attr(), was_recent: true });
        } else if is(1) {
            (e[1], [e[0], e[2], e[3]])
        } else if is(2) {
            (e[2], [e[0], e[1], e[3]])
        } else if is(3) {
            (e[3], [e[0], e[1], e[2]])
        } else {
            return None;
        };
        self.entries = [hit, rest[0], rest[1], rest[2]];
        Some(Hit { attr: hit.attr(), was_recent: false })
    }

    #[inline]
    fn push(&mut self, entry: Entry, ways: usize) {
        let e = self.entries;
        self.entries = [entry, e[0], e[1], e[2]];
        if ways < 4 {
            self.entries[ways..].fill(Entry::default());
        }
    }
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
        let layout = match ways {
            0..=4 => Layout::Quad(vec![Quad::default(); sets]),
            5..=16 => Layout::Signed {
                sets: vec![Signed { sigs: blank(ways), order: FIRST_ORDER, seen: 0 }; sets],
                entries: vec![Entry::default(); entries],
            },
            _ => Layout::Wide {
                sigs: Vec::new(),
                stamps: vec![0; entries],
                seen: vec![0; sets],
                entries: vec![Entry::default(); entries],
                clock: 0,
            },
        };
        let mask = if sets.is_power_of_two() { sets - 1 } else { 0 };
        let mut a = Assoc { sets, mask, ways, used: true, flushes: 0, layout };
        a.flush_all();
        a
    }

    /// Number of sets.
    pub fn sets(&self) -> usize {
        self.sets
    }

    /// Nothing was filed since the last whole flush.
    #[inline]
    pub fn is_unused(&self) -> bool {
        !self.used
    }

    #[inline]
    fn set_of(&self, index: u64) -> usize {
        if self.mask != 0 || self.sets == 1 { index as usize & self.mask } else { (index % self.sets as u64) as usize }
    }

    /// Empties the array.
    pub fn flush_all(&mut self) {
        if !self.used {
            return;
        }
        self.used = false;
        let (ways, flushes) = (self.ways, self.flushes);
        match &mut self.layout {
            Layout::Quad(sets) => sets.fill(Quad { entries: Default::default(), seen: flushes }),
            Layout::Signed { sets, .. } => {
                sets.fill(Signed { sigs: blank(ways), order: FIRST_ORDER, seen: flushes });
            }
            Layout::Wide { sigs, seen, .. } => {
                let words = ways.div_ceil(LANES);
                *sigs = (0..seen.len() * words).map(|w| blank(ways - (w % words) * LANES)).collect();
                seen.fill(flushes);
            }
        }
    }

    /// Drops every entry that is not global.
    pub fn flush_non_global(&mut self) {
        self.flushes = self.flushes.wrapping_add(1);
    }

    /// Drops the entries for which `keep`, given key and attributes, is false.
    pub fn retain(&mut self, mut keep: impl FnMut(u64, Attr) -> bool) {
        for set in 0..self.sets {
            self.catch_up(set);
            self.retain_in(set, |e| keep(e.tag & KEY, e.attr()));
        }
    }

    fn retain_in(&mut self, set: usize, mut keep: impl FnMut(&Entry) -> bool) {
        let ways = self.ways;
        match &mut self.layout {
            Layout::Quad(sets) => sets[set].retain(keep),
            Layout::Signed { sets, entries } => {
                for way in 0..ways {
                    if (sets[set].sigs >> (8 * way)) & 0x80 != 0 && !keep(&entries[set * ways + way]) {
                        sets[set].sigs &= !(0xff << (8 * way));
                    }
                }
            }
            Layout::Wide { sigs, entries, .. } => {
                let words = ways.div_ceil(LANES);
                for way in 0..ways {
                    let (word, shift) = (set * words + way / LANES, 8 * (way % LANES));
                    if (sigs[word] >> shift) & 0x80 != 0 && !keep(&entries[set * ways + way]) {
                        sigs[word] &= !(0xff << shift);
                    }
                }
            }
        }
    }

    #[inline]
    fn catch_up(&mut self, set: usize) {
        let seen = match &mut self.layout {
            Layout::Quad(sets) => return sets[set].catch_up(self.flushes),
            Layout::Signed { sets, .. } => &mut sets[set].seen,
            Layout::Wide { seen, .. } => &mut seen[set],
        };
        if *seen != self.flushes {
            *seen = self.flushes;
            self.retain_in(set, |e| e.tag & GLOBAL != 0);
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
        if let Layout::Quad(sets) = &mut self.layout {
            let set = &mut sets[set];
            set.catch_up(self.flushes);
            return set.lookup(key, other);
        }
        self.catch_up(set);
        let way = self.find(set, key, other)?;
        let (entry, was_recent) = match &mut self.layout {
            Layout::Signed { sets, entries } => {
                (entries[set * self.ways + way], promote(&mut sets[set].order, way))
            }
            Layout::Wide { stamps, entries, clock, .. } => {
                let slot = set * self.ways + way;
                // With one set the clock is that of its last use; with several it may be another's.
                let recent = self.sets == 1 && stamps[slot] == *clock;
                if !recent {
                    *clock += 1;
                    stamps[slot] = *clock;
                }
                (entries[slot], recent)
            }
            Layout::Quad(_) => return None,
        };
        Some(Hit { attr: entry.attr(), was_recent })
    }

    #[inline]
    fn find(&self, set: usize, key: u64, other: u64) -> Option<usize> {
        let sig = signature(key);
        let (sigs, entries): (&[u128], &[Entry]) = match &self.layout {
            Layout::Signed { sets, entries } => (std::slice::from_ref(&sets[set].sigs), entries),
            Layout::Wide { sigs, entries, .. } => {
                let words = self.ways.div_ceil(LANES);
                (&sigs[set * words..(set + 1) * words], entries)
            }
            Layout::Quad(_) => return None,
        };
        for (w, &word) in sigs.iter().enumerate() {
            let mut m = equal_bytes(word, sig);
            while m != 0 {
                let lane = (m.trailing_zeros() / 8) as usize;
                m &= m - 1;
                // The key decides: a byte may agree by chance, or by the borrow in
                // `equal_bytes`, which also reports bytes that are empty or do not exist.
                if (word >> (8 * lane)) as u8 == sig {
                    let way = w * LANES + lane;
                    let e = entries[set * self.ways + way];
                    if e.is(key) || e.is(other) {
                        return Some(way);
                    }
                }
            }
        }
        None
    }

    /// Files `key`, which the set does not hold, as its most recent, in an empty way or
    /// in place of the least recently used.
    #[inline]
    pub fn insert_absent(&mut self, index: u64, key: u64, attr: Attr) {
        self.used = true;
        let set = self.set_of(index);
        let ways = self.ways;
        if let Layout::Quad(sets) = &mut self.layout {
            let set = &mut sets[set];
            set.catch_up(self.flushes);
            return set.push(Entry::new(key, attr), ways);
        }
        self.catch_up(set);
        match &mut self.layout {
            Layout::Signed { sets, entries } => {
                let s = &mut sets[set];
                let empty = equal_bytes(s.sigs, 0);
                let way = if empty != 0 {
                    (empty.trailing_zeros() / 8) as usize
                } else {
                    (s.order >> (4 * (ways - 1))) as usize & 0xf
                };
                let shift = 8 * way as u32;
                s.sigs = (s.sigs & !(0xff << shift)) | u128::from(signature(key)) << shift;
                entries[set * ways + way] = Entry::new(key, attr);
                promote(&mut s.order, way);
            }
            Layout::Wide { sigs, stamps, entries, clock, .. } => {
                let words = ways.div_ceil(LANES);
                let sigs = &mut sigs[set * words..(set + 1) * words];
                let empty = sigs.iter().enumerate().find_map(|(w, &word)| {
                    let m = equal_bytes(word, 0);
                    (m != 0).then(|| w * LANES + (m.trailing_zeros() / 8) as usize)
                });
                let stamps = &mut stamps[set * ways..(set + 1) * ways];
                let way = empty.unwrap_or_else(|| (0..ways).min_by_key(|&w| stamps[w]).unwrap_or(0));
                let shift = 8 * (way % LANES) as u32;
                let word = &mut sigs[way / LANES];
                *word = (*word & !(0xff << shift)) | u128::from(signature(key)) << shift;
                entries[set * ways + way] = Entry::new(key, attr);
                *clock += 1;
                stamps[way] = *clock;
            }
            Layout::Quad(_) => {}
        }
    }

    /// Files `key` as the most recent of its set, in place of an entry of the same key if there is one.
    #[inline]
    pub fn insert(&mut self, index: u64, key: u64, attr: Attr) {
        self.remove(index, key);
        self.insert_absent(index, key, attr);
    }

    /// Drops `key` if it is there.
    pub fn remove(&mut self, index: u64, key: u64) {
        if !self.used {
            return;
        }
        let set = self.set_of(index);
        self.catch_up(set);
        if let Layout::Quad(sets) = &mut self.layout {
            if sets[set].entries.iter().any(|e| e.is(key)) {
                sets[set].retain(|e| !e.is(key));
            }
            return;
        }
        if let Some(way) = self.find(set, key, key) {
            let clear = !(0xff << (8 * (way % LANES)));
            match &mut self.layout {
                Layout::Signed { sets, .. } => sets[set].sigs &= clear,
                Layout::Wide { sigs, .. } => sigs[set * self.ways.div_ceil(LANES) + way / LANES] &= clear,
                Layout::Quad(_) => {}
            }
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
                        let hit = a.lookup(key, key).map(|h| h.attr);
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
