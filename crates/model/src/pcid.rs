// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Linux's use of PCIDs, for guests that were captured without PCIDs.
//!
//! A CPU keeps the TLB entries of six address spaces (Linux 6.1 `arch/x86/mm/tlb.c`:
//! `TLB_NR_DYN_ASIDS`). A seventh space replaces each of the six in turn, however lately that space
//! ran (`choose_new_asid`). Under KPTI each space has a user half with its own PCID, whose root is
//! the page after the kernel half's root. A kernel built with KPTI allocates both pages even where
//! KPTI is off, so two neighbouring roots always belong to one space. Entries are flushed when a
//! space is new, when its tables changed while the space did not run, and when the guest reloads the
//! current root.

use bifold_mmu::Gpa;

/// `TLB_NR_DYN_ASIDS`.
const SPACES: usize = 6;

/// The address spaces whose entries one vCPU keeps.
#[derive(Debug)]
pub struct Spaces {
    on: bool,
    kept: Vec<Kept>,
    /// `next_asid`.
    next: usize,
}

#[derive(Debug)]
struct Kept {
    /// Number of the pair of frames that holds the roots of both halves.
    pair: u64,
    /// The halves that must be flushed before they run: they never ran, or their tables changed.
    stale: [bool; 2],
}

/// The space to run in now.
#[derive(Debug, Clone, Copy)]
pub struct Space {
    /// Number of the space's place, 0 to 11.
    pub number: u16,
    /// The place's entries must be flushed first.
    pub flush: bool,
}

impl Spaces {
    /// No spaces. If `on` is false the guest uses no PCIDs, and [`Spaces::load`] returns `None`.
    pub fn new(on: bool) -> Self {
        Spaces { on, kept: Vec::new(), next: 0 }
    }

    /// The guest loads `root`; `same` if it was running on it.
    pub fn load(&mut self, root: Gpa, same: bool) -> Option<Space> {
        if !self.on {
            return None;
        }
        let (pair, half) = (root.frame() >> 1, (root.frame() & 1) as usize);
        let at = self.kept.iter().position(|k| k.pair == pair).unwrap_or_else(|| self.allocate(pair));
        let stale = std::mem::take(&mut self.kept[at].stale[half]);
        Some(Space { number: (2 * at + half) as u16, flush: same || stale })
    }

    fn allocate(&mut self, pair: u64) -> usize {
        let new = Kept { pair, stale: [true; 2] };
        if self.kept.len() < SPACES {
            self.kept.push(new);
            return self.kept.len() - 1;
        }
        let at = self.next;
        self.next = (at + 1) % SPACES;
        self.kept[at] = new;
        at
    }

    /// An entry of the tables below root `owner` was changed or removed. The half that
    /// runs (`current`) is flushed by the guest itself.
    pub fn changed(&mut self, owner: Option<u64>, current: Gpa) {
        let Some(owner) = owner else { return };
        for k in self.kept.iter_mut().filter(|k| k.pair == owner >> 1) {
            for (half, stale) in k.stale.iter_mut().enumerate() {
                *stale |= k.pair << 1 | half as u64 != current.frame();
            }
        }
    }
}
