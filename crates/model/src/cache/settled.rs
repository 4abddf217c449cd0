// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A memo of settled lines: an access to one changes nothing in the data caches. Most accesses are to such
//! lines, and one look into the memo answers for them. The memo may forget a line, but never keeps one that
//! is no longer settled.

const SLOTS: usize = 128;

/// One 4 KB page.
#[derive(Debug, Clone, Copy)]
struct Slot {
    page: u64,
    /// Of the vCPU's translations.
    generation: u64,
    /// A bit per line of the page: reads of it are settled.
    reads: u64,
    /// The same of writes.
    writes: u64,
}

impl Slot {
    const EMPTY: Slot = Slot { page: u64::MAX, generation: 0, reads: 0, writes: 0 };
}

/// Settled lines of one vCPU.
#[derive(Debug, Clone)]
pub(super) struct Settled(Box<[Slot; SLOTS]>);

impl Default for Settled {
    fn default() -> Settled {
        Settled(Box::new([Slot::EMPTY; SLOTS]))
    }
}

impl Settled {
    /// A bit per line of the 4 KB page: accesses to it are known to be settled.
    #[inline(always)]
    pub fn lines(&self, page: u64, generation: u64, write: bool) -> u64 {
        let slot = &self.0[page as usize % SLOTS];
        let lines = if write { slot.writes } else { slot.reads };
        // No jumps: a processor cannot foresee which of the pages in turn are here.
        if (slot.page == page) & (slot.generation == generation) { lines } else { 0 }
    }

    /// Reads of line number `line` are settled, and writes too if `writes`.
    pub fn file(&mut self, line: u64, generation: u64, writes: bool) {
        let (page, bit) = (line >> 6, 1 << (line & 63));
        let slot = &mut self.0[page as usize % SLOTS];
        if slot.page != page || slot.generation != generation {
            *slot = Slot { page, generation, reads: 0, writes: 0 };
        }
        slot.reads |= bit;
        slot.writes |= if writes { bit } else { 0 };
    }

    /// Line number `line` may be settled no longer.
    #[inline]
    pub fn forget_line(&mut self, line: u64) {
        let (page, bit) = (line >> 6, 1 << (line & 63));
        let slot = &mut self.0[page as usize % SLOTS];
        if slot.page == page {
            slot.reads &= !bit;
            slot.writes &= !bit;
        }
    }

    /// No line of the 4 KB page may be settled any longer.
    #[inline]
    pub fn forget_page(&mut self, page: u64) {
        let slot = &mut self.0[page as usize % SLOTS];
        if slot.page == page {
            *slot = Slot::EMPTY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_settled_until_it_its_page_or_the_translations_are_forgotten() {
        let mut s = Settled::default();
        s.file(5 << 6 | 3, 1, false);
        s.file(5 << 6 | 4, 1, true);
        assert_eq!((s.lines(5, 1, false), s.lines(5, 1, true)), (3 << 3, 1 << 4));
        assert_eq!((s.lines(6, 1, false), s.lines(5, 2, false)), (0, 0));
        s.forget_line(5 << 6 | 4);
        s.forget_line((5 + SLOTS as u64) << 6 | 3);
        assert_eq!((s.lines(5, 1, false), s.lines(5, 1, true)), (1 << 3, 0));
        s.forget_page(5 + SLOTS as u64);
        s.file(5 << 6 | 9, 2, true);
        assert_eq!(s.lines(5, 2, false), 1 << 9, "the translations are others");
        s.forget_page(5);
        assert_eq!(s.lines(5, 2, false), 0);
        s.file((5 + SLOTS as u64) << 6, 2, true);
        assert_eq!(s.lines(5, 2, false), 0, "another page of the same slot");
    }
}
