// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accesses: the loop over a stream's words, the filter, and the TLBs of each group of
//! configurations. A TLB miss leads to the paging mode's walk.

use super::groups::{Group, join_equal, split_by};
use super::placed::walk_placed;
use super::{Model, Vcpu};
use crate::access::{AccessKind, Flush, Miss};
use crate::cache::{self, Caches};
use crate::charge::Place;
use crate::guest::{GuestTables, Leaf};
use crate::memory::Uncached;
use crate::placement::Places;
use bifold_mmu::{Entry, Gpa, Gva, Lookup, PageSize, Side, all_sharers};
use bifold_trace::event::{KIND_SHIFT, PAYLOAD_MASK, head_va, kind};
use bifold_trace::{DecodeError, decode};
use zerocopy::IntoBytes;

/// Words looked at together by [`Model::read_ahead`].
const WINDOW: usize = 128;

/// Misses between two attempts to join groups, at the start fewer. An attempt looks at few sets if they differ.
const JOIN: u64 = 4096;

/// What entries must agree in to be one.
fn shape(e: Entry) -> (PageSize, PageSize, bool) {
    (e.size, e.page, e.global)
}

/// The guest's own translation of an access that took place, its accessed and dirty bits set.
#[inline]
pub(super) fn translate(guest: &mut GuestTables, root: Gpa, gva: Gva, write: bool) -> Option<Leaf> {
    let mut leaf = guest.lookup(root, gva).ok().filter(|l| l.writable || !write)?;
    guest.touch(&leaf, write);
    leaf.step.entry |= guest.format().accessed | if write { guest.format().dirty } else { 0 };
    Some(leaf)
}

impl Model {
    /// Consumes whole events.
    pub fn consume(&mut self, words: &[u64]) -> Result<(), DecodeError> {
        // Several loops, so that a run without data caches and placements does not ask at every access.
        match (&self.caches, &self.places) {
            (None, None) => self.consume_words::<false, false>(words),
            (Some(_), None) => self.consume_words::<true, false>(words),
            (None, Some(_)) => self.consume_words::<false, true>(words),
            (Some(_), Some(_)) => self.consume_words::<true, true>(words),
        }
    }

