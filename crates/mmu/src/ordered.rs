// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Small sets in order of recency: the arrays of walk caches, which a walk looks up several times. A
//! key may be marked to survive [`Ordered::flush`].

use crate::linked::Linked;

const WAYS: usize = 4;
/// Sets of more rows than that are [`Linked`] where their ways can be numbered.
const MOST_ROWS: usize = 4;
/// Marks a slot as filled.
const VALID: u64 = 1 << 63;

#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Row {
    /// Most recent first.
    keys: [u64; WAYS],
    values: [u64; WAYS],
}

impl Row {
    /// The value of a key of this row, which goes in front.
    #[inline(always)]
    fn promote(&mut self, want: u64) -> Option<u64> {
        let Row { keys: k, values: v } = *self;
        if k[0] == want {
            return Some(v[0]);
        }
        if k[1] == want {
            *self = Row { keys: [k[1], k[0], k[2], k[3]], values: [v[1], v[0], v[2], v[3]] };
            return Some(v[1]);
        }
        if k[2] == want {
            *self = Row { keys: [k[2], k[0], k[1], k[3]], values: [v[2], v[0], v[1], v[3]] };
            return Some(v[2]);
        }
        if k[3] == want {
            *self = Row { keys: [k[3], k[0], k[1], k[2]], values: [v[3], v[0], v[1], v[2]] };
            return Some(v[3]);
        }
        None
    }
}

/// A set-associative array with true LRU. Sets of more than 4 ways take several rows,
/// in order: what falls out of one goes into the next. Sets of more than 16 ways have no rows, up to
/// [`Linked::MOST`] ways.
#[derive(Debug, Clone)]
pub(crate) struct Ordered {
    rows: Box<[Row]>,
    /// The sets, if they have no rows.
    linked: Box<[Linked]>,
    sets: usize,
    /// `sets - 1`, or `usize::MAX` where their number is no power of two.
    mask: usize,
    /// Rows per set.
    depth: usize,
    /// Ways in a set's last row.
    last: usize,
    /// Keys with any of these bits survive a flush.
    lasting: u64,
}

impl Ordered {
    /// An empty array; `ways` 0 means fully associative.
    pub fn new(entries: usize, ways: usize, lasting: u64) -> Self {
        let ways = if ways == 0 { entries } else { ways };
        assert!(entries > 0 && entries % ways == 0, "{entries} entries in sets of {ways}");
        let (sets, depth) = (entries / ways, ways.div_ceil(WAYS));
        let are_linked = depth > MOST_ROWS && ways <= Linked::MOST;
        let linked = if are_linked { vec![Linked::new(ways); sets] } else { Vec::new() };
        Ordered {
            rows: vec![Row::default(); if linked.is_empty() { sets * depth } else { 0 }].into(),
            linked: linked.into(),
            sets,
            mask: if sets.is_power_of_two() { sets - 1 } else { usize::MAX },
            depth,
            last: ways - (depth - 1) * WAYS,
            lasting,
        }
    }

    #[inline(always)]
    fn set(&self, index: u64) -> usize {
        if self.mask != usize::MAX { index as usize & self.mask } else { index as usize % self.sets }
    }

    #[inline(always)]
    fn first(&self, index: u64) -> usize {
        self.set(index) * self.depth
    }

    /// The set, if it is one without rows.
    #[inline(always)]
    fn linked(&mut self, index: u64) -> Option<&mut Linked> {
        if self.depth <= MOST_ROWS {
            return None;
        }
        let set = self.set(index);
        self.linked.get_mut(set)
    }

    /// Looks `key` up as [`Ordered::lookup`] does, and files it under `value` if the set does not hold
    /// it. One search does both where a set has one row.
    #[inline(always)]
    pub fn lookup_or_insert(&mut self, index: u64, key: u64, value: u64) -> Option<u64> {
        if self.depth > 1 {
            let found = self.lookup(index, key);
            if found.is_none() {
                self.insert_absent(index, key, value);
            }
            return found;
        }
        let (first, want) = (self.first(index), key | VALID);
        let row = &mut self.rows[first];
        let found = row.promote(want);
        if found.is_some() {
            return found;
        }
        let Row { keys: k, values: v } = *row;
        *row = Row { keys: [want, k[0], k[1], k[2]], values: [value, v[0], v[1], v[2]] };
        if self.last < WAYS {
            row.keys[self.last..].fill(0);
        }
        None
    }

