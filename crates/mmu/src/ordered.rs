// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Small sets in order of recency: the arrays of walk caches, which a walk looks up several times. A
//! key may be marked to survive [`Ordered::flush`].

use crate::linked::Linked;

/// The ways of a [`FourWays`]. Sets of more ways are [`Linked`].
const WAYS: usize = 4;
/// Marks a slot as filled.
const VALID: u64 = 1 << 63;

/// A set of up to four ways. An entry stays in its way.
#[derive(Debug, Clone, Copy)]
struct FourWays {
    /// 0 = empty way. Empty ways are the least recent.
    keys: [u64; WAYS],
    values: [u64; WAYS],
    /// The ways from the most to the least recent, two bits each. Those that the set lacks come last.
    order: u8,
}

const EMPTY: FourWays = FourWays { keys: [0; WAYS], values: [0; WAYS], order: 0b11_10_01_00 };

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

impl FourWays {
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

    /// Files a key in place of the least recent way, whose place in the order is `last`.
    #[inline(always)]
    fn insert_absent(&mut self, key: u64, value: u64, last: u8) {
        let way = usize::from(self.order >> (last & 7) & 3);
        (self.keys[way], self.values[way]) = (key, value);
        self.promote(way);
    }

    #[inline(always)]
    fn lookup_or_insert(&mut self, want: u64, value: u64, last: u8) -> Option<u64> {
        let found = self.lookup(want);
        if found.is_none() {
            self.insert_absent(want, value, last);
        }
        found
    }

    fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        if self.keys.iter().all(|&key| key == 0 || keep(key)) {
            return;
        }
        let ways = [0, 2, 4, 6].map(|shift| usize::from(self.order >> shift & 3));
        self.keys.iter_mut().filter(|key| **key != 0 && !keep(**key)).for_each(|key| *key = 0);
        let (kept, empty): (Vec<_>, Vec<_>) = ways.into_iter().partition(|&way| self.keys[way] != 0);
        self.order =
            empty.into_iter().rev().chain(kept.into_iter().rev()).fold(0, |o, way| o << 2 | way as u8);
    }
}

/// Set-associative arrays with true LRU. One storage for all of them, so that a set is found with one check.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ordered {
    /// The sets of at most [`WAYS`] ways.
    rows: Vec<FourWays>,
    /// The sets of more.
    linked: Vec<Linked>,
}

/// One of the arrays.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Array {
    /// Its first row, and its number of sets less 1. The row is beyond all others if the array's sets are not
    /// [`FourWays`]s or their number is no power of two.
    first: u32,
    mask: u32,
    /// The place of the least recent way in [`FourWays::order`].
    last: u8,
    /// Its sets are [`Linked`].
    is_linked: bool,
    /// Its first set and their number.
    start: u32,
    sets: u32,
}

impl Array {
    /// An array that holds nothing, whatever is filed.
    pub const NONE: Array = Array { first: u32::MAX, mask: 0, last: 0, is_linked: false, start: 0, sets: 0 };

    #[inline(always)]
    fn row(&self, index: u64) -> usize {
        self.first as usize + (index as usize & self.mask as usize)
    }
}

