// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model: consumes events, costs every configuration in one pass.
//!
//! One TLB state per configuration (MODEL.md section 1: flushes and page sizes
//! differ), all fed by the same accesses. In front of them stands a filter of
//! pages that all of them hold ([`Filter`]), so most accesses cost one comparison.

use crate::guest::{GuestTables, Leaf};
use crate::pcid::Spaces;
use crate::regime::{Miss, Regime, Tables};
use crate::shadow::{AccessKind, Flush};
use crate::timeline::Timeline;
use crate::{Config, Mode, Outcome, Profile, Sample};
use bifold_mmu::format::X86_64_4_LEVEL;
use bifold_mmu::{Entry, Filter, Gpa, Gva, Lookup, PageSize, Side, Tlb};
use bifold_trace::event::{KIND_SHIFT, PAYLOAD_MASK, head_va, kind};
use bifold_trace::{DecodeError, Event, decode};
use xxhash_rust::xxh3::Xxh3;
use zerocopy::IntoBytes;

/// What a run of the model is given beside the profile.
#[derive(Debug, Clone)]
pub struct Options {
    /// Seed of the host frames' placement.
    pub seed: u64,
    /// Length of an interval in seconds of the profile's clock.
    pub interval_seconds: f64,
    /// Configurations to cost.
    pub configs: Vec<Config>,
    /// 4 KB frames of the guest, windows below 4 GB included.
    pub guest_frames: u64,
    /// Number of vCPUs.
    pub vcpus: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            seed: 1,
            interval_seconds: 0.01,
            configs: Config::ALL.to_vec(),
            guest_frames: 1 << 18,
            vcpus: 1,
        }
    }
}

