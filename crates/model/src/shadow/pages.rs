// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The arena of shadow pages (`struct kvm_mmu_page`) with its links: the hash by gfn, the list of
//! active pages in order of creation, parents, and the reverse map (`kvm_rmap_head`) from a frame to
//! the leaf sptes that map the frame.
//!
//! The id of an spte is slot * 512 + index. Slot 0 is a page that stays empty, so id 0 means none.
//! Each spte is linked in one list only: a leaf in its frame's reverse map, an upper spte in its
//! child's list of parents. So the lists are two numbers per spte, and adding and removing are O(1).

use crate::page::{Made, Makers};

use super::settled::Settled;
use super::spte::{ADDRESS, LARGE, PRESENT, Role, SWITCH, WRITE};
use std::collections::HashMap;

/// Where shadow pages lie in host-physical memory: above every frame of the guest.
pub(super) const SHADOW_BASE: u64 = 1 << 44;
/// Guest frames above this (64 GB) are found through a map instead of an array.
const DENSE: u64 = 1 << 24;

/// What KVM keeps per 4 KB frame of a memory slot.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Frame {
    /// First leaf spte of level 1 that maps the frame.
    rmap: u32,
    /// First shadow page filed under the frame's number.
    pages: u32,
    /// `gfn_track[KVM_PAGE_TRACK_WRITE]`: shadowed non-leaf tables in the frame.
    pub track: u32,
}

/// What KVM keeps per 2 MB or 1 GB of a memory slot (`kvm_lpage_info` and the rmap).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Large {
    rmap: u32,
    /// Shadowed tables inside: while there are any, no large spte.
    pub disallow_lpage: u32,
}

/// An array indexed by frame number that does not grow to a device's window.
#[derive(Debug, Clone, Default)]
struct ByNumber<T> {
    dense: Vec<T>,
    rest: HashMap<u64, T>,
}

impl<T: Copy + Default> ByNumber<T> {
    #[inline]
    fn get(&self, n: u64) -> T {
        if n < DENSE {
            self.dense.get(n as usize).copied().unwrap_or_default()
        } else {
            self.rest.get(&n).copied().unwrap_or_default()
        }
    }

    #[inline]
    fn get_mut(&mut self, n: u64) -> &mut T {
        if n >= DENSE {
            return self.rest.entry(n).or_default();
        }
        if self.dense.len() <= n as usize {
            self.dense.resize((n as usize + 1).next_power_of_two(), T::default());
        }
        &mut self.dense[n as usize]
    }
}

/// `struct kvm_mmu_page`, less its sptes.
#[derive(Debug, Clone)]
pub(super) struct Page {
    pub gfn: u64,
    pub role: Role,
    /// `role.invalid`: zapped, but still some vCPU's root.
    pub invalid: bool,
    pub unsync: bool,
    pub root_count: u32,
    pub write_flooding_count: u32,
    pub unsync_children: u32,
    pub unsync_child_bitmap: [u64; 8],
    parents: u32,
    hash_next: u32,
    newer: u32,
    older: u32,
}

/// The head of a list of sptes.
#[derive(Debug, Clone, Copy)]
enum Head {
    Rmap { level: u8, gfn: u64 },
    Parents(usize),
}

/// Of a shadow page's sptes, a bit for each whose walk is known without reading it. Most walks are
/// over entries that have not changed since the last one, and these bits stay in the machine's cache
/// where the sptes do not. Any change of an spte drops its bits.
#[derive(Debug, Clone, Copy, Default)]
struct Ready {
    /// A present, accessed leaf spte of level 1, whose use in this interval is noted.
    mapped: [u64; 8],
    /// Of those, the writable ones.
    writable: [u64; 8],
}

/// The arena.
#[derive(Debug, Clone)]
pub(super) struct Pages {
    sptes: Vec<u64>,
    ready: Vec<Ready>,
    /// Of pages that were synced.
    pub settled: Vec<Option<Box<Settled>>>,
    /// `shadowed_translation`: the gfn that each leaf spte maps.
    gfns: Vec<u64>,
    next: Vec<u32>,
    prev: Vec<u32>,
    pages: Vec<Page>,
    free: Vec<u32>,
    frames: ByNumber<Frame>,
    large: [ByNumber<Large>; 2],
    newest: u32,
    oldest: u32,
    /// `n_used_mmu_pages`.
    pub used: usize,
    /// The most that were in use at once.
    pub most_used: usize,
    /// `n_max_mmu_pages`.
    pub max: usize,
    /// The vCPU whose fault or root the pages made now are for.
    pub maker: usize,
    /// Who made each page, by slot.
    makers: Makers,
    /// Sptes that pointed to a shadow page and do so no more.
    pub unlinked: u64,
}

