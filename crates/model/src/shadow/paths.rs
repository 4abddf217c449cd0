// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ways of walks through the shadow pages, kept by 2 MB of addresses: most walks go where the last one
//! went.

use super::Shadow;
use super::pages::Pages;
use super::spte::{LARGE, PRESENT, WRITE};
use bifold_mmu::Gva;
use bifold_mmu::format::MOST_LEVELS;

const SLOTS: usize = 1024;

/// The shadow pages on the way to the page of level 1 for 2 MB of addresses.
#[derive(Debug, Clone, Copy, Default)]
pub struct Path {
    /// Address >> 21, plus 1: 0 marks an empty slot.
    number: u64,
    /// Shadow page of the root.
    root: usize,
    /// [`Pages::unlinked`] when the path was found. It stands until then.
    unlinked: u64,
    /// Addresses of the shadow pages, by level less 1.
    tables: [u64; MOST_LEVELS],
}

impl Path {
    /// Address of the shadow page of `level` on the way.
    #[inline(always)]
    pub fn table(&self, level: u8) -> u64 {
        self.tables[usize::from(level) - 1]
    }
}

/// Paths that walks have taken, one per slot.
#[derive(Debug, Clone)]
pub(super) struct Paths(Box<[Path; SLOTS]>);

impl Default for Paths {
    fn default() -> Self {
        Paths(Box::new([Path::default(); SLOTS]))
    }
}

impl Shadow {
    /// The way of the hardware's walk of `gva`, if that ends at level 1.
    #[inline]
    pub fn path(&mut self, vcpu: usize, gva: Gva) -> Option<&Path> {
        let (number, root) = ((gva.0 >> 21) + 1, self.root_slot(vcpu, gva));
        let slot = (number as usize ^ root) % SLOTS;
        let p = &self.paths.0[slot];
        if p.number != number || p.root != root || p.unlinked != self.pages.unlinked {
            self.paths.0[slot] = self.find_path(number, root, gva)?;
        }
        Some(&self.paths.0[slot])
    }

    /// May the page at `gva` be written, if a walk of it ends at level 1 and changes nothing: see
    /// [`Shadow::ready`].
    #[inline]
    pub fn ready_page(&mut self, vcpu: usize, gva: Gva) -> Option<bool> {
        let at = self.path(vcpu, gva)?.table(1) | self.format.index(1, gva.0) << 3;
        Some(self.ready(at)? & WRITE != 0)
    }

    #[cold]
    fn find_path(&self, number: u64, root: usize, gva: Gva) -> Option<Path> {
        let mut path = Path { number, root, unlinked: self.pages.unlinked, tables: [0; MOST_LEVELS] };
        let mut page = root;
        for level in (1..=self.format.root_level()).rev() {
            path.tables[usize::from(level) - 1] = Pages::hpa(page);
            if level > 1 {
                let id = self.sptep(page, gva.0);
                if self.pages.spte(id) & (PRESENT | LARGE) != PRESENT {
                    return None;
                }
                page = self.pages.child(id);
            }
        }
        Some(path)
    }
}
