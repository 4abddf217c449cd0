// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The host's memory behind a guest: the host frame of each guest frame, and whether the host has
//! backed the frame.
//!
//! Frames lie in blocks of the order in which a host's allocator hands them out
//! (`docs/design/model.md#host-memory`): [`Frames`] says which. Where each block lies is the data caches' affair, which
//! alone can tell (`cache/frames.rs`). The host backs a frame when the guest first touches the frame. A read gets the
//! shared zero page, mapped read-only, and a later write gets a page of its own (Linux
//! `do_anonymous_page`, and KVM's `hva_to_pfn`, which maps a read fault writable only if the page
//! already is writable). Host pages of 2 MB come from hugetlbfs, which has no zero page.

use crate::page::Page;
use bifold_mmu::{Gpa, Hpa, PageSize};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The state of a frame in the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backing {
    /// The host has no page for the frame.
    Absent,
    /// The shared zero page backs the frame, read-only.
    Zero,
    /// A page of its own backs the frame.
    Own,
}

/// How long the host has run, which decides how large the blocks are in which 4 KB frames come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Frames {
    /// A host just booted: its free memory lies in whole 2 MB blocks.
    Fresh,
    /// A host whose free memory was files and programs before.
    #[default]
    Aged,
}

/// The shares of an aged host's frames, in 1/256, that come in blocks of order 0 to 4: `docs/results/host-frames.md`.
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
    /// The order of the smallest blocks in which frames behind host pages of this size come: 2^order frames of 4 KB.
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
        let mut below = 0;
        let of = |share: &u8| {
            below += u64::from(*share);
            dice < below
        };
        AGED.iter().position(of).map_or(GROUP, |order| order as u32)
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

/// The block in which a host-physical address lies: its order, if the address is that of a frame behind the guest.
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
    /// Per host page behind the guest: 0 absent, 1 zero page, 2 own.
    state: Vec<u8>,
    /// Per host page: the vCPU whose touch the host backed it for. None if no caller asks.
    first: Option<Vec<u8>>,
    /// Grows with each page that the host backs.
    epoch: u64,
    /// Guest frames that the host has unmapped since [`HostMemory::take_unmapped`]; `None` while no tables are kept.
    unmapped: Option<Vec<Range<u64>>>,
}

impl HostMemory {
    /// Memory of `guest_frames` 4 KB frames, none touched, backed by pages of `page`, whose frames come from a host as
    /// `placed` says. `seed` draws their blocks.
    pub fn new(page: PageSize, guest_frames: u64, placed: Frames, seed: u64) -> Self {
        let pages = (guest_frames >> (page.shift() - 12)) + 1;
        HostMemory {
            page,
            frames: guest_frames,
            placed,
            seed,
            state: vec![0; pages as usize],
            first: None,
            epoch: 0,
            unmapped: None,
        }
    }

    /// Remembers from now on for which vCPU the host backed each page. Frames that the host
    /// [holds](Self::hold) count as the first vCPU's, which boots.
    pub fn remember_first(mut self) -> Self {
        self.first = Some(vec![0; self.state.len()]);
        self
    }

    /// Whether to note which guest frames the host unmaps, for tables that do not see its faults.
    pub fn note_unmapped(&mut self, on: bool) {
        self.unmapped = on.then(Vec::new);
    }

    /// The guest frames that the host has unmapped since the last call, if they are noted.
    #[inline]
    pub fn take_unmapped(&mut self) -> Option<Vec<Range<u64>>> {
        self.unmapped.as_mut().filter(|u| !u.is_empty()).map(std::mem::take)
    }

    /// Grows with each page that the host backs: what was known of a page before may no longer hold.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether [`HostMemory::remember_first`] was called.
    pub fn remembers_first(&self) -> bool {
        self.first.is_some()
    }

    /// What decides on which node the page behind `gpa` lies.
    pub fn page(&self, gpa: Gpa) -> Page {
        let number = self.number(gpa);
        let first = self.first.as_ref().and_then(|f| f.get(number)).copied().unwrap_or(0);
        Page::Host { gpa, number: number as u64, first }
    }

    /// Size of the host's pages.
    pub fn page_size(&self) -> PageSize {
        self.page
    }

    /// The guest's memory, in 4 KB frames.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    #[inline]
    fn number(&self, gpa: Gpa) -> usize {
        (gpa.0 >> self.page.shift()) as usize
    }

    /// The state of the page behind `gpa`. Addresses beyond the guest's memory
    /// (device windows) count as backed: their faults are not paging's.
    #[inline]
    pub fn backing(&self, gpa: Gpa) -> Backing {
        match self.state.get(self.number(gpa)) {
            Some(0) => Backing::Absent,
            Some(1) => Backing::Zero,
            _ => Backing::Own,
        }
    }

