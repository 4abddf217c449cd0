// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The host's memory behind a guest: the host frame of each guest frame, whether the host has backed the
//! frame and by a page of which size, and when the guest last used that page.
//!
//! Frames lie in blocks of the order in which a host's allocator hands them out
//! (`docs/design/model.md#host-memory`): [`Frames`] says which. Where each block lies is the data caches'
//! affair, which alone can tell (`cache/frames.rs`). The host backs a frame when the guest first touches the
//! frame. A read gets the shared zero page, mapped read-only, and a later write gets a page of its own (Linux
//! `do_anonymous_page`, and KVM's `hva_to_pfn`, which maps a read fault writable only if the page already is
//! writable). Large host pages have no zero page. A VM that begins as a snapshot gets the snapshot's pages in
//! the same way ([`VmState`]).
//!
//! The host may take pages back: [`HostMemory::take_back`]. Where it takes a part of a large page, the rest
//! stays as smaller pages, for good: a host that collapses them again (`khugepaged`) is not modelled.

mod extents;

use crate::page::Page;
use crate::{KvmVersion, VmState};
use bifold_mmu::{Gpa, Hpa, PageSize};
use extents::Extents;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The state of a frame in the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backing {
    /// The host has no page for the frame.
    Absent,
    /// The host has written the page to swap.
    Swapped,
    /// The page is in a snapshot, and the guest has not touched it since.
    Snapshot,
    /// The shared zero page backs the frame, or a page of a snapshot's file, read-only.
    Zero,
    /// A page of its own backs the frame, read-only, since a read brought it back from swap.
    ReadOnly,
    /// A page of its own backs the frame.
    Own,
}

/// A page that the host gave the guest, and where its content comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given {
    /// The page's size.
    pub size: PageSize,
    /// Where its content comes from.
    pub from: Origin,
}

/// Where the content of a page comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The host cleared the page, copied a page that it had, or brought the page back from swap.
    Own,
    /// A snapshot's file, which the host maps.
    File,
    /// A snapshot, from which a process of the host copied the page (`userfaultfd`).
    Uffd,
}

/// How the host takes pages back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taking {
    /// The content is dropped, as a balloon does (`MADV_DONTNEED`): the next touch is a first one.
    Discard,
    /// Pages of the guest's own go to swap, from where the next touch brings them back (`shrink_folio_list`,
    /// `do_swap_page`). The zero page stays.
    Swap,
}

/// How long the host has run, which decides how large the blocks are in which 4 KB frames come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Frames {
    /// A host just booted: its free memory lies in whole 2 MB blocks.
    Fresh,
    /// A host whose free memory was files and programs before.
    #[default]
    Aged,
}

/// The shares of an aged host's frames, in 1/256, that come in blocks of order 0 to 4:
/// `evidence/pages/host-frames.md`.
const AGED: [u8; GROUP as usize + 1] = [151, 40, 32, 24, 9];
const _: () =
    assert!(AGED[0] as u32 + AGED[1] as u32 + AGED[2] as u32 + AGED[3] as u32 + AGED[4] as u32 == 256);
/// The largest order in [`AGED`]. Frames of one group have the same order.
const GROUP: u32 = 4;

/// Where the frames behind a guest begin: frames of order `n` have `BASE + (n << 40)` before their
/// guest-physical address, so that no two guest frames share a host frame, and an address tells its order.
const BASE: u64 = 1 << 45;
const REGION: u32 = 40;

impl Frames {
    /// The order of the smallest blocks in which frames behind host pages of this size come: 2^order frames
    /// of 4 KB.
    pub(crate) fn least_order(self, page: PageSize) -> u32 {
        match (page, self) {
            (PageSize::Size4K, Frames::Aged) => 0,
            (PageSize::Size4K, Frames::Fresh) => PageSize::Size2M.shift() - 12,
            _ => page.shift() - 12,
        }
    }

    /// The order of the block in which the 4 KB frame lies: 2^order frames.
    fn order(self, frame: u64, seed: u64) -> u32 {
        let Frames::Aged = self else { return PageSize::Size2M.shift() - 12 };
        let dice = mix((frame >> GROUP).wrapping_add(seed.wrapping_mul(MIX))) >> 56;
        // Without a jump, which a processor could not foresee.
        let mut below = 0;
        let beyond = |share: &u8| {
            below += u64::from(*share);
            u32::from(dice >= below)
        };
        AGED[..GROUP as usize].iter().map(beyond).sum()
    }
}

const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// A number of which each bit depends on all bits of `x` (Steele et al., "Fast splittable pseudorandom number
/// generators", OOPSLA 2014).
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// The block in which a host-physical address lies: its order, if the address is that of a frame behind the
/// guest.
pub(crate) fn order(at: Hpa) -> Option<u32> {
    (at.0 >= BASE).then(|| ((at.0 - BASE) >> REGION) as u32)
}

