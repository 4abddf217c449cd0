// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walks that begin in shadow tables or in nested mode, and what the hypervisor does for an access and for a
//! page fault.

use super::super::caches::Of;
use super::super::host::Backed;
use super::super::shadow::{Asked, Exit, Spte, entry_at, index};
use super::super::tlb::Found;
use super::*;

/// Where a walk ends or changes over.
enum End {
    /// In the shadow tables, at an entry for a page: its level, and writes allowed; or at none.
    Shadow(Option<(u8, bool)>),
    Nested,
    Violation(u64, bool),
}

/// A table that the hardware reads.
#[derive(Clone, Copy)]
enum Table {
    Shadow(usize),
    /// At this guest address; the hardware knows its host address.
    Guest(u64, bool),
}

/// An entry for the TLB: sizes of the page and of the guest's page, writable, global.
type Filed = (PageSize, PageSize, bool, bool);

impl Reference {
    /// Walk caches must not keep what an exit has changed.
    fn after_exit(&mut self, a: &Agile) {
        let cpu = self.current;
        let caches = &mut self.cpus[cpu].caches;
        if a.nested_lost {
            caches.flush_all();
        } else if !a.profile.cpu.tlb_tagged
            || a.shadow.asked == Asked::All
            || a.shadow.asked == Asked::One(cpu)
        {
            caches.flush_guest();
        }
    }

    fn before_walk(&mut self, a: &mut Agile) {
        a.nested_lost = false;
        if a.due && !a.is_plain() {
            a.decide(&self.tables, host_of(&self.host));
            self.after_exit(a);
        }
    }

    pub(super) fn agile_access(&mut self, a: &mut Agile, code: bool, va: u64, (write, other): (bool, bool)) {
        let cpu = self.current;
        let tlb = &mut self.cpus[cpu].tlb;
        if code && !tlb.has_code() {
            return;
        }
        let found = tlb.look_up(code, va, write);
        self.counts.l1_misses += u64::from(!matches!(found, Found::Level(1) | Found::ReadOnly(1)));
        let hit = tlb.hit.take();
        let (level, at, entry, writable) = self.look_up(va);
        let gpa = self.address(va, level, entry);
        if let Found::Level(_) = found {
            assert!(hit.is_none_or(|held| held == gpa), "{va:#x} is held as {hit:x?} and mapped to {gpa:#x}");
            return;
        }
        assert!(entry & PRESENT != 0 && (writable || !write), "the access to {va:#x} faults");
        self.write(at, entry | ACCESSED | if write { DIRTY } else { 0 });
        let filed = self.agile_walk(a, va, (write, other));
        if found == Found::Nowhere {
            self.counts.misses[filed.map_or(0, |(size, ..)| size as usize)] += 1;
        }
        self.carry_out(a);
        let Some((size, guest, writable, global)) = filed else { return };
        let tlb = &mut self.cpus[cpu].tlb;
        tlb.file(code, (va, gpa), (size, guest, guest.shift()), writable, global);
    }