/// Slot of the page that holds spte `id`.
#[inline]
pub(super) fn sptep_to_sp(id: usize) -> usize {
    id >> 9
}

impl Pages {
    /// No pages; at most `max` may be used.
    pub fn new(max: usize) -> Pages {
        let mut p = Pages {
            sptes: Vec::new(),
            ready: Vec::new(),
            settled: Vec::new(),
            gfns: Vec::new(),
            next: Vec::new(),
            prev: Vec::new(),
            pages: Vec::new(),
            free: Vec::new(),
            frames: ByNumber::default(),
            large: [ByNumber::default(), ByNumber::default()],
            newest: 0,
            oldest: 0,
            used: 0,
            most_used: 0,
            max,
            maker: 0,
            makers: Makers::default(),
            unlinked: 0,
        };
        p.slot(0, Role { level: 1, direct: true, access: 0, quadrant: 0 }); // the page that stays empty
        p
    }

    fn slot(&mut self, gfn: u64, role: Role) -> usize {
        let page = Page {
            gfn,
            role,
            invalid: false,
            unsync: false,
            root_count: 0,
            write_flooding_count: 0,
            unsync_children: 0,
            unsync_child_bitmap: [0; 8],
            parents: 0,
            hash_next: 0,
            newer: 0,
            older: 0,
        };
        if let Some(slot) = self.free.pop() {
            self.pages[slot as usize] = page;
            return slot as usize;
        }
        let slot = self.pages.len();
        self.pages.push(page);
        self.sptes.resize((slot + 1) << 9, 0);
        self.ready.resize(slot + 1, Ready::default());
        self.settled.resize(slot + 1, None);
        self.gfns.resize((slot + 1) << 9, 0);
        self.next.resize((slot + 1) << 9, 0);
        self.prev.resize((slot + 1) << 9, 0);
        slot
    }

    /// Who made the page with the entry at `at` (`kvm_mmu_alloc_shadow_page` takes it of the vCPU's
    /// `mmu_shadow_page_cache`).
    pub fn made(&self, at: u64) -> Made {
        self.makers.of(1, sptep_to_sp(Pages::id_at(at)) as u64)
    }

    /// The entry at (pseudo) host-physical address `at`.
    #[inline]
    pub fn at(&self, at: u64) -> u64 {
        self.sptes[Pages::id_at(at)]
    }

    /// The present and write bits of the level-1 spte at `at` if it is ready: see [`Ready`].
    #[inline]
    pub fn ready(&self, at: u64) -> Option<u64> {
        let id = Pages::id_at(at);
        let (ready, word, bit) = (&self.ready[sptep_to_sp(id)], id >> 6 & 7, id & 63);
        (ready.mapped[word] >> bit & 1 != 0).then_some(PRESENT | ((ready.writable[word] >> bit & 1) * WRITE))
    }

    /// The spte is present and accessed, and its use in this interval is noted.
    pub fn set_ready(&mut self, id: usize) {
        if self.pages[sptep_to_sp(id)].role.level == 1 {
            let writable = self.sptes[id] & WRITE != 0;
            let (ready, word, bit) = (&mut self.ready[sptep_to_sp(id)], id >> 6 & 7, id & 63);
            ready.mapped[word] |= 1 << bit;
            ready.writable[word] |= u64::from(writable) << bit;
        }
    }

    /// An interval begins, in which no use is noted.
    pub fn none_ready(&mut self) {
        self.ready.fill(Ready::default());
    }

    /// Overwrites an spte in any way.
    #[inline]
    fn write(&mut self, id: usize, spte: u64) {
        self.sptes[id] = spte;
        if let Some(settled) = &mut self.settled[sptep_to_sp(id)] {
            settled.overwrite(id & 511);
        }
        let (ready, word, bit) = (&mut self.ready[sptep_to_sp(id)], id >> 6 & 7, id & 63);
        ready.mapped[word] &= !(1 << bit);
        ready.writable[word] &= !(1 << bit);
    }

    /// Id of the spte at a host-physical address.
    #[inline]
    pub fn id_at(at: u64) -> usize {
        ((at - SHADOW_BASE) >> 3) as usize
    }

    /// Host-physical address of a shadow page.
    #[inline]
    pub fn hpa(slot: usize) -> u64 {
        SHADOW_BASE + ((slot as u64) << 12)
    }