/// Placement and state of host frames behind one VM's memory.
#[derive(Debug, Clone)]
pub struct HostMemory {
    page: PageSize,
    frames: u64,
    placed: Frames,
    seed: u64,
    pages: Extents,
    /// Looks at what the guest has used, so far.
    looks: u32,
    /// Pages brought back from swap.
    swapped_in: u64,
    /// Grows with each page that the host backs, and whenever it takes some back.
    epoch: u64,
    /// Guest frames that came back from swap since [`HostMemory::came_back`]; `None` if no caller asks.
    came_back: Option<Vec<u64>>,
    /// Where the content of the snapshot's pages comes from, if the memory began as a snapshot.
    snapshot: Origin,
    /// Guest frames that the host has unmapped since [`HostMemory::take_unmapped`]; `None` while no tables
    /// are kept.
    unmapped: Option<Vec<Range<u64>>>,
}

impl HostMemory {
    /// Memory of `guest_frames` 4 KB frames, none touched, backed by pages of `page`, whose frames come from
    /// a host as `placed` says. `seed` draws their blocks.
    pub fn new(page: PageSize, guest_frames: u64, placed: Frames, seed: u64) -> Self {
        let pages = (guest_frames >> (page.shift() - 12)) + 1;
        HostMemory {
            page,
            frames: guest_frames,
            placed,
            seed,
            pages: Extents::new(page, pages as usize),
            looks: 0,
            swapped_in: 0,
            epoch: 0,
            came_back: None,
            snapshot: Origin::Own,
            unmapped: None,
        }
    }

    /// Remembers from now on for which vCPU the host backed each page. Frames that the host
    /// [holds](Self::hold) count as the first vCPU's, which boots.
    pub fn remember_first(mut self) -> Self {
        self.pages.first = Some(vec![0; self.pages.len()]);
        self
    }

    /// The same memory under this version of Linux.
    pub fn of_version(mut self, kvm: KvmVersion) -> Self {
        self.pages.swaps_in_read_only = kvm.swaps_in_read_only();
        self
    }

    /// The same memory as a VM in this state begins with, before the host [holds](Self::hold) any.
    pub fn of_state(mut self, vm: VmState) -> Self {
        self.snapshot = match vm {
            VmState::LongLived | VmState::Started => return self,
            VmState::Restored => Origin::File,
            VmState::RestoredUffd => Origin::Uffd,
        };
        self.pages.restore(vm == VmState::RestoredUffd);
        self
    }

    /// Whether to note which guest frames the host unmaps, for tables that do not see its faults.
    pub fn note_unmapped(&mut self, on: bool) {
        self.unmapped = on.then(Vec::new);
    }

    /// Notes from now on which guest frames come back from swap.
    pub fn note_swapped_in(&mut self) {
        self.came_back = Some(Vec::new());
    }

    /// Did this frame come back from swap since the last call, if that is noted?
    #[inline]
    pub fn came_back(&mut self, frame: u64) -> bool {
        let Some(frames) = self.came_back.as_mut().filter(|frames| !frames.is_empty()) else { return false };
        let found = frames.contains(&frame);
        frames.clear();
        found
    }

    /// The guest frames that the host has unmapped since the last call, if they are noted.
    #[inline]
    pub fn take_unmapped(&mut self) -> Option<Vec<Range<u64>>> {
        self.unmapped.as_mut().filter(|u| !u.is_empty()).map(std::mem::take)
    }

    /// Grows with each page that the host backs, and whenever it takes some back: what was known of a page
    /// before may no longer hold.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether [`HostMemory::remember_first`] was called.
    pub fn remembers_first(&self) -> bool {
        self.pages.first.is_some()
    }

    /// What decides on which node the page behind `gpa` lies. The pieces of a split page have its number.
    pub fn page(&self, gpa: Gpa) -> Page {
        Page::Host { gpa, number: gpa.0 >> self.page.shift(), first: self.pages.first_at(gpa.0) }
    }

    /// Size of the host's pages, of the largest ones if some are split.
    pub fn page_size(&self) -> PageSize {
        self.page
    }

    /// Size of the page that is or would be behind `gpa`: the level of the host's entry
    /// (`host_pfn_mapping_level`).
    #[inline]
    pub fn size_at(&self, gpa: Gpa) -> PageSize {
        if self.pages.is_split() { self.pages.size_at(gpa.0) } else { self.page }
    }

    /// The guest's memory, in 4 KB frames.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// The state of the page behind `gpa`. Addresses beyond the guest's memory
    /// (device windows) count as backed: their faults are not paging's.
    #[inline]
    pub fn backing(&self, gpa: Gpa) -> Backing {
        self.pages.backing(gpa.0)
    }