/// Splits each group into those of its members that agree in `class`.
fn split_by<T: PartialEq>(groups: Vec<Group>, class: impl Fn(usize) -> T) -> Vec<Group> {
    let mut out: Vec<Group> = Vec::new();
    for group in groups {
        let first = out.len();
        for r in group.members {
            match out[first..].iter_mut().find(|g| class(g.members[0]) == class(r)) {
                Some(g) => g.members.push(r),
                None => out.push(Group { members: vec![r], tlbs: group.tlbs.clone(), pending: false }),
            }
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
fn translate(guest: &mut GuestTables, root: Gpa, gva: Gva, write: bool) -> Option<Leaf> {
    let mut leaf = guest.lookup(root, gva).ok().filter(|l| l.writable || !write)?;
    guest.touch(&leaf, write);
    leaf.step.entry |= guest.format().accessed | if write { guest.format().dirty } else { 0 };
    Some(leaf)
}

const CR4_PGE: u64 = 1 << 7;
const CR3_ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Words looked at together by [`Model::read_ahead`].
const WINDOW: usize = 128;

#[derive(Debug)]
struct Vcpu {
    index: usize,
    root: Gpa,
    started: bool,
    cr4: Option<u64>,
    /// Data and code.
    filters: [Filter; 2],
    /// Accesses and fetches so far: the clock of recency.
    time: u64,
    spaces: Spaces,
}

impl Vcpu {
    fn forget(&mut self) {
        self.filters.iter_mut().for_each(Filter::forget);
    }
}

/// Configurations whose TLBs hold the same so far. MODEL.md section 1: native and nested
/// share a state per page-size map. All start as one group; it splits where a page
/// is held at another size, or a flush concerns only some. It never grows together again.
#[derive(Debug)]
struct Group {
    /// Indices of regimes.
    members: Vec<usize>,
    /// Per vCPU.
    tlbs: Vec<Tlb>,
    /// The access in hand is still to be filed.
    pending: bool,
}

/// The model of one VM in every configuration.
#[allow(missing_debug_implementations)]
pub struct Model {
    profile: Profile,
    options: Options,
    guest: GuestTables,
    regimes: Vec<Regime>,
    groups: Vec<Group>,
    /// Frames from here on are devices'.
    frames: u64,
    vcpus: Vec<Vcpu>,
    current: usize,
    has_code: bool,
    common: Sample,
    timeline: Timeline,
    hash: Xxh3,
    words: usize,
    /// Accesses that the filter did not answer.
    misses: u64,
    /// What [`Model::read_ahead`] read: kept so that the reads are not optimised away.
    seen: u64,
    walk_checks: u64,
    walk_mismatches: u64,
    untranslated: u64,
}

impl Model {
    /// A model that has seen nothing yet.
    pub fn new(profile: &Profile, options: Options) -> Model {
        let guest = GuestTables::new(&X86_64_4_LEVEL);
        let vcpus = options.vcpus.max(1);
        let regimes: Vec<Regime> = options
            .configs
            .iter()
            .map(|&c| Regime::new(c, profile, &guest, options.guest_frames, vcpus, options.seed))
            .collect();
        let tlb = Tlb::new(&profile.tlb_specs());
        let interval = (options.interval_seconds * profile.cpu.frequency_hz as f64).max(1.0) as u64;
        Model {
            has_code: tlb.has(Side::Code),
            timeline: Timeline::new(interval, regimes.len()),
            // Below 4 GB there are device windows between frames of memory.
            frames: options.guest_frames.max(1 << 20),
            groups: vec![Group {
                members: (0..regimes.len()).collect(),
                tlbs: vec![tlb; vcpus],
                pending: false,
            }],
            regimes,
            vcpus: (0..vcpus)
                .map(|index| Vcpu {
                    index,
                    root: Gpa(0),
                    started: false,
                    cr4: None,
                    filters: Default::default(),
                    time: 0,
                    spaces: Spaces::new(profile.cpu.pcid),
                })
                .collect(),
            current: 0,
            common: Sample::default(),
            hash: Xxh3::new(),
            words: 0,
            misses: 0,
            seen: 0,
            walk_checks: 0,
            walk_mismatches: 0,
            untranslated: 0,
            profile: profile.clone(),
            options,
            guest,
        }
    }

    /// Instructions consumed so far.
    pub fn instructions(&self) -> u64 {
        self.common.instructions
    }

    /// Data accesses consumed so far.
    pub fn accesses(&self) -> u64 {
        self.common.accesses
    }

    /// The guest's page tables as replayed so far.
    pub fn guest_tables(&self) -> &GuestTables {
        &self.guest
    }

    /// Consumes whole events.
    pub fn consume(&mut self, words: &[u64]) -> Result<(), DecodeError> {
        let mut i = 0;
        let mut window = WINDOW;
        let mut misses = self.misses;
        while let Some(&w) = words.get(i) {
            if i >= window {
                // Where misses are dense, their table entries are read ahead, all of a window's
                // at once: one after the other, each would wait for memory.
                if self.misses - misses > WINDOW as u64 / 8 {
                    self.read_ahead(&words[i..words.len().min(i + WINDOW)]);
                }
                window = i + WINDOW;
                misses = self.misses;
            }
            let page = (w & PAYLOAD_MASK) >> 12;
            match w >> KIND_SHIFT {
                kind::LOAD => {
                    self.common.accesses += 1;
                    let v = &mut self.vcpus[self.current];
                    v.time += 1;
                    if !v.filters[Side::Data as usize].hit(page, false, v.time) {
                        self.access(Side::Data, Gva(head_va(w)), AccessKind::Read);
                    }
                    i += 1;
                }
                k @ (kind::STORE | kind::STORE_OTHER) => {
                    self.common.accesses += 1;
                    let v = &mut self.vcpus[self.current];
                    v.time += 1;
                    if !v.filters[Side::Data as usize].hit(page, true, v.time) {
                        let kind = if k == kind::STORE { AccessKind::Write } else { AccessKind::WriteOther };
                        self.access(Side::Data, Gva(head_va(w)), kind);
                    }
                    i += 1;
                }
                kind::FETCH => {
                    let v = &mut self.vcpus[self.current];
                    v.time += 1;
                    if self.has_code && !v.filters[Side::Code as usize].hit(page, false, v.time) {
                        self.access(Side::Code, Gva(head_va(w)), AccessKind::Fetch);
                    }
                    i += 1;
                }
                _ => {
                    let (event, n) = decode(&words[i..], self.words + i)?;
                    self.event(event);
                    i += n;
                }
            }
        }
        self.hash.update(words.as_bytes());
        self.words += words.len();
        Ok(())
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
            if let Tables::Nested(nested) = &regime.tables {
                for &frame in &frames[..n] {
                    seen ^= nested.peek(frame);
                }
            }
        }
        self.seen ^= seen;
    }

    /// An access that the filter did not answer.
    fn access(&mut self, side: Side, gva: Gva, kind: AccessKind) {
        self.misses += 1;
        let vcpu = self.current;
        let Model { regimes, groups, guest, vcpus, untranslated, frames, .. } = self;
        let v = &mut vcpus[vcpu];
        let (root, time) = (v.root, v.time);
        let page = (gva.0 & PAYLOAD_MASK) >> 12;
        if let Some((other, last)) = v.filters[side as usize].take(page) {
            for group in groups.iter_mut() {
                group.tlbs[vcpu].used_at(side, other, last);
            }
        }
        let write = matches!(kind, AccessKind::Write | AccessKind::WriteOther);
        let mut miss: Option<Miss> = None;
        let mut held = true;
        let mut split = false;
        for group in groups.iter_mut() {
            let tlb = &mut group.tlbs[vcpu];
            let writes = if write { group.members.iter().fold(0, |bits, &r| bits | 1 << r) } else { 0 };
            let lookup = tlb.lookup(side, gva, writes, time, &v.filters);
            if !matches!(lookup, Lookup::L1 | Lookup::NotWritable(..)) {
                for &r in &group.members {
                    regimes[r].now.l1_misses += 1;
                }
            }
            if lookup != Lookup::L1 && lookup != Lookup::L2 {
                let miss = match &miss {
                    Some(m) => m,
                    None => match translate(guest, root, gva, write) {
                        // A device's window: its accesses leave the guest in every mode.
                        Some(leaf) if leaf.page.frame() >= *frames => return,
                        Some(leaf) => miss.insert(Miss { vcpu, gva, kind, leaf, root }),
                        None => {
                            *untranslated += 1;
                            return;
                        }
                    },
                };
                // Where an entry was there, its write concerns only those for whom it is not writable.
                let (found, concerned) = match lookup {
                    Lookup::NotWritable(bits, size) | Lookup::NotWritableL2(bits, size) => (Some(size), bits),
                    _ => (None, u8::MAX),
                };
                let fresh = found.is_none();
                // What every member would file.
                let mut common: Option<Entry> = None;
                let mut writable = 0;
                for &r in &group.members {
                    let regime = &mut regimes[r];
                    if concerned >> r & 1 == 0 {
                        regime.flush = Flush::None;
                        continue;
                    }
                    let fill = regime.walk(miss, guest);
                    if fresh {
                        match fill.map_or(PageSize::Size4K, |f| f.size) {
                            PageSize::Size4K => regime.now.tlb_misses_4k += 1,
                            PageSize::Size2M => regime.now.tlb_misses_2m += 1,
                            PageSize::Size1G => regime.now.tlb_misses_1g += 1,
                        }
                    }
                    regime.filled = fill;
                    regime.flush = regime.take_flush(vcpu);
                    held &= fill.is_some();
                    writable |= u8::from(fill.is_some_and(|f| f.writable)) << r;
                    split |= regime.flush != Flush::None
                        || fill.is_none()
                        || common.is_some_and(|c| fill.is_some_and(|f| shape(c) != shape(f)));
                    common = common.or(fill);
                }
                // The others hold what they held.
                if let Some(size) = found {
                    split |= common.is_some_and(|c| c.size != size) && concerned != writes;
                    for &r in group.members.iter().filter(|&r| concerned >> r & 1 == 0) {
                        let held = Entry { size, page: size, writable: true, global: false };
                        regimes[r].filled = Some(Entry { size, ..common.unwrap_or(held) });
                        writable |= 1 << r;
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
        if split {
            self.fill_split(side, gva);
        }
        if held {
            self.vcpus[vcpu].filters[side as usize].file(page, write, time);
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
            let bit = |&r: &usize| u8::from(self.regimes[r].filled.is_some_and(|f| f.writable)) << r;
            let writable = group.members.iter().fold(0, |bits, r| bits | bit(r));
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
    fn flush_group(&mut self, group: &mut Group, flush: Flush) {
        let which = match flush {
            Flush::None => 0..0,
            Flush::Vcpu(v) => v..v + 1,
            Flush::All => 0..self.vcpus.len(),
        };
        for v in which {
            group.tlbs[v].flush_all();
            for &r in &group.members {
                self.regimes[r].flush_caches(v);
                self.regimes[r].now.tlb_flushes += 1;
            }
            self.vcpus[v].forget();
        }
    }

    /// Carries out the flushes that hypervisors asked for outside an access.
    fn flush_asked(&mut self) {
        for regime in &mut self.regimes {
            regime.flush = regime.take_flush(self.current);
        }
        if self.regimes.iter().all(|r| r.flush == Flush::None) {
            return;
        }
        let groups = std::mem::take(&mut self.groups);
        let mut groups = split_by(groups, |r| self.regimes[r].flush);
        for group in &mut groups {
            self.flush_group(group, self.regimes[group.members[0]].flush);
        }
        self.groups = groups;
    }

    fn event(&mut self, event: Event<'_>) {
        let vcpu = self.current;
        match event {
            Event::Insns(n) => {
                self.common.instructions += n;
                let ideal = self.ideal_cycles();
                if self.timeline.due(ideal) {
                    self.cut(ideal);
                }
            }
            Event::Vcpu(n) => self.current = (n as usize).min(self.vcpus.len() - 1),
            Event::Cr3(value) => self.load_cr3(value),
            Event::Cr3Read => {
                for r in &mut self.regimes {
                    r.read_cr3(vcpu);
                }
            }
            Event::Cr4(value) => self.load_cr4(value),
            Event::Invlpg(gva) => {
                for group in &mut self.groups {
                    group.tlbs[vcpu].invalidate(Gva(gva));
                }
                for regime in &mut self.regimes {
                    regime.flush_caches(vcpu);
                    regime.invlpg(vcpu, Gva(gva), &self.guest);
                }
                self.flush_asked();
                self.vcpus[vcpu].forget();
            }
            Event::Fault { gva, error } => self.fault(Gva(gva), error),
            Event::PtStore { gpa, new, old } => {
                self.guest.store(Gpa(gpa), new);
                if self.profile.cpu.pcid && old & 1 != 0 {
                    let owner = self.guest.owner(gpa >> 12);
                    for v in &mut self.vcpus {
                        v.spaces.changed(owner, v.root);
                    }
                }
            }
            // Tables are in memory; what a damaged stream puts elsewhere reads as not present.
            Event::Table { gfn, level, entries } if gfn < self.frames => self.guest.add(gfn, level, entries),
            Event::Table { .. } => {}
            Event::Retire { gfn } => self.guest.retire(gfn),
            Event::Check { gva, gpa } => {
                self.walk_checks += 1;
                let ours = self.guest.lookup(self.vcpus[vcpu].root, Gva(gva)).map(|l| l.gpa(Gva(gva)));
                self.walk_mismatches += u64::from(ours != Ok(Gpa(gpa)));
            }
            Event::Marker(_) | Event::Stats(_) => {}
            // Accesses are taken in `consume`.
            Event::Load(_) | Event::Store(_) | Event::StoreOther(_) | Event::Fetch(_) => {}
        }
    }

    fn load_cr3(&mut self, value: u64) {
        let vcpu = self.current;
        let root = Gpa(value & CR3_ADDRESS);
        let v = &mut self.vcpus[vcpu];
        let first = !std::mem::replace(&mut v.started, true);
        let same = v.root == root;
        v.root = root;
        let space = v.spaces.load(root, same);
        if space.is_some() {
            // Entries of this address space may come back, and the filter files by page only.
            for (side, filter) in [Side::Data, Side::Code].into_iter().zip(&mut v.filters) {
                for (page, last) in filter.drain() {
                    for group in &mut self.groups {
                        group.tlbs[vcpu].used_at(side, page, last);
                    }
                }
            }
        }
        v.forget();
        for regime in &mut self.regimes {
            regime.load_cr3(vcpu, value, first, &self.guest);
        }
        self.flush_asked();
        if first {
            self.groups.iter_mut().for_each(|g| g.tlbs[vcpu].set_space(space.map_or(0, |s| s.number)));
            return;
        }
        for group in &mut self.groups {
            if self.regimes[group.members[0]].config.mode == Mode::Shadow {
                continue; // the hypervisor flushed
            }
            let tlb = &mut group.tlbs[vcpu];
            match space {
                None => tlb.flush_non_global(),
                Some(s) => {
                    tlb.set_space(s.number);
                    if s.flush {
                        tlb.flush_space(s.number);
                    }
                }
            }
            for &r in &group.members {
                self.regimes[r].now.tlb_flushes += u64::from(space.is_none_or(|s| s.flush));
                // Walk caches are not filed by address space here, so every switch empties them.
                self.regimes[r].flush_caches(vcpu);
            }
        }
    }

    fn load_cr4(&mut self, value: u64) {
        let vcpu = self.current;
        let Some(old) = self.vcpus[vcpu].cr4.replace(value) else { return };
        let flush = (old ^ value) & CR4_PGE != 0;
        for regime in &mut self.regimes {
            regime.write_cr4(vcpu, flush, self.profile.cpu.cr4_exits_nested, &self.guest);
        }
        self.flush_asked();
        for group in &mut self.groups {
            if flush && self.regimes[group.members[0]].config.mode != Mode::Shadow {
                group.tlbs[vcpu].flush_all();
                for &r in &group.members {
                    self.regimes[r].flush_caches(vcpu);
                    self.regimes[r].now.tlb_flushes += 1;
                }
            }
        }
        self.vcpus[vcpu].forget();
    }

    fn fault(&mut self, gva: Gva, error: u64) {
        let vcpu = self.current;
        let root = self.vcpus[vcpu].root;
        self.common.guest_page_faults += 1;
        for regime in &mut self.regimes {
            if error & 1 == 0 {
                regime.walk_to_fault(vcpu, gva, root, &self.guest);
            }
            regime.guest_fault(vcpu, gva, error, &self.guest);
        }
        self.flush_asked();
        for group in &mut self.groups {
            // A page fault drops the entries of its address (Intel SDM vol. 3A 4.10.4.1).
            group.tlbs[vcpu].invalidate(gva);
        }
        self.vcpus[vcpu].forget();
    }

    fn ideal_cycles(&self) -> u64 {
        (self.common.instructions as f64 * self.profile.cpu.base_cpi) as u64
    }

    fn cut(&mut self, ideal: u64) {
        for group in &mut self.groups {
            for (tlb, v) in group.tlbs.iter_mut().zip(&self.vcpus) {
                let pages = tlb.pages();
                for &r in &group.members {
                    pages
                        .iter()
                        .for_each(|&page| self.regimes[r].use_page(v.index, v.root, page, &mut self.guest));
                }
            }
        }
        self.timeline.cut(ideal, &mut self.regimes, &self.common, &self.profile);
    }

    /// Ends the run.
    pub fn finish(mut self) -> Outcome {
        let ideal = self.ideal_cycles();
        self.cut(ideal);
        let interval_cycles = self.timeline.interval();
        let (interval_starts, configs) = self.timeline.finish(&self.regimes);
        Outcome {
            profile: self.profile.name.clone(),
            frequency_hz: self.profile.cpu.frequency_hz,
            base_cpi: self.profile.cpu.base_cpi,
            seed: self.options.seed,
            config_hash: self.profile.hash(),
            input_hash: format!("{:016x}", self.hash.digest()),
            guest_frames: self.options.guest_frames,
            vcpus: self.vcpus.len() as u64,
            interval_cycles,
            configs,
            interval_starts,
            walk_checks: self.walk_checks,
            walk_mismatches: self.walk_mismatches,
            untranslated: self.untranslated,
        }
    }
}
