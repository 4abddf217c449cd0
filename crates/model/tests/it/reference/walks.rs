// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hardware's walks in both dimensions, with what a hypervisor does for a violation.

use super::caches::Of;
use super::host::Key;
use super::inside::Inside;
use super::placed::Read;
use super::tables::shift;
use super::*;

impl Reference {
    /// A protection fault: the guest's tables were read, the page was not.
    pub(super) fn see_tables(&mut self, va: u64) {
        let end = self.look_up(va).0;
        let Some((mut table, first)) = self.first_read(va) else { return };
        for level in (end..=first).rev() {
            let at = table + self.format.entry_bytes() * self.format.index(va, level);
            let Some(host) = &mut self.host else { return };
            if self.inside.is_some() {
                while self.inside.as_ref().is_some_and(|i| self.composed(i, at) != Some(true)) {
                    self.violate(at, true);
                }
                table = self.read(at) & ADDRESS;
                continue;
            }
            while host.mapped.get(&host.key(at)) != Some(&true) {
                self.counts.violations += 1;
                host.resolve(at, true, &mut self.counts.backed, self.current, &mut self.placed);
            }
            table = self.read(at) & ADDRESS;
        }
    }

    /// The hardware's walk, from the start again after every violation.
    pub fn walk(&mut self, va: u64, write: bool) {
        loop {
            self.counts.walks += 1;
            let Err((gpa, write)) = self.walk_once(va, write) else { return };
            if self.inside.is_some() {
                self.violate(gpa, write);
                continue;
            }
            self.counts.violations += 1;
            let host = self.host.as_mut().expect("only nested paging has violations");
            let cpu = self.current;
            host.resolve(gpa, write, &mut self.counts.backed, cpu, &mut self.placed);
        }
    }

    /// The composed entry for the address, if there is one: whether it is for writing.
    pub(super) fn composed(&self, inside: &Inside, gpa: u64) -> Option<bool> {
        let host = self.host.as_ref()?;
        inside.leaves.get(&inside.key(host, gpa)).copied()
    }

    /// The entry of the second dimension for the address.
    pub(super) fn second_key(&self, gpa: u64) -> Option<Key> {
        let host = self.host.as_ref()?;
        Some(self.inside.as_ref().map_or_else(|| host.key(gpa), |inside| inside.key(host, gpa)))
    }

    /// An exit for an address that the composed tables do not map.
    pub(super) fn violate(&mut self, gpa: u64, write: bool) {
        let (Some(host), Some(inside)) = (&mut self.host, &mut self.inside) else { return };
        let passed_on = inside.passes_on(host, gpa, write);
        self.counts.violations += u64::from(passed_on);
        let flush = if passed_on {
            inside.map(host, gpa, write, &mut self.counts.backed, self.current)
        } else {
            inside.fill(host, gpa)
        };
        if flush {
            self.flush_all();
            self.flushes_late = true;
        }
        if passed_on && self.inside.as_ref().is_some_and(|i| i.svm) {
            self.enter();
        }
    }

    /// The model carries a flush out when the access is translated: entries that the last walk left go as
    /// well.
    pub(super) fn flush_late(&mut self) {
        if std::mem::take(&mut self.flushes_late) {
            self.cpus[self.current].caches.flush_guest();
        }
    }

    /// The inner hypervisor enters its guest again, on AMD.
    pub(super) fn enter(&mut self) {
        if let (Some(inside), Some(host)) = (&mut self.inside, &self.host) {
            if inside.sync(host) {
                self.flush_all();
            }
        }
        let cpu = &mut self.cpus[self.current];
        cpu.tlb.flush(true);
        cpu.caches.flush_all();
        self.flushes_late = true;
    }

