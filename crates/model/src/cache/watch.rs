// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accesses to data that look into no cache: those to settled lines, and those that change only what the
//! prefetcher has seen or the order in which a vCPU used its last lines. The loop over a stream's words takes
//! them without leaving.

use super::Caches;
use super::neighbours::Neighbours;
use super::recent::Recent;
use super::settled::Settled;
use super::window::Chains;
use bifold_mmu::Gva;

/// The caches as one vCPU's accesses to data see them.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    neighbours: Option<&'a mut Neighbours>,
    recent: &'a mut [Recent; 64],
    settled: &'a mut Settled,
    chains: &'a mut Chains,
    watched: u64,
    simulated: u64,
    slots: u64,
    walked: u64,
}

impl Watch<'_> {
    /// Is it known that [`Caches::note`] and [`Caches::access`] would change nothing? So it is for most
    /// accesses: to a line that nothing watches, to the line that was the last one used in its slot, or to
    /// one that only the prefetcher watches and has seen.
    #[inline(always)]
    pub fn is_settled(&self, gva: Gva, write: bool, generation: u64) -> bool {
        let line = gva.0 >> 6;
        let lines = !self.watched | self.settled.lines(line >> 6, generation, write);
        lines >> (line & 63) & 1 != 0
    }

    /// Does what [`Caches::note`] and [`Caches::access`] would do for access number `access`, which did not
    /// walk, unless a cache has to be looked at. False if so; nothing has changed then.
    #[inline(always)]
    pub fn takes(&mut self, gva: Gva, write: bool, generation: u64, access: u64) -> bool {
        self.is_settled(gva, write, generation) || self.take(gva, write, generation, access)
    }

    /// [`Watch::takes`] of an access that is not known to be settled.
    #[inline(never)]
    fn take(&mut self, gva: Gva, write: bool, generation: u64, access: u64) -> bool {
        let line = gva.0 >> 6;
        let Watch { neighbours, recent, settled, .. } = self;
        let mut writes = true;
        if self.simulated >> (line & 63) & 1 != 0 {
            let recent = &mut recent[(line & self.slots) as usize % 64];
            let first = recent.first();
            // Where the counts of accesses restarted, another walk may have this number.
            if self.walked == access || recent.hit(line, generation, write).is_none() {
                return false;
            }
            settled.forget_line(first);
            writes = recent.settles(line, generation, true);
        }
        if let Some(neighbours) = neighbours {
            neighbours.used(gva.0, |page| settled.forget_page(page));
        }
        settled.file(line, generation, writes);
        true
    }

    /// Access number `access` is a dependent load, whatever answers it.
    #[inline(always)]
    pub fn dependent_load(&mut self, access: u64) {
        self.chains.load(access);
    }
}

impl Caches {
    /// What a vCPU's accesses change at once, and what tells whether they change more.
    #[inline(always)]
    pub fn watch(&mut self, vcpu: usize) -> Watch<'_> {
        let Caches { prefetch, neighbours, recent, settled, chains, classes, slots, walked, .. } = self;
        Watch {
            neighbours: prefetch.is_some().then(|| &mut neighbours[vcpu]),
            recent: &mut recent[vcpu],
            settled: &mut settled[vcpu],
            chains: &mut chains[vcpu],
            watched: classes.watched,
            simulated: classes.simulated,
            slots: *slots,
            walked: *walked,
        }
    }
}
