// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exits of walks that end in shadow tables, and of writes to tables that are shadowed: what the hypervisor
//! fills.

use super::super::{ACCESSED, DIRTY, LARGE, PRESENT};
use super::*;
use std::collections::BTreeMap;

pub(super) const WRITE: u8 = 2;

/// What an entry allows: execution, writes, the user.
pub(super) fn allows(entry: u64) -> u8 {
    (entry & 7) as u8 ^ (entry >> 63) as u8
}

pub(super) fn unless_clean(access: u8, entry: u64) -> u8 {
    if entry & DIRTY != 0 { access } else { access & !WRITE }
}

/// The hypervisor's own walk of the guest's tables.
pub struct Way {
    /// Level of the entry at its end.
    pub level: u8,
    /// By level: a table's frame, and what the entries above it allow.
    pub tables: BTreeMap<u8, (u64, u8)>,
    /// What all entries allow, and the same if a clean page must not be written.
    access: u8,
    access_clean: u8,
    /// The frame that the address is in.
    pub gfn: u64,
    /// The entry at the end is present.
    present: bool,
}

impl Way {
    /// From the table at `start` of level `first` on.
    fn new(guest: &Guest, format: Tables, (start, first): (u64, u8), va: u64) -> Way {
        let (mut table, mut access, mut level) = (start, 7, first);
        let mut tables = BTreeMap::new();
        loop {
            tables.insert(level, (table >> 12, access));
            let entry = entry_at(guest, format, table + format.entry_bytes() * format.index(va, level));
            access &= allows(entry);
            table = entry & ADDRESS;
            let leaf = level == 1 || level <= 3 && entry & LARGE != 0;
            if leaf || entry & PRESENT == 0 {
                let mask = (1u64 << format.shift(level)) - 1;
                return Way {
                    level,
                    tables,
                    access,
                    access_clean: unless_clean(access, entry),
                    gfn: (table & !mask | va & mask) >> 12,
                    present: entry & PRESENT != 0,
                };
            }
            level -= 1;
        }
    }

    /// A page for writes that holds one of the tables which map it.
    fn maps_own_tables(&self, access: u8) -> bool {
        let page = |gfn: u64| gfn / frames(self.level);
        access & WRITE != 0 && self.tables.values().any(|(table, _)| page(*table) == page(self.gfn))
    }
}

impl Shadow {
    fn way(&self, cpu: usize, guest: &Guest, va: u64) -> Way {
        let on = &self.cpus[cpu];
        let start = match self.format {
            Tables::Pae => on.registers[(va >> 30 & 3) as usize] & ADDRESS,
            _ => on.cr3 & ADDRESS,
        };
        Way::new(guest, self.format, (start, self.depth), va)
    }

    /// The level of the first table below the root that is in nested mode.
    fn nested_level(&self, way: &Way) -> Option<u8> {
        let below = way.tables.iter().rev().filter(|(level, _)| **level < self.depth);
        below.filter(|(_, (gfn, _))| self.nested.contains(gfn)).map(|(level, _)| *level).next()
    }

    fn switch(&mut self, cpu: usize, va: u64, way: &Way, level: u8, guest: &Guest, host: &mut Host) {
        let gfn = way.tables[&level].0;
        self.back(host, gfn, true);
        let page = self.link_down((cpu, va), way, level + 1, (guest, host));
        if self.pages[page].entries.insert(index(va, level + 1), Spte::Switch(gfn)).is_some() {
            self.asked = Asked::All;
        }
    }

    /// A page fault of the guest's, where the shadow tables end. True if its way leads to a table in nested
    /// mode, to which the hypervisor switches then.
    pub fn switch_for_fault(
        &mut self,
        cpu: usize,
        va: u64,
        guest: &Guest,
        host: &mut Host,
        done: &mut Sample,
    ) -> bool {
        let way = self.way(cpu, guest, va);
        let Some(level) = self.nested_level(&way) else { return false };
        self.switch(cpu, va, &way, level, guest, host);
        self.settle(None, done);
        done.exits_hidden_fault += 1;
        true
    }

