// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model: consumes events, costs every configuration in one pass.
//!
//! One TLB state per configuration (MODEL.md section 1: flushes and page sizes
//! differ), all fed by the same accesses. In front of them stands a filter of
//! the pages last seen: an access to the page last seen in its slot cannot change
//! any TLB ([`Tlb::filter_slots`]), so most accesses cost one comparison.

use crate::guest::{GuestTables, Leaf};
use crate::pcid::Spaces;
use crate::regime::{Fill, Miss, Regime, Tables};
use crate::shadow::{AccessKind, Flush};
use crate::timeline::Timeline;
use crate::{Config, Mode, Outcome, Profile, Sample};
use bifold_mmu::format::X86_64_4_LEVEL;
use bifold_mmu::{Gpa, Gva, Lookup, PageSize, Side, Tlb};
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
            interval_seconds: 0.05,
            configs: Config::ALL.to_vec(),
            guest_frames: 1 << 18,
            vcpus: 1,
        }
    }
}

const CR4_PGE: u64 = 1 << 7;
const CR3_ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const EMPTY: u64 = u64::MAX;
/// Words looked at together by [`Model::read_ahead`].
const WINDOW: usize = 128;

#[derive(Debug)]
struct Vcpu {
    root: Gpa,
    started: bool,
    cr4: Option<u64>,
    /// Pages last seen per slot, `page << 1 | written`; [`EMPTY`] where none is.
    data: [u64; 64],
    code: [u64; 64],
    spaces: Spaces,
}

impl Vcpu {
    fn forget(&mut self) {
        self.data = [EMPTY; 64];
        self.code = [EMPTY; 64];
    }
}

