// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The shadow tables of shadow paging and of agile paging, written apart from the model: a list of pages in
//! the order in which they were made, each with a map of its entries. Who leads where, and what maps a frame,
//! is found by looking through all of them.
//!
//! The budget of shadow pages is left out: no guest here comes near it.

mod fill;
mod roots;
mod unsync;

use super::host::Host;
use super::tables::{Tables, entry_in};
use super::{ADDRESS, shift};
use bifold_model::{KvmVersion, Sample};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

/// The guest's tables, by frame.
pub type Guest = HashMap<u64, Vec<u64>>;

pub use fill::Way;
use roots::Roots;

/// The entry of a format at an address.
pub fn entry_at(guest: &Guest, format: Tables, at: u64) -> u64 {
    let word = guest.get(&(at >> 12)).map_or(0, |table| table[(at >> 3) as usize % 512]);
    entry_in(word, at, format.entry_bytes())
}

pub fn index(va: u64, level: u8) -> u64 {
    va >> shift(level) & 511
}

/// Frames of a page that an entry of this level maps.
fn frames(level: u8) -> u64 {
    1 << (9 * (level - 1))
}

/// A shadow entry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Spte {
    /// Leads to a shadow page.
    Table(usize),
    Page {
        gfn: u64,
        access: u8,
        own: bool,
        writable: bool,
        accessed: bool,
    },
    /// Leads to the guest's table in this frame.
    Switch(u64),
}

pub struct ShadowPage {
    gfn: u64,
    /// Which part of a table of 4-byte entries it shadows: a half of a leaf table, a quarter of one above.
    part: u64,
    level: u8,
    /// It maps a part of a large page of the guest's.
    direct: bool,
    access: u8,
    pub entries: BTreeMap<u64, Spte>,
    /// Of how many vCPUs it is a root, current or kept.
    roots: u32,
    /// Emulated writes since the hypervisor last came by.
    floods: u32,
    zapped: bool,
    /// It may differ from the guest's table.
    unsync: bool,
    /// Its entries that lead to such pages, or did.
    marks: BTreeSet<u64>,
    /// Where it lies.
    pub at: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Asked {
    #[default]
    Nothing,
    One(usize),
    All,
}

/// How an exit ended.
#[derive(Debug, PartialEq)]
pub enum Exit {
    Again,
    Emulated,
}

pub struct Shadow {
    /// Of the guest's tables.
    format: Tables,
    /// Of the shadow tables, below PAE's four entries.
    pub depth: u8,
    sets_both: bool,
    /// The write of an interval that moves a table; 0 under shadow paging, which moves none.
    limit: u32,
    kvm: KvmVersion,
    pub pages: Vec<ShadowPage>,
    /// Where pages lay that are gone, the last last.
    free: Vec<u64>,
    /// Zapped, and still there.
    ending: Vec<usize>,
    cpus: Vec<Roots>,
    pub asked: Asked,
    /// A page was zapped that is a root.
    lost_root: bool,
    made: u64,
    zapped: u64,
    syncs: u64,
    /// A table got out of sync in the exit.
    unsynced: bool,
    pub backed: u64,
    /// The guest's tables in nested mode.
    pub nested: HashSet<u64>,
    /// Writes that exited in this interval, by table, and the tables that they moved.
    pub writes: HashMap<u64, u32>,
    pub moved: Vec<u64>,
    /// Frames that the host took from under the entries, for the nested tables.
    pub unmapped: Vec<Range<u64>>,
}

impl Shadow {
    pub fn new(format: Tables, cpus: usize, limit: u32, sets_both: bool, kvm: KvmVersion) -> Shadow {
        Shadow {
            format,
            depth: if let Tables::Long(depth) = format { depth } else { 2 },
            sets_both,
            limit,
            kvm,
            pages: Vec::new(),
            free: Vec::new(),
            ending: Vec::new(),
            cpus: vec![Roots::default(); cpus],
            asked: Asked::Nothing,
            lost_root: false,
            made: 0,
            zapped: 0,
            syncs: 0,
            unsynced: false,
            backed: 0,
            nested: HashSet::new(),
            writes: HashMap::new(),
            moved: Vec::new(),
            unmapped: Vec::new(),
        }
    }