    /// The walk ended in the shadow tables, at an entry that is `present` or not.
    pub fn fault(
        &mut self,
        (cpu, va): (usize, u64),
        (write, other): (bool, bool),
        present: bool,
        guest: &Guest,
        host: &mut Host,
        done: &mut Sample,
    ) -> Exit {
        let way = self.way(cpu, guest, va);
        assert!(way.present);
        if self.limit == 0 {
            let end = self.plain_fault((cpu, va), (write, other), present, &way, (guest, &mut *host), done);
            self.settle(Some((guest, host)), done);
            return end;
        }
        let mut end = Exit::Again;
        let reason = if let Some(level) = self.nested_level(&way) {
            self.switch(cpu, va, &way, level, guest, host);
            &mut done.exits_hidden_fault
        } else if write && self.is_protected(way.gfn) {
            self.back(host, way.gfn, true);
            if self.count(way.gfn, other) {
                let root = self.root(cpu, va).filter(|root| !self.pages[*root].zapped);
                if root.is_some() && self.nested_level(&way).is_none() {
                    self.fill((cpu, va), &way, (true, true), guest, host);
                }
                &mut done.exits_unprotect
            } else {
                self.emulate(way.gfn, va);
                end = Exit::Emulated;
                &mut done.exits_emulated_write
            }
        } else if self.back(host, way.gfn, write) {
            &mut done.exits_hidden_fault
        } else {
            let own = host.backing(way.gfn << 12);
            self.fill((cpu, va), &way, (write, own), guest, host);
            if present { &mut done.exits_permission } else { &mut done.exits_hidden_fault }
        };
        *reason += 1;
        self.settle(None, done);
        end
    }

    /// A write by the nested tables to a table that is shadowed.
    pub fn nested_write(&mut self, va: u64, gfn: u64, other: bool, done: &mut Sample) -> Exit {
        let end = if self.count(gfn, other) {
            done.exits_unprotect += 1;
            Exit::Again
        } else {
            self.emulate(gfn, va);
            done.exits_emulated_write += 1;
            Exit::Emulated
        };
        self.settle(None, done);
        end
    }

    /// One more write to a shadowed table. True if it is not shadowed any more.
    fn count(&mut self, gfn: u64, other: bool) -> bool {
        let writes = self.writes.entry(gfn).or_default();
        *writes += 1;
        if *writes >= self.limit {
            self.moved.push(gfn);
            self.enter_nested(gfn);
            return true;
        }
        if other {
            self.unprotect(gfn);
        }
        other
    }

    /// The hypervisor has written the entry. A table above the leaves that is written for the third time
    /// without a walk goes.
    pub(super) fn emulate(&mut self, gfn: u64, va: u64) {
        for i in self.of(gfn) {
            let p = &mut self.pages[i];
            if p.zapped {
                continue;
            }
            p.floods += u32::from(p.level > 1);
            if p.floods >= 3 {
                self.zap(i);
            } else {
                for index in p.written(va & 0xfff, self.format) {
                    if p.entries.remove(&index).is_some() {
                        self.asked = Asked::All;
                    }
                }
            }
        }
        self.bury();
    }

