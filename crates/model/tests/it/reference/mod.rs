// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A slow model of native, nested, shadow and agile paging, written apart from the one under test:
//! it reads the event stream, keeps everything in lists and maps, has no filter and
//! shares no state between configurations. Of the crates it takes the event stream,
//! profiles, and where the host places a frame ([`HostMemory::hpa`]).

mod agile;
pub mod caches;
pub mod data_caches;
pub mod exits;
pub mod host;
mod hypercalls;
pub mod inside;
mod lists;
pub mod placed;
mod shadow;
mod tables;
pub mod tlb;
mod walks;

use agile::Agile;
use bifold_mmu::{Gpa, PageSize};
use bifold_model::{Config, ConfigOutcome, Paging, Profile, Sample, Virtualization, VmState};
use bifold_trace::{Event, decode};
use caches::Caches;
use data_caches::DataCaches;
use host::Host;
use hypercalls::{Hypercalls, Operation};
use inside::Inside;
use placed::{Placed, Read};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use tables::{entry_in, shift};
use tlb::{Found, Tlb};

pub use tables::Tables;

pub const PRESENT: u64 = 1;
pub const WRITE: u64 = 2;
pub const ACCESSED: u64 = 1 << 5;
pub const DIRTY: u64 = 1 << 6;
pub const LARGE: u64 = 1 << 7;
pub const GLOBAL: u64 = 1 << 8;
pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// What is compared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    pub l1_misses: u64,
    pub misses: [u64; 3],
    pub walks: u64,
    pub violations: u64,
    pub backed: u64,
    pub flushes: u64,
    pub refs: [[u64; 6]; 6],
}

impl Counts {
    pub fn of(c: &ConfigOutcome) -> Counts {
        let t = &c.total;
        Counts {
            l1_misses: t.l1_misses,
            misses: [t.tlb_misses_4k, t.tlb_misses_2m, t.tlb_misses_1g],
            walks: t.walks,
            violations: t.exits_violation,
            backed: [
                t.frames_backed,
                t.huge_frames_backed,
                t.frames_from_file,
                t.frames_from_uffd,
                t.huge_frames_from_uffd,
            ]
            .iter()
            .sum(),
            flushes: t.tlb_flushes,
            refs: c.refs,
        }
    }
}

struct Cpu {
    root: u64,
    /// The entries of PAE's root.
    registers: [u64; 4],
    started: bool,
    cr4: Option<u64>,
    tlb: Tlb,
    caches: Caches,
    spaces: Spaces,
}

/// The address spaces that keep their entries: pairs of root frames, the next to be
/// replaced, and which halves have run since they got their place.
#[derive(Default)]
struct Spaces {
    pairs: Vec<u64>,
    next: usize,
    ran: HashSet<u64>,
}

impl Spaces {
    /// The number of a root's space, and whether it ran before.
    fn enter(&mut self, root: u64) -> (u16, bool) {
        let pair = root >> 13;
        if !self.pairs.contains(&pair) {
            if self.pairs.len() < 6 {
                self.pairs.push(pair);
            } else {
                let gone = std::mem::replace(&mut self.pairs[self.next], pair);
                self.ran.retain(|root| root >> 13 != gone);
                self.next = (self.next + 1) % 6;
            }
        }
        let at = self.pairs.iter().position(|&p| p == pair).unwrap();
        (2 * at as u16 + (root >> 12 & 1) as u16, !self.ran.insert(root))
    }
}

pub struct Reference {
    /// Words of the guest's tables.
    tables: HashMap<u64, Vec<u64>>,
    format: Tables,
    cpus: Vec<Cpu>,
    current: usize,
    pcid: bool,
    /// AMD's nested paging.
    svm_nested: bool,
    pub host: Option<Host>,
    /// The outer hypervisor, if the one of `host` is a guest itself.
    pub inside: Option<Inside>,
    /// A flush was asked for during an access.
    flushes_late: bool,
    pub counts: Counts,
    /// Every reference: guest level, host level, host-physical address.
    pub touched: Vec<(u8, u8, u64)>,
    /// Data caches, if they are asked for, and whether walks go through them.
    pub data: Option<DataCaches>,
    pub walks_use_caches: bool,
    /// What direct paging has of them.
    pub hypercalls: Hypercalls,
    /// Local and remote references, if they are asked for.
    pub placed: Option<Placed>,
    /// Agile paging's part.
    agile: Option<Box<Agile>>,
}