    fn ask_one(&mut self, cpu: usize) {
        self.asked = match self.asked {
            Asked::One(other) if other != cpu => Asked::All,
            Asked::All => Asked::All,
            _ => Asked::One(cpu),
        };
    }

    /// The pages that shadow the guest's table in this frame, the newest first.
    fn of(&self, gfn: u64) -> Vec<usize> {
        let is_it = |i: &usize| {
            let p = &self.pages[*i];
            !p.zapped && !p.direct && p.gfn == gfn
        };
        (0..self.pages.len()).rev().filter(is_it).collect()
    }

    /// The guest's table in this frame is shadowed.
    pub fn is_protected(&self, gfn: u64) -> bool {
        !self.of(gfn).is_empty()
    }

    /// A large page around this frame holds a table that is shadowed.
    pub fn is_apart(&self, gfn: u64, level: u8) -> bool {
        let page = |gfn: u64| gfn / frames(level);
        self.pages.iter().any(|p| !p.zapped && !p.direct && page(p.gfn) == page(gfn))
    }

    /// The entries that lead to a shadow page.
    fn parents(&self, page: usize) -> Vec<(usize, u64)> {
        let of = |(i, p): (usize, &ShadowPage)| -> Vec<(usize, u64)> {
            let leads = p.entries.iter().filter(|(_, e)| **e == Spte::Table(page));
            leads.map(|(index, _)| (i, *index)).collect()
        };
        self.pages.iter().enumerate().flat_map(of).collect()
    }

    /// Drops the entries of which `gone` is true, given the level. True if there were any.
    fn drop_entries(&mut self, gone: impl Fn(u8, &Spte) -> bool) -> bool {
        let mut any = false;
        for p in &mut self.pages {
            let before = p.entries.len();
            let level = p.level;
            p.entries.retain(|_, e| !gone(level, e));
            any |= p.entries.len() < before;
        }
        any
    }

    /// The host has unmapped these frames.
    pub fn unmap(&mut self, gone: &Range<u64>) -> bool {
        self.drop_entries(|level, e| match e {
            Spte::Table(_) => false,
            Spte::Page { gfn, .. } => *gfn < gone.end && gone.start < gfn + frames(level),
            Spte::Switch(gfn) => gone.contains(gfn),
        })
    }

    /// Entries that switch to the guest's table in this frame go.
    pub fn drop_switches(&mut self, gfn: u64) -> bool {
        self.drop_entries(|_, e| *e == Spte::Switch(gfn))
    }

    /// The host backs a page. True if it replaced the zero page.
    fn back(&mut self, host: &mut Host, gfn: u64, write: bool) -> bool {
        let level = host.key(gfn << 12).0;
        let touch = host.back(gfn << 12, write);
        if touch.newly {
            self.backed += if level == 3 { 512 } else { 1 };
        }
        if touch.replaced {
            let gone = gfn..gfn + 1;
            if self.unmap(&gone) {
                self.asked = Asked::All;
            }
            self.unmapped.push(gone);
        }
        touch.replaced
    }

    /// The shadow page of this kind, which may be there.
    fn get(&mut self, (gfn, part): (u64, u64), level: u8, direct: bool, access: u8) -> usize {
        let (mut found, mut replaced) = (None, Vec::new());
        for (i, p) in self.pages.iter().enumerate().rev().filter(|(_, p)| !p.zapped && p.gfn == gfn) {
            if (p.part, p.level, p.direct, p.access) == (part, level, direct, access) {
                found = Some(i);
                break;
            }
            if level > 1 && p.unsync {
                replaced.push(i);
            }
        }
        replaced.into_iter().for_each(|i| self.zap(i));
        if let (Some(i), false) = (found, direct) {
            self.pages[i].floods = 0;
        }
        self.bury();
        if let Some(i) = found {
            return i;
        }
        self.made += 1;
        // The first place stays empty.
        let next =
            (1 << 44) + ((self.pages.iter().map(|p| (p.at >> 12) & 0xff_ffff).max().unwrap_or(0) + 1) << 12);
        let at = self.free.pop().unwrap_or(next);
        let entries = BTreeMap::new();
        self.pages.push(ShadowPage {
            gfn,
            part,
            level,
            direct,
            access,
            entries,
            roots: 0,
            floods: 0,
            zapped: false,
            unsync: false,
            marks: BTreeSet::new(),
            at,
        });
        // Under agile paging TLBs may have the table by the nested tables as well.
        if !direct && (self.write_protect(gfn) || self.limit > 0) {
            self.asked = Asked::All;
        }
        self.pages.len() - 1
    }