    #[inline]
    pub fn spte(&self, id: usize) -> u64 {
        self.sptes[id]
    }

    /// Overwrites an spte without changing what it maps.
    #[inline]
    pub fn update(&mut self, id: usize, spte: u64) {
        self.write(id, spte);
    }

    pub fn gfn_of(&self, id: usize) -> u64 {
        self.gfns[id]
    }

    #[inline]
    pub fn page(&self, slot: usize) -> &Page {
        &self.pages[slot]
    }

    #[inline]
    pub fn page_mut(&mut self, slot: usize) -> &mut Page {
        &mut self.pages[slot]
    }

    /// Slots ever used, the empty page's included.
    pub fn slots(&self) -> usize {
        self.pages.len()
    }

    /// `is_last_spte` of a present spte.
    #[inline]
    pub fn is_last(&self, id: usize) -> bool {
        self.pages[sptep_to_sp(id)].role.level == 1 || self.sptes[id] & LARGE != 0
    }

    /// `spte_to_child_sp`.
    #[inline]
    pub fn child(&self, id: usize) -> usize {
        (((self.sptes[id] & ADDRESS) - SHADOW_BASE) >> 12) as usize
    }

    pub fn track(&mut self, gfn: u64) -> &mut u32 {
        &mut self.frames.get_mut(gfn).track
    }

    /// `kvm_slot_page_track_is_active`.
    #[inline]
    pub fn is_tracked(&self, gfn: u64) -> bool {
        self.frames.get(gfn).track != 0
    }

    /// `disallow_lpage` of the 2 MB (level 2) or 1 GB (level 3) around `gfn`.
    pub fn disallow_lpage(&self, gfn: u64, level: u8) -> u32 {
        self.large[usize::from(level) - 2].get(gfn / super::spte::pages_per_hpage(level)).disallow_lpage
    }

    /// `update_gfn_disallow_lpage_count`.
    pub fn update_disallow_lpage(&mut self, gfn: u64, add: bool) {
        for level in 2..=3u8 {
            let n = gfn / super::spte::pages_per_hpage(level);
            let count = &mut self.large[usize::from(level) - 2].get_mut(n).disallow_lpage;
            *count = if add { *count + 1 } else { *count - 1 };
        }
    }

    // --- lists of sptes ---

    fn head(&mut self, head: Head) -> &mut u32 {
        match head {
            Head::Parents(slot) => &mut self.pages[slot].parents,
            Head::Rmap { level: 1, gfn } => &mut self.frames.get_mut(gfn).rmap,
            Head::Rmap { level, gfn } => {
                let n = gfn / super::spte::pages_per_hpage(level);
                &mut self.large[usize::from(level) - 2].get_mut(n).rmap
            }
        }
    }

    fn list_add(&mut self, head: Head, id: usize) {
        let first = std::mem::replace(self.head(head), id as u32);
        self.next[id] = first;
        self.prev[id] = 0;
        if first != 0 {
            self.prev[first as usize] = id as u32;
        }
    }

    fn list_remove(&mut self, head: Head, id: usize) {
        let (next, prev) = (self.next[id], self.prev[id]);
        if prev == 0 {
            *self.head(head) = next;
        } else {
            self.next[prev as usize] = next;
        }
        if next != 0 {
            self.prev[next as usize] = prev;
        }
    }

    fn collect(&self, mut id: u32, out: &mut Vec<usize>) {
        while id != 0 {
            out.push(id as usize);
            id = self.next[id as usize];
        }
    }

    /// The sptes that point to a shadow page (`parent_ptes`).
    pub fn parents(&self, slot: usize) -> Vec<usize> {
        let mut ids = Vec::new();
        self.collect(self.pages[slot].parents, &mut ids);
        ids
    }

    /// The leaf sptes of every level that map `gfn`.
    pub fn rmap(&self, gfn: u64) -> Vec<usize> {
        let mut ids = Vec::new();
        self.collect(self.frames.get(gfn).rmap, &mut ids);
        for level in 2..=3u8 {
            let n = gfn / super::spte::pages_per_hpage(level);
            self.collect(self.large[usize::from(level) - 2].get(n).rmap, &mut ids);
        }
        ids
    }

    /// Makes an absent spte map `gfn` (`mmu_spte_set` and `rmap_add`).
    pub fn set_leaf(&mut self, id: usize, spte: u64, gfn: u64) {
        debug_assert_eq!(self.sptes[id], 0);
        self.write(id, spte);
        self.gfns[id] = gfn;
        let level = self.mapped_level(id);
        self.list_add(Head::Rmap { level, gfn }, id);
    }