    /// Is `key` here? Nothing becomes more recent. Sets of several rows are not searched.
    #[inline(always)]
    pub fn peek(&self, index: u64, key: u64) -> bool {
        self.depth == 1 && self.rows[self.first(index)].keys.contains(&(key | VALID))
    }

    /// Replaces the value of the key that was just looked up.
    #[inline]
    pub fn replace(&mut self, index: u64, value: u64) {
        if let Some(set) = self.linked(index) {
            return set.replace(value);
        }
        let first = self.first(index);
        self.rows[first].values[0] = value;
    }

    /// The value filed under `key`, which becomes the most recent of its set.
    #[inline(always)]
    pub fn lookup(&mut self, index: u64, key: u64) -> Option<u64> {
        if let Some(set) = self.linked(index) {
            return set.lookup(key | VALID);
        }
        let (first, want) = (self.first(index), key | VALID);
        let found = self.rows[first].promote(want);
        if found.is_some() {
            return found;
        }
        if self.depth == 1 { None } else { self.lookup_deep(first, want) }
    }

    #[cold]
    fn lookup_deep(&mut self, first: usize, want: u64) -> Option<u64> {
        for r in first + 1..first + self.depth {
            if let Some(i) = self.rows[r].keys.iter().position(|&k| k == want) {
                let value = self.rows[r].values[i];
                self.rows[r].keys[i] = 0;
                self.close_gap(r, i);
                self.push(first, want, value);
                return Some(value);
            }
        }
        None
    }

    /// Moves what stands before a gap in a deep set's row back by one, so that a push in front fills it.
    fn close_gap(&mut self, row: usize, gap: usize) {
        let r = &mut self.rows[row];
        r.keys.copy_within(0..gap, 1);
        r.values.copy_within(0..gap, 1);
        r.keys[0] = 0;
    }

    /// Puts an entry in front of a set; each full row passes its last on, until a gap takes it.
    #[inline(always)]
    fn push(&mut self, first: usize, key: u64, value: u64) {
        let (mut key, mut value) = (key, value);
        for r in first..first + self.depth {
            let ways = if r + 1 == first + self.depth { self.last } else { WAYS };
            let row = &mut self.rows[r];
            let Row { keys: k, values: v } = *row;
            if self.depth > 1 {
                if let Some(gap) = k[..ways].iter().position(|&k| k == 0) {
                    row.keys.copy_within(0..gap, 1);
                    row.values.copy_within(0..gap, 1);
                    (row.keys[0], row.values[0]) = (key, value);
                    return;
                }
            }
            *row = Row { keys: [key, k[0], k[1], k[2]], values: [value, v[0], v[1], v[2]] };
            if ways < WAYS {
                row.keys[ways..].fill(0);
            }
            (key, value) = (k[ways - 1], v[ways - 1]);
        }
    }

    /// Files `key`, which the set does not hold, as its most recent.
    #[inline(always)]
    pub fn insert_absent(&mut self, index: u64, key: u64, value: u64) {
        if let Some(set) = self.linked(index) {
            return set.insert_absent(key | VALID, value);
        }
        let first = self.first(index);
        self.push(first, key | VALID, value);
    }

    /// Files `key`, which the set may hold.
    pub fn insert(&mut self, index: u64, key: u64, value: u64) {
        if self.lookup(index, key).is_none() {
            self.insert_absent(index, key, value);
        } else {
            self.replace(index, value);
        }
    }

    /// Is nothing filed? Says no where sets have no rows.
    pub fn is_empty(&self) -> bool {
        self.linked.is_empty() && self.rows.iter().all(|row| row.keys == [0; WAYS])
    }

    /// Drops every key that has none of the lasting bits.
    pub fn flush(&mut self) {
        let lasting = self.lasting;
        self.retain(|k| k & lasting != 0);
    }

    /// Drops everything.
    pub fn flush_all(&mut self) {
        self.rows.fill(Row::default());
        self.linked.iter_mut().for_each(|set| set.retain(|_| false));
    }

    fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        self.linked.iter_mut().for_each(|set| set.retain(&keep));
        for set in self.rows.chunks_exact_mut(self.depth) {
            let kept: Vec<(u64, u64)> = set
                .iter()
                .flat_map(|r| r.keys.into_iter().zip(r.values))
                .filter(|&(k, _)| k != 0 && keep(k))
                .collect();
            set.fill(Row::default());
            for (i, (k, v)) in kept.into_iter().enumerate() {
                (set[i / WAYS].keys[i % WAYS], set[i / WAYS].values[i % WAYS]) = (k, v);
            }
        }
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
