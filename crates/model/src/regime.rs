// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One configuration's machinery: its walk caches per vCPU, its tables, its counts.
//!
//! The pipeline is one for all modes: a TLB miss comes here, is walked with the
//! mode's tables, and ends with the right to fill the TLB. What differs is which
//! tables a walk reads and what happens when it finds nothing.

use crate::ages::Reuse;
use crate::exit_log::{Access, ExitLog};
use crate::guest::{GuestTables, Leaf};
use crate::host::HostMemory;
use crate::model::Tally;
use crate::nested::{Nested, Refs, Violation};
use crate::shadow::{AccessKind, Fixed, Flush, Shadow};
use crate::{Config, Kvm, Paging, Profile, Sample};
use bifold_mmu::{Dimension, Entry, Gpa, Gva, PageSize, Start, Step, Walk, WalkCache, walk};

/// The tables a mode translates with.
#[derive(Debug)]
pub enum Tables {
    /// The guest's own.
    Native,
    /// The guest's and the host's.
    Nested(Box<Nested>),
    /// The composed ones.
    Shadow(Box<Shadow>),
}

impl Tables {
    /// Empty tables over `host`, which may hold some of the memory already.
    pub fn new(mode: Paging, host: HostMemory, guest: &GuestTables, vcpus: usize, kvm: Kvm) -> Self {
        let frames = host.frames();
        match mode {
            Paging::Native => Tables::Native,
            Paging::Nested => Tables::Nested(Box::new(Nested::new(host))),
            Paging::Shadow => Tables::Shadow(Box::new(Shadow::new(guest.format(), host, frames, vcpus, kvm))),
        }
    }
}

/// One configuration: tables, walk caches per vCPU, counts.
#[derive(Debug)]
pub struct Regime {
    /// Which configuration.
    pub config: Config,
    /// Its tables.
    pub tables: Tables,
    caches: Vec<WalkCache>,
    /// Counts since the start.
    pub now: Sample,
    /// References since the start.
    pub refs: Refs,
    /// TLB entries survive exits.
    tagged: bool,
    exits_seen: u64,
    /// What the access in hand is to file.
    pub filled: Option<Entry>,
    /// The flush it asked for.
    pub flush: Flush,
    /// Its exits one by one, if they are wanted.
    pub log: Option<Box<ExitLog>>,
    /// Exits of user accesses, where the stream is sampled.
    pub tally: Option<Box<Tally>>,
    /// What each vCPU has in CR3, from its first load on.
    pub loaded: Vec<Option<u64>>,
    /// Nested tables kept while in shadow mode.
    pub kept: Option<Box<Nested>>,
    /// It has switched just now.
    pub switched: bool,
}

/// An access that missed the TLB.
#[derive(Debug, Clone, Copy)]
pub struct Miss {
    /// Whose.
    pub vcpu: usize,
    /// Address.
    pub gva: Gva,
    /// Kind of access.
    pub kind: AccessKind,
    /// What maps the address in the guest (its dirty bit set already if this is a write).
    pub leaf: Leaf,
    /// The guest's root table.
    pub root: Gpa,
}

impl Miss {
    fn write(&self) -> bool {
        matches!(self.kind, AccessKind::Write | AccessKind::WriteOther)
    }
}

fn walk_1d(
    caches: &mut WalkCache,
    format: &bifold_mmu::Format,
    root: Start,
    gva: Gva,
    refs: &mut Refs,
    mut read: impl FnMut(u64) -> u64,
) -> Walk {
    let start = caches.start(Dimension::Guest, gva.0, root);
    let end = walk::<std::convert::Infallible>(format, start, gva.0, |level, at| {
        let held = level > 1 && caches.holds(Dimension::Guest, level, at);
        if !held {
            refs[usize::from(level)][0] += 1;
        }
        let entry = read(at);
        if level > 1 && !held && entry & format.present != 0 && !format.is_leaf(level, entry) {
            caches.fill(Dimension::Guest, level, gva.0, at, format.target(level, entry));
        }
        Ok(entry)
    });
    match end {
        Ok(w) => w,
        Err(never) => match never {},
    }
}