    /// Fills the entry for an address, and those around it. True if the entry was to be for writes and must
    /// not.
    pub(super) fn fill(
        &mut self,
        (cpu, va): (usize, u64),
        way: &Way,
        (write, own): (bool, bool),
        guest: &Guest,
        host: &Host,
    ) -> bool {
        let access = if write || self.sets_both { way.access } else { way.access_clean };
        let mut page = self.link_down((cpu, va), way, way.level, (guest, host));
        let mut goal = if way.maps_own_tables(access) { 1 } else { way.level };
        while goal > 1 && self.is_apart(way.gfn, goal) {
            goal -= 1;
        }
        goal = goal.min(host.key(way.gfn << 12).0);
        for level in (goal..way.level).rev() {
            self.pages[page].floods = 0;
            let first = way.gfn / frames(level + 1) * frames(level + 1);
            page = self.link((page, index(va, level + 1)), (first, level), true, access, (guest, host));
        }
        self.pages[page].floods = 0;
        let first = way.gfn / frames(goal) * frames(goal);
        let (changed, protected) = self.set(page, index(va, goal), access, first, own, true);
        assert!(
            self.limit == 0 || !(write && protected),
            "a page that maps itself by tables not shadowed yet"
        );
        if (changed || protected) && goal == 1 {
            self.fill_around(page, index(va, 1), way, guest, host);
        }
        protected
    }

    /// The hardware's walk ended at an entry for a page.
    pub fn mark_used(&mut self, cpu: usize, va: u64) {
        let mut at = self.root(cpu, va);
        while let Some(page) = at {
            let ShadowPage { level, entries, .. } = &mut self.pages[page];
            at = match entries.get_mut(&index(va, *level)) {
                Some(Spte::Table(child)) => Some(*child),
                Some(Spte::Page { accessed, .. }) => {
                    *accessed = true;
                    None
                }
                _ => None,
            };
        }
    }

    /// Whether the entry has changed, and whether it was to be for writes and must not.
    pub(super) fn set(
        &mut self,
        page: usize,
        index: u64,
        access: u8,
        gfn: u64,
        own: bool,
        accessed: bool,
    ) -> (bool, bool) {
        let mut old = self.pages[page].entries.get(&index).copied();
        let maps_it = matches!(old, Some(Spte::Page { gfn: before, .. }) if before == gfn);
        if old.is_some() && !maps_it {
            self.pages[page].entries.remove(&index);
            (old, self.asked) = (None, Asked::All);
        }
        let was_writable = matches!(old, Some(Spte::Page { writable: true, .. }));
        let wanted = own && access & WRITE != 0;
        let writable = wanted && (was_writable || self.may_write(gfn, true, !accessed));
        if was_writable && !writable {
            self.asked = Asked::All;
        }
        let new = Spte::Page { gfn, access, own, writable, accessed };
        self.pages[page].entries.insert(index, new);
        (old != Some(new), wanted && !writable)
    }

    /// The entries of the block of 8 that are missing. Of a table of the guest's up to the first whose entry
    /// or page cannot be used; of a large page run by run, as far as the host has the pages, and up to the
    /// first run that begins without one.
    fn fill_around(&mut self, page: usize, index: u64, way: &Way, guest: &Guest, host: &Host) {
        let block = index & !7..(index & !7) + 8;
        let resident = |gfn: u64| host.backing(gfn << 12) && gfn < host.frames;
        let ShadowPage { gfn: table, part, direct, access: role, .. } = self.pages[page];
        if !direct {
            for i in block {
                if self.pages[page].entries.contains_key(&i) {
                    continue;
                }
                let entry = self.entry_for(guest, way.tables[&1].0, part, i);
                let used = entry & ACCESSED != 0 || self.sets_both;
                let gfn = (entry & ADDRESS) >> 12;
                if entry & PRESENT == 0 || !used || !resident(gfn) {
                    return;
                }
                let access = role & allows(entry);
                let access = if self.sets_both { access } else { unless_clean(access, entry) };
                self.set(page, i, access, gfn, true, false);
            }
            return;
        }
        let (mut in_run, mut stopped) = (false, false);
        for i in block {
            if self.pages[page].entries.contains_key(&i) {
                (in_run, stopped) = (false, false);
                continue;
            }
            if stopped {
                continue;
            }
            if resident(table + i) {
                self.set(page, i, role, table + i, true, false);
                in_run = true;
            } else if in_run {
                stopped = true;
            } else {
                return;
            }
        }
    }
}
