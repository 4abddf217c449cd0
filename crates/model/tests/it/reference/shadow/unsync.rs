// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What shadow paging has and agile paging has not: leaf tables that the guest may write without exits until
//! it flushes, which are out of sync then.

use super::super::{ACCESSED, PRESENT};
use super::fill::{WRITE, allows, unless_clean};
use super::*;

impl Shadow {
    fn keeps_in_sync(&self) -> bool {
        self.limit > 0
    }

    /// May the frame be written by an entry? If it is a leaf table in sync, it gets out of sync, unless the
    /// entry is only made in passing.
    pub(super) fn may_write(&mut self, gfn: u64, can_unsync: bool, in_passing: bool) -> bool {
        if self.keeps_in_sync() || self.is_upper(gfn) {
            return !self.is_protected(gfn);
        }
        for i in self.of(gfn) {
            if !can_unsync || in_passing && !self.pages[i].unsync {
                return false;
            }
            if !std::mem::replace(&mut self.pages[i].unsync, true) {
                self.mark_parents(i);
                self.unsynced = true;
            }
        }
        true
    }

    /// The frame is a table above the leaves that is shadowed.
    pub(super) fn is_upper(&self, gfn: u64) -> bool {
        self.of(gfn).into_iter().any(|i| self.pages[i].level > 1)
    }

    fn mark_parents(&mut self, i: usize) {
        self.parents(i).into_iter().for_each(|(page, index)| self.mark(page, index));
    }

    /// Below this entry are tables out of sync.
    fn mark(&mut self, page: usize, index: u64) {
        let marks = &mut self.pages[page].marks;
        if marks.insert(index) && marks.len() == 1 {
            self.mark_parents(page);
        }
    }

    /// The tables out of sync below a page, once for each way to them. Marks that lead to none go.
    fn out_of_sync(&mut self, page: usize) -> Vec<usize> {
        let mut found = Vec::new();
        for index in self.pages[page].marks.clone() {
            let before = found.len();
            if let Some(Spte::Table(child)) = self.pages[page].entries.get(&index).copied() {
                if !self.pages[child].marks.is_empty() {
                    found.extend(self.out_of_sync(child));
                } else if self.pages[child].unsync {
                    found.push(child);
                }
            }
            if found.len() == before {
                self.pages[page].marks.remove(&index);
            }
        }
        found
    }

    /// Of a page that is zapped, tables out of sync below go with it.
    pub(super) fn zap_out_of_sync(&mut self, page: usize) {
        if self.pages[page].level == 1 {
            return;
        }
        loop {
            let found = self.out_of_sync(page);
            if found.is_empty() {
                return;
            }
            for i in found {
                if !self.pages[i].zapped {
                    self.zap(i);
                }
            }
        }
    }

    /// The page that an entry is to lead to, up to date.
    pub(super) fn sync_child(&mut self, child: usize, guest: &Guest, host: &Host) {
        if self.pages[child].unsync && self.sync_page(child, guest, host) {
            self.asked = Asked::All;
        }
        self.sync_below(child, guest, host);
    }

    pub(super) fn mark_child(&mut self, page: usize, index: u64, child: usize) {
        if self.pages[child].unsync || !self.pages[child].marks.is_empty() {
            self.mark(page, index);
        }
    }

    /// All tables below are read again, and must not be written any more.
    pub(super) fn sync_below(&mut self, page: usize, guest: &Guest, host: &Host) {
        loop {
            let found = self.out_of_sync(page);
            if found.is_empty() {
                return;
            }
            let mut flush = false;
            for i in &found {
                flush |= self.write_protect(self.pages[*i].gfn);
            }
            for i in found {
                if std::mem::take(&mut self.pages[i].unsync) {
                    flush |= self.sync_page(i, guest, host);
                }
            }
            if flush {
                self.asked = Asked::All;
            }
        }
    }

    /// True if TLBs must be flushed.
    fn sync_page(&mut self, page: usize, guest: &Guest, _: &Host) -> bool {
        self.syncs += 1;
        let indices: Vec<u64> = self.pages[page].entries.keys().copied().collect();
        indices.into_iter().fold(false, |flush, index| self.sync_entry(page, index, guest) | flush)
    }

    /// An entry follows the guest's.
    fn sync_entry(&mut self, page: usize, index: u64, guest: &Guest) -> bool {
        let ShadowPage { gfn: table, part, access: role, .. } = self.pages[page];
        let Some(Spte::Page { gfn, access: old, own, writable: was_writable, accessed }) =
            self.pages[page].entries.get(&index).copied()
        else {
            return false;
        };
        let entry = self.entry_for(guest, table, part, index);
        if entry & PRESENT == 0 || entry & ACCESSED == 0 || (entry & ADDRESS) >> 12 != gfn {
            self.pages[page].entries.remove(&index);
            return true;
        }
        let access = unless_clean(role & allows(entry), entry);
        if self.kvm == KvmVersion::Linux6_12 && access == old {
            return false;
        }
        let writable = own && access & WRITE != 0 && (was_writable || self.may_write(gfn, false, true));
        let new = Spte::Page { gfn, access, own, writable, accessed: false };
        self.pages[page].entries.insert(index, new);
        accessed || was_writable && !writable
    }

    /// INVLPG, in all roots of the vCPU or in the current one.
    pub fn invalidate(&mut self, cpu: usize, va: u64, all: bool, guest: &Guest, host: &Host) {
        let kept = self.cpus[cpu].roots[1..].iter().flatten().filter_map(|(_, pages)| pages[0]);
        let kept: Vec<usize> = kept.filter(|_| all).collect();
        for root in self.root(cpu, va).into_iter().chain(kept) {
            self.invalidate_below(root, va, guest, host);
        }
    }