impl Regime {
    /// Empty tables and caches for `config`.
    pub fn new(
        config: Config,
        profile: &Profile,
        guest: &GuestTables,
        frames: u64,
        vcpus: usize,
        seed: u64,
    ) -> Self {
        let (tag, specs, nested_tlb) = profile.cache_specs();
        let host = HostMemory::new(config.host_page, frames, seed);
        Regime {
            config,
            tables: Tables::new(config.mode, host, guest, vcpus, profile.kvm),
            caches: vec![WalkCache::new(tag, &specs, nested_tlb); vcpus],
            now: Sample::default(),
            refs: [[0; 6]; 6],
            tagged: profile.cpu.tlb_tagged,
            exits_seen: 0,
            filled: None,
            flush: Flush::None,
            log: None,
            tally: None,
            loaded: vec![None; vcpus],
            kept: None,
            switched: false,
        }
    }

    /// Walks for an access that missed the TLB, exits included, until the TLB may be
    /// filled. `None`: the access needs no entry any more (its store was emulated), or
    /// the tables do not map it.
    #[inline]
    pub fn walk(&mut self, miss: &Miss, guest: &mut GuestTables) -> Option<Entry> {
        let Regime { tables, caches, now, refs, log, tally, tagged, .. } = self;
        let (caches, tagged) = (&mut caches[miss.vcpu], *tagged);
        let format = guest.format();
        let write = miss.write();
        let dirty = miss.leaf.step.entry & format.dirty != 0;
        let guest_fill = Entry {
            size: miss.leaf.size,
            page: miss.leaf.size,
            writable: miss.leaf.writable && dirty,
            global: miss.leaf.step.entry & format.global != 0,
        };
        match tables {
            Tables::Native => {
                now.walks += 1;
                let root = Start { level: format.depth(), table: miss.root.0 };
                walk_1d(caches, format, root, miss.gva, refs, |at| guest.read(Gpa(at)));
                Some(guest_fill)
            }
            Tables::Nested(nested) => loop {
                now.walks += 1;
                match nested.walk_2d(caches, guest, miss.root, miss.gva, write, refs) {
                    Ok(_) => {
                        let gpa = miss.leaf.gpa(miss.gva);
                        return Some(Entry {
                            size: guest_fill.size.min(nested.host().page_size()),
                            writable: guest_fill.writable && nested.writable(gpa),
                            ..guest_fill
                        });
                    }
                    Err(violation) => {
                        let fetch = miss.kind == AccessKind::Fetch;
                        let before = tally.as_ref().map(|_| *now);
                        violate(nested, violation, miss.gva, fetch, now, log);
                        if let (Some(tally), Some(before)) = (tally.as_mut(), before) {
                            tally.note(miss.vcpu, miss.gva, &now.since(&before));
                        }
                    }
                }
            },
            Tables::Shadow(shadow) => {
                // Two walks suffice in all but contrived cases; the bound is against a livelock.
                for _ in 0..8 {
                    now.walks += 1;
                    let root = shadow.root(miss.vcpu);
                    let end = walk_1d(caches, format, root, miss.gva, refs, |at| shadow.spte(at));
                    if let Walk::Leaf(step) = end {
                        let writable = step.entry & format.write != 0;
                        if writable || !write {
                            shadow.used(step.at);
                            let size = PageSize::ALL[usize::from(step.level) - 1];
                            return Some(Entry { size, page: size, writable, global: false });
                        }
                    }
                    let before = tally.as_ref().map(|_| *now);
                    let fixed = shadow.fault(miss.vcpu, miss.gva, miss.kind, guest, now);
                    if let (Some(tally), Some(before)) = (tally.as_mut(), before) {
                        tally.note(miss.vcpu, miss.gva, &now.since(&before));
                    }
                    if let Some(log) = log {
                        let fetch = miss.kind == AccessKind::Fetch;
                        let present = matches!(end, Walk::Leaf(_));
                        log.note(now, Access { gva: miss.gva, gpa: None, write, fetch, present });
                    }
                    match fixed {
                        // KVM flushes before the guest goes on: what a walk cache holds may be
                        // a table that this very fault has zapped.
                        Fixed::Retry if !tagged || shadow.asks_to_flush(miss.vcpu) => caches.flush_all(),
                        Fixed::Retry => {}
                        Fixed::Emulated | Fixed::NotMapped => return None,
                    }
                }
                None
            }
        }
    }

