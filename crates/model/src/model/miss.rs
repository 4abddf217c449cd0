// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An access that the filter did not answer, in four stages: it is looked up in the TLBs of each group of
//! configurations; if some TLB does not hold it, the guest's own tables translate it, once for all; the
//! configurations that miss it walk; and what their walks ended with is filed. Where the hypervisor asked for
//! a flush, the flush comes first.

use super::groups::{Group, places};
use super::observe::Observers;
use super::{Model, Vcpu};
use crate::access::{AccessKind, Flush, Miss};
use crate::charge::Place;
use crate::guest::{GuestTables, Leaf};
use crate::memory::Uncached;
use crate::regime::Regime;
use bifold_mmu::{Entry, Filing, Filter, Gpa, Gva, Lookup, Now, PageSize, SHARERS, Side, Tlb, all_sharers};
use bifold_trace::event::PAYLOAD_MASK;

/// The guest's own translation of an access that took place, its accessed and dirty bits set.
#[inline]
pub(super) fn translate(guest: &mut GuestTables, root: Gpa, gva: Gva, write: bool) -> Option<Leaf> {
    let mut leaf = guest.lookup(root, gva).ok().filter(|l| l.writable || !write)?;
    guest.touch(&leaf, write);
    leaf.step.entry |= guest.format().accessed | if write { guest.format().dirty } else { 0 };
    Some(leaf)
}

/// What entries must agree in to be one.
fn shape(e: Entry) -> (PageSize, PageSize, bool) {
    (e.size, e.page, e.global)
}

/// What the walks of a group's members ended with.
struct Walked {
    /// The members that walked.
    concerned: u8,
    /// By place in the group: the TLB entry to file; none if the access needs none any more.
    entries: [Option<Entry>; SHARERS],
    /// By place: the flush that the hypervisor asked for.
    flushes: [Flush; SHARERS],
    /// The members with an entry; those through whose entry writes may go; those with a flush.
    filed: u8,
    writable: u8,
    flushed: u8,
    /// All entries agree.
    alike: bool,
}

impl Walked {
    /// Files what the members `of` walked to.
    fn file(&self, of: u8, fresh: bool, tlb: &mut Tlb, filters: &mut [Filter; 2], (side, gva, time): Access) {
        let mut of = of & self.filed;
        while let Some(entry) = self.entries.get(of.trailing_zeros() as usize).copied().flatten() {
            let mut same = of;
            if !self.alike {
                let agrees = |&place: &usize| self.entries[place].map(shape) == Some(shape(entry));
                same = places(of).filter(agrees).fold(0, |bits, place| bits | 1 << place);
            }
            let filing = Filing { of: same, entry, writable: self.writable & same, fresh };
            tlb.fill(side, gva, filing, Now { time, filters });
            of &= !same;
        }
    }
}

/// An access to an address at a time.
type Access = (Side, Gva, u64);

/// The members of a group walk whose TLBs do not hold the page, or refuse the write.
#[inline(never)]
fn walk_group<const OBSERVED: bool>(
    members: &[usize],
    regimes: &mut [Regime],
    guest: &mut GuestTables,
    observers: &mut Observers,
    (miss, lookup, at_once): (&Miss, Lookup, u64),
) -> Walked {
    let concerned = all_sharers(members.len()) & !lookup.held();
    let mut walked = Walked {
        concerned,
        entries: [None; SHARERS],
        flushes: [Flush::None; SHARERS],
        filed: 0,
        writable: 0,
        flushed: 0,
        alike: true,
    };
    let mut common: Option<Entry> = None;
    for place in places(concerned) {
        let r = members[place];
        let regime = &mut regimes[r];
        let entry = if OBSERVED {
            let epoch = regime.host_epoch();
            let entry = regime.walk(miss, guest, &mut observers.memory(r, miss.vcpu, at_once));
            if regime.host_epoch() != epoch {
                observers.backed();
            }
            entry
        } else {
            regime.walk(miss, guest, &mut Uncached)
        };
        if lookup.refused() >> place & 1 == 0 {
            match entry.map_or(PageSize::Size4K, |e| e.size) {
                PageSize::Size4K => regime.counts.now.tlb_misses_4k += 1,
                PageSize::Size2M => regime.counts.now.tlb_misses_2m += 1,
                PageSize::Size1G => regime.counts.now.tlb_misses_1g += 1,
            }
        }
        let flush = regime.take_flush(miss.vcpu);
        (walked.entries[place], walked.flushes[place]) = (entry, flush);
        walked.filed |= u8::from(entry.is_some()) << place;
        walked.writable |= u8::from(entry.is_some_and(|e| e.writable)) << place;
        walked.flushed |= u8::from(flush != Flush::None) << place;
        walked.alike &= entry.is_none_or(|e| common.is_none_or(|c| shape(c) == shape(e)));
        common = common.or(entry);
    }
    walked
}

