// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The prefetcher, as far as profiles state it: a miss on a line whose neighbour in the page was just
//! used is answered by the profile's `memory.prefetch_level`.
//!
//! Hardware prefetchers follow streams of lines within a 4 KB page (Intel Optimization Reference
//! Manual, "Data Prefetch to L1 and L2"; AMD Software Optimization Guides, "Hardware Prefetching"). What
//! they fetch in vain and the bandwidth that they take are left out.

/// Pages whose used lines are remembered: 8 sets of 4. Intel documents 32 streams.
const SETS: usize = 8;
pub(super) const WAYS: usize = 4;

/// Where a recently used line stands that is next to the line of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Near {
    /// In the 4 KB page of the line itself.
    InPage,
    /// In the 4 KB page before or behind: a stream enters the page.
    AcrossPages,
}

/// Lines used lately, of one vCPU.
#[derive(Debug, Clone)]
pub(super) struct Neighbours {
    /// Page number, and a bit for each of its lines that was used since the page came here. The page of which
    /// a line was used for the first time last stands first in its set.
    sets: [[(u64, u64); WAYS]; SETS],
}

impl Default for Neighbours {
    fn default() -> Self {
        Neighbours { sets: [[(u64::MAX, 0); WAYS]; SETS] }
    }
}

/// Arrays that a program walks side by side often begin at the same offset of a large power of two, so the
/// set is a hash.
#[inline(always)]
pub(super) fn set(page: u64) -> usize {
    (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) as usize % SETS
}

impl Neighbours {
    /// Has an access to `va` been noted already, so that one more changes nothing?
    #[inline(always)]
    pub fn knows(&self, va: u64) -> bool {
        let page = va >> 12;
        self.sets[set(page)].iter().any(|&(held, lines)| held == page && lines >> (va >> 6 & 63) & 1 != 0)
    }

    /// Notes an access to `va`. Returns where a recently used line stands next to the access's. `forgotten`
    /// gets the number of the page that leaves for the access's.
    #[inline]
    pub fn used(&mut self, va: u64, forgotten: impl FnOnce(u64)) -> Option<Near> {
        let (page, line) = (va >> 12, va >> 6 & 63);
        let set = &mut self.sets[set(page)];
        let at = set.iter().position(|&(held, _)| held == page);
        let lines = at.map_or(0, |at| set[at].1);
        if lines >> line & 1 == 0 {
            if at.is_none() {
                forgotten(set[WAYS - 1].0);
            }
            // A loop of its own: a call that moves memory costs more than the few moves.
            for i in (0..at.unwrap_or(WAYS - 1)).rev() {
                set[i + 1] = set[i];
            }
            set[0] = (page, lines | 1 << line);
        }
        if (lines << 1 | lines >> 1) >> line & 1 != 0 {
            return Some(Near::InPage);
        }
        // The first and the last line have a neighbour in another page.
        let other = match line {
            0 => va.wrapping_sub(64),
            63 => va.wrapping_add(64),
            _ => return None,
        };
        self.knows(other).then_some(Near::AcrossPages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_counts_up_and_down() {
        let mut n = Neighbours::default();
        assert!(!n.knows(0x1fc0));
        assert_eq!(n.used(0x1fc0, |_| ()), None);
        assert!(n.knows(0x1fc0) && n.knows(0x1fff) && !n.knows(0x1f80) && !n.knows(0x3fc0));
        assert_eq!(n.used(0x1f80, |_| ()), Some(Near::InPage), "downwards");
        assert_eq!(n.used(0x1fc0, |_| ()), Some(Near::InPage), "again");
        assert_eq!(n.used(0x1d00, |_| ()), None, "far from the others");
    }

    #[test]
    fn a_stream_enters_a_page_from_either_side() {
        let mut n = Neighbours::default();
        assert_eq!(
            [0x3000, 0x2fc0, 0x2f80].map(|va| n.used(va, |_| ())),
            [None, Some(Near::AcrossPages), Some(Near::InPage)]
        );
        assert_eq!(n.used(0x5fc0, |_| ()), None);
        assert_eq!(n.used(0x6000, |_| ()), Some(Near::AcrossPages));
        assert_eq!(n.used(0x7000, |_| ()), None, "the first lines of two pages are no neighbours");
        assert_eq!(n.used(0, |_| ()), None, "nothing is before the first page");
    }

    #[test]
    fn arrays_at_the_same_offset_of_large_powers_of_two_stay_beside_each_other() {
        for bits in 17..30 {
            let mut n = Neighbours::default();
            let arrays = [0, 1, 2, 3, 4].map(|i| i << bits);
            for line in 0..64 {
                for at in arrays {
                    assert_eq!(
                        n.used(at + line * 64, |_| ()) == Some(Near::InPage),
                        line > 0,
                        "{bits} {at:#x} {line}"
                    );
                }
            }
        }
    }

    #[test]
    fn pages_are_forgotten_in_the_order_of_their_new_lines() {
        let mut n = Neighbours::default();
        let pages: Vec<u64> = (1..).filter(|p| set(*p) == set(1)).take(WAYS + 1).collect();
        let at = |i: usize| pages[i] << 12;
        (0..WAYS).for_each(|i| _ = n.used(at(i), |_| ()));
        n.used(at(1), |_| ());
        n.used(at(0) + 64, |_| ());
        n.used(at(WAYS), |_| ());
        assert!(n.knows(at(0)) && n.knows(at(WAYS)) && !n.knows(at(1)));
    }
}