    /// The level of the pages that the rmap of a leaf spte is for.
    fn mapped_level(&self, id: usize) -> u8 {
        if self.sptes[id] & SWITCH != 0 { 1 } else { self.pages[sptep_to_sp(id)].role.level }
    }

    /// `drop_spte`: clears a leaf spte, which may be absent.
    pub fn drop_spte(&mut self, id: usize) {
        if self.sptes[id] & PRESENT != 0 {
            self.unlinked += u64::from(self.sptes[id] & SWITCH != 0);
            let level = self.mapped_level(id);
            self.list_remove(Head::Rmap { level, gfn: self.gfns[id] }, id);
            self.write(id, 0);
        }
    }

    /// Makes an absent spte point to `child`.
    pub fn set_child(&mut self, id: usize, spte: u64, child: usize) {
        debug_assert_eq!(self.sptes[id], 0);
        self.write(id, spte);
        self.list_add(Head::Parents(child), id);
    }

    /// `drop_parent_pte`.
    pub fn drop_parent_pte(&mut self, id: usize) {
        let child = self.child(id);
        self.list_remove(Head::Parents(child), id);
        self.write(id, 0);
        self.unlinked += 1;
    }

    /// `mmu_page_zap_pte`; true if the spte was present.
    pub fn zap_pte(&mut self, id: usize) -> bool {
        if self.sptes[id] & PRESENT == 0 {
            return false;
        }
        if self.is_last(id) {
            self.drop_spte(id)
        } else {
            self.drop_parent_pte(id)
        }
        true
    }

    // --- pages ---

    /// `kvm_mmu_alloc_shadow_page`, less the accounting of the table it shadows.
    pub fn alloc(&mut self, gfn: u64, role: Role) -> usize {
        let slot = self.slot(gfn, role);
        self.makers.replaced(slot as u64, self.maker);
        let chain = &mut self.frames.get_mut(gfn).pages;
        let first = std::mem::replace(chain, slot as u32);
        let newest = std::mem::replace(&mut self.newest, slot as u32);
        let page = &mut self.pages[slot];
        page.hash_next = first;
        page.older = newest;
        if newest == 0 {
            self.oldest = slot as u32;
        } else {
            self.pages[newest as usize].newer = slot as u32;
        }
        self.used += 1;
        self.most_used = self.most_used.max(self.used);
        slot
    }

    /// Takes a page that is being zapped off the hash and the list of active pages.
    pub fn retire(&mut self, slot: usize) {
        let Page { gfn, hash_next, newer, older, .. } = self.pages[slot];
        let mut at = self.frames.get(gfn).pages;
        if at == slot as u32 {
            self.frames.get_mut(gfn).pages = hash_next;
        } else {
            while self.pages[at as usize].hash_next != slot as u32 {
                at = self.pages[at as usize].hash_next;
            }
            self.pages[at as usize].hash_next = hash_next;
        }
        if newer == 0 {
            self.newest = older
        } else {
            self.pages[newer as usize].older = older
        }
        if older == 0 { self.oldest = newer } else { self.pages[older as usize].newer = newer }
    }

    /// `kvm_mmu_free_shadow_page`: the slot may be used again.
    pub fn free(&mut self, slot: usize) {
        debug_assert!(self.sptes[slot << 9..(slot + 1) << 9].iter().all(|&s| s == 0));
        debug_assert_eq!(self.pages[slot].parents, 0);
        self.free.push(slot as u32);
    }

    /// The oldest active page, 0 if none; [`Pages::newer`] goes on from there.
    pub fn oldest(&self) -> usize {
        self.oldest as usize
    }

    pub fn newer(&self, slot: usize) -> usize {
        self.pages[slot].newer as usize
    }

    /// Pages filed under `gfn`, the newest first; 0 ends the chain.
    #[inline]
    pub fn first_of(&self, gfn: u64) -> usize {
        self.frames.get(gfn).pages as usize
    }

    #[inline]
    pub fn next_of(&self, slot: usize) -> usize {
        self.pages[slot].hash_next as usize
    }

    /// `for_each_gfn_valid_sp_with_gptes`: the shadow pages of a guest table.
    pub fn shadows_of(&self, gfn: u64) -> Vec<usize> {
        let mut slots = Vec::new();
        let mut at = self.first_of(gfn);
        while at != 0 {
            if !self.pages[at].role.direct {
                slots.push(at);
            }
            at = self.next_of(at);
        }
        slots
    }
}