/// Where a walk ended: level, address of the entry, its value, writes allowed.
type End = (u8, u64, u64, bool);

fn host_of(host: &Option<Host>) -> &Host {
    host.as_ref().expect("only nested paging has violations")
}

fn size_of(level: u8) -> PageSize {
    PageSize::ALL[usize::from(level) - 1]
}

impl Reference {
    pub fn new(profile: &Profile, config: Config, frames: u64, cpus: usize, seed: u64) -> Self {
        let is_inside = config.mode == Paging::NestedOnNested;
        let svm = profile.cpu.virtualization == Virtualization::Svm;
        let host = (matches!(config.mode, Paging::Nested | Paging::Agile | Paging::Shadow) || is_inside)
            .then(|| Host::new(config.host_page, frames, seed));
        let cpu = || Cpu {
            root: 0,
            registers: [0; 4],
            started: false,
            cr4: None,
            tlb: Tlb::new(profile),
            caches: Caches::new(profile),
            spaces: Spaces::default(),
        };
        Reference {
            tables: HashMap::new(),
            format: Tables::Long(4),
            cpus: (0..cpus).map(|_| cpu()).collect(),
            current: 0,
            pcid: profile.cpu.pcid,
            svm_nested: host.is_some() && svm,
            host,
            flushes_late: false,
            inside: is_inside.then(|| Inside::new(svm, config.outer_page() as u8 + 1)),
            counts: Counts::default(),
            touched: Vec::new(),
            data: None,
            walks_use_caches: true,
            hypercalls: Hypercalls::default(),
            placed: None,
            agile: None,
        }
    }

    /// A guest with tables of another format.
    pub fn of(self, format: Tables) -> Self {
        let pcid = self.pcid && matches!(format, Tables::Long(_));
        Reference { format, pcid, ..self }
    }

    /// A VM that begins in this state.
    pub fn in_state(mut self, vm: VmState) -> Self {
        let Some(host) = &mut self.host else { return self };
        match vm {
            VmState::Started => {}
            VmState::LongLived => {
                host.map_all();
                self.inside.iter_mut().for_each(|inside| inside.map_all(host));
            }
            VmState::Restored | VmState::RestoredUffd => host.restore(vm == VmState::RestoredUffd),
        }
        self
    }

    /// What agile paging has of exits and shadow pages.
    pub fn agile_counts(&self) -> Sample {
        self.agile.as_ref().map(|agile| agile.done).unwrap_or_default()
    }

    pub fn consume(&mut self, mut words: &[u64]) {
        while !words.is_empty() {
            let (event, n) = decode(words, 0).unwrap();
            self.event(event);
            words = &words[n..];
        }
    }

    pub fn event(&mut self, event: Event<'_>) {
        if let Some(mut agile) = self.agile.take() {
            self.agile_event(&mut agile, event);
            self.agile = Some(agile);
            return;
        }
        self.note_hypercalls(&event);
        let cpu = &mut self.cpus[self.current];
        match event {
            Event::Load(va) | Event::LoadBeforeChain(va) => self.data_access(va, false, false),
            Event::LoadDependent(va) => self.data_access(va, false, true),
            Event::Store(va) | Event::StoreOther(va) => self.data_access(va, true, false),
            Event::Fetch(va) => _ = self.access(true, va, false),
            Event::Vcpu(n) => self.current = n as usize,
            Event::Cr3(value) => {
                let root = self.format.root(value);
                let same = std::mem::replace(&mut cpu.root, root) == root;
                let started = cpu.started;
                self.load_registers(started);
                let cpu = &mut self.cpus[self.current];
                let mut flush = true;
                if self.pcid {
                    let (space, ran) = cpu.spaces.enter(cpu.root);
                    cpu.tlb.space = space;
                    flush = same || !ran;
                }
                if std::mem::replace(&mut cpu.started, true) {
                    if flush && self.pcid {
                        cpu.tlb.flush_space();
                    } else if flush {
                        cpu.tlb.flush(false);
                    }
                    cpu.caches.flush_guest();
                    self.counts.flushes += u64::from(flush);
                }
            }
            Event::Cr4(value) => {
                let exits = cpu.cr4.is_some();
                let changed = cpu.cr4.replace(value).map_or(0, |old| old ^ value);
                // PSE, PAE, PGE, SMEP
                if changed & (1 << 4 | 1 << 5 | 1 << 7 | 1 << 20) != 0 {
                    self.load_registers(true);
                }
                let cpu = &mut self.cpus[self.current];
                if changed & 1 << 7 != 0 {
                    cpu.tlb.flush(true);
                    cpu.caches.flush_guest();
                    self.counts.flushes += 1;
                }
                if exits && self.inside.as_ref().is_some_and(|i| i.svm) {
                    self.enter();
                    self.flushes_late = false;
                }
            }
            Event::Invlpg(va) => {
                cpu.tlb.invalidate(va);
                cpu.caches.flush_guest();
            }
            Event::Fault { gva, error } => {
                if error & 1 == 0 {
                    self.walk(gva, false);
                } else {
                    self.see_tables(gva);
                }
                self.flush_late();
                self.cpus[self.current].tlb.invalidate(gva);
            }
            Event::PtStore { gpa, old, new } => {
                self.store(gpa, old, new);
            }
            Event::Table { gfn, entries, .. } => {
                self.tables.insert(gfn, entries.to_vec());
            }
            Event::Retire { gfn } => {
                self.tables.remove(&gfn);
            }
            Event::Check { .. } | Event::Cr3Read | Event::Insns(_) | Event::Marker(_) | Event::Stats(_) => {}
            // Backing belongs to the host, and this is a reference for the walkers only; who runs does not
            // matter here.
            Event::Resident { .. }
            | Event::Log { .. }
            | Event::Block(_)
            | Event::Call(_)
            | Event::Return(_)
            | Event::Ticks { .. }
            | Event::Gap(_)
            | Event::Transfer { .. }
            | Event::Free { .. }
            | Event::Look(_)
            | Event::Ipi(_) => {}
        }
    }