    fn consume_words<const CACHES: bool, const PLACED: bool>(
        &mut self,
        words: &[u64],
    ) -> Result<(), DecodeError> {
        let watched = self.caches.as_ref().map_or(0, |c| c.watched());
        let mut i = self.consume_gap(words, 0)?;
        let mut window = WINDOW;
        let mut misses = self.misses;
        loop {
            i = self.consume_hits::<CACHES, PLACED>(words, i, window, watched);
            let Some(&w) = words.get(i) else { break };
            if i >= window {
                // Where misses are dense, their table entries are read ahead, all of a window's
                // at once: one after the other, each would wait for memory.
                if self.misses - misses > WINDOW as u64 / 8 {
                    self.read_ahead(&words[i..words.len().min(i + WINDOW)]);
                }
                window = i + WINDOW;
                misses = self.misses;
                if misses >= self.join_at {
                    self.join_groups();
                }
            }
            let page = (w & PAYLOAD_MASK) >> 12;
            match w >> KIND_SHIFT {
                k @ (kind::LOAD | kind::LOAD_DEPENDENT | kind::LOAD_BEFORE_CHAIN) => {
                    let dependent = k == kind::LOAD_DEPENDENT;
                    self.common.accesses += 1;
                    if let (true, Some(caches)) = (k == kind::LOAD_BEFORE_CHAIN, &mut self.caches) {
                        caches.chain_begins(self.current, self.common.accesses);
                    }
                    let v = &mut self.vcpus[self.current];
                    v.time += 1;
                    if !v.filters[Side::Data as usize].hit(page, false, v.time) {
                        self.access(Side::Data, Gva(head_va(w)), AccessKind::Read, dependent);
                    }
                    if PLACED {
                        self.place(Gva(head_va(w)));
                    }
                    if CACHES && watched >> (w >> 6 & 63) & 1 != 0 {
                        self.data(Gva(head_va(w)), false, dependent);
                    }
                    i += 1;
                }
                k @ (kind::STORE | kind::STORE_OTHER) => {
                    self.common.accesses += 1;
                    let v = &mut self.vcpus[self.current];
                    v.time += 1;
                    if !v.filters[Side::Data as usize].hit(page, true, v.time) {
                        let kind = if k == kind::STORE { AccessKind::Write } else { AccessKind::WriteOther };
                        self.access(Side::Data, Gva(head_va(w)), kind, false);
                    }
                    if PLACED {
                        self.place(Gva(head_va(w)));
                    }
                    if CACHES && watched >> (w >> 6 & 63) & 1 != 0 {
                        self.data(Gva(head_va(w)), true, false);
                    }
                    i += 1;
                }
                kind::FETCH => {
                    let v = &mut self.vcpus[self.current];
                    v.time += 1;
                    if self.has_code && !v.filters[Side::Code as usize].hit(page, false, v.time) {
                        // The core has nothing to do before the instructions are there.
                        self.access(Side::Code, Gva(head_va(w)), AccessKind::Fetch, true);
                    }
                    i += 1;
                }
                kind::BLOCK => {
                    self.vcpus[self.current].running.block(Gva(head_va(w)));
                    i += 1;
                }
                _ => {
                    let (event, n) = decode(&words[i..], self.words + i)?;
                    self.event(event);
                    i += n;
                    if self.in_gap() {
                        i = self.consume_gap(words, i)?;
                    }
                }
            }
        }
        self.hash.update(words.as_bytes());
        self.words += words.len();
        Ok(())
    }

    /// Consumes accesses from word `i` on as long as the filters answer them and they change nothing in
    /// data caches, at most up to word `end`. Returns the number of the first word left. Most words end
    /// here, so the loop calls nothing.
    #[inline(always)]
    fn consume_hits<const CACHES: bool, const PLACED: bool>(
        &mut self,
        words: &[u64],
        mut i: usize,
        end: usize,
        watched: u64,
    ) -> usize {
        let Model { vcpus, current, caches, places, has_code, common, .. } = self;
        let Vcpu { filters: [data, code], time, generation, running, .. } = &mut vcpus[*current];
        let settled = |w: u64, write: bool, places: &Option<Box<Places>>| {
            let known = |p: &Places| p.knows(*current, Gva(head_va(w)), *generation);
            if PLACED && !places.as_deref().is_some_and(known) {
                return false;
            }
            !CACHES
                || watched >> (w >> 6 & 63) & 1 == 0
                || caches
                    .as_deref()
                    .is_some_and(|c| c.is_settled(*current, Gva(head_va(w)), write, *generation))
        };
        while let Some(&w) = words[..end.min(words.len())].get(i) {
            let page = (w & PAYLOAD_MASK) >> 12;
            match w >> KIND_SHIFT {
                kind::LOAD | kind::LOAD_DEPENDENT
                    if settled(w, false, places) && data.hit(page, false, *time + 1) =>
                {
                    common.accesses += 1;
                    if let (true, Some(places)) = (PLACED, &mut *places) {
                        places.count(*current, Gva(head_va(w)));
                    }
                }
                kind::STORE | kind::STORE_OTHER
                    if settled(w, true, places) && data.hit(page, true, *time + 1) =>
                {
                    common.accesses += 1;
                    if let (true, Some(places)) = (PLACED, &mut *places) {
                        places.count(*current, Gva(head_va(w)));
                    }
                }
                kind::FETCH if !*has_code || code.hit(page, false, *time + 1) => {}
                kind::BLOCK => {
                    running.block(Gva(head_va(w)));
                    i += 1;
                    continue;
                }
                _ => return i,
            }
            *time += 1;
            i += 1;
        }
        i
    }

