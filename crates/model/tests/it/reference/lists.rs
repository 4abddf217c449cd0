// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sets of entries as plain lists, the most recent first: true LRU as one would
//! explain it.

#[derive(Clone)]
pub struct Lists<E> {
    sets: Vec<Vec<E>>,
    ways: usize,
}

impl<E> Lists<E> {
    pub fn new(entries: usize, ways: usize) -> Self {
        let ways = if ways == 0 { entries } else { ways };
        Lists { sets: (0..entries / ways).map(|_| Vec::new()).collect(), ways }
    }

    fn set(&mut self, index: u64) -> &mut Vec<E> {
        let n = self.sets.len() as u64;
        &mut self.sets[(index % n) as usize]
    }

    /// Finds an entry and makes it the most recent of its set.
    pub fn find(&mut self, index: u64, is_it: impl Fn(&E) -> bool) -> Option<&mut E> {
        let set = self.set(index);
        let at = set.iter().position(is_it)?;
        let entry = set.remove(at);
        set.insert(0, entry);
        Some(&mut set[0])
    }

    /// Finds an entry and leaves the order as it is.
    pub fn peek(&mut self, index: u64, is_it: impl Fn(&E) -> bool) -> Option<&mut E> {
        self.set(index).iter_mut().find(|e| is_it(e))
    }

    /// Files an entry as the most recent; the least recent goes if there is no room.
    pub fn insert(&mut self, index: u64, entry: E) {
        let ways = self.ways;
        let set = self.set(index);
        set.insert(0, entry);
        set.truncate(ways);
    }

    pub fn retain(&mut self, keep: impl Fn(&E) -> bool) {
        self.sets.iter_mut().for_each(|s| s.retain(&keep));
    }
}
