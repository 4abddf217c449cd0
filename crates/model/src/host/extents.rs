// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The extents of a host's memory: pages of one size, of which some are split into pages of the next smaller
//! size.

use super::{Backing, Taking};
use bifold_mmu::PageSize;
use std::collections::HashMap;
use std::ops::Range;

/// States of a page. A touch raises a state to the one that it needs.
const ABSENT: u8 = 0;
const SWAPPED: u8 = 1;
const SNAPSHOT: u8 = 2;
/// Of no page of its own, read-only: the zero page, or a page of the snapshot's file.
const ZERO: u8 = 3;
const READ_ONLY: u8 = 4;
const OWN: u8 = 5;
/// The page is split: its pieces have states of their own.
const SPLIT: u8 = 6;

/// Pages of one size in a row.
#[derive(Debug, Clone)]
pub(super) struct Extents {
    pub size: PageSize,
    state: Vec<u8>,
    /// Per page: the vCPU for whose touch the host backed it. None if no caller asks.
    pub first: Option<Vec<u8>>,
    /// Per page: the look of its last use. None before the first look.
    used: Option<Vec<u32>>,
    /// Whether what a read brings back from swap is [`READ_ONLY`].
    pub swaps_in_read_only: bool,
    /// Whether a read of a page of the snapshot brings a copy.
    copies: bool,
    /// The pieces of pages that are split, by number.
    pieces: HashMap<usize, Extents>,
}

/// A touch that made the host back a page.
pub(super) struct Backed {
    /// The page's size.
    pub size: PageSize,
    /// What was behind the frame before.
    pub was: Backing,
}

/// The next smaller size.
fn smaller(size: PageSize) -> PageSize {
    if size == PageSize::Size1G { PageSize::Size2M } else { PageSize::Size4K }
}

/// The frames of page number `n` of a row that begins at frame `start`.
fn frames(size: PageSize, start: u64, n: usize) -> Range<u64> {
    let at = |n: usize| start + ((n as u64) << (size.shift() - 12));
    at(n)..at(n + 1)
}

impl Extents {
    /// A row of absent pages.
    pub fn new(size: PageSize, pages: usize) -> Extents {
        Extents {
            size,
            state: vec![ABSENT; pages],
            first: None,
            used: None,
            swaps_in_read_only: false,
            copies: false,
            pieces: HashMap::new(),
        }
    }

    /// Every page is that of a snapshot. `copies`: a read brings a copy, as a write does.
    pub fn restore(&mut self, copies: bool) {
        self.state.fill(SNAPSHOT);
        self.copies = copies;
    }

    /// Number of pages, split ones counted once.
    pub fn len(&self) -> usize {
        self.state.len()
    }

