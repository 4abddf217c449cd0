// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A memo of the pages that a vCPU's data accesses use: most accesses are to a page used lately, and count
//! with an addition. A page's count reaches the tallies when another page takes its slot.

use super::tally::Tally;

const SLOTS: usize = 1024;

#[derive(Debug, Clone, Copy)]
struct Slot {
    page: u64,
    generation: u64,
    epoch: u64,
    accesses: u64,
}

/// Pages of data of one vCPU.
#[derive(Debug, Clone)]
pub(super) struct Memo {
    slots: Box<[Slot]>,
    /// Per slot and configuration: the placements in which the page is remote.
    remote: Box<[u8]>,
    configs: usize,
}

#[inline(always)]
fn slot(page: u64) -> usize {
    page as usize % SLOTS
}

impl Memo {
    pub fn new(configs: usize) -> Memo {
        let none = Slot { page: u64::MAX, generation: 0, epoch: 0, accesses: 0 };
        Memo { slots: vec![none; SLOTS].into(), remote: vec![0; SLOTS * configs].into(), configs }
    }

    #[inline(always)]
    pub fn knows(&self, page: u64, generation: u64, epoch: u64) -> bool {
        let s = &self.slots[slot(page)];
        s.page == page && s.generation == generation && s.epoch == epoch
    }

    #[inline(always)]
    pub fn count(&mut self, page: u64) {
        self.slots[slot(page)].accesses += 1;
    }

    /// The placements in which the page is remote in a configuration; none if the page is not known.
    pub fn remote(&self, page: u64, config: usize) -> u8 {
        let known = self.slots[slot(page)].page == page && config < self.configs;
        if known { self.remote[slot(page) * self.configs + config] } else { 0 }
    }

    /// Files a page, and counts what the slot's page had.
    pub fn file(
        &mut self,
        page: u64,
        generation: u64,
        epoch: u64,
        tallies: &mut [Tally],
        remote: impl Fn(usize) -> u8,
    ) {
        let n = slot(page);
        self.flush_slot(n, tallies);
        self.slots[n] = Slot { page, generation, epoch, accesses: 0 };
        let held = &mut self.remote[n * self.configs..(n + 1) * self.configs];
        held.iter_mut().enumerate().for_each(|(config, bits)| *bits = remote(config));
    }

    /// Counts what all pages have.
    pub fn flush(&mut self, tallies: &mut [Tally]) {
        (0..SLOTS).for_each(|n| self.flush_slot(n, tallies));
    }

    fn flush_slot(&mut self, n: usize, tallies: &mut [Tally]) {
        let accesses = std::mem::take(&mut self.slots[n].accesses);
        let held = &self.remote[n * self.configs..(n + 1) * self.configs];
        tallies.iter_mut().zip(held).for_each(|(tally, bits)| tally.data(*bits, accesses));
    }
}
