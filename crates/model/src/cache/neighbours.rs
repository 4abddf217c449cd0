// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The prefetcher, as far as profiles state it: a miss on a line whose neighbour in the page was just
//! used is answered by the profile's `memory.prefetch_level`.
//!
//! Hardware prefetchers follow streams of lines within a 4 KB page (Intel Optimization Reference
//! Manual, "Data Prefetch to L1 and L2"; AMD Software Optimization Guides, "Hardware Prefetching"). What
//! they fetch in vain and the bandwidth that they take are left out.

/// Pages whose used lines are remembered. Intel documents 32 streams.
const PAGES: usize = 32;

/// Lines used lately, of one vCPU.
#[derive(Debug, Clone)]
pub(super) struct Neighbours {
    /// Page number, and a bit for each of its lines that was used since the page came here.
    pages: [(u64, u64); PAGES],
}

impl Default for Neighbours {
    fn default() -> Self {
        Neighbours { pages: [(u64::MAX, 0); PAGES] }
    }
}

impl Neighbours {
    /// Has an access to `va` been noted already, so that one more changes nothing?
    #[inline(always)]
    pub fn knows(&self, va: u64) -> bool {
        let (held, lines) = self.pages[(va >> 12) as usize % PAGES];
        held == va >> 12 && lines >> (va >> 6 & 63) & 1 != 0
    }

    /// Notes an access to `va`. True if a neighbouring line of its page was used lately.
    #[inline]
    pub fn used(&mut self, va: u64) -> bool {
        let (page, line) = (va >> 12, va >> 6 & 63);
        let (held, lines) = &mut self.pages[page as usize % PAGES];
        if *held != page {
            (*held, *lines) = (page, 1 << line);
            return false;
        }
        let near = (*lines << 1 | *lines >> 1) >> line & 1 != 0;
        *lines |= 1 << line;
        near
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_counts_up_and_down_but_not_across_pages() {
        let mut n = Neighbours::default();
        assert!(!n.knows(0x1fc0));
        assert!(!n.used(0x1fc0));
        assert!(n.knows(0x1fc0) && n.knows(0x1fff) && !n.knows(0x1f80) && !n.knows(0x3fc0));
        assert!(!n.used(0x2000), "the next page");
        assert!(n.used(0x2040) && n.used(0x2080));
        assert!(n.used(0x1f80), "downwards");
        assert!(!n.used(0x2200), "far from the others");
        assert!(!n.used(0x2040 + 32 * 4096), "a page in the same place");
        assert!(!n.used(0x2080), "the page is forgotten");
    }
}
