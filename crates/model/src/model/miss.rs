// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An access that the filter did not answer, in four stages: it is looked up in the TLBs of each group of configurations;
//! if some TLB does not hold it, the guest's own tables translate it, once for all; the members of the group walk; and
//! what their walks ended with is settled: filed, or first the TLBs flushed and the group split.

use super::groups::{Group, split_by};
use super::observe::Observers;
use super::{Model, Vcpu};
use crate::access::{AccessKind, Flush, Miss};
use crate::charge::Place;
use crate::guest::{GuestTables, Leaf};
use crate::memory::Uncached;
use crate::regime::Regime;
use bifold_mmu::{Entry, Gpa, Gva, Lookup, PageSize, SHARERS, Side, all_sharers};
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
    /// By place in the group: the TLB entry to file; none if the access needs none any more.
    entries: [Option<Entry>; SHARERS],
    /// By place: the flush that the hypervisor asked for.
    flushes: [Flush; SHARERS],
    /// A bit for each place through whose entry writes may go.
    writable: u8,
    /// The entry that all members file; none if they do not agree or a flush comes first.
    common: Option<Entry>,
}

impl Walked {
    /// Does every member's TLB hold the page from now on?
    fn held(&self, members: usize) -> bool {
        self.entries[..members].iter().all(Option::is_some)
    }
}

