// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walks through the data caches of their configuration.

use super::Caches;
use super::hierarchy::MOST_LEVELS;
use super::stalls::Waits;
use crate::memory::Memory;
use crate::page::Page;
use bifold_mmu::Hpa;

impl Caches {
    /// Memory as the walks of configuration `config` see it. `at_once`: of the accesses that they belong to.
    #[inline]
    pub fn walker(&mut self, config: usize, vcpu: usize, at_once: u64) -> CachedMemory<'_> {
        let now = self.now;
        self.walked = now.access;
        let alone = self.configs[config].stalls.windows.walk(now, at_once);
        CachedMemory { caches: self, config, vcpu, waits: Waits { dependent: at_once == 1, alone } }
    }
}

/// Data caches as the walks of one configuration see them.
#[derive(Debug)]
pub(crate) struct CachedMemory<'a> {
    caches: &'a mut Caches,
    config: usize,
    vcpu: usize,
    waits: Waits,
}

impl Memory for CachedMemory<'_> {
    #[inline(always)]
    fn touch(&mut self, guest: u8, host: u8, at: impl FnOnce() -> Hpa, _: impl FnOnce() -> Page) -> usize {
        let place = at();
        let step = (usize::from(guest), usize::from(host));
        if self.caches.classes.simulated >> (place.0 >> 6 & 63) & 1 == 0 {
            self.caches.configs[self.config].stalls.unseen_reference(step, self.waits);
            return 0;
        }
        self.simulate(step, place)
    }
}

impl CachedMemory<'_> {
    /// [`Memory::touch`] of a line that is simulated.
    #[inline(never)]
    fn simulate(&mut self, step: (usize, usize), place: Hpa) -> usize {
        let at = place.0;
        let CachedMemory { caches, config, vcpu, waits } = self;
        let rank = caches.classes.rank(at).unwrap_or(0);
        // The walk's line is the most recent now, and what it pushed out may be any vCPU's.
        caches.forget((at >> 6 & caches.slots) as usize);
        let (line, first) = (caches.draws.line(place), usize::from(caches.memory.walk_level) - 1);
        let one = &mut caches.configs[*config];
        let answers = one.caches.access(*vcpu, line, rank, first, false);
        one.stalls.reference(step, rank, caches.latency[answers], *waits);
        if answers == caches.levels { MOST_LEVELS + 1 } else { answers + 1 }
    }
}
