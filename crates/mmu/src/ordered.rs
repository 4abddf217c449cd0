// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Small sets in order of recency: the arrays of walk caches, which a walk looks up several times. A
//! key may be marked to survive [`Ordered::flush`].

use crate::linked::Linked;

/// The ways of a [`Row`]. Sets of more ways are [`Linked`].
const WAYS: usize = 4;
/// Marks a slot as filled.
const VALID: u64 = 1 << 63;

/// A set of up to four ways. An entry stays in its way.
#[derive(Debug, Clone, Copy)]
struct Row {
    /// 0 = empty way. Empty ways are the least recent.
    keys: [u64; WAYS],
    values: [u64; WAYS],
    /// The ways from the most to the least recent, two bits each. Those that the set lacks come last.
    order: u8,
}

const EMPTY: Row = Row { keys: [0; WAYS], values: [0; WAYS], order: 0b11_10_01_00 };

/// By an order and a way: the order after a use of that way.
const PROMOTED: [[u8; WAYS]; 256] = {
    let mut orders = [[0; WAYS]; 256];
    let mut i = 0;
    while i < 256 * WAYS {
        let (order, way) = (i / WAYS, i % WAYS);
        let (mut promoted, mut shift, mut place) = (way, 2, 0);
        while place < WAYS {
            let other = order >> (2 * place) & 3;
            if other != way {
                promoted |= other << shift;
                shift += 2;
            }
            place += 1;
        }
        orders[order][way] = promoted as u8;
        i += 1;
    }
    orders
};

impl Row {
    #[inline(always)]
    fn promote(&mut self, way: usize) {
        self.order = PROMOTED[usize::from(self.order)][way % WAYS];
    }

    /// The value of a key of this row, which becomes the most recent.
    #[inline(always)]
    fn lookup(&mut self, want: u64) -> Option<u64> {
        let way = self.keys.iter().position(|&key| key == want)?;
        self.promote(way);
        Some(self.values[way])
    }

    /// Files a key in place of the least recent of `ways`.
    #[inline(always)]
    fn insert_absent(&mut self, key: u64, value: u64, ways: usize) {
        let way = usize::from(self.order >> (2 * (ways - 1)) & 3);
        (self.keys[way], self.values[way]) = (key, value);
        self.promote(way);
    }

    fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        let ways = [0, 2, 4, 6].map(|shift| usize::from(self.order >> shift & 3));
        self.keys.iter_mut().filter(|key| **key != 0 && !keep(**key)).for_each(|key| *key = 0);
        let (kept, empty): (Vec<_>, Vec<_>) = ways.into_iter().partition(|&way| self.keys[way] != 0);
        self.order =
            empty.into_iter().rev().chain(kept.into_iter().rev()).fold(0, |o, way| o << 2 | way as u8);
    }
}

/// A set-associative array with true LRU.
#[derive(Debug, Clone)]
pub(crate) struct Ordered {
    /// The sets, if they have at most [`WAYS`] ways.
    rows: Box<[Row]>,
    /// The sets, if they have more.
    linked: Box<[Linked]>,
    sets: usize,
    ways: usize,
    /// `sets - 1`, or `usize::MAX` where their number is no power of two.
    mask: usize,
    /// Keys with any of these bits survive a flush.
    lasting: u64,
}

impl Ordered {
    /// An empty array; `ways` 0 means fully associative.
    pub fn new(entries: usize, ways: usize, lasting: u64) -> Self {
        let ways = if ways == 0 { entries } else { ways };
        assert!(entries > 0 && entries % ways == 0, "{entries} entries in sets of {ways}");
        let sets = entries / ways;
        let (rows, linked) = if ways <= WAYS { (sets, 0) } else { (0, sets) };
        Ordered {
            rows: vec![EMPTY; rows].into(),
            linked: (0..linked).map(|_| Linked::new(ways)).collect(),
            sets,
            ways,
            mask: if sets.is_power_of_two() { sets - 1 } else { usize::MAX },
            lasting,
        }
    }

    #[inline(always)]
    fn set(&self, index: u64) -> usize {
        if self.mask != usize::MAX { index as usize & self.mask } else { index as usize % self.sets }
    }

    /// Looks `key` up as [`Ordered::lookup`] does, and files it under `value` if the set does not hold it.
    #[inline(always)]
    pub fn lookup_or_insert(&mut self, index: u64, key: u64, value: u64) -> Option<u64> {
        let (set, want) = (self.set(index), key | VALID);
        match self.rows.get_mut(set) {
            Some(row) => {
                let found = row.lookup(want);
                if found.is_none() {
                    row.insert_absent(want, value, self.ways);
                }
                found
            }
            None => {
                let found = self.linked[set].lookup(want);
                if found.is_none() {
                    self.linked[set].insert_absent(want, value);
                }
                found
            }
        }
    }