    /// The walk of an access that the guest's tables do not map: it ends in a fault.
    pub fn walk_to_fault(&mut self, vcpu: usize, gva: Gva, root: Gpa, guest: &GuestTables) {
        let Regime { tables, caches, now, refs, log, .. } = self;
        let caches = &mut caches[vcpu];
        let format = guest.format();
        match tables {
            Tables::Native => {
                now.walks += 1;
                let root = Start { level: format.depth(), table: root.0 };
                walk_1d(caches, format, root, gva, refs, |at| guest.read(Gpa(at)));
            }
            Tables::Nested(nested) => loop {
                now.walks += 1;
                match nested.walk_2d(caches, guest, root, gva, false, refs) {
                    Ok(_) => break,
                    Err(violation) => violate(nested, violation, gva, false, now, log),
                }
            },
            Tables::Shadow(shadow) => {
                now.walks += 1;
                walk_1d(caches, format, shadow.root(vcpu), gva, refs, |at| shadow.spte(at));
            }
        }
    }

    /// A fault for want of permission: the walk that found it read the guest's tables, and a
    /// frame of theirs that the nested tables do not map is a violation as ever. The page
    /// itself is not translated.
    pub fn see_tables(&mut self, gva: Gva, root: Gpa, guest: &GuestTables) {
        let Regime { tables: Tables::Nested(nested), now, log, .. } = self else { return };
        while let Some(violation) = nested.unmapped_table(guest, root, gva) {
            violate(nested, violation, gva, false, now, log);
        }
    }

    /// The guest's flushes reach the walk caches: everything of the guest dimension goes.
    pub fn flush_caches(&mut self, vcpu: usize) {
        match self.tables {
            // Composed entries are all "guest dimension" here, and no flush spares them.
            Tables::Shadow(_) => self.caches[vcpu].flush_all(),
            _ => self.caches[vcpu].flush_guest(),
        }
    }

    /// The TLB flush that the hypervisor asked for since the last call, or that came with
    /// an exit of `vcpu` where TLB entries do not survive exits.
    #[inline]
    pub fn take_flush(&mut self, vcpu: usize) -> Flush {
        let asked = match &mut self.tables {
            Tables::Shadow(s) => s.take_flush(),
            _ => Flush::None,
        };
        if self.tagged {
            return asked;
        }
        let exits = self.now.all_exits();
        let exited = std::mem::replace(&mut self.exits_seen, exits) != exits;
        if asked == Flush::None && exited { Flush::Vcpu(vcpu) } else { asked }
    }

    /// Begins a new interval.
    pub fn begin_interval(&mut self) {
        match &mut self.tables {
            Tables::Native => {}
            Tables::Nested(n) => n.begin_interval(),
            Tables::Shadow(s) => s.begin_interval(),
        }
    }

    /// Entries used in this interval that were there before it, by age.
    pub fn reuse(&self) -> Vec<Reuse> {
        match &self.tables {
            Tables::Native => Vec::new(),
            Tables::Nested(n) => n.reuse(),
            Tables::Shadow(s) => s.reuse(),
        }
    }

    /// Pages that stayed in the TLB over the whole interval need their entries after a cold
    /// start although no walk read them: counts those as used.
    pub fn use_page(&mut self, vcpu: usize, root: Gpa, gva: Gva, guest: &mut GuestTables) {
        match &mut self.tables {
            Tables::Native => {}
            Tables::Nested(n) => n.use_path(guest, root, gva),
            Tables::Shadow(s) => {
                if let Some(step) = shadow_leaf(s, vcpu, gva) {
                    s.used(step.at);
                }
            }
        }
    }
}