    /// Backs the page behind `gpa` for a read or a write of `vcpu`; false if it was already.
    pub fn touch(&mut self, gpa: Gpa, write: bool, vcpu: usize) -> bool {
        let n = self.number(gpa);
        let want = if write || self.page != PageSize::Size4K { 2 } else { 1 };
        match self.state.get_mut(n) {
            Some(s) if *s < want => {
                // The zero page goes, and so do all entries that map it (the host's MMU notifier).
                if let (1, Some(unmapped)) = (std::mem::replace(s, want), &mut self.unmapped) {
                    let frames = 1 << (self.page.shift() - 12);
                    unmapped.push(n as u64 * frames..(n as u64 + 1) * frames);
                }
                if let Some(first) = &mut self.first {
                    first[n] = vcpu as u8;
                }
                self.epoch += 1;
                true
            }
            _ => false,
        }
    }

    /// Takes back the pages behind these guest frames, whole pages of the host. Returns the frames of those pages, which no
    /// table may map any more.
    pub fn take_back(&mut self, gfns: Range<u64>) -> Range<u64> {
        let shift = self.page.shift() - 12;
        let end = gfns.end.min(self.frames);
        if gfns.start >= end {
            return gfns.start..gfns.start;
        }
        let pages = gfns.start >> shift..((end - 1) >> shift) + 1;
        self.state[pages.start as usize..pages.end as usize].fill(0);
        self.epoch += 1;
        pages.start << shift..pages.end << shift
    }

    /// The host holds these frames already, each in a page of its own.
    pub fn hold(&mut self, gfn: u64, frames: u64) {
        let shift = self.page.shift() - 12;
        let end = gfn.saturating_add(frames).min(self.frames);
        if gfn < end {
            self.state[(gfn >> shift) as usize..=((end - 1) >> shift) as usize].fill(2);
        }
    }

    /// The host-physical address of `gpa`, which tells the block's [order], but not where the block lies.
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
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_guest_pages_share_a_host_frame() {
        for page in [PageSize::Size4K, PageSize::Size2M] {
            for placed in [Frames::Fresh, Frames::Aged] {
                let host = HostMemory::new(page, 1 << 18, placed, 42);
                let at = |n: u64| host.hpa(Gpa(n << page.shift())).0 >> page.shift();
                assert_eq!((0..100_000).map(at).collect::<HashSet<_>>().len(), 100_000);
            }
        }
    }

    #[test]
    fn an_aged_host_has_blocks_of_each_order_in_their_shares() {
        let host = HostMemory::new(PageSize::Size4K, 1 << 20, Frames::Aged, 1);
        let mut shares = [0u32; AGED.len()];
        for n in 0..1u64 << 20 {
            let of = order(host.hpa(Gpa::from_frame(n))).unwrap();
            assert_eq!(order(host.hpa(Gpa::from_frame(n >> of << of))), Some(of), "a block has one order");
            shares[of as usize] += 1;
        }
        for (share, want) in shares.iter().zip(AGED) {
            assert!((*share as f64 / 4096.0 - f64::from(want)).abs() < 4.0, "{shares:?}");
        }
        let host = HostMemory::new(PageSize::Size4K, 1 << 20, Frames::Fresh, 1);
        assert_eq!(order(host.hpa(Gpa(0x1234_5678))), Some(9));
        assert_eq!(order(Hpa(0x1234_5678)), None, "the machine's own");
    }

    #[test]
    fn a_read_then_a_write_of_a_cold_frame_are_two_touches() {
        let mut host = HostMemory::new(PageSize::Size4K, 16, Frames::Aged, 1);
        assert!(host.touch(Gpa(0x3000), false, 0));
        assert!(!host.touch(Gpa(0x3fff), false, 0));
        assert_eq!(host.backing(Gpa(0x3000)), Backing::Zero);
        assert!(host.touch(Gpa(0x3000), true, 0));
        assert_eq!(host.backing(Gpa(0x3000)), Backing::Own);
        assert!(!host.touch(Gpa(0x3000), true, 0));
    }

    #[test]
    fn frames_held_are_pages_of_their_own_and_none_beyond_the_memory() {
        let mut host = HostMemory::new(PageSize::Size4K, 16, Frames::Aged, 1);
        host.hold(3, 2);
        host.hold(14, u64::MAX);
        host.hold(99, 1);
        let own = |n: &u64| host.backing(Gpa(n << 12)) == Backing::Own;
        assert_eq!((0..16).filter(own).collect::<Vec<_>>(), [3, 4, 14, 15]);
        let mut host = HostMemory::new(PageSize::Size2M, 2048, Frames::Aged, 1);
        host.hold(511, 2);
        assert_eq!([0u64, 1, 2].map(|n| host.backing(Gpa(n << 21)) == Backing::Own), [true, true, false]);
    }

    #[test]
    fn a_2_mb_page_has_no_zero_page() {
        let mut host = HostMemory::new(PageSize::Size2M, 1024, Frames::Aged, 1);
        assert!(host.touch(Gpa(0x3000), false, 0));
        assert_eq!(host.backing(Gpa(0x1f_ffff)), Backing::Own);
        assert!(!host.touch(Gpa(0x5000), true, 0));
    }
}