    /// Backs the page behind `gpa` for a read or a write of `vcpu`, and returns the page; none if a page of
    /// its own was there already.
    pub fn touch(&mut self, gpa: Gpa, write: bool, vcpu: usize) -> Option<Given> {
        let backed = self.pages.touch(gpa.0, write, vcpu, self.looks + 1)?;
        self.epoch += 1;
        if backed.was == Backing::ReadOnly {
            return None; // do_wp_page reuses it
        }
        if backed.was == Backing::Swapped {
            self.swapped_in += 1;
            self.came_back.iter_mut().for_each(|frames| frames.push(gpa.frame()));
        }
        // The zero page goes, and so do all entries that map it (the host's MMU notifier).
        if let (Backing::Zero, Some(unmapped)) = (backed.was, &mut self.unmapped) {
            let frames = 1 << (backed.size.shift() - 12);
            let first = gpa.frame() & !(frames - 1);
            unmapped.push(first..first + frames);
        }
        let from = if backed.was == Backing::Snapshot { self.snapshot } else { Origin::Own };
        Some(Given { size: backed.size, from })
    }

    /// A device of the host's reads or writes the page behind `gpa`: its process touches a page that is in
    /// swap, or read-only, and uses every other. True if the page came back from swap. The guest's tables do
    /// not map it by that.
    pub fn transfer(&mut self, gpa: Gpa, write: bool) -> bool {
        let was = self.backing(gpa);
        let missing = matches!(was, Backing::Swapped | Backing::Snapshot);
        if missing || (write && was == Backing::ReadOnly) {
            self.touch(gpa, write, 0);
            self.came_back.iter_mut().for_each(Vec::clear); // it is for no access of the guest's
        } else {
            self.pages.use_at(gpa.0, self.looks + 1);
        }
        was == Backing::Swapped
    }

    /// Takes back the pages behind these guest frames. Returns the frames that no table may map any more:
    /// where a part of a large page goes, all of that page.
    pub fn take_back(&mut self, gfns: Range<u64>, taking: Taking) -> Vec<Range<u64>> {
        let mut gone = Vec::new();
        // The memory's last page is whole without the frames beyond.
        let page = 1 << (self.page.shift() - 12);
        let end = if gfns.end < self.frames { gfns.end } else { self.frames.next_multiple_of(page) };
        if gfns.start < gfns.end.min(self.frames) {
            self.pages.take_back(0, &(gfns.start..end), taking, &mut gone);
            self.epoch += 1;
        }
        gone
    }

    /// Pages that a touch brought back from swap, since the beginning of the stream or of its region.
    pub fn swapped_in(&self) -> u64 {
        self.swapped_in
    }

    /// A region begins: [`Self::swapped_in`] counts from here.
    pub fn restart(&mut self) {
        self.swapped_in = 0;
    }

    /// Large pages that are split.
    pub fn split(&self) -> u64 {
        self.pages.split_pages()
    }

    /// A look at which pages the guest has used since the last one. `young` says it of a page's frames, and
    /// has to forget it. True if any page was used.
    pub fn look(&mut self, mut young: impl FnMut(Range<u64>) -> bool) -> bool {
        self.looks += 1;
        let (now, mut any) = (self.looks, false);
        self.pages.each_own(0, &mut |frames, used| {
            if young(frames) {
                *used = now;
                any = true;
            }
        });
        any
    }

    /// The frames of the pages that the guest has not used for longest, at most `most` pages: what a
    /// reclaimer takes. Of pages of one age, those at the lowest addresses. Ages are exact to a
    /// [look](Self::look). The zero page is not among them.
    pub fn oldest(&mut self, most: usize) -> Vec<Range<u64>> {
        let mut pages = Vec::new();
        self.pages.each_own(0, &mut |frames, used| pages.push((*used, frames)));
        // The last host page may lie beyond the memory, where nothing is taken back.
        pages.retain(|(_, frames)| frames.start < self.frames);
        pages.sort_by_key(|(used, frames)| (*used, frames.start));
        pages.into_iter().take(most).map(|(_, frames)| frames).collect()
    }

    /// The host holds these frames already, each in a page of its own.
    pub fn hold(&mut self, gfn: u64, frames: u64) {
        let shift = self.page.shift() - 12;
        let end = gfn.saturating_add(frames).min(self.frames);
        if gfn < end {
            self.pages.hold((gfn >> shift) as usize..((end - 1) >> shift) as usize + 1);
        }
    }

    /// The host-physical address of `gpa`, which tells the block's [order], but not where the block lies. A
    /// page that was taken back comes back there, and the pieces of a split page stay there.
    #[inline]
    pub fn hpa(&self, gpa: Gpa) -> Hpa {
        let order = match self.page {
            PageSize::Size4K => self.placed.order(gpa.frame(), self.seed),
            page => page.shift() - 12,
        };
        Hpa(BASE + (u64::from(order) << REGION) + gpa.0)
    }
}

#[cfg(test)]
mod tests;