    /// Is any page split?
    #[inline]
    pub fn is_split(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Pages that are split.
    pub fn split_pages(&self) -> u64 {
        self.pieces.len() as u64
    }

    /// The row that has the page `at` bytes from here, and the page's number in that row.
    #[inline]
    fn find(&self, at: u64) -> (&Extents, usize) {
        let (mut row, mut at) = (self, at);
        loop {
            let n = (at >> row.size.shift()) as usize;
            match row.pieces.get(&n) {
                Some(pieces) if row.state.get(n) == Some(&SPLIT) => {
                    at -= (n as u64) << row.size.shift();
                    row = pieces;
                }
                _ => return (row, n),
            }
        }
    }

    /// The size of the page `at` bytes from here.
    pub fn size_at(&self, at: u64) -> PageSize {
        self.find(at).0.size
    }

    /// The vCPU for which the host backed the page, 0 if that is not known.
    pub fn first_at(&self, at: u64) -> u8 {
        let (row, n) = self.find(at);
        row.first.as_ref().and_then(|first| first.get(n)).copied().unwrap_or(0)
    }

    /// The state of the page `at` bytes from here; what lies behind the last page is backed.
    #[inline]
    pub fn backing(&self, at: u64) -> Backing {
        let n = (at >> self.size.shift()) as usize;
        match self.state.get(n) {
            Some(&ABSENT) => Backing::Absent,
            Some(&SWAPPED) => Backing::Swapped,
            Some(&SNAPSHOT) => Backing::Snapshot,
            Some(&ZERO) => Backing::Zero,
            Some(&READ_ONLY) => Backing::ReadOnly,
            Some(&SPLIT) => match self.pieces.get(&n) {
                Some(pieces) => pieces.backing(at - ((n as u64) << self.size.shift())),
                None => Backing::Own,
            },
            _ => Backing::Own,
        }
    }

    /// Backs the page `at` bytes from here for a read or a write of `vcpu`; none if it was backed already.
    /// `look`: that of this use.
    pub fn touch(&mut self, at: u64, write: bool, vcpu: usize, look: u32) -> Option<Backed> {
        let n = (at >> self.size.shift()) as usize;
        let state = self.state.get_mut(n)?;
        if *state == SPLIT {
            return self.pieces.get_mut(&n)?.touch(at - ((n as u64) << self.size.shift()), write, vcpu, look);
        }
        let copied = *state == SNAPSHOT && self.copies;
        let want = if write || copied || self.size != PageSize::Size4K { OWN } else { ZERO };
        if *state >= want {
            return None;
        }
        let was = match *state {
            ABSENT => Backing::Absent,
            SWAPPED => Backing::Swapped,
            SNAPSHOT => Backing::Snapshot,
            ZERO => Backing::Zero,
            _ => Backing::ReadOnly,
        };
        *state = match was {
            Backing::Swapped if self.swaps_in_read_only && !write => READ_ONLY,
            Backing::Swapped => OWN,
            _ => want,
        };
        if was == Backing::ReadOnly {
            return Some(Backed { size: self.size, was }); // it stays where it is
        }
        if let Some(first) = &mut self.first {
            first[n] = vcpu as u8;
        }
        if let Some(used) = &mut self.used {
            used[n] = look;
        }
        Some(Backed { size: self.size, was })
    }

    /// Notes a use of the page `at` bytes from here.
    pub fn use_at(&mut self, at: u64, look: u32) {
        let n = (at >> self.size.shift()) as usize;
        match (self.pieces.get_mut(&n), &mut self.used) {
            (Some(pieces), _) => pieces.use_at(at - ((n as u64) << self.size.shift()), look),
            (None, Some(used)) => used.iter_mut().skip(n).take(1).for_each(|used| *used = look),
            _ => {}
        }
    }

    /// Each of these pages is one of its own.
    pub fn hold(&mut self, pages: Range<usize>) {
        self.state[pages].fill(OWN);
    }

    /// Takes back the pages behind `gfns`. The row begins at frame `start`. Adds to `gone` the frames that no
    /// table may map any more.
    ///
    /// A large page that goes in part, or to swap, is split first, and the split unmaps all of it (Linux
    /// `__split_huge_pmd`, whose notifier has the whole huge page; `shrink_folio_list` unmaps with
    /// `TTU_SPLIT_HUGE_PMD`). The table of 4 KB entries that it leaves stays, even if `MADV_DONTNEED` then
    /// empties it (`zap_pte_range` frees no table): the pieces come back as 4 KB pages.
    pub fn take_back(&mut self, start: u64, gfns: &Range<u64>, taking: Taking, gone: &mut Vec<Range<u64>>) {
        let shift = self.size.shift() - 12;
        let from = (gfns.start.saturating_sub(start) >> shift) as usize;
        let end = gfns.end.saturating_sub(start).div_ceil(1 << shift).min(self.state.len() as u64) as usize;
        for n in from..end {
            let page = frames(self.size, start, n);
            if self.state[n] == OWN && self.size != PageSize::Size4K {
                let whole = gfns.start <= page.start && page.end <= gfns.end;
                if !whole || taking == Taking::Swap {
                    self.split(n);
                    add(gone, page.clone());
                }
            }
            let now = match (self.state[n], taking) {
                (SPLIT, _) => {
                    if let Some(pieces) = self.pieces.get_mut(&n) {
                        pieces.take_back(page.start, gfns, taking, gone);
                    }
                    continue;
                }
                // Swap has them already, or they never were.
                (ABSENT, _) | (SWAPPED, Taking::Swap) => continue,
                // On no list of the reclaimer's: the zero page has no `struct folio` in the LRU. Pages of a
                // snapshot are in its file.
                (SNAPSHOT | ZERO, Taking::Swap) => continue,
                (READ_ONLY | OWN, Taking::Swap) => SWAPPED,
                _ => ABSENT,
            };
            if std::mem::replace(&mut self.state[n], now) != SWAPPED {
                add(gone, page);
            }
        }
    }

    /// Splits a page of its own into pieces, which stay where they are.
    fn split(&mut self, n: usize) {
        let mut pieces = Extents::new(smaller(self.size), 512);
        pieces.hold(0..512);
        pieces.swaps_in_read_only = self.swaps_in_read_only;
        pieces.first = self.first.as_ref().map(|first| vec![first[n]; 512]);
        pieces.used = self.used.as_ref().map(|used| vec![used[n]; 512]);
        self.state[n] = SPLIT;
        self.pieces.insert(n, pieces);
    }

    /// Calls `see` with the frames of each page of its own and with the look of its last use, in the order of
    /// addresses.
    pub fn each_own(&mut self, start: u64, see: &mut dyn FnMut(Range<u64>, &mut u32)) {
        let pages = self.state.len();
        let used = self.used.get_or_insert_with(|| vec![0; pages]);
        for (n, state) in self.state.iter().enumerate() {
            let page = frames(self.size, start, n);
            match (*state, self.pieces.get_mut(&n)) {
                (SPLIT, Some(pieces)) => pieces.each_own(page.start, see),
                (READ_ONLY | OWN, _) => see(page, &mut used[n]),
                _ => {}
            }
        }
    }
}

/// Adds frames that follow those added before, or are among the last of these.
fn add(gone: &mut Vec<Range<u64>>, frames: Range<u64>) {
    if gone.last().is_none_or(|last| last.end < frames.end) {
        gone.push(frames);
    }
}