    /// Joins groups whose TLBs hold the same again: those of a program that keeps missing do, some time
    /// after a flush that concerned only some.
    fn join_groups(&mut self) {
        self.join_at = self.misses + self.misses.clamp(64, JOIN);
        if self.groups.len() > 1 && !self.profile.cpu.pcid {
            join_equal(&mut self.groups);
        }
    }

    /// Reads the leaf entries, guest's and host's, of the window's accesses. Only a hint:
    /// a word that is no access, or tables that change within the window, do no harm.
    fn read_ahead(&mut self, words: &[u64]) {
        let mut frames = [0u64; WINDOW];
        let v = &self.vcpus[self.current];
        let mut n = 0;
        for &w in words {
            if !v.filters[Side::Data as usize].answers((w & PAYLOAD_MASK) >> 12) {
                frames[n] = self.guest.peek(v.root, Gva(head_va(w))).unwrap_or(0);
                n += 1;
            }
        }
        let mut seen = 0;
        for regime in &self.regimes {
            seen ^= regime.read_ahead(&frames[..n]);
        }
        self.seen ^= seen;
    }

    /// An access to data whose line the data caches simulate or watch.
    #[inline(always)]
    fn data(&mut self, gva: Gva, write: bool, dependent: bool) {
        let settled =
            |c: &Caches| c.is_settled(self.current, gva, write, self.vcpus[self.current].generation);
        if !self.caches.as_deref().is_some_and(settled) {
            self.data_unsettled(gva, write, dependent);
        }
    }

    #[inline(never)]
    fn data_unsettled(&mut self, gva: Gva, write: bool, dependent: bool) {
        let Model { caches, places, regimes, guest, vcpus, frames, current, common, .. } = self;
        let Some(caches) = caches else { return };
        caches.at(common.accesses);
        let Vcpu { root, generation, .. } = vcpus[*current];
        let at_once = caches.at_once(*current, dependent);
        let access = cache::Access { vcpu: *current, gva, write, at_once, generation };
        let in_memory = |gpa: &Gpa| gpa.frame() < *frames;
        let translate = || guest.lookup(root, gva).ok().map(|leaf| leaf.gpa(gva)).filter(in_memory);
        let from_memory = |config, weight| {
            if let Some(places) = places {
                places.data_from_memory(config, *current, gva, weight, at_once == 1);
            }
        };
        caches.access(access, translate, |config, gpa| regimes[config].hpa(gpa), from_memory);
        self.charge_waits(gva);
    }

    /// Charges what the access to `gva` waited for data.
    fn charge_waits(&mut self, gva: Gva) {
        let Model { caches: Some(caches), charges: Some(charges), guest, vcpus, current, .. } = self else {
            return;
        };
        let Vcpu { root, running, .. } = &mut vcpus[*current];
        let place = |code| {
            let size = guest.lookup(*root, gva).ok().map(|leaf| leaf.size);
            Place { vcpu: *current, code, data: Some(gva), size }
        };
        charges.charge_waits(caches, place, running);
    }

