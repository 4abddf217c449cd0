// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a reclaimer asks of the hosts: which pages a guest uses, and to take some back. Each configuration
//! has a host of its own; they are numbered as the configurations, and those of VMs that switch follow. To be
//! called between two calls of [`Model::consume`], or at an event that is no access.

use super::Model;
use crate::Swaps;
use crate::access::Flush;
use crate::host::Taking;
use bifold_mmu::Gpa;
use std::ops::Range;

impl Model {
    /// Host number `host` takes back the pages behind these guest frames. No effect without a hypervisor.
    pub fn take_back(&mut self, host: usize, gfns: Range<u64>, taking: Taking) {
        if let (Some(swaps), Some(regime)) = (&mut self.observers.swaps, self.regimes.get(host)) {
            for frame in gfns.start..gfns.end.min(self.options.guest_frames) {
                if let Some(was) = regime.backing(Gpa::from_frame(frame)) {
                    swaps.taken(host, frame, was, taking == Taking::Swap);
                }
            }
        }
        let flush = self.regimes.get_mut(host).is_some_and(|r| r.take_back(gfns, taking));
        self.flush_all(host, flush);
    }

    /// Host number `host` looks which pages its guest has used since the last look.
    pub fn look(&mut self, host: usize) {
        let flush = self.regimes.get_mut(host).is_some_and(|r| r.look());
        self.flush_all(host, flush);
    }

    /// The frames of the pages, at most `most`, that the guest of host number `host` has not used for
    /// longest: pages of the guest's own, the oldest first. Ages are exact to a [look](Model::look).
    pub fn oldest(&mut self, host: usize, most: usize) -> Vec<Range<u64>> {
        self.regimes.get_mut(host).map_or_else(Vec::new, |r| r.oldest(most))
    }

    /// Pages that host number `host` has brought back from swap.
    pub fn swapped_in(&self, host: usize) -> u64 {
        self.regimes.get(host).map_or(0, |r| r.swapped_in())
    }

    /// The swap operations of host number `host` since [`Model::watch_swaps`], or since the region began.
    pub fn swaps(&self, host: usize) -> Swaps {
        let counts = self.observers.swaps.as_ref().map(|swaps| swaps.counts(host)).unwrap_or_default();
        Swaps { reads: self.swapped_in(host), ..counts }
    }

    /// Large pages of host number `host` that are split, as parts of them were taken back.
    pub fn split_pages(&self, host: usize) -> u64 {
        self.regimes.get(host).map_or(0, |r| r.split_pages())
    }

    /// Flushes the TLBs of a VM if its host has to (`kvm_flush_remote_tlbs`).
    fn flush_all(&mut self, host: usize, flush: bool) {
        if flush {
            let mut flushes = vec![Flush::None; host];
            flushes.push(Flush::All);
            self.carry_out(flushes);
        }
    }
}
