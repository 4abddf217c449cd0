// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Time slots with ranks: how many live slots come after a given one (Bennett and Kruskal, "LRU stack
//! processing", IBM Journal of Research and Development 19(4), 1975). Slots are used in order, and each can
//! die.
//!
//! A slot is a bit of a word. A Fenwick tree ("A new data structure for cumulative frequency tables",
//! Software: Practice and Experience 24(3), 1994) has the sums of words, so it is small enough for a cache. A
//! word joins the tree when all of its slots are used; until then its bits are counted.

/// Slots in a word.
pub(crate) const WORD: u32 = u64::BITS;

/// Slots in order of time.
#[derive(Debug, Clone)]
pub(crate) struct Slots {
    /// A bit per slot: it is live.
    bits: Vec<u64>,
    /// `sums[i]`: live slots in the `i & -i` words before word i, whose slots are all used.
    sums: Vec<u32>,
    live: u32,
    used: u32,
}

impl Slots {
    /// Slots of which the first `live`, at most `capacity`, are used and live. `capacity` is a multiple of
    /// [`WORD`].
    pub fn new(live: u32, capacity: u32) -> Self {
        let mut slots = Slots { bits: Vec::new(), sums: Vec::new(), live, used: live };
        slots.reset(live, capacity);
        slots
    }

    /// As [`Slots::new`], in the same memory.
    pub fn reset(&mut self, live: u32, capacity: u32) {
        assert!(live <= capacity && capacity % WORD == 0, "{live} live slots of {capacity}");
        (self.live, self.used) = (live, live);
        self.bits.clear();
        self.bits.resize((live / WORD) as usize, u64::MAX);
        self.bits.resize((capacity / WORD) as usize, 0);
        if live % WORD != 0 {
            self.bits[(live / WORD) as usize] = (1 << (live % WORD)) - 1;
        }
        self.sums.clear();
        self.sums.extend((0..=live / WORD).map(|i| WORD * (i & i.wrapping_neg())));
    }

    /// Live slots.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// Is no slot left to use?
    pub fn is_full(&self) -> bool {
        self.used as usize == self.bits.len() * WORD as usize
    }

    /// Uses the next slot. One must be left.
    #[inline]
    pub fn push(&mut self) -> u32 {
        let slot = self.used;
        self.bits[(slot / WORD) as usize] |= 1 << (slot % WORD);
        self.live += 1;
        self.used += 1;
        if self.used % WORD == 0 {
            self.close();
        }
        slot
    }

    /// Puts the word whose last slot was just used into the tree.
    fn close(&mut self) {
        let i = self.sums.len();
        let mut sum = self.bits[i - 1].count_ones();
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
        let word = (slot / WORD) as usize;
        let mut after = (self.bits[word] & !1 << (slot % WORD)).count_ones();
        let mut i = word + 1;
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
        self.bits[(slot / WORD) as usize] &= !(1 << (slot % WORD));
        self.live -= 1;
        let mut i = (slot / WORD) as usize + 1;
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
                Some(word * WORD + bit)
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
            first in 0..9 * WORD,
            ops in proptest::collection::vec((0u8..3, any::<prop::sample::Index>()), 1..1500),
        ) {
            let mut slots = Slots::new(first, 20 * WORD);
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