    /// An access that the filter did not answer. `dependent`: the core waits for its walk.
    fn access(&mut self, side: Side, gva: Gva, kind: AccessKind, dependent: bool) {
        self.misses += 1;
        let vcpu = self.current;
        let Model { regimes, groups, guest, vcpus, untranslated, frames, charges, caches, places, .. } = self;
        // Nothing hides the wait for code: the core has no instructions.
        let mut at_once = if dependent { 1 } else { u64::MAX };
        if let Some(caches) = caches {
            caches.at(self.common.accesses);
            if side == Side::Data {
                at_once = caches.at_once(vcpu, dependent);
            }
        }
        let v = &mut vcpus[vcpu];
        let (root, time) = (v.root, v.time);
        let page = (gva.0 & PAYLOAD_MASK) >> 12;
        // The page that leaves the filter for this one.
        let leaves = v.filters[side as usize].take(page);
        let write = kind.writes();
        let mut miss: Option<Miss> = None;
        let mut held = true;
        let mut split = false;
        // Nothing that a TLB holds: no group walks, and none files anything.
        let mut nowhere = false;
        let mut waits = false;
        for group in groups.iter_mut() {
            let tlb = &mut group.tlbs[vcpu];
            let writes = if write { all_sharers(group.members.len()) } else { 0 };
            let lookup = tlb.lookup(side, gva, writes, time, leaves, &v.filters);
            if !matches!(lookup, Lookup::L1 | Lookup::NotWritable(..)) {
                for &r in &group.members {
                    regimes[r].counts.now.l1_misses += 1;
                }
            }
            if let (Lookup::L2, true, Some(caches)) =
                (&lookup, at_once == 1 && side == Side::Data, &mut *caches)
            {
                for &r in &group.members {
                    waits |= caches.second_tlb_answers(r);
                }
            }
            if lookup != Lookup::L1 && lookup != Lookup::L2 {
                let miss = match &miss {
                    Some(m) => m,
                    None if nowhere => continue,
                    None => match translate(guest, root, gva, write) {
                        // A device's window: its accesses leave the guest in every mode. The
                        // groups that follow still count their miss.
                        Some(leaf) if leaf.page.frame() >= *frames => {
                            (nowhere, held) = (true, false);
                            continue;
                        }
                        Some(leaf) => miss.insert(Miss { vcpu, gva, kind, leaf, root }),
                        None => {
                            *untranslated += 1;
                            (nowhere, held) = (true, false);
                            continue;
                        }
                    },
                };
                // A permission miss: only those members walk whose copy of the entry is read-only.
                let (found, concerned) = match lookup {
                    Lookup::NotWritable(bits, size) | Lookup::NotWritableL2(bits, size) => (Some(size), bits),
                    _ => (None, u8::MAX),
                };
                let fresh = found.is_none();
                // What every member would file.
                let mut common: Option<Entry> = None;
                let mut writable = 0;
                for (place, &r) in group.members.iter().enumerate() {
                    let regime = &mut regimes[r];
                    if concerned >> place & 1 == 0 {
                        regime.flush = Flush::None;
                        continue;
                    }
                    let fill = match (&mut *caches, &mut *places) {
                        (None, None) => regime.walk(miss, guest, &mut Uncached),
                        (Some(caches), None) => {
                            regime.walk(miss, guest, &mut caches.walker(r, vcpu, at_once))
                        }
                        (caches, Some(places)) => {
                            walk_placed(regime, r, miss, guest, caches.as_deref_mut(), places, at_once)
                        }
                    };
                    if fresh {
                        match fill.map_or(PageSize::Size4K, |f| f.size) {
                            PageSize::Size4K => regime.counts.now.tlb_misses_4k += 1,
                            PageSize::Size2M => regime.counts.now.tlb_misses_2m += 1,
                            PageSize::Size1G => regime.counts.now.tlb_misses_1g += 1,
                        }
                    }
                    regime.filled = fill;
                    regime.flush = regime.take_flush(vcpu);
                    held &= fill.is_some();
                    writable |= u8::from(fill.is_some_and(|f| f.writable)) << place;
                    split |= regime.flush != Flush::None
                        || fill.is_none()
                        || common.is_some_and(|c| fill.is_some_and(|f| shape(c) != shape(f)));
                    common = common.or(fill);
                }
                // The others hold what they held.
                if let Some(size) = found {
                    split |= common.is_some_and(|c| c.size != size) && concerned != writes;
                    let others = group.members.iter().enumerate();
                    for (place, &r) in others.filter(|(place, _)| concerned >> place & 1 == 0) {
                        let held = Entry { size, page: size, writable: true, global: false };
                        regimes[r].filled = Some(Entry { size, ..common.unwrap_or(held) });
                        writable |= 1 << place;
                    }
                }
                match common {
                    Some(c) if !split => tlb.fill(side, gva, c, writable, fresh, time, &v.filters),
                    _ => group.pending = true,
                }
            }
            if let Some((size, page)) = tlb.take_evicted() {
                v.filters.iter_mut().for_each(|f| f.dropped(size, page));
            }
        }
        if let (Some(charges), Some(miss)) = (charges, &miss) {
            let running = &mut vcpus[vcpu].running;
            let code = if kind == AccessKind::Fetch { gva } else { running.code };
            let place = Place { vcpu, code, data: Some(gva), size: Some(miss.leaf.size) };
            charges.charge(regimes, caches.as_deref(), place, false, running);
        }
        if waits {
            self.charge_waits(gva);
        }
        if split {
            self.fill_split(side, gva);
        }
        if held {
            let large = self.groups.iter().any(|g| g.tlbs[vcpu].may_hold_large(page));
            self.vcpus[vcpu].filters[side as usize].file(page, write, large, time);
        }
    }