    /// Walks and exits until the TLB can have an entry. None if the hypervisor did the write.
    fn agile_walk(&mut self, a: &mut Agile, va: u64, (write, other): (bool, bool)) -> Option<Filed> {
        self.before_walk(a);
        let cpu = self.current;
        loop {
            let end = self.agile_walk_once(a, va, write);
            let (level, _, entry, writable) = self.look_up(va);
            let gpa = self.address(va, level, entry);
            let clean = entry & DIRTY == 0;
            let mut done = Sample::default();
            let exit = match end {
                End::Violation(gpa, write) => {
                    self.agile_violation(a, gpa, write);
                    self.after_exit(a);
                    continue;
                }
                End::Nested if !write || !a.shadow.is_protected(gpa >> 12) => {
                    let host = host_of(&self.host);
                    let mut size = size_of(host.key(gpa).0).min(size_of(level));
                    while size > PageSize::Size4K && a.shadow.is_apart(gpa >> 12, size as u8 + 1) {
                        size = PageSize::ALL[size as usize - 1];
                    }
                    let mapped = host.mapped.get(&host.key(gpa)) == Some(&true);
                    let writable = writable && !clean && mapped && !a.shadow.is_protected(gpa >> 12);
                    return Some((size, size_of(level), writable, entry & GLOBAL != 0));
                }
                End::Nested => a.shadow.nested_write(va, gpa >> 12, other, &mut done),
                End::Shadow(Some((level, may_write))) if may_write || !write => {
                    let both = a.profile.agile.sets_both;
                    let size = size_of(level);
                    a.shadow.mark_used(cpu, va);
                    let global = !a.is_plain() && entry & GLOBAL != 0;
                    return Some((size, size, may_write && !(both && (clean || !writable)), global));
                }
                End::Shadow(end) => {
                    let host = self.host.as_mut().expect("agile paging has a host");
                    a.shadow.fault((cpu, va), (write, other), end.is_some(), &self.tables, host, &mut done)
                }
            };
            let host = self.host.as_mut().expect("agile paging has a host");
            a.exited(cpu, host, done);
            self.counts.backed += std::mem::take(&mut a.shadow.backed);
            self.after_exit(a);
            if exit == Exit::Emulated {
                return None;
            }
        }
    }

    fn agile_violation(&mut self, a: &mut Agile, gpa: u64, write: bool) {
        self.counts.violations += 1;
        a.violated += 1;
        let host = self.host.as_mut().expect("agile paging has a host");
        let replaces = write && host.backed.get(&host.key(gpa)) == Some(&Backed::Zero);
        host.resolve(gpa, write, &mut self.counts.backed, self.current, &mut self.placed);
        let gfn = gpa >> 12;
        if replaces && a.shadow.unmap(&(gfn..gfn + 1)) {
            a.shadow.asked = Asked::All;
        }
    }

    /// The guest's page fault: one exit where its walk ends in the shadow tables.
    pub(super) fn agile_fault(&mut self, a: &mut Agile, va: u64, error: u64) {
        let cpu = self.current;
        // A protection fault reads the tables, but not the page: it counts no walk.
        let walks = error & 1 == 0;
        if walks {
            self.before_walk(a);
        }
        loop {
            let end = if walks { self.agile_walk_once(a, va, false) } else { self.agile_see(a, va) };
            match end {
                End::Violation(gpa, write) => self.agile_violation(a, gpa, write),
                End::Nested => return,
                End::Shadow(_) => {
                    let host = self.host.as_mut().expect("agile paging has a host");
                    let mut done = Sample::default();
                    let again = a.shadow.switch_for_fault(cpu, va, &self.tables, host, &mut done);
                    if !again {
                        done.exits_guest_fault += 1;
                        // A protection fault, of no reserved bits.
                        if a.is_plain() && error & 9 == 1 {
                            a.shadow.invalidate(cpu, va, false, &self.tables, host);
                        }
                    }
                    a.exited(cpu, host, done);
                    self.counts.backed += std::mem::take(&mut a.shadow.backed);
                    if !again {
                        return;
                    }
                }
            }
            self.after_exit(a);
        }
    }

    /// The table where walks begin; none where PAE's entry is not present.
    fn agile_root(&self, a: &Agile, va: u64) -> Option<Table> {
        let on = &a.cpus[self.current];
        let space = on.space.expect("the vCPU has loaded CR3");
        Some(match a.is_nested(space) {
            true => Table::Guest(on.cr3 & ADDRESS, !a.spaces[space].fresh),
            false => return a.shadow.root(self.current, va).map(Table::Shadow),
        })
    }

