// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sets of more than 16 ways, such as the fully associative first-level TLBs of AMD's cores: tags in
//! a plain row per set, and a time stamp per way for recency.

use crate::tag::{allow, join_sharers, matches, without_sharers};

#[derive(Debug, Clone)]
pub(crate) struct Wide {
    ways: usize,
    /// 0 stamps an empty way.
    stamps: Vec<u64>,
    tags: Vec<u64>,
    clock: u64,
}

impl Wide {
    pub fn new(sets: usize, ways: usize) -> Self {
        let n = sets * ways;
        Wide { ways, stamps: vec![0; n], tags: vec![0; n], clock: 1 }
    }

    /// The entry's place.
    pub fn lookup(&mut self, set: usize, key: u64) -> Option<usize> {
        let row = set * self.ways..(set + 1) * self.ways;
        let tags = &self.tags[row.clone()];
        let stamps = &mut self.stamps[row.clone()];
        let way = (0..tags.len()).find(|&w| matches(tags[w], key) && stamps[w] != 0)?;
        self.clock += 1;
        stamps[way] = self.clock;
        Some(row.start + way)
    }

    /// Tag at a place.
    pub fn at(&self, slot: usize) -> u64 {
        self.tags[slot]
    }

    /// Every place's tag, empty ones included.
    pub fn tags_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        self.tags.iter_mut()
    }

    /// A set's places that hold entries, from the most recent on.
    fn by_recency(&self, set: usize) -> Vec<usize> {
        let filled = (set * self.ways..(set + 1) * self.ways).filter(|&slot| self.stamps[slot] != 0);
        let mut slots: Vec<usize> = filled.collect();
        slots.sort_unstable_by_key(|&slot| std::cmp::Reverse(self.stamps[slot]));
        slots
    }

    fn sets(&self) -> usize {
        self.tags.len() / self.ways
    }

    /// See [`crate::Assoc::holds_same`].
    pub fn holds_same(&self, other: &Wide) -> bool {
        (0..self.sets()).all(|set| {
            let tags = |wide: &Wide| -> Vec<u64> {
                wide.by_recency(set).into_iter().map(|slot| without_sharers(wide.tags[slot])).collect()
            };
            tags(self) == tags(other)
        })
    }

    /// See [`crate::Assoc::join`].
    pub fn join(&mut self, other: &Wide, places: usize) {
        for set in 0..self.sets() {
            for (slot, twin) in self.by_recency(set).into_iter().zip(other.by_recency(set)) {
                self.tags[slot] = join_sharers(self.tags[slot], other.tags[twin], places);
            }
        }
    }

    pub fn allow(&mut self, set: usize, key: u64, writable: u8) -> bool {
        let row = set * self.ways..(set + 1) * self.ways;
        match row.clone().find(|&s| matches(self.tags[s], key) && self.stamps[s] != 0) {
            Some(slot) => {
                self.tags[slot] = allow(self.tags[slot], writable);
                true
            }
            None => false,
        }
    }

    pub fn insert_absent(&mut self, set: usize, tag: u64) {
        let row = set * self.ways..(set + 1) * self.ways;
        let stamps = &self.stamps[row.clone()];
        let way = (0..stamps.len()).min_by_key(|&w| stamps[w]).unwrap_or(0);
        self.clock += 1;
        let slot = row.start + way;
        self.stamps[slot] = self.clock;
        self.tags[slot] = tag;
    }

    pub fn retain(&mut self, mut keep: impl FnMut(u64) -> bool) {
        for slot in 0..self.tags.len() {
            if self.stamps[slot] != 0 && !keep(self.tags[slot]) {
                self.stamps[slot] = 0;
            }
        }
    }
}