/// A set of an [`Array`].
enum Set<'a> {
    Row(&'a mut FourWays),
    Linked(&'a mut Linked),
    None,
}

impl Ordered {
    /// Adds an empty array; `ways` 0 means fully associative.
    pub fn add(&mut self, entries: usize, ways: usize) -> Array {
        let ways = if ways == 0 { entries } else { ways };
        assert!(entries > 0 && entries % ways == 0, "{entries} entries in sets of {ways}");
        let (sets, is_linked) = (entries / ways, ways > WAYS);
        let start = if is_linked { self.linked.len() } else { self.rows.len() };
        if is_linked {
            self.linked.extend((0..sets).map(|_| Linked::new(ways)));
        } else {
            self.rows.resize(start + sets, EMPTY);
        }
        let quick = !is_linked && sets.is_power_of_two();
        let (start, sets) = (start as u32, sets as u32);
        Array {
            first: if quick { start } else { u32::MAX },
            mask: if quick { sets - 1 } else { 0 },
            last: 2 * (ways.min(WAYS) - 1) as u8,
            is_linked,
            start,
            sets,
        }
    }

    /// The set that `index` selects, of any array.
    fn set(&mut self, array: &Array, index: u64) -> Set<'_> {
        if array.sets == 0 {
            return Set::None;
        }
        let at = array.start as usize + (index % u64::from(array.sets)) as usize;
        if array.is_linked { Set::Linked(&mut self.linked[at]) } else { Set::Row(&mut self.rows[at]) }
    }

    /// Looks `key` up as [`Ordered::lookup`] does, and files it under `value` if the set does not hold it.
    #[inline(always)]
    pub fn lookup_or_insert(&mut self, array: &Array, index: u64, key: u64, value: u64) -> Option<u64> {
        match self.rows.get_mut(array.row(index)) {
            Some(row) => row.lookup_or_insert(key | VALID, value, array.last),
            None => self.lookup_or_insert_in_any(array, index, key | VALID, value),
        }
    }

    #[inline(never)]
    fn lookup_or_insert_in_any(&mut self, array: &Array, index: u64, want: u64, value: u64) -> Option<u64> {
        match self.set(array, index) {
            Set::Row(row) => row.lookup_or_insert(want, value, array.last),
            Set::Linked(set) => {
                let found = set.lookup(want);
                if found.is_none() {
                    set.insert_absent(want, value);
                }
                found
            }
            Set::None => None,
        }
    }

    /// Is `key` here? Nothing becomes more recent. May say no where sets have more than [`WAYS`] ways or
    /// their number is no power of two.
    #[inline(always)]
    pub fn peek(&self, array: &Array, index: u64, key: u64) -> bool {
        self.rows.get(array.row(index)).is_some_and(|row| row.keys.contains(&(key | VALID)))
    }

    /// Replaces the value of the key that was just looked up.
    #[inline]
    pub fn replace(&mut self, array: &Array, index: u64, value: u64) {
        match self.set(array, index) {
            Set::Row(row) => row.values[usize::from(row.order & 3)] = value,
            Set::Linked(set) => set.replace(value),
            Set::None => {}
        }
    }

    /// The value filed under `key`, which becomes the most recent of its set.
    #[inline(always)]
    pub fn lookup(&mut self, array: &Array, index: u64, key: u64) -> Option<u64> {
        match self.rows.get_mut(array.row(index)) {
            Some(row) => row.lookup(key | VALID),
            None => self.lookup_in_any(array, index, key | VALID),
        }
    }

    #[inline(never)]
    fn lookup_in_any(&mut self, array: &Array, index: u64, want: u64) -> Option<u64> {
        match self.set(array, index) {
            Set::Row(row) => row.lookup(want),
            Set::Linked(set) => set.lookup(want),
            Set::None => None,
        }
    }

    /// Files `key`, which the set does not hold, as its most recent.
    #[inline(always)]
    pub fn insert_absent(&mut self, array: &Array, index: u64, key: u64, value: u64) {
        match self.rows.get_mut(array.row(index)) {
            Some(row) => row.insert_absent(key | VALID, value, array.last),
            None => self.insert_absent_in_any(array, index, key | VALID, value),
        }
    }

    #[inline(never)]
    fn insert_absent_in_any(&mut self, array: &Array, index: u64, want: u64, value: u64) {
        match self.set(array, index) {
            Set::Row(row) => row.insert_absent(want, value, array.last),
            Set::Linked(set) => set.insert_absent(want, value),
            Set::None => {}
        }
    }

    /// Files `key`, which the set may hold.
    pub fn insert(&mut self, array: &Array, index: u64, key: u64, value: u64) {
        if self.lookup(array, index, key).is_none() {
            self.insert_absent(array, index, key, value);
        } else {
            self.replace(array, index, value);
        }
    }

    /// Is nothing filed?
    pub fn is_empty(&self) -> bool {
        self.rows.iter().all(|row| row.keys == [0; WAYS]) && self.linked.iter().all(Linked::is_empty)
    }

    /// Drops every key of all arrays that has none of the bits `lasting`.
    pub fn flush(&mut self, lasting: u64) {
        self.linked.iter_mut().for_each(|set| set.retain(|key| key & lasting != 0));
        self.rows.iter_mut().for_each(|row| row.retain(|key| key & lasting != 0));
    }

    /// Drops everything.
    pub fn flush_all(&mut self) {
        self.rows.fill(EMPTY);
        self.linked.iter_mut().for_each(|set| set.retain(|_| false));
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
            let mut a = Ordered::default();
            // Its neighbours stay as they are.
            let neighbours = [(4, 2), (8, 0), (6, 2)];
            let before = neighbours.map(|(entries, ways)| a.add(entries, ways));
            let array = a.add(entries, ways);
            let after = neighbours.map(|(entries, ways)| a.add(entries, ways));
            for other in before.iter().chain(&after) {
                a.insert(other, 7, 7 | LASTING, 1);
            }
            let ways = if ways == 0 { entries } else { ways };
            let mut sets: Vec<Vec<(u64, u64)>> = vec![Vec::new(); entries / ways];
            let ops_flushed = ops.iter().any(|&(op, key)| op == 1 && key < 20);
            for (op, key) in ops {
                let n = sets.len() as u64;
                let set = &mut sets[(key % n) as usize];
                match op {
                    0 => { a.flush(LASTING); sets.iter_mut().for_each(|s| s.retain(|e| e.0 & LASTING != 0)); }
                    1 if key < 20 => { a.flush_all(); sets.iter_mut().for_each(Vec::clear); }
                    2 => {
                        a.insert(&array, key, key, key + 1000);
                        set.retain(|e| e.0 != key);
                        set.insert(0, (key, key + 1000));
                        set.truncate(ways);
                    }
                    _ => {
                        let at = set.iter().position(|e| e.0 == key);
                        let mut expected = at.map(|i| set.remove(i));
                        if op % 2 == 0 {
                            prop_assert_eq!(a.lookup_or_insert(&array, key, key, key * 3), expected.map(|e| e.1));
                        } else {
                            prop_assert_eq!(a.lookup(&array, key, key), expected.map(|e| e.1));
                            if expected.is_none() {
                                a.insert_absent(&array, key, key, key * 3);
                            }
                        }
                        if op == 4 {
                            a.replace(&array, key, key + 7);
                            expected = Some((key, key + 7));
                        }
                        set.insert(0, expected.unwrap_or((key, key * 3)));
                        set.truncate(ways);
                    }
                }
            }
            for other in before.iter().chain(&after) {
                prop_assert!(ops_flushed || a.lookup(other, 7, 7 | LASTING) == Some(1));
            }
        }
    }
}