/// The entry of the shadow tables that maps `gva`.
fn shadow_leaf(s: &Shadow, vcpu: usize, gva: Gva) -> Option<Step> {
    match walk::<std::convert::Infallible>(s.format(), s.root(vcpu), gva.0, |_, at| Ok(s.spte(at))) {
        Ok(Walk::Leaf(step)) => Some(step),
        Ok(Walk::NotPresent(_)) => None,
        Err(never) => match never {},
    }
}

/// An exit for a frame that the nested tables do not map.
#[cold]
fn violate(
    nested: &mut Nested,
    violation: Violation,
    gva: Gva,
    fetch: bool,
    now: &mut Sample,
    log: &mut Option<Box<ExitLog>>,
) {
    now.exits_violation += 1;
    if let Some(log) = log {
        let Violation { gpa, write } = violation;
        let present = nested.peek(gpa.frame()) & 1 != 0;
        log.note(now, Access { gva, gpa: Some(gpa), write, fetch, present });
    }
    if nested.resolve(violation) {
        count_backed(now, nested.host().page_size());
    }
}

fn count_backed(now: &mut Sample, size: PageSize) {
    match size {
        PageSize::Size4K => now.frames_backed += 1,
        _ => now.huge_frames_backed += 1,
    }
}

/// What the guest's privileged instructions and faults cost each mode.
impl Regime {
    /// MOV to CR3; `first` where the recording only tells which root is loaded.
    pub fn load_cr3(&mut self, vcpu: usize, value: u64, first: bool, guest: &GuestTables) {
        self.loaded[vcpu] = Some(value);
        if let Tables::Shadow(s) = &mut self.tables {
            if first {
                s.set_initial_cr3(vcpu, value);
            } else {
                s.load_cr3(vcpu, value, guest, &mut self.now);
            }
        }
        self.note_instruction(Gva(0));
    }

    /// Logs the exit that an instruction took, if it took one and that is wanted.
    fn note_instruction(&mut self, gva: Gva) {
        if let Some(log) = &mut self.log {
            log.note(&self.now, Access { gva, gpa: None, write: false, fetch: false, present: false });
        }
    }

    /// MOV from CR3.
    pub fn read_cr3(&mut self, vcpu: usize) {
        if let Tables::Shadow(s) = &mut self.tables {
            s.read_cr3(vcpu, &mut self.now);
        }
        self.note_instruction(Gva(0));
    }

    /// MOV to CR4. On AMD it exits under nested paging too (`cr4_exits_nested`).
    pub fn write_cr4(&mut self, vcpu: usize, global_flush: bool, exits_nested: bool, guest: &GuestTables) {
        match &mut self.tables {
            Tables::Native => {}
            Tables::Nested(_) => self.now.exits_cr4_write += u64::from(exits_nested),
            Tables::Shadow(s) => s.write_cr4(vcpu, global_flush, guest, &mut self.now),
        }
        self.note_instruction(Gva(0));
    }

    /// INVLPG.
    pub fn invlpg(&mut self, vcpu: usize, gva: Gva, guest: &GuestTables) {
        if let Tables::Shadow(s) = &mut self.tables {
            s.invlpg(vcpu, gva, guest, &mut self.now);
        }
        self.note_instruction(gva);
    }

    /// A page fault of the guest's own, reflected into it. For a protection fault KVM
    /// also drops the address's shadow entry (`kvm_inject_emulated_page_fault`).
    pub fn guest_fault(&mut self, vcpu: usize, gva: Gva, error: u64, guest: &GuestTables) {
        const PRESENT: u64 = 1;
        const RESERVED: u64 = 1 << 3;
        const WRITE: u64 = 1 << 1;
        const FETCH: u64 = 1 << 4;
        if let Tables::Shadow(s) = &mut self.tables {
            let present = self.log.is_some() && shadow_leaf(s, vcpu, gva).is_some();
            if error & PRESENT != 0 && error & RESERVED == 0 {
                s.invalidate_gva(vcpu, gva, guest);
            }
            s.guest_fault(vcpu, &mut self.now);
            if let Some(log) = &mut self.log {
                let (write, fetch) = (error & WRITE != 0, error & FETCH != 0);
                log.note(&self.now, Access { gva, gpa: None, write, fetch, present });
            }
        }
    }
}