impl Model {
    /// An access that the filter did not answer. `dependent`: the core waits for its walk.
    pub(super) fn access<const OBSERVED: bool>(
        &mut self,
        side: Side,
        gva: Gva,
        kind: AccessKind,
        dependent: bool,
    ) {
        self.misses += 1;
        let vcpu = self.current;
        let accesses = self.common.accesses;
        let Model { regimes, groups, guest, vcpus, untranslated, frames, charges, observers, common, .. } =
            self;
        let at_once = if OBSERVED { observers.at(accesses, vcpu, side, dependent) } else { u64::MAX };
        let v = &mut vcpus[vcpu];
        let (root, time) = (v.root, v.time);
        let page = (gva.0 & PAYLOAD_MASK) >> 12;
        // The page that leaves the filter for this one.
        let leaves = v.filters[side as usize].take(page);
        let write = kind.writes();
        // The guest's translation, once it is asked for; none of what no TLB holds.
        let mut record: Option<Option<Miss>> = None;
        let mut held = true;
        let mut missed_all = true;
        // All walk, and find entries through which writes may go, too.
        let mut writable = true;
        let mut waits = false;
        let mut flushed: Vec<(usize, Walked)> = Vec::new();
        // What all configurations miss is counted once, as all of them are in one group most often.
        let alone = groups.len() == 1;
        for (number, Group { members, tlbs }) in groups.iter_mut().enumerate() {
            let tlb = &mut tlbs[vcpu];
            let all = all_sharers(members.len());
            let lookup = tlb.lookup(side, gva, write, leaves, Now { time, filters: &mut v.filters });
            if lookup.first == all {
                (missed_all, writable) = (false, false);
                continue;
            }
            let missing = all & !(lookup.first | lookup.refused_first);
            if missing == all && alone {
                common.l1_misses += 1;
            } else {
                places(missing).for_each(|place| regimes[members[place]].counts.now.l1_misses += 1);
            }
            if let (true, true, Some(caches)) =
                (OBSERVED, at_once == 1 && side == Side::Data, &mut observers.caches)
            {
                places(lookup.second).for_each(|place| waits |= caches.second_tlb_answers(members[place]));
            }
            missed_all &= lookup == Lookup::default();
            writable &= missed_all;
            if lookup.held() == all {
                continue;
            }
            let miss = record.get_or_insert_with(|| match translate(guest, root, gva, write) {
                // A device's window: its accesses leave the guest in every mode.
                Some(leaf) if leaf.page.frame() >= *frames => None,
                Some(leaf) => Some(Miss { vcpu, gva, kind, leaf, root }),
                None => {
                    *untranslated += 1;
                    None
                }
            });
            let Some(miss) = miss else {
                held = false;
                continue;
            };
            let walked = walk_group::<OBSERVED>(members, regimes, guest, observers, (miss, lookup, at_once));
            held &= walked.filed == walked.concerned;
            writable &= walked.writable == all && walked.flushed == 0;
            let at_once = !walked.flushed;
            let access = (side, gva, time);
            walked.file(at_once & !lookup.refused(), true, tlb, &mut v.filters, access);
            walked.file(at_once & lookup.refused(), false, tlb, &mut v.filters, access);
            if walked.flushed != 0 {
                flushed.push((number, walked));
            }
        }
        self.missed_all = missed_all;
        if let (Some(charges), Some(Some(miss))) = (charges, &record) {
            let running = &mut vcpus[vcpu].running;
            let code = if kind == AccessKind::Fetch { gva } else { running.code };
            let place = Place { vcpu, code, data: Some(gva), size: Some(miss.leaf.size) };
            charges.charge(regimes, observers.caches.as_deref(), place, false, running);
        }
        if waits {
            self.charge_waits(gva);
        }
        for (number, walked) in flushed {
            for place in places(walked.flushed) {
                self.flush_member(number, place, walked.flushes[place]);
            }
            let Vcpu { time, filters, .. } = &mut self.vcpus[vcpu];
            let tlb = &mut self.groups[number].tlbs[vcpu];
            walked.file(walked.flushed, false, tlb, filters, (side, gva, *time));
        }
        if held {
            let large = self.groups.iter().any(|g| g.tlbs[vcpu].may_hold_large(page));
            self.vcpus[vcpu].filters[side as usize].file(page, write || writable, large, time);
        }
    }

    /// Flushes a member's TLBs and walk caches of the vCPUs named.
    fn flush_member(&mut self, group: usize, place: usize, flush: Flush) {
        let which = match flush {
            Flush::None => 0..0,
            Flush::Vcpu(v) => usize::from(v)..usize::from(v) + 1,
            Flush::All => 0..self.vcpus.len(),
        };
        let Group { members, tlbs } = &mut self.groups[group];
        let regime = &mut self.regimes[members[place]];
        for v in which {
            tlbs[v].flush_all(1 << place);
            regime.flush_caches(v, &self.guest);
            regime.counts.now.tlb_flushes += 1;
            self.vcpus[v].forget();
        }
    }

    /// Carries out the flushes that hypervisors asked for outside an access.
    pub(super) fn flush_asked(&mut self) {
        let mut flushes = Vec::new();
        for (r, regime) in self.regimes.iter_mut().enumerate() {
            let flush = regime.take_flush(self.current);
            if flush != Flush::None {
                flushes.resize(r, Flush::None);
                flushes.push(flush);
            }
        }
        self.carry_out(flushes);
    }

    /// Carries out a flush for each configuration, none for those that follow the last.
    pub(super) fn carry_out(&mut self, flushes: Vec<Flush>) {
        if flushes.is_empty() {
            return;
        }
        for group in 0..self.groups.len() {
            for place in 0..self.groups[group].members.len() {
                let r = self.groups[group].members[place];
                self.flush_member(group, place, flushes.get(r).copied().unwrap_or(Flush::None));
            }
        }
    }
}