    fn invalidate_below(&mut self, mut page: usize, va: u64, guest: &Guest, host: &Host) {
        while self.pages[page].level > 1 {
            let p = &self.pages[page];
            let Some(Spte::Table(child)) = p.entries.get(&index(va, p.level)).filter(|_| !p.marks.is_empty())
            else {
                return;
            };
            page = *child;
        }
        let ShadowPage { gfn: table, part, access: role, unsync, .. } = self.pages[page];
        let i = index(va, 1);
        if !unsync {
            return;
        }
        if self.kvm == KvmVersion::Linux6_12 {
            if self.sync_entry(page, i, guest) {
                self.asked = Asked::All;
            }
            return;
        }
        if self.pages[page].entries.remove(&i).is_some() {
            self.asked = Asked::All;
        }
        let entry = self.entry_for(guest, table, part, i);
        let gfn = (entry & ADDRESS) >> 12;
        if entry & PRESENT != 0 && entry & ACCESSED != 0 && host.backing(gfn << 12) && gfn < host.frames {
            self.set(page, i, unless_clean(role & allows(entry), entry), gfn, true, false);
        }
    }

    pub(super) fn sync_roots(&mut self, cpu: usize, guest: &Guest, host: &Host) {
        let pages = self.cpus[cpu].roots[0].map_or([None; 4], |(_, pages)| pages);
        pages.into_iter().flatten().for_each(|root| self.sync_below(root, guest, host));
    }

    /// The guest's entry that an entry of a page for a leaf table shadows.
    pub(super) fn entry_for(&self, guest: &Guest, table: u64, part: u64, index: u64) -> u64 {
        entry_at(guest, self.format, (table << 12) + self.format.entry_bytes() * (512 * part + index))
    }

    /// A write to CR4 after which PAE's registers are other ones.
    pub fn reload(&mut self, cpu: usize, guest: &Guest, host: &Host) {
        if self.cpus[cpu].roots[0].is_none() {
            self.make_root(cpu);
            self.sync_roots(cpu, guest, host);
        }
    }

    /// A global flush: the current root is synced, and kept ones above tables out of sync are let go.
    pub fn flush_global(&mut self, cpu: usize, guest: &Guest, host: &Host) {
        self.sync_roots(cpu, guest, host);
        for n in 1..4 {
            let marked = |page: usize| !self.pages[page].marks.is_empty();
            if self.cpus[cpu].roots[n].is_some_and(|(_, pages)| pages[0].is_some_and(marked)) {
                self.leave_root(cpu, n);
            }
        }
        self.bury();
        self.ask_one(cpu);
    }

    /// An exit for an access that the shadow tables do not allow, under shadow paging.
    pub(super) fn plain_fault(
        &mut self,
        (cpu, va): (usize, u64),
        (write, other): (bool, bool),
        present: bool,
        way: &Way,
        (guest, host): (&Guest, &mut Host),
        done: &mut Sample,
    ) -> Exit {
        self.unsynced = false;
        if present && write && self.is_upper(way.gfn) {
            let mut at = self.root(cpu, va);
            while let Some(page) = at {
                let p = &mut self.pages[page];
                p.floods = 0;
                at = match p.entries.get(&index(va, p.level)) {
                    Some(Spte::Table(child)) => Some(*child),
                    _ => None,
                };
            }
            self.back(host, way.gfn, true);
            return self.emulate_or_retry(cpu, va, way.gfn, other, done);
        }
        if self.back(host, way.gfn, write) {
            done.exits_hidden_fault += 1;
            return Exit::Again;
        }
        let own = host.backing(way.gfn << 12);
        let protected = self.fill((cpu, va), way, (write, own), guest, host);
        if protected && write {
            return self.emulate_or_retry(cpu, va, way.gfn, other, done);
        }
        *(match (present, self.unsynced) {
            (false, _) => &mut done.exits_hidden_fault,
            (true, true) => &mut done.exits_unsync,
            (true, false) => &mut done.exits_permission,
        }) += 1;
        Exit::Again
    }

    /// A store to a shadowed table is emulated. One that does not look like a store to a table is repeated
    /// first, without the table's shadow.
    fn emulate_or_retry(&mut self, cpu: usize, va: u64, gfn: u64, other: bool, done: &mut Sample) -> Exit {
        let last = &mut self.cpus[cpu].retried;
        let again = *last == Some(va);
        if !again || self.kvm == KvmVersion::Linux6_1 {
            *last = None;
        }
        if again || !other {
            done.exits_emulated_write += 1;
            self.emulate(gfn, va);
            return Exit::Emulated;
        }
        self.unprotect(gfn);
        self.cpus[cpu].retried = Some(va);
        done.exits_unprotect += 1;
        Exit::Again
    }
}

impl ShadowPage {
    /// The entries that shadow the guest's at this offset of its table. One of a 32-bit table above the
    /// leaves maps what two do.
    pub(super) fn written(&self, offset: u64, format: Tables) -> Range<u64> {
        if format != Tables::TwoLevels {
            return offset >> 3..(offset >> 3) + 1;
        }
        let n = if self.level > 1 { 2 } else { 1 };
        let first = n * (offset >> 2);
        if first / 512 == self.part { first % 512..first % 512 + n } else { 0..0 }
    }
}