    /// Is `key` here? Nothing becomes more recent. Sets of more than [`WAYS`] ways are not searched.
    #[inline(always)]
    pub fn peek(&self, index: u64, key: u64) -> bool {
        self.rows.get(self.set(index)).is_some_and(|row| row.keys.contains(&(key | VALID)))
    }

    /// Replaces the value of the key that was just looked up.
    #[inline]
    pub fn replace(&mut self, index: u64, value: u64) {
        let set = self.set(index);
        match self.rows.get_mut(set) {
            Some(row) => row.values[usize::from(row.order & 3)] = value,
            None => self.linked[set].replace(value),
        }
    }

    /// The value filed under `key`, which becomes the most recent of its set.
    #[inline(always)]
    pub fn lookup(&mut self, index: u64, key: u64) -> Option<u64> {
        let (set, want) = (self.set(index), key | VALID);
        match self.rows.get_mut(set) {
            Some(row) => row.lookup(want),
            None => self.linked[set].lookup(want),
        }
    }

    /// Files `key`, which the set does not hold, as its most recent.
    #[inline(always)]
    pub fn insert_absent(&mut self, index: u64, key: u64, value: u64) {
        let (set, want) = (self.set(index), key | VALID);
        match self.rows.get_mut(set) {
            Some(row) => row.insert_absent(want, value, self.ways),
            None => self.linked[set].insert_absent(want, value),
        }
    }

    /// Files `key`, which the set may hold.
    pub fn insert(&mut self, index: u64, key: u64, value: u64) {
        if self.lookup(index, key).is_none() {
            self.insert_absent(index, key, value);
        } else {
            self.replace(index, value);
        }
    }

    /// Is nothing filed?
    pub fn is_empty(&self) -> bool {
        self.rows.iter().all(|row| row.keys == [0; WAYS]) && self.linked.iter().all(Linked::is_empty)
    }

    /// Drops every key that has none of the lasting bits.
    pub fn flush(&mut self) {
        let lasting = self.lasting;
        self.retain(|k| k & lasting != 0);
    }

    /// Drops everything.
    pub fn flush_all(&mut self) {
        self.rows.fill(EMPTY);
        self.linked.iter_mut().for_each(|set| set.retain(|_| false));
    }

    fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        self.linked.iter_mut().for_each(|set| set.retain(&keep));
        self.rows.iter_mut().for_each(|row| row.retain(&keep));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_as_lists_ordered_by_recency(
            geometry in prop_oneof![Just((2, 0)), Just((4, 0)), Just((32, 4)), Just((24, 4)), Just((16, 0)),
                Just((18, 6)), Just((64, 4)), Just((5, 5)), Just((16, 8)), Just((24, 0)), Just((34, 17)), Just((17, 0)), Just((300, 0))],
            ops in proptest::collection::vec((0u8..30, 0u64..100), 1..2000),
        ) {
            let (entries, ways) = geometry;
            const LASTING: u64 = 1 << 5;
            let mut a = Ordered::new(entries, ways, LASTING);
            let ways = if ways == 0 { entries } else { ways };
            let mut sets: Vec<Vec<(u64, u64)>> = vec![Vec::new(); entries / ways];
            for (op, key) in ops {
                let n = sets.len() as u64;
                let set = &mut sets[(key % n) as usize];
                match op {
                    0 => { a.flush(); sets.iter_mut().for_each(|s| s.retain(|e| e.0 & LASTING != 0)); }
                    1 if key < 20 => { a.flush_all(); sets.iter_mut().for_each(Vec::clear); }
                    2 => {
                        a.insert(key, key, key + 1000);
                        set.retain(|e| e.0 != key);
                        set.insert(0, (key, key + 1000));
                        set.truncate(ways);
                    }
                    _ => {
                        let at = set.iter().position(|e| e.0 == key);
                        let mut expected = at.map(|i| set.remove(i));
                        if op % 2 == 0 {
                            prop_assert_eq!(a.lookup_or_insert(key, key, key * 3), expected.map(|e| e.1));
                        } else {
                            prop_assert_eq!(a.lookup(key, key), expected.map(|e| e.1));
                            if expected.is_none() {
                                a.insert_absent(key, key, key * 3);
                            }
                        }
                        if op == 4 {
                            a.replace(key, key + 7);
                            expected = Some((key, key + 7));
                        }
                        set.insert(0, expected.unwrap_or((key, key * 3)));
                        set.truncate(ways);
                    }
                }
            }
        }
    }
}