    /// The tables that a protection fault reads, without references.
    fn agile_see(&self, a: &Agile, va: u64) -> End {
        let host = host_of(&self.host);
        let Some(mut table) = self.agile_root(a, va) else { return End::Shadow(None) };
        let end = self.look_up(va).0;
        for level in (1..=a.shadow.depth).rev() {
            match table {
                Table::Shadow(page) => match a.shadow.pages[page].entries.get(&index(va, level)) {
                    None => return End::Shadow(None),
                    Some(Spte::Page { writable, .. }) => return End::Shadow(Some((level, *writable))),
                    Some(Spte::Table(child)) => table = Table::Shadow(*child),
                    Some(Spte::Switch(gfn)) => table = Table::Guest(gfn << 12, true),
                },
                Table::Guest(address, known) => {
                    let at = address + 8 * index(va, level);
                    if !known && host.mapped.get(&host.key(at)) != Some(&true) {
                        return End::Violation(at, true);
                    }
                    if level == end {
                        break;
                    }
                    table = Table::Guest(entry_at(&self.tables, self.format, at) & ADDRESS, false);
                }
            }
        }
        End::Nested
    }

    /// One walk of the hardware.
    fn agile_walk_once(&mut self, a: &mut Agile, va: u64, write: bool) -> End {
        self.counts.walks += 1;
        let refs = |r: &Reference| -> u64 { r.counts.refs.iter().flat_map(|of| &of[1..]).sum() };
        let before = refs(self);
        let end = self.agile_read(a, va, write).unwrap_or_else(|(gpa, write)| End::Violation(gpa, write));
        let nested_refs = refs(self) - before;
        let space = a.space_on(self.current);
        space.walks += 1;
        space.nested_refs += nested_refs;
        end
    }

    fn agile_read(&mut self, a: &Agile, va: u64, write: bool) -> Result<End, (u64, bool)> {
        let cpu = self.current;
        let depth = a.shadow.depth;
        let Some(mut table) = self.agile_root(a, va) else { return Ok(End::Shadow(None)) };
        let physical = self.cpus[cpu].caches.physical();
        let start = self.cpus[cpu].caches.first_level(Of::Guest, va, depth);
        for level in (1..=depth).rev() {
            // Above, a walk cache by virtual prefix knew the next table, and knows its host address.
            let read = level <= start;
            let (at, at_host, entry) = match table {
                Table::Shadow(page) => {
                    let p = &a.shadow.pages[page];
                    let at = p.at + 8 * index(va, level);
                    (at, at, p.entries.get(&index(va, level)).copied())
                }
                Table::Guest(address, known) => {
                    let at = address + 8 * index(va, level);
                    let cached = !physical && level == start && start < depth;
                    if read && !known && !cached {
                        self.translate(at, true, level)?;
                    }
                    (at, host_of(&self.host).place.hpa(Gpa(at)).0, None)
                }
            };
            let caches = &mut self.cpus[cpu].caches;
            let held = read && caches.holds(Of::Guest, level, at_host);
            if read && !held {
                self.counts.refs[usize::from(level)][0] += 1;
                self.touched.push((level, 0, at_host));
            }
            match (table, entry) {
                (Table::Shadow(_), None) => return Ok(End::Shadow(None)),
                (Table::Shadow(_), Some(Spte::Page { writable, .. })) => {
                    return Ok(End::Shadow(Some((level, writable))));
                }
                (_, Some(Spte::Table(child))) => table = Table::Shadow(child),
                (_, Some(Spte::Switch(gfn))) => table = Table::Guest(gfn << 12, true),
                (Table::Guest(..), _) => {
                    let entry = entry_at(&self.tables, self.format, at);
                    if entry & PRESENT == 0 {
                        return Ok(End::Nested);
                    }
                    if level == 1 || level <= 3 && entry & LARGE != 0 {
                        let gpa = self.address(va, level, entry);
                        let pieces = host_of(&self.host).key(gpa).0 < level;
                        if level > 1 && pieces && physical && !held {
                            self.cpus[cpu].caches.file(Of::Guest, level, va, at_host);
                        }
                        self.translate(gpa, write, 0)?;
                        return Ok(End::Nested);
                    }
                    table = Table::Guest(entry & ADDRESS, false);
                }
            }
            if read && !held {
                self.cpus[cpu].caches.file(Of::Guest, level, va, at_host);
            }
        }
        unreachable!()
    }
}
