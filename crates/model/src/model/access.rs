// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accesses: the loop over a stream's words, the filter, and the TLBs of each group of
//! configurations. A TLB miss leads to the paging mode's walk.

use super::{Model, Vcpu};
use crate::access::{AccessKind, Flush, Miss};
use crate::cache::{self, Caches};
use crate::charge::Place;
use crate::guest::{GuestTables, Leaf};
use crate::memory::Uncached;
use bifold_mmu::{Entry, Gpa, Gva, Lookup, PageSize, SHARERS, Side, Tlb, all_sharers};
use bifold_trace::event::{KIND_SHIFT, PAYLOAD_MASK, head_va, kind};
use bifold_trace::{DecodeError, decode};
use zerocopy::IntoBytes;

/// Words looked at together by [`Model::read_ahead`].
const WINDOW: usize = 128;

/// Misses between two attempts to join groups, at the start fewer. An attempt looks at few sets if they differ.
const JOIN: u64 = 4096;

/// Configurations that share TLBs, because their TLBs have held the same entries so far. Native
/// and nested paging with 4 KB host pages always do. At the start there are as few groups as
/// the bits of a TLB entry allow. A group splits when members hold a page at different sizes, or
/// when a flush concerns only some members. Groups join once their TLBs hold the same again.
#[derive(Debug)]
pub(super) struct Group {
    /// Indices of regimes. A member's place here is its bit in the TLBs' entries.
    pub members: Vec<usize>,
    /// Per vCPU.
    pub tlbs: Vec<Tlb>,
    /// The current access is still to be filed.
    pub pending: bool,
}

impl Group {
    /// Groups of the regimes `0..regimes`, whose TLBs are all empty.
    pub fn start(regimes: usize, tlb: &Tlb, vcpus: usize) -> Vec<Group> {
        let mut groups = Vec::new();
        (0..regimes).for_each(|r| Group::join(&mut groups, r, tlb, vcpus));
        groups
    }

    /// Adds a regime with empty TLBs while those of the others are empty too.
    pub fn join(groups: &mut Vec<Group>, regime: usize, tlb: &Tlb, vcpus: usize) {
        match groups.last_mut() {
            Some(group) if group.members.len() < SHARERS => group.members.push(regime),
            _ => groups.push(Group { members: vec![regime], tlbs: vec![tlb.clone(); vcpus], pending: false }),
        }
    }
}

/// Joins the groups whose TLBs hold the same.
fn join_equal(groups: &mut Vec<Group>) {
    let mut i = 0;
    while i < groups.len() {
        let (before, rest) = groups.split_at_mut(i);
        let group = &mut rest[0];
        let joins = |other: &mut Group| {
            let mut tlbs = other.tlbs.iter_mut().zip(&mut group.tlbs);
            other.members.len() + group.members.len() <= SHARERS && tlbs.all(|(a, b)| a.holds_same(b))
        };
        let Some(at) = before.iter_mut().position(joins) else {
            i += 1;
            continue;
        };
        let mut group = groups.remove(i);
        let other = &mut groups[at];
        for (ours, theirs) in other.tlbs.iter_mut().zip(&mut group.tlbs) {
            ours.join(theirs, other.members.len());
        }
        other.members.append(&mut group.members);
    }
}

