// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Linux's use of PCIDs, for guests that were captured without them.
//!
//! A CPU keeps the TLB entries of the last six address spaces it ran (Linux 6.1
//! `arch/x86/mm/tlb.c`: `TLB_NR_DYN_ASIDS`, `choose_new_asid`), user and kernel
//! halves under KPTI apart (each root is a space of its own here). Entries are
//! flushed when a space is new, when its tables changed while it did not run, and
//! when the guest reloads the root it is running on.

use bifold_mmu::Gpa;

/// `TLB_NR_DYN_ASIDS`.
const SPACES: usize = 6;

/// The address spaces whose entries one vCPU keeps.
#[derive(Debug)]
pub struct Spaces {
    on: bool,
    /// Most recent first.
    kept: Vec<Kept>,
}

#[derive(Debug)]
struct Kept {
    root: Gpa,
    number: u16,
    stale: bool,
}

/// The space to run in now.
#[derive(Debug, Clone, Copy)]
pub struct Space {
    /// Its number.
    pub number: u16,
    /// Its entries are to be dropped first.
    pub flush: bool,
}

impl Spaces {
    /// None kept yet. Where `on` is false, [`Spaces::load`] gives `None`: no PCIDs.
    pub fn new(on: bool) -> Self {
        Spaces { on, kept: Vec::new() }
    }

    /// The guest loads `root`; `same` if it was running on it.
    pub fn load(&mut self, root: Gpa, same: bool) -> Option<Space> {
        if !self.on {
            return None;
        }
        if let Some(at) = self.kept.iter().position(|k| k.root == root) {
            let mut k = self.kept.remove(at);
            let flush = same || std::mem::take(&mut k.stale);
            let number = k.number;
            self.kept.insert(0, k);
            return Some(Space { number, flush });
        }
        let number = if self.kept.len() < 2 * SPACES {
            self.kept.len() as u16
        } else {
            self.kept.pop().map_or(0, |k| k.number)
        };
        self.kept.insert(0, Kept { root, number, stale: false });
        Some(Space { number, flush: true })
    }

    /// An entry of the tables below root `owner` was changed or removed. The space that
    /// runs (`current`) is flushed by the guest itself.
    pub fn changed(&mut self, owner: Option<u64>, current: Gpa) {
        let Some(owner) = owner else { return };
        for k in &mut self.kept {
            // Under KPTI the user half's root is the next page.
            k.stale |= k.root != current && (k.root.frame() | 1) == (owner | 1);
        }
    }
}
