// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the hypervisor decides at an interval's end: which address spaces are shadowed, and which of the
//! guest's tables are in nested mode.

use super::AgilePaging;
use crate::Sample;
use crate::guest::GuestTables;
use crate::host::HostMemory;
use crate::shadow::World;
use std::collections::HashSet;

/// Doublings of the time that a table or an address space stays in nested mode.
const DOUBLINGS: u32 = 6;

/// Shadow entries that the hypervisor expects a hidden fault to fill: between 1 and the 8 of a prefetch.
const ENTRIES_PER_FAULT: f64 = 4.0;

/// What is known of an address space.
#[derive(Debug, Clone, Default)]
pub(super) struct Space {
    /// The frame of its root; none if that is no table any more.
    pub root: Option<u64>,
    /// The hypervisor has not seen it but for a load of CR3: the hardware gets its root's guest address.
    pub fresh: bool,
    /// In this interval: walks, references to nested tables, and cycles of exits that nested mode would not
    /// have, but for loads of CR3.
    pub walks: u64,
    pub nested_refs: u64,
    pub exit_cycles: u64,
    /// References to nested tables per walk, when it was last in nested mode. None if it never was: it stays
    /// shadowed then.
    refs_per_walk: Option<f64>,
    /// It was shadowed at the end of the last interval.
    new: bool,
    /// Cycles of the exits that filled its shadow tables.
    fill: f64,
    /// Cycles by which the other mode would have been cheaper since the last change.
    regret: f64,
    /// Times that it went back to nested mode.
    returns: u32,
}

impl Space {
    /// The address space with the root in this frame.
    pub fn new(root: u64, fresh: bool) -> Space {
        Space { root: Some(root), fresh, ..Space::default() }
    }
}

/// A table in nested mode.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moved {
    /// Times that writes moved it there.
    times: u32,
    /// Intervals since its last write.
    quiet: u32,
}

impl AgilePaging {
    /// The policy at an interval's end.
    #[cold]
    pub(super) fn decide(&mut self, guest: &GuestTables, host: &mut HostMemory, counts: &mut Sample) {
        self.due = false;
        if !self.shadow.counts_writes() {
            return;
        }
        let mut stay = self.tables_that_stay();
        let (loads, exits) = (std::mem::take(&mut self.loads), std::mem::take(&mut self.cr3_exits));
        let load_cycles = if self.cache > 0 { 0 } else { loads * self.costs.cr3_write.cycles };
        let exit_cycles = exits * self.costs.cr3_write.cycles;
        // Loads of CR3 exit while one address space is shadowed, so all that are share the exits. Each would
        // have a part of all loads by its walks.
        let shadow = &self.shadow;
        let is_nested = |s: &Space| s.root.map(|gfn| shadow.is_nested(gfn));
        let nested_walks: u64 =
            self.spaces.iter().filter(|s| is_nested(s) == Some(true)).map(|s| s.walks).sum();
        let sharers = self.spaces.iter().filter(|s| is_nested(s) == Some(false)).count();
        let exit_cycles = exit_cycles as f64 / sharers.max(1) as f64;
        let fill = std::mem::take(&mut self.young) as f64 / ENTRIES_PER_FAULT
            * self.costs.hidden_fault.cycles as f64;
        let mut to_nested = Vec::new();
        let mut shadowed = false;
        for space in &mut self.spaces {
            let Some(gfn) = space.root else { continue };
            let mut nested = self.shadow.is_nested(gfn);
            let part = space.walks as f64 / nested_walks.max(1) as f64;
            let expected = if nested { part * fill } else { 0.0 };
            let limit = space.fill.max(expected) * f64::from(1 << space.returns.min(DOUBLINGS));
            if nested && space.walks > 0 {
                space.refs_per_walk = Some(space.nested_refs as f64 / space.walks as f64);
                let gain = space.nested_refs as f64 * self.ref_cycles - part * load_cycles as f64;
                space.regret = (space.regret + gain).max(0.0);
                if space.regret > limit {
                    (nested, space.fresh, space.new, space.regret) = (false, false, true, 0.0);
                    shadowed = true;
                }
            } else if std::mem::take(&mut space.new) {
                space.fill = space.exit_cycles as f64;
            } else if let (false, Some(refs)) = (nested, space.refs_per_walk) {
                let gain = (space.walks as f64 * refs - space.nested_refs as f64) * self.ref_cycles;
                space.regret += space.exit_cycles as f64 + exit_cycles - gain;
                if space.regret > limit {
                    (space.returns, space.regret) = (space.returns + 1, 0.0);
                    to_nested.push(gfn);
                } else if space.regret < -limit {
                    (space.returns, space.regret) = (0, -space.fill);
                }
            }
            if nested {
                stay.insert(gfn);
            } else {
                stay.remove(&gfn);
            }
            (space.walks, space.nested_refs, space.exit_cycles) = (0, 0, 0);
        }
        if self.shadow.stay_nested(stay) || shadowed {
            self.shadow.flush_all();
        }
        for gfn in to_nested {
            self.shadow.enter_nested(gfn, host);
        }
        self.shadowed = self.numbers.keys().any(|gfn| !self.shadow.is_nested(*gfn));
        self.refresh();
        for vcpu in 0..self.vcpus.len() {
            if shadowed && !self.vcpus[vcpu].nested {
                let mut done = Sample::default();
                self.load_shadow(vcpu, World { guest, host }, &mut done);
                counts.add(&Sample { exits_cr3_write: 0, ..done }); // no instruction of the guest's
            }
        }
        self.shadow.settle(World { guest, host }, counts);
    }

    /// An interval has ended: the frames of tables that are in nested mode in the next one.
    fn tables_that_stay(&mut self) -> HashSet<u64> {
        let mut stay = std::mem::take(&mut self.written);
        // What was written before the first walk came to it, and is shadowed since, does not move by that.
        stay.retain(|gfn| !self.shadow.is_protected(*gfn));
        for gfn in self.shadow.take_moved() {
            self.moved.entry(gfn).or_default().times += 1;
        }
        for (gfn, moved) in &mut self.moved {
            moved.quiet = if stay.contains(gfn) { 0 } else { moved.quiet + 1 };
            if moved.quiet < 1 << (moved.times - 1).min(DOUBLINGS) {
                stay.insert(*gfn);
            }
        }
        stay
    }
}
