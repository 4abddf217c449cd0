// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The host's memory behind a guest: the host frame of each guest frame, and whether the host has
//! backed the frame.
//!
//! A seeded permutation places frames (`docs/design/model.md#host-memory`): single 4 KB frames, or
//! whole 2 MB frames. The host backs a frame when the guest first touches the frame. A read gets the
//! shared zero page, mapped read-only, and a later write gets a page of its own (Linux
//! `do_anonymous_page`, and KVM's `hva_to_pfn`, which maps a read fault writable only if the page
//! already is writable). Host pages of 2 MB come from hugetlbfs, which has no zero page.

use crate::placement::Page;
use bifold_mmu::{Gpa, Hpa, PageSize};

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

/// Placement and state of host frames behind one VM's memory.
#[derive(Debug, Clone)]
pub struct HostMemory {
    page: PageSize,
    frames: u64,
    seed: u64,
    /// Per host page behind the guest: 0 absent, 1 zero page, 2 own.
    state: Vec<u8>,
    /// Per host page: the vCPU whose touch the host backed it for. None if nobody asks.
    first: Option<Vec<u8>>,
}

impl HostMemory {
    /// Memory of `guest_frames` 4 KB frames, none touched, backed by pages of `page`.
    pub fn new(page: PageSize, guest_frames: u64, seed: u64) -> Self {
        let pages = (guest_frames >> (page.shift() - 12)) + 1;
        HostMemory { page, frames: guest_frames, seed, state: vec![0; pages as usize], first: None }
    }

    /// Remembers from now on for which vCPU the host backed each page. Frames that the host
    /// [holds](Self::hold) count as the first vCPU's, which boots.
    pub fn remember_first(mut self) -> Self {
        self.first = Some(vec![0; self.state.len()]);
        self
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
                *s = want;
                if let Some(first) = &mut self.first {
                    first[n] = vcpu as u8;
                }
                true
            }
            _ => false,
        }
    }

    /// The host holds these frames already, each in a page of its own.
    pub fn hold(&mut self, gfn: u64, frames: u64) {
        let shift = self.page.shift() - 12;
        let end = gfn.saturating_add(frames).min(self.frames);
        if gfn < end {
            self.state[(gfn >> shift) as usize..=((end - 1) >> shift) as usize].fill(2);
        }
    }

    /// The host-physical address of `gpa`: a permutation of the guest's own page numbers
    /// within 2^40 bytes, so that no two guest pages share a host frame.
    #[inline]
    pub fn hpa(&self, gpa: Gpa) -> Hpa {
        let shift = self.page.shift();
        let number = permute(gpa.0 >> shift, 40 - shift, self.seed);
        Hpa(number << shift | (gpa.0 & ((1 << shift) - 1)))
    }
}

/// A permutation of the numbers below 2^bits chosen by `seed`: odd multiplications
/// and shifted xors are each invertible, so their composition is.
fn permute(mut x: u64, bits: u32, seed: u64) -> u64 {
    let mask = (1u64 << bits) - 1;
    let high = x & !mask; // beyond the range: left where it is
    x &= mask;
    for round in 0..3u64 {
        let key = seed.wrapping_add(round.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        x = x.wrapping_add(key) & mask;
        x = x.wrapping_mul(0xff51_afd7_ed55_8ccd | 1) & mask;
        x ^= x >> (bits / 2);
    }
    high | x
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_guest_pages_share_a_host_frame() {
        for page in [PageSize::Size4K, PageSize::Size2M] {
            let host = HostMemory::new(page, 1 << 18, 42);
            let frames: HashSet<u64> =
                (0..100_000u64).map(|n| host.hpa(Gpa(n << page.shift())).0 >> page.shift()).collect();
            assert_eq!(frames.len(), 100_000);
        }
    }

    #[test]
    fn a_read_then_a_write_of_a_cold_frame_are_two_touches() {
        let mut host = HostMemory::new(PageSize::Size4K, 16, 1);
        assert!(host.touch(Gpa(0x3000), false, 0));
        assert!(!host.touch(Gpa(0x3fff), false, 0));
        assert_eq!(host.backing(Gpa(0x3000)), Backing::Zero);
        assert!(host.touch(Gpa(0x3000), true, 0));
        assert_eq!(host.backing(Gpa(0x3000)), Backing::Own);
        assert!(!host.touch(Gpa(0x3000), true, 0));
    }

    #[test]
    fn frames_held_are_pages_of_their_own_and_none_beyond_the_memory() {
        let mut host = HostMemory::new(PageSize::Size4K, 16, 1);
        host.hold(3, 2);
        host.hold(14, u64::MAX);
        host.hold(99, 1);
        let own = |n: &u64| host.backing(Gpa(n << 12)) == Backing::Own;
        assert_eq!((0..16).filter(own).collect::<Vec<_>>(), [3, 4, 14, 15]);
        let mut host = HostMemory::new(PageSize::Size2M, 2048, 1);
        host.hold(511, 2);
        assert_eq!([0u64, 1, 2].map(|n| host.backing(Gpa(n << 21)) == Backing::Own), [true, true, false]);
    }

    #[test]
    fn a_2_mb_page_has_no_zero_page() {
        let mut host = HostMemory::new(PageSize::Size2M, 1024, 1);
        assert!(host.touch(Gpa(0x3000), false, 0));
        assert_eq!(host.backing(Gpa(0x1f_ffff)), Backing::Own);
        assert!(!host.touch(Gpa(0x5000), true, 0));
    }
}
