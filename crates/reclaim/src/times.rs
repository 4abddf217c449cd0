// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A set of times below a bound: bits, and above each level of words a level with a bit for each word that is
//! not 0. The latest time is found by one word of each level.

/// Times in a set.
#[derive(Debug, Clone)]
pub(crate) struct Times {
    /// The times themselves first; the last level has one word.
    levels: Vec<Vec<u64>>,
}

impl Times {
    /// An empty set of times less than `bound`.
    pub fn new(bound: usize) -> Self {
        let mut levels = Vec::new();
        let mut words = bound;
        loop {
            words = words.div_ceil(64).max(1);
            levels.push(vec![0; words]);
            if words == 1 {
                return Times { levels };
            }
        }
    }

    /// Adds a time.
    #[inline]
    pub fn insert(&mut self, time: usize) {
        let mut at = time;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            let before = *word;
            *word |= 1 << (at % 64);
            if before != 0 {
                return;
            }
            at /= 64;
        }
    }

    /// Removes a time. False if it is not in the set.
    #[inline]
    pub fn remove(&mut self, time: usize) -> bool {
        if self.levels[0][time / 64] >> (time % 64) & 1 == 0 {
            return false;
        }
        let mut at = time;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            *word &= !(1 << (at % 64));
            if *word != 0 {
                break;
            }
            at /= 64;
        }
        true
    }

    /// The latest time, unless the set is empty.
    #[inline]
    pub fn last(&self) -> Option<usize> {
        let mut at = 0;
        for level in self.levels.iter().rev() {
            at = at * 64 + level[at].checked_ilog2()? as usize;
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_as_an_ordered_set(
            bound in prop_oneof![1usize..70, 4000usize..4200, 262_100usize..262_200],
            ops in proptest::collection::vec((0u8..3, any::<prop::sample::Index>()), 1..400),
        ) {
            let (mut times, mut set) = (Times::new(bound), BTreeSet::new());
            for (op, index) in ops {
                let time = index.index(bound);
                match op {
                    0 => prop_assert_eq!(times.remove(time), set.remove(&time)),
                    1 => if let Some(last) = set.pop_last() {
                        prop_assert!(times.remove(last));
                    },
                    _ => {
                        times.insert(time);
                        set.insert(time);
                    }
                }
                prop_assert_eq!(times.last(), set.last().copied());
            }
        }
    }
}
