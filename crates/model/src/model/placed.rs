// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accesses and walks whose references are told apart as local and remote. Out of the way of runs that do not ask.

use super::{Model, Vcpu};
use crate::access::Miss;
use crate::cache::Caches;
use crate::guest::GuestTables;
use crate::memory::Uncached;
use crate::placement::{Placement, Places, TableNode};
use crate::regime::Regime;
use bifold_mmu::{Entry, Gva};

/// The walk of configuration number `r` with its references told apart as local and remote.
#[inline(never)]
pub(super) fn walk_placed(
    regime: &mut Regime,
    r: usize,
    miss: &Miss,
    guest: &mut GuestTables,
    caches: Option<&mut Caches>,
    places: &mut Places,
    at_once: u64,
) -> Option<Entry> {
    let (vcpu, dependent) = (miss.vcpu, at_once == 1);
    let epoch = regime.host_epoch();
    let filled = match caches {
        None => regime.walk(miss, guest, &mut places.walker(r, vcpu, dependent, Uncached)),
        Some(caches) => {
            let memory = caches.walker(r, vcpu, at_once);
            regime.walk(miss, guest, &mut places.walker(r, vcpu, dependent, memory))
        }
    };
    if regime.host_epoch() != epoch {
        places.forget();
    }
    filled
}

impl Model {
    /// Where a placement has the nested tables that configuration number `config` has made so far. None without
    /// [`Options::placed`](super::Options::placed) and in other modes. A host tells the same by
    /// `SecPageTables` of each node.
    pub fn nested_tables(&self, config: usize, placement: Placement) -> Vec<TableNode> {
        let (Some(places), Some(regime)) = (&self.places, self.regimes.get(config)) else {
            return Vec::new();
        };
        places.nested_tables(placement, regime)
    }

    /// Counts an access to data as local or remote.
    pub(super) fn place(&mut self, gva: Gva) {
        let Model { places, regimes, guest, vcpus, frames, current, .. } = self;
        let Some(places) = places else { return };
        let Vcpu { root, generation, .. } = vcpus[*current];
        if places.knows(*current, gva, generation) {
            places.count(*current, gva);
            return;
        }
        let gpa = guest.lookup(root, gva).ok().map(|leaf| leaf.gpa(gva)).filter(|gpa| gpa.frame() < *frames);
        places.access(*current, gva, generation, gpa, regimes);
    }
}