    fn read(&self, at: u64) -> u64 {
        let word = self.tables.get(&(at >> 12)).map_or(0, |t| t[(at >> 3) as usize % 512]);
        entry_in(word, at, self.format.entry_bytes())
    }

    /// The guest stores a word, of which one entry of two may have changed.
    fn store(&mut self, gpa: u64, old: u64, new: u64) {
        let bytes = self.format.entry_bytes();
        for at in (gpa..gpa + 8).step_by(bytes as usize) {
            let of = |word: u64| entry_in(word, at, bytes);
            if bytes == 8 || of(old) != of(new) {
                self.write(at, of(new));
            }
        }
    }

    fn write(&mut self, at: u64, entry: u64) {
        let bytes = self.format.entry_bytes();
        if let Some(t) = self.tables.get_mut(&(at >> 12)) {
            let word = &mut t[(at >> 3) as usize % 512];
            *word ^= (entry_in(*word, at, bytes) ^ entry) << (8 * (at % 8));
        }
    }

    fn read_registers(&mut self) {
        let root = self.cpus[self.current].root;
        if self.format == Tables::Pae {
            self.cpus[self.current].registers = [0, 8, 16, 24].map(|offset| self.read(root + offset));
        }
    }

    /// PAE: the CPU reads the root's four entries, at once, unless the stream begins here.
    fn load_registers(&mut self, reads: bool) {
        if self.format != Tables::Pae {
            return;
        }
        self.read_registers();
        let root = self.cpus[self.current].root;
        if !reads || self.reads_root() {
            return;
        }
        while let Err((gpa, write)) = self.translate(root, false, 3) {
            self.counts.violations += 1;
            let host = self.host.as_mut().expect("only nested paging has violations");
            host.resolve(gpa, write, &mut self.counts.backed, self.current, &mut self.placed);
        }
        let at = self.host.as_ref().map_or(root, |h| h.place.hpa(Gpa(root)).0);
        self.counts.refs[3][0] += 1;
        self.touched.push((3, 0, at));
        self.referred(at, Read::GuestTable(root));
    }

    /// Address of the first table that a walk reads, if PAE's register leads to one.
    fn first_table(&self, va: u64) -> Option<u64> {
        let cpu = &self.cpus[self.current];
        match self.format {
            Tables::Pae => {
                let entry = cpu.registers[self.format.index(va, 3) as usize];
                (entry & PRESENT != 0).then_some(entry & ADDRESS)
            }
            _ => Some(cpu.root),
        }
    }

    /// AMD's nested paging: walks of PAE guests read the root's entry, and loads of CR3 do not.
    fn reads_root(&self) -> bool {
        self.svm_nested && self.format == Tables::Pae
    }

    /// That, or where walks read it the root, with its level.
    fn first_read(&self, va: u64) -> Option<(u64, u8)> {
        if self.reads_root() {
            return Some((self.cpus[self.current].root, self.format.depth()));
        }
        self.first_table(va).map(|table| (table, self.format.first()))
    }

