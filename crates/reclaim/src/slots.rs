// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Time slots with ranks: how many live slots come after a given one (Bennett and Kruskal, "LRU stack processing", IBM Journal of
//! Research and Development 19(4), 1975). Slots are used in order, and each can die.
//!
//! A slot is a bit. A Fenwick tree ("A new data structure for cumulative frequency tables", Software: Practice and Experience 24(3),
//! 1994) has the sums of blocks of slots, so it is small enough for a cache. A block joins the tree when all of its slots
//! are used; until then its bits are counted.

/// Words of 64 slots in a block.
const WORDS: usize = 4;
/// Slots in a block.
pub(crate) const BLOCK: u32 = 64 * WORDS as u32;

/// Slots in order of time.
#[derive(Debug, Clone)]
pub(crate) struct Slots {
    /// A bit per slot: it is live.
    bits: Vec<u64>,
    /// `sums[i]`: live slots in the `i & -i` blocks before block i, all of them full.
    sums: Vec<u32>,
    live: u32,
    used: u32,
}

impl Slots {
    /// Slots of which the first `live`, at most `capacity`, are used and live. `capacity` is a multiple of [`BLOCK`].
    pub fn new(live: u32, capacity: u32) -> Self {
        let mut slots = Slots { bits: Vec::new(), sums: Vec::new(), live, used: live };
        slots.reset(live, capacity);
        slots
    }

    /// As [`Slots::new`], in the same memory.
    pub fn reset(&mut self, live: u32, capacity: u32) {
        assert!(live <= capacity && capacity % BLOCK == 0, "{live} live slots of {capacity}");
        (self.live, self.used) = (live, live);
        self.bits.clear();
        self.bits.resize((live / 64) as usize, u64::MAX);
        self.bits.resize((capacity / 64) as usize, 0);
        if live % 64 != 0 {
            self.bits[(live / 64) as usize] = (1 << (live % 64)) - 1;
        }
        self.sums.clear();
        self.sums.extend((0..=live / BLOCK).map(|i| BLOCK * (i & i.wrapping_neg())));
    }

    /// Live slots.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// Is no slot left to use?
    pub fn is_full(&self) -> bool {
        self.used as usize == self.bits.len() * 64
    }

    /// Uses the next slot. One must be left.
    #[inline]
    pub fn push(&mut self) -> u32 {
        let slot = self.used;
        self.bits[(slot / 64) as usize] |= 1 << (slot % 64);
        self.live += 1;
        self.used += 1;
        if self.used % BLOCK == 0 {
            self.close();
        }
        slot
    }

    /// Puts the block whose last slot was just used into the tree.
    fn close(&mut self) {
        let i = self.sums.len();
        let words = &self.bits[(i - 1) * WORDS..i * WORDS];
        let mut sum = words.iter().map(|w| w.count_ones()).sum();
        let (mut j, end) = (i - 1, i & (i - 1));
        while j > end {
            sum += self.sums[j];
            j &= j - 1;
        }
        self.sums.push(sum);
    }

    /// Live slots after `slot`.
    #[inline]
    pub fn after(&self, slot: u32) -> u32 {
        let (word, block) = ((slot / 64) as usize, (slot / BLOCK) as usize);
        let mut after = (self.bits[word] & !1 << (slot % 64)).count_ones();
        for bits in &self.bits[word + 1..(block + 1) * WORDS] {
            after += bits.count_ones();
        }
        let mut i = block + 1;
        if i < self.sums.len() {
            after += self.live;
            while i > 0 {
                after -= self.sums[i];
                i &= i - 1;
            }
        }
        after
    }

    /// A live slot dies.
    #[inline]
    pub fn remove(&mut self, slot: u32) {
        self.bits[(slot / 64) as usize] &= !(1 << (slot % 64));
        self.live -= 1;
        let mut i = (slot / BLOCK) as usize + 1;
        while let Some(sum) = self.sums.get_mut(i) {
            *sum -= 1;
            i += i & i.wrapping_neg();
        }
    }

    /// The live slots in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.bits.iter().zip(0u32..).flat_map(|(&bits, word)| {
            let mut rest = bits;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(word * 64 + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranks_are_those_of_a_list(
            first in 0..3 * BLOCK,
            ops in proptest::collection::vec((0u8..3, any::<prop::sample::Index>()), 1..1500),
        ) {
            let mut slots = Slots::new(first, 6 * BLOCK);
            let mut list: Vec<u32> = (0..first).collect();
            for (op, index) in ops {
                if op < 2 && !slots.is_full() {
                    list.push(slots.push());
                } else if !list.is_empty() {
                    slots.remove(list.remove(index.index(list.len())));
                }
                prop_assert_eq!(slots.live() as usize, list.len());
                if !list.is_empty() {
                    let at = index.index(list.len());
                    prop_assert_eq!(slots.after(list[at]) as usize, list.len() - 1 - at);
                }
            }
            prop_assert_eq!(slots.iter().collect::<Vec<_>>(), list);
        }
    }
}