    /// Ends an access after which members of a group hold different things: splits the
    /// groups concerned, carries out the flushes asked for, and fills.
    #[cold]
    fn fill_split(&mut self, side: Side, gva: Gva) {
        let regimes = &self.regimes;
        let (pending, mut groups): (Vec<Group>, Vec<Group>) =
            std::mem::take(&mut self.groups).into_iter().partition(|g| g.pending);
        let pending = split_by(pending, |r| (regimes[r].filled.map(shape), regimes[r].flush));
        let vcpu = self.current;
        for mut group in pending {
            let flush = self.regimes[group.members[0]].flush;
            self.flush_group(&mut group, flush);
            let bit = |(place, &r): (usize, &usize)| {
                u8::from(self.regimes[r].filled.is_some_and(|f| f.writable)) << place
            };
            let writable = group.members.iter().enumerate().fold(0, |bits, member| bits | bit(member));
            if let Some(f) = self.regimes[group.members[0]].filled {
                let Vcpu { time, filters, .. } = &self.vcpus[vcpu];
                group.tlbs[vcpu].fill(side, gva, f, writable, false, *time, filters);
                if let Some((size, page)) = group.tlbs[vcpu].take_evicted() {
                    self.vcpus[vcpu].filters.iter_mut().for_each(|f| f.dropped(size, page));
                }
            }
            groups.push(group);
        }
        self.groups = groups;
    }

    /// Flushes the group's TLBs and walk caches of the vCPUs named.
    pub(super) fn flush_group(&mut self, group: &mut Group, flush: Flush) {
        let which = match flush {
            Flush::None => 0..0,
            Flush::Vcpu(v) => v..v + 1,
            Flush::All => 0..self.vcpus.len(),
        };
        for v in which {
            group.tlbs[v].flush_all();
            for &r in &group.members {
                self.regimes[r].flush_caches(v);
                self.regimes[r].counts.now.tlb_flushes += 1;
            }
            self.vcpus[v].forget();
        }
    }

    /// Carries out the flushes that hypervisors asked for outside an access.
    pub(super) fn flush_asked(&mut self) {
        for regime in &mut self.regimes {
            regime.flush = regime.take_flush(self.current);
        }
        if self.regimes.iter().all(|r| r.flush == Flush::None) {
            return;
        }
        self.carry_out_flushes();
    }

    /// Carries out every regime's `flush`, and splits groups whose members' flushes differ.
    pub(super) fn carry_out_flushes(&mut self) {
        let groups = std::mem::take(&mut self.groups);
        let mut groups = split_by(groups, |r| self.regimes[r].flush);
        for group in &mut groups {
            self.flush_group(group, self.regimes[group.members[0]].flush);
        }
        self.groups = groups;
    }
}