    pub(super) fn walk_once(&mut self, va: u64, write: bool) -> Result<(), (u64, bool)> {
        let Some((mut table, depth)) = self.first_read(va) else { return Ok(()) };
        // The caches take the bits above the page's of 9 bits per level. An entry of two levels maps twice 2
        // MB.
        let tag = if self.format == Tables::TwoLevels { va >> 1 } else { va };
        let start = self.cpus[self.current].caches.first_level(Of::Guest, tag, depth);
        for level in (1..=depth).rev() {
            let at = table + self.format.entry_bytes() * self.format.index(va, level);
            let entry = self.read(at);
            table = entry & ADDRESS;
            if level > start {
                continue; // the cache knew the next table
            }
            // A cache by virtual prefix holds the next table's host address.
            if level == depth || level < start || self.cpus[self.current].caches.physical() {
                self.translate(at, true, level)?;
            }
            let at_host = self.host.as_ref().map_or(at, |h| h.place.hpa(Gpa(at)).0);
            let caches = &mut self.cpus[self.current].caches;
            let held = caches.holds(Of::Guest, level, at_host);
            if !held {
                self.counts.refs[usize::from(level)][0] += 1;
                self.touched.push((level, 0, at_host));
                self.referred(at_host, Read::GuestTable(at));
            }
            if entry & PRESENT == 0 {
                return Ok(());
            }
            if level == 1 || (level <= self.format.first().min(3) && entry & LARGE != 0) {
                let gpa = self.address(va, level, entry);
                let pieces = self.second_key(gpa).is_some_and(|key| key.0 < level);
                let caches = &mut self.cpus[self.current].caches;
                if level > 1 && pieces && caches.physical() && !held {
                    caches.file(Of::Guest, level, tag, at_host);
                }
                return self.translate(gpa, write, 0);
            }
            if !held {
                self.cpus[self.current].caches.file(Of::Guest, level, tag, at_host);
            }
        }
        unreachable!()
    }

    /// A walk has read an entry at this host-physical address.
    pub(super) fn referred(&mut self, at: u64, read: Read) {
        let cycles = |d: &Option<DataCaches>| d.as_ref().map_or(0, |d| d.walk_cycles);
        let before = cycles(&self.data);
        if let Some(data) = self.data.as_mut().filter(|_| self.walks_use_caches) {
            data.walk(self.current, at);
        }
        let from_memory = self.data.as_ref().is_some_and(|d| d.walk_cycles - before == d.memory_cycles());
        if let Some(placed) = &mut self.placed {
            placed.count(self.current, read, from_memory);
        }
    }

    /// The host's dimension.
    pub(super) fn translate(&mut self, gpa: u64, write: bool, guest: u8) -> Result<(), (u64, bool)> {
        let (Some(host), Some(key)) = (&self.host, self.second_key(gpa)) else { return Ok(()) };
        let (leaf, depth) = (key.0, host.depth);
        // Small pages beside large ones are filed under numbers of their own.
        let page = if leaf == host.page as u8 + 1 { key.1 } else { key.1 | u64::from(leaf) << 48 };
        let caches = &mut self.cpus[self.current].caches;
        if caches.nested_holds(page, write) {
            if let Some(host) = &mut self.host {
                host.walks(key);
            }
            return Ok(());
        }
        let start = caches.first_level(Of::Host, gpa, depth);
        for level in (leaf..=start).rev() {
            let number = gpa >> shift(level);
            // Tables of a level lie one after the other.
            let at = (1 << 41) + (u64::from(level) << 38) + 8 * number;
            let held = self.cpus[self.current].caches.holds(Of::Host, level, at);
            if !held {
                self.counts.refs[usize::from(guest)][usize::from(level)] += 1;
                self.touched.push((guest, level, at));
                // A table of this level has 512 entries.
                self.referred(at, Read::HostTable(level, number >> 9));
            }
            if level == leaf {
                break;
            }
            let upper = match &self.inside {
                Some(inside) => &inside.upper,
                None => &host_of(&self.host).upper,
            };
            if !upper.contains(&(level, number)) {
                return Err((gpa, write));
            }
            if !held {
                self.cpus[self.current].caches.file(Of::Host, level, gpa, at);
            }
        }
        let composed = self.inside.as_ref().map(|inside| inside.leaves.get(&key).copied());
        let Some(host) = &mut self.host else { return Ok(()) };
        match composed.unwrap_or_else(|| host.mapped.get(&key).copied()).as_ref() {
            Some(&writable) if writable || !write => {
                host.walks(key);
                host.accessed.insert(key);
                self.cpus[self.current].caches.nested_file(page, writable);
                Ok(())
            }
            _ => Err((gpa, write)),
        }
    }
}
