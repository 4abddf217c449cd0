// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lines that a vCPU used last of those that share a set of the first level. Every configuration has them
//! as the most recent ones of its set, in this order, because all see the same accesses to data. So an access
//! to one of them is a hit in all configurations, which changes their order alone: it is kept here, and the
//! sets are brought in order before anything else happens to them.

/// The most lines of a set that are kept.
pub(super) const MOST: usize = 8;

/// A line that a vCPU has used.
#[derive(Debug, Clone, Copy)]
pub(super) struct Used {
    pub line: u64,
    /// Of the vCPU's translations.
    pub generation: u64,
    /// No other vCPU has the line: this one has stored to it, or there is no other.
    pub owned: bool,
}

impl Used {
    const NONE: Used = Used { line: u64::MAX, generation: 0, owned: false };

    /// Would an access to `line` hit, and change nothing but the order?
    #[inline(always)]
    fn answers(&self, line: u64, generation: u64, write: bool) -> bool {
        self.line == line && self.generation == generation && (self.owned || !write)
    }
}

/// The lines used last, the most recent first.
#[derive(Debug, Clone)]
pub(super) struct Recent {
    lines: [Used; MOST],
    len: usize,
    /// Where each line stands in the sets.
    from: [u8; MOST],
    /// From this place on, the lines stand in the sets where they stand here.
    moved: usize,
}

/// Each line stands where it stood.
const IN_ORDER: [u8; MOST] = [0, 1, 2, 3, 4, 5, 6, 7];

impl Default for Recent {
    fn default() -> Recent {
        Recent { lines: [Used::NONE; MOST], len: 0, from: IN_ORDER, moved: 0 }
    }
}

impl Recent {
    /// Number of lines.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The line used last; none is `u64::MAX`.
    #[inline(always)]
    pub fn first(&self) -> u64 {
        self.lines[0].line
    }

    /// Would an access to `line` change nothing at all?
    #[inline(always)]
    pub fn settles(&self, line: u64, generation: u64, write: bool) -> bool {
        self.lines[0].answers(line, generation, write)
    }

    /// An access to `line`: its place before, or none if the access may change more than the order.
    #[inline(always)]
    pub fn hit(&mut self, line: u64, generation: u64, write: bool) -> Option<usize> {
        let at = self.lines[..self.len].iter().position(|used| used.answers(line, generation, write))?;
        for i in 0..at {
            self.lines.swap(i, at);
            self.from.swap(i, at);
        }
        if at > 0 {
            self.moved = self.moved.max(at + 1);
        }
        Some(at)
    }

    /// Where the lines stand in the sets that have to be brought in order; none if they are. They count as in
    /// order from now on.
    #[inline(always)]
    pub fn take_order(&mut self) -> Option<Order> {
        if self.moved == 0 {
            return None;
        }
        let order = Order { from: self.from, len: self.moved };
        (self.from, self.moved) = (IN_ORDER, 0);
        Some(order)
    }

    /// The vCPU has used a line, which the sets have as their most recent one now. It was the one at place
    /// `held`, if it was one of these. At most `most` lines are kept.
    #[inline]
    pub fn used(&mut self, used: Used, held: Option<usize>, most: usize) {
        debug_assert_eq!(self.moved, 0, "the sets are in order");
        let end = held.unwrap_or_else(|| {
            self.len = (self.len + 1).min(most);
            self.len - 1
        });
        (0..end).rev().for_each(|i| self.lines[i + 1] = self.lines[i]);
        self.lines[0] = used;
    }

    /// Leaves the first `len` lines at most.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        debug_assert_eq!(self.moved, 0, "the sets are in order");
        self.len = self.len.min(len);
        if self.len == 0 {
            self.lines[0] = Used::NONE;
        }
    }
}

/// How a set comes in order: from where each of its first lines comes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    from: [u8; MOST],
    len: usize,
}

impl Order {
    /// Brings the first lines of a set in order.
    #[inline(always)]
    pub fn apply(&self, lines: &mut [u64]) {
        let lines = &mut lines[..self.len];
        let mut old = [0; MOST];
        old[..self.len].copy_from_slice(lines);
        lines.iter_mut().zip(self.from).for_each(|(line, from)| *line = old[usize::from(from) % MOST]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn used(line: u64) -> Used {
        Used { line, generation: 1, owned: true }
    }

    #[test]
    fn only_what_cannot_change_more_than_the_order_is_a_hit() {
        let mut r = Recent::default();
        assert!(!r.settles(5, 1, false) && r.hit(5, 1, false).is_none());
        r.used(Used { owned: false, ..used(5) }, None, 4);
        assert!(r.settles(5, 1, false) && r.hit(5, 1, false) == Some(0));
        assert!(!r.settles(5, 1, true) && r.hit(5, 1, true).is_none(), "another vCPU may have the line");
        assert!(!r.settles(5, 2, false) && r.hit(5, 2, false).is_none(), "the page may be another");
        r.used(used(5), Some(0), 4);
        assert!(r.hit(5, 1, true).is_some() && r.len() == 1);
        r.truncate(0);
        assert!(!r.settles(5, 1, false) && r.hit(5, 1, false).is_none());
    }

    proptest! {
        /// A set of `ways` lines is, once in order, what it is if every access goes to it at once.
        #[test]
        fn sets_in_order_are_those_of_every_access_in_turn(
            ways in 1usize..=MOST, ops in prop::collection::vec((0u64..12, 0u8..20), 0..400)
        ) {
            let (mut at_once, mut late, mut recent) = (vec![u64::MAX; ways], vec![u64::MAX; ways], Recent::default());
            let touch = |set: &mut Vec<u64>, line: u64| {
                let at = set.iter().position(|&l| l == line).unwrap_or(ways - 1);
                set.remove(at);
                set.insert(0, line);
            };
            for (line, what) in ops {
                touch(&mut at_once, line);
                if what > 0 && recent.hit(line, 1, false).is_some() {
                    continue;
                }
                if let Some(order) = recent.take_order() {
                    order.apply(&mut late);
                }
                if what == 0 {
                    recent.truncate(1);
                }
                let held = late[..recent.len()].iter().position(|&l| l == line);
                touch(&mut late, line);
                recent.used(used(line), held, ways);
            }
            if let Some(order) = recent.take_order() {
                order.apply(&mut late);
            }
            prop_assert_eq!(at_once, late);
        }
    }
}