/// Splits each group into those of its members that agree in `class`.
fn split_by<T: PartialEq>(groups: Vec<Group>, class: impl Fn(usize) -> T) -> Vec<Group> {
    let mut out: Vec<Group> = Vec::new();
    for mut group in groups {
        // Members that agree, and the bits of their places.
        let mut parts: Vec<(Vec<usize>, u8)> = Vec::new();
        for (place, &r) in group.members.iter().enumerate() {
            match parts.iter_mut().find(|(members, _)| class(members[0]) == class(r)) {
                Some((members, places)) => {
                    members.push(r);
                    *places |= 1 << place;
                }
                None => parts.push((vec![r], 1 << place)),
            }
        }
        if parts.len() == 1 {
            group.pending = false;
            out.push(group);
            continue;
        }
        for (members, places) in parts {
            let mut tlbs = group.tlbs.clone();
            tlbs.iter_mut().for_each(|tlb| tlb.keep_sharers(places));
            out.push(Group { members, tlbs, pending: false });
        }
    }
    out
}

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
        // Two loops, so that a run without data caches does not ask at every access.
        match self.caches {
            None => self.consume_words::<false>(words),
            Some(_) => self.consume_words::<true>(words),
        }
    }

    fn consume_words<const CACHES: bool>(&mut self, words: &[u64]) -> Result<(), DecodeError> {
        let watched = self.caches.as_ref().map_or(0, |c| c.watched());
        let mut i = self.consume_gap(words, 0)?;
        let mut window = WINDOW;
        let mut misses = self.misses;
        loop {
            i = self.consume_hits::<CACHES>(words, i, window, watched);
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
                k @ (kind::LOAD | kind::LOAD_DEPENDENT) => {
                    let dependent = k == kind::LOAD_DEPENDENT;
                    self.common.accesses += 1;
                    let v = &mut self.vcpus[self.current];
                    v.time += 1;
                    if !v.filters[Side::Data as usize].hit(page, false, v.time) {
                        self.access(Side::Data, Gva(head_va(w)), AccessKind::Read, dependent);
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
                    self.vcpus[self.current].code = Gva(head_va(w));
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
    fn consume_hits<const CACHES: bool>(
        &mut self,
        words: &[u64],
        mut i: usize,
        end: usize,
        watched: u64,
    ) -> usize {
        let Model { vcpus, current, caches, has_code, common, .. } = self;
        let Vcpu { filters: [data, code], time, generation, code: block, .. } = &mut vcpus[*current];
        let settled = |w: u64, write: bool| {
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
                    if settled(w, false) && data.hit(page, false, *time + 1) =>
                {
                    common.accesses += 1;
                }
                kind::STORE | kind::STORE_OTHER if settled(w, true) && data.hit(page, true, *time + 1) => {
                    common.accesses += 1;
                }
                kind::FETCH if !*has_code || code.hit(page, false, *time + 1) => {}
                kind::BLOCK => {
                    *block = Gva(head_va(w));
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
        let Model { caches, regimes, guest, vcpus, frames, current, .. } = self;
        let Some(caches) = caches else { return };
        let Vcpu { root, generation, .. } = vcpus[*current];
        let access = cache::Access { vcpu: *current, gva, write, dependent, generation };
        let in_memory = |gpa: &Gpa| gpa.frame() < *frames;
        let translate = || guest.lookup(root, gva).ok().map(|leaf| leaf.gpa(gva)).filter(in_memory);
        caches.access(access, translate, |config, gpa| regimes[config].hpa(gpa));
    }

    /// An access that the filter did not answer. `dependent`: the core waits for its walk.
    fn access(&mut self, side: Side, gva: Gva, kind: AccessKind, dependent: bool) {
        self.misses += 1;
        let vcpu = self.current;
        let Model { regimes, groups, guest, vcpus, untranslated, frames, charges, caches, .. } = self;
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
        for group in groups.iter_mut() {
            let tlb = &mut group.tlbs[vcpu];
            let writes = if write { all_sharers(group.members.len()) } else { 0 };
            let lookup = tlb.lookup(side, gva, writes, time, leaves, &v.filters);
            if !matches!(lookup, Lookup::L1 | Lookup::NotWritable(..)) {
                for &r in &group.members {
                    regimes[r].counts.now.l1_misses += 1;
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
                    let fill = match caches {
                        None => regime.walk(miss, guest, &mut Uncached),
                        Some(caches) => regime.walk(miss, guest, &mut caches.walker(r, vcpu, dependent)),
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
            let code = if kind == AccessKind::Fetch { gva } else { vcpus[vcpu].code };
            let place = Place { vcpu, code, data: Some(gva), size: Some(miss.leaf.size) };
            charges.charge(regimes, caches.as_deref(), place, false);
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