/// The model of one VM in every configuration.
#[allow(missing_debug_implementations)]
pub struct Model {
    profile: Profile,
    options: Options,
    guest: GuestTables,
    regimes: Vec<Regime>,
    /// Per regime, per vCPU.
    tlbs: Vec<Vec<Tlb>>,
    vcpus: Vec<Vcpu>,
    current: usize,
    filter_mask: usize,
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
            filter_mask: tlb.filter_slots() - 1,
            has_code: tlb.has(Side::Code),
            timeline: Timeline::new(interval, regimes.len()),
            tlbs: regimes.iter().map(|_| vec![tlb.clone(); vcpus]).collect(),
            regimes,
            vcpus: (0..vcpus)
                .map(|_| Vcpu {
                    root: Gpa(0),
                    started: false,
                    cr4: None,
                    data: [EMPTY; 64],
                    code: [EMPTY; 64],
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
            let slot = page as usize & self.filter_mask & 63;
            match w >> KIND_SHIFT {
                kind::LOAD => {
                    self.common.accesses += 1;
                    if self.vcpus[self.current].data[slot] >> 1 != page {
                        self.access(Side::Data, Gva(head_va(w)), AccessKind::Read);
                    }
                    i += 1;
                }
                k @ (kind::STORE | kind::STORE_OTHER) => {
                    self.common.accesses += 1;
                    if self.vcpus[self.current].data[slot] != page << 1 | 1 {
                        let kind = if k == kind::STORE { AccessKind::Write } else { AccessKind::WriteOther };
                        self.access(Side::Data, Gva(head_va(w)), kind);
                    }
                    i += 1;
                }
                kind::FETCH => {
                    if self.has_code && self.vcpus[self.current].code[slot] >> 1 != page {
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
            let page = (w & PAYLOAD_MASK) >> 12;
            if v.data[page as usize & self.filter_mask & 63] >> 1 != page
            {
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
        let root = self.vcpus[vcpu].root;
        let write = matches!(kind, AccessKind::Write | AccessKind::WriteOther);
        let mut leaf: Option<Leaf> = None;
        let mut held = true;
        let mut reordered = false;
        for r in 0..self.regimes.len() {
            let lookup = self.tlbs[r][vcpu].lookup(side, gva, write);
            match lookup {
                Lookup::L1 => continue,
                Lookup::L2 => {
                    self.regimes[r].now.l1_misses += 1;
                    continue;
                }
                Lookup::Miss | Lookup::NotWritable => {}
            }
            let leaf = match leaf {
                Some(l) => l,
                None => match self.translate(root, gva, write) {
                    Some(l) => *leaf.insert(l),
                    None => return,
                },
            };
            let regime = &mut self.regimes[r];
            let miss = Miss { vcpu, gva, kind, leaf, root };
            let fill = regime.walk(&miss, &mut self.guest);
            if lookup == Lookup::Miss {
                regime.now.l1_misses += 1;
                match fill.map_or(PageSize::Size4K, |f| f.size) {
                    PageSize::Size4K => regime.now.tlb_misses_4k += 1,
                    PageSize::Size2M => regime.now.tlb_misses_2m += 1,
                    PageSize::Size1G => regime.now.tlb_misses_1g += 1,
                }
            }
            self.flush_asked(r);
            match fill {
                Some(Fill { size, writable, global }) => {
                    self.tlbs[r][vcpu].fill(side, gva, size, writable, global, lookup == Lookup::Miss);
                }
                None => held = false,
            }
        }
        for tlbs in &mut self.tlbs {
            reordered |= tlbs[vcpu].take_reordered();
        }
        let v = &mut self.vcpus[vcpu];
        let slots = if side == Side::Data { &mut v.data } else { &mut v.code };
        if reordered {
            *slots = [EMPTY; 64];
        }
        let page = (gva.0 & PAYLOAD_MASK) >> 12;
        slots[page as usize & self.filter_mask & 63] = if held { page << 1 | u64::from(write) } else { EMPTY };
    }

    /// The guest's own translation of an access that took place, its accessed and dirty bits set.
    #[inline]
    fn translate(&mut self, root: Gpa, gva: Gva, write: bool) -> Option<Leaf> {
        match self.guest.lookup(root, gva) {
            Ok(mut leaf) if leaf.writable || !write => {
                self.guest.touch(&leaf, write);
                leaf.step.entry |= self.guest.format().accessed;
                if write {
                    leaf.step.entry |= self.guest.format().dirty;
                }
                Some(leaf)
            }
            _ => {
                self.untranslated += 1;
                None
            }
        }
    }

    /// Carries out TLB flushes that regime `r`'s hypervisor asked for.
    fn flush_asked(&mut self, r: usize) {
        let which = match self.regimes[r].take_flush() {
            Flush::None => return,
            Flush::Vcpu(v) => v..v + 1,
            Flush::All => 0..self.vcpus.len(),
        };
        for v in which {
            self.tlbs[r][v].flush_all();
            self.regimes[r].flush_caches(v);
            self.regimes[r].now.tlb_flushes += 1;
            self.vcpus[v].forget();
        }
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
                for r in 0..self.regimes.len() {
                    self.tlbs[r][vcpu].invalidate(Gva(gva));
                    self.regimes[r].flush_caches(vcpu);
                    self.regimes[r].invlpg(vcpu, Gva(gva), &self.guest);
                    self.flush_asked(r);
                }
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
            Event::Table { gfn, level, entries } => self.guest.add(gfn, level, entries),
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
        v.forget();
        let space = v.spaces.load(root, same);
        for r in 0..self.regimes.len() {
            if self.regimes[r].config.mode == Mode::Shadow {
                self.regimes[r].load_cr3(vcpu, value, first, &self.guest);
                self.flush_asked(r);
                continue;
            }
            if first {
                continue;
            }
            let tlb = &mut self.tlbs[r][vcpu];
            match space {
                None => tlb.flush_non_global(),
                Some(s) => {
                    tlb.set_space(s.number);
                    if s.flush {
                        tlb.flush_space(s.number);
                    }
                }
            }
            if space.is_none_or(|s| s.flush) {
                self.regimes[r].now.tlb_flushes += 1;
            }
            // Walk caches are not filed by address space here, so every switch empties them.
            self.regimes[r].flush_caches(vcpu);
        }
    }

    fn load_cr4(&mut self, value: u64) {
        let vcpu = self.current;
        let Some(old) = self.vcpus[vcpu].cr4.replace(value) else { return };
        let flush = (old ^ value) & CR4_PGE != 0;
        for r in 0..self.regimes.len() {
            if flush && self.regimes[r].config.mode != Mode::Shadow {
                self.tlbs[r][vcpu].flush_all();
                self.regimes[r].flush_caches(vcpu);
                self.regimes[r].now.tlb_flushes += 1;
            }
            self.regimes[r].write_cr4(vcpu, flush, self.profile.cpu.cr4_exits_nested, &self.guest);
            self.flush_asked(r);
        }
        self.vcpus[vcpu].forget();
    }

    fn fault(&mut self, gva: Gva, error: u64) {
        let vcpu = self.current;
        let root = self.vcpus[vcpu].root;
        self.common.guest_page_faults += 1;
        for r in 0..self.regimes.len() {
            if error & 1 == 0 {
                self.regimes[r].walk_to_fault(vcpu, gva, root, &self.guest);
            }
            self.regimes[r].guest_fault(vcpu);
            // A page fault drops the entries of its address (Intel SDM vol. 3A 4.10.4.1).
            self.tlbs[r][vcpu].invalidate(gva);
            self.flush_asked(r);
        }
        self.vcpus[vcpu].forget();
    }

    fn ideal_cycles(&self) -> u64 {
        (self.common.instructions as f64 * self.profile.cpu.base_cpi) as u64
    }

    fn cut(&mut self, ideal: u64) {
        for r in 0..self.regimes.len() {
            if self.regimes[r].config.mode == Mode::Shadow {
                for v in 0..self.vcpus.len() {
                    for page in self.tlbs[r][v].pages() {
                        self.regimes[r].use_page(v, page);
                    }
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