    /// No entry maps the frame for writes any more. True if one did.
    fn write_protect(&mut self, gfn: u64) -> bool {
        let mut any = false;
        for p in &mut self.pages {
            let size = frames(p.level);
            for e in p.entries.values_mut() {
                if let Spte::Page { gfn: first, writable, .. } = e {
                    if (*first..*first + size).contains(&gfn) {
                        any |= std::mem::take(writable);
                    }
                }
            }
        }
        any
    }

    fn zap(&mut self, i: usize) {
        self.zapped += 1;
        self.zap_out_of_sync(i);
        self.pages[i].unsync = false;
        self.pages[i].entries.clear();
        self.drop_entries(|_, e| *e == Spte::Table(i));
        let again = std::mem::replace(&mut self.pages[i].zapped, true);
        if self.pages[i].roots > 0 {
            self.lost_root |= !again;
        } else {
            self.ending.push(i);
        }
    }

    /// Zapped pages end.
    fn bury(&mut self) {
        if !self.ending.is_empty() {
            self.asked = Asked::All;
        }
        for i in std::mem::take(&mut self.ending) {
            self.free.push(self.pages[i].at);
        }
    }

    /// No page shadows the table any more.
    fn unprotect(&mut self, gfn: u64) {
        for i in self.of(gfn) {
            if !self.pages[i].zapped {
                self.zap(i);
            }
        }
        self.bury();
    }

    /// The page that the entry leads to, which is made to.
    fn link(
        &mut self,
        (page, index): (usize, u64),
        (gfn, level): (u64, u8),
        direct: bool,
        access: u8,
        (guest, host): (&Guest, &Host),
    ) -> usize {
        let part = if self.format == Tables::TwoLevels { index & 1 } else { 0 };
        if let Some(Spte::Table(child)) = self.pages[page].entries.get(&index) {
            let c = &self.pages[*child];
            if (c.gfn, c.part, c.level, c.direct, c.access) == (gfn, part, level, direct, access) {
                return *child;
            }
        }
        let child = self.get((gfn, part), level, direct, access);
        self.sync_child(child, guest, host);
        if self.pages[page].entries.insert(index, Spte::Table(child)).is_some() {
            self.asked = Asked::All;
        }
        self.mark_child(page, index, child);
        child
    }

    /// Shadow pages on the way, down to the one of level `to`.
    fn link_down(&mut self, (cpu, va): (usize, u64), way: &Way, to: u8, world: (&Guest, &Host)) -> usize {
        let mut page = self.root(cpu, va).expect("a shadowed vCPU has a root");
        for level in (to..self.depth).rev() {
            self.pages[page].floods = 0;
            let (gfn, access) = way.tables[&level];
            page = self.link((page, index(va, level + 1)), (gfn, level), false, access, world);
        }
        page
    }

    /// A table and those below it that nothing else leads to lose their shadow pages; the entries above
    /// switch.
    pub fn enter_nested(&mut self, gfn: u64) {
        self.nested.insert(gfn);
        let pages = self.of(gfn);
        let parents: Vec<(usize, u64)> = pages.iter().flat_map(|i| self.parents(*i)).collect();
        for i in pages {
            for cpu in 0..self.cpus.len() {
                for n in 0..4 {
                    if self.cpus[cpu].roots[n].is_some_and(|(_, pages)| pages.contains(&Some(i))) {
                        self.leave_root(cpu, n);
                    }
                }
            }
            self.zap_below(i);
        }
        for (page, index) in parents {
            if !self.pages[page].zapped {
                self.pages[page].entries.entry(index).or_insert(Spte::Switch(gfn));
            }
        }
        self.bury();
    }

    fn zap_below(&mut self, i: usize) {
        if self.pages[i].zapped {
            return;
        }
        let entries: Vec<Spte> = self.pages[i].entries.values().copied().collect();
        self.zap(i);
        for e in entries {
            let Spte::Table(child) = e else { continue };
            if self.parents(child).is_empty() && self.pages[child].roots == 0 {
                self.zap_below(child);
            }
        }
    }
}