    fn address(&self, va: u64, level: u8, entry: u64) -> u64 {
        let mask = !0 << self.format.shift(level);
        (entry & ADDRESS & mask) | (va & !mask)
    }

    /// The plain walk, nothing counted.
    pub fn look_up(&self, va: u64) -> End {
        let Some(mut table) = self.first_table(va) else { return (self.format.depth(), 0, 0, false) };
        let mut writable = true;
        for level in (1..=self.format.first()).rev() {
            let at = table + self.format.entry_bytes() * self.format.index(va, level);
            let entry = self.read(at);
            writable &= entry & WRITE != 0;
            if entry & PRESENT == 0 || level == 1 || (level < 4 && entry & LARGE != 0) {
                return (level, at, entry, writable);
            }
            table = entry & ADDRESS;
        }
        unreachable!()
    }

    fn data_access(&mut self, va: u64, write: bool, dependent: bool) {
        let found = self.access(false, va, write);
        if let Some(data) = self.data.as_mut().filter(|_| self.walks_use_caches && dependent) {
            data.stall += if found == Found::Level(2) { data.second_tlb } else { 0 };
        }
        let (level, _, entry, _) = self.look_up(va);
        let gpa = self.address(va, level, entry);
        let at = self.host.as_ref().map_or(gpa, |h| h.place.hpa(Gpa(gpa)).0);
        let misses = |d: &Option<DataCaches>| d.as_ref().map_or(0, |d| d.misses[2]);
        let before = misses(&self.data);
        if let Some(data) = &mut self.data {
            data.data(self.current, va, at, write, level > 1);
        }
        let from_memory = misses(&self.data) > before;
        if let Some(placed) = &mut self.placed {
            placed.count(self.current, Read::Data(gpa), from_memory);
        }
    }

    /// Where the translation was found.
    fn access(&mut self, code: bool, va: u64, write: bool) -> Found {
        let cpu = &mut self.cpus[self.current];
        if code && !cpu.tlb.has_code() {
            return Found::Nowhere;
        }
        let found = cpu.tlb.look_up(code, va, write);
        self.counts.l1_misses += u64::from(!matches!(found, Found::Level(1) | Found::ReadOnly(1)));
        let hit = cpu.tlb.hit.take();
        let (level, at, entry, writable) = self.look_up(va);
        if let Found::Level(_) = found {
            // TLB on = TLB off.
            let now = self.address(va, level, entry);
            assert!(hit.is_none_or(|gpa| gpa == now), "{va:#x} is held as {hit:x?} and mapped to {now:#x}");
            return found;
        }
        assert!(
            entry & PRESENT != 0 && (writable || !write),
            "the stream holds no access to {va:#x} that faults"
        );
        let entry = entry | ACCESSED | if write { DIRTY } else { 0 };
        self.write(at, entry);
        let gpa = self.address(va, level, entry);
        self.hypercalls.note(self.current, Operation::Walk(at >> 12));
        self.walk(va, write);
        self.flush_late();
        let guest = size_of(level);
        let size = self.second_key(gpa).map_or(guest, |key| size_of(key.0).min(guest));
        let backed = self.host.as_ref().is_none_or(|h| h.backing(gpa));
        let composed = self.inside.as_ref().is_none_or(|inside| self.composed(inside, gpa) == Some(true));
        let writable = writable && entry & DIRTY != 0 && backed && composed;
        if found == Found::Nowhere {
            self.counts.misses[size as usize] += 1;
        }
        let sizes = (size, guest, self.format.shift(level));
        self.cpus[self.current].tlb.file(code, (va, gpa), sizes, writable, entry & GLOBAL != 0);
        found
    }

    /// The host takes pages back.
    pub fn take_back(&mut self, gfns: Range<u64>, swap: bool) {
        let Some(host) = &mut self.host else { return };
        let gone = host.take_back(gfns, swap);
        if host.unmap(&gone) {
            self.flush_all();
        }
    }

    /// The host looks which pages were used.
    pub fn look(&mut self) {
        if self.host.as_mut().is_some_and(|h| h.look(|_| false)) {
            self.flush_all();
        }
    }

    fn flush_all(&mut self) {
        for cpu in &mut self.cpus {
            cpu.tlb.flush(true);
            cpu.caches.flush_all();
            self.counts.flushes += 1;
        }
    }
}