/// The members of a group walk: all of them, or after a permission miss those whose copy of the entry is read-only.
#[inline(never)]
fn walk_group<const OBSERVED: bool>(
    members: &[usize],
    regimes: &mut [Regime],
    guest: &mut GuestTables,
    observers: &mut Observers,
    (miss, lookup, at_once): (&Miss, Lookup, u64),
) -> Walked {
    let (found, concerned) = match lookup {
        Lookup::NotWritable(bits, size) | Lookup::NotWritableL2(bits, size) => (Some(size), bits),
        _ => (None, u8::MAX),
    };
    let (mut entries, mut flushes) = ([None; SHARERS], [Flush::None; SHARERS]);
    let mut writable = 0;
    let mut apart = false;
    let mut common: Option<Entry> = None;
    for (place, &r) in members.iter().enumerate() {
        if concerned >> place & 1 == 0 {
            continue;
        }
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
        if found.is_none() {
            match entry.map_or(PageSize::Size4K, |e| e.size) {
                PageSize::Size4K => regime.counts.now.tlb_misses_4k += 1,
                PageSize::Size2M => regime.counts.now.tlb_misses_2m += 1,
                PageSize::Size1G => regime.counts.now.tlb_misses_1g += 1,
            }
        }
        let flush = regime.take_flush(miss.vcpu);
        (entries[place], flushes[place]) = (entry, flush);
        writable |= u8::from(entry.is_some_and(|e| e.writable)) << place;
        apart |= flush != Flush::None || entry.is_none_or(|e| common.is_some_and(|c| shape(c) != shape(e)));
        common = common.or(entry);
    }
    // The others hold what they held.
    if let Some(size) = found {
        apart |= common.is_some_and(|c| c.size != size) && concerned != all_sharers(members.len());
        for place in (0..members.len()).filter(|place| concerned >> place & 1 == 0) {
            let held = Entry { size, page: size, writable: true, global: false };
            entries[place] = Some(Entry { size, ..common.unwrap_or(held) });
            writable |= 1 << place;
        }
    }
    Walked { entries, flushes, writable, common: common.filter(|_| !apart) }
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
        let Model { regimes, groups, guest, vcpus, untranslated, frames, charges, observers, .. } = self;
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
        let mut waits = false;
        let mut apart: Vec<(usize, Walked)> = Vec::new();
        for (number, Group { members, tlbs }) in groups.iter_mut().enumerate() {
            let tlb = &mut tlbs[vcpu];
            let writes = if write { all_sharers(members.len()) } else { 0 };
            let lookup = tlb.lookup(side, gva, writes, time, leaves, &v.filters);
            if !matches!(lookup, Lookup::L1 | Lookup::NotWritable(..)) {
                members.iter().for_each(|&r| regimes[r].counts.now.l1_misses += 1);
            }
            if let (true, Lookup::L2, true, Some(caches)) =
                (OBSERVED, &lookup, at_once == 1 && side == Side::Data, &mut observers.caches)
            {
                members.iter().for_each(|&r| waits |= caches.second_tlb_answers(r));
            }
            missed_all &= matches!(lookup, Lookup::Miss);
            if !matches!(lookup, Lookup::L1 | Lookup::L2) {
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
                let fresh = !matches!(lookup, Lookup::NotWritable(..) | Lookup::NotWritableL2(..));
                let walked =
                    walk_group::<OBSERVED>(members, regimes, guest, observers, (miss, lookup, at_once));
                match walked.common {
                    Some(entry) => tlb.fill(side, gva, entry, walked.writable, fresh, time, &v.filters),
                    None => {
                        held &= walked.held(members.len());
                        apart.push((number, walked));
                    }
                }
            }
            if let Some((size, page)) = tlb.take_evicted() {
                v.filters.iter_mut().for_each(|f| f.dropped(size, page));
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
        if !apart.is_empty() {
            self.settle_apart(side, gva, &apart);
        }
        if held {
            let large = self.groups.iter().any(|g| g.tlbs[vcpu].may_hold_large(page));
            self.vcpus[vcpu].filters[side as usize].file(page, write, large, time);
        }
    }

    /// Settles an access after which members of some groups, by number, do not hold the same: splits these groups,
    /// carries out the flushes asked for, and files.
    #[cold]
    fn settle_apart(&mut self, side: Side, gva: Gva, apart: &[(usize, Walked)]) {
        let vcpu = self.current;
        for (number, group) in std::mem::take(&mut self.groups).into_iter().enumerate() {
            let Some((_, walked)) = apart.iter().find(|(n, _)| *n == number) else {
                self.groups.push(group);
                continue;
            };
            let mut places = vec![0; self.regimes.len()];
            group.members.iter().enumerate().for_each(|(place, &r)| places[r] = place);
            let class = |r: usize| (walked.entries[places[r]].map(shape), walked.flushes[places[r]]);
            for mut part in split_by(vec![group], class) {
                let first = places[part.members[0]];
                self.flush_group(&mut part, walked.flushes[first]);
                if let Some(entry) = walked.entries[first] {
                    let bit = |(place, &r): (usize, &usize)| (walked.writable >> places[r] & 1) << place;
                    let writable = part.members.iter().enumerate().fold(0, |bits, m| bits | bit(m));
                    let Vcpu { time, filters, .. } = &mut self.vcpus[vcpu];
                    part.tlbs[vcpu].fill(side, gva, entry, writable, false, *time, filters);
                    if let Some((size, page)) = part.tlbs[vcpu].take_evicted() {
                        filters.iter_mut().for_each(|f| f.dropped(size, page));
                    }
                }
                self.groups.push(part);
            }
        }
    }

    /// Flushes the group's TLBs and walk caches of the vCPUs named.
    fn flush_group(&mut self, group: &mut Group, flush: Flush) {
        let which = match flush {
            Flush::None => 0..0,
            Flush::Vcpu(v) => usize::from(v)..usize::from(v) + 1,
            Flush::All => 0..self.vcpus.len(),
        };
        for v in which {
            group.tlbs[v].flush_all();
            for &r in &group.members {
                self.regimes[r].flush_caches(v, &self.guest);
                self.regimes[r].counts.now.tlb_flushes += 1;
            }
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

    /// Carries out a flush for each configuration, none for those that follow the last, and splits groups whose members'
    /// flushes differ.
    pub(super) fn carry_out(&mut self, mut flushes: Vec<Flush>) {
        if flushes.is_empty() {
            return;
        }
        flushes.resize(self.regimes.len(), Flush::None);
        for mut group in split_by(std::mem::take(&mut self.groups), |r| flushes[r]) {
            let flush = flushes[group.members[0]];
            self.flush_group(&mut group, flush);
            self.groups.push(group);
        }
    }
}
