// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an outer hypervisor does for a guest whose hypervisor is a guest itself under nested paging, from the
//! rules alone: sets of entries by level and number. [`Host`] is the inner hypervisor.

use super::host::{Backed, Host, Key};
use super::shift;
use bifold_mmu::PageSize;
use std::collections::{HashMap, HashSet};

pub struct Inside {
    /// The outer hypervisor is on AMD: the inner one's entries sync and flush.
    pub svm: bool,
    /// The level of entries for the outer host's pages.
    outer: u8,
    /// Composed leaf entries, and whether for writing.
    pub leaves: HashMap<Key, bool>,
    /// Composed upper entries.
    pub upper: HashSet<Key>,
    /// The inner hypervisor's tables that are shadowed, by level and number.
    shadowed: HashSet<Key>,
    /// Of those of level 1, the ones that are unsync.
    unsync: HashSet<u64>,
    pub fills: u64,
    pub stores: u64,
    pub flushes: u64,
}

impl Inside {
    pub fn new(svm: bool, outer: u8) -> Inside {
        Inside {
            svm,
            outer,
            leaves: HashMap::new(),
            upper: HashSet::new(),
            // The root, which the outer hypervisor has to load.
            shadowed: HashSet::from([(4, 0)]),
            unsync: HashSet::new(),
            fills: 0,
            stores: 0,
            flushes: 0,
        }
    }

    /// The composed entry for the address: of the smaller of both hypervisors' pages.
    pub fn key(&self, host: &Host, gpa: u64) -> Key {
        let level = host.key(gpa).0.min(self.outer);
        (level, gpa >> shift(level))
    }

    /// The guest has touched all memory before.
    pub fn map_all(&mut self, host: &Host) {
        let inner = host.page as u8 + 1;
        let pages = |level: u8| 0..(host.frames << 12).div_ceil(1 << shift(level));
        let leaf = inner.min(self.outer);
        self.leaves = pages(leaf).map(|number| ((leaf, number), true)).collect();
        for level in leaf + 1..=host.depth {
            self.upper.extend(pages(level).map(|number| (level, number)));
        }
        for level in inner..host.depth {
            self.shadowed.extend(pages(level + 1).map(|table| (level, table)));
        }
        if inner == 1 && !self.svm {
            self.unsync.extend(pages(2));
        }
    }

    /// Does the inner hypervisor map the address for this access?
    pub fn passes_on(&self, host: &Host, gpa: u64, write: bool) -> bool {
        !host.mapped.get(&host.key(gpa)).is_some_and(|writable| *writable || !write)
    }

    /// The composed entry is missing, and made from the inner hypervisor's. True if the processor's
    /// translations of all vCPUs go, because the inner hypervisor may no longer write one of its tables.
    pub fn fill(&mut self, host: &Host, gpa: u64) -> bool {
        self.fills += 1;
        let (inner, (level, number)) = (host.key(gpa), self.key(host, gpa));
        let mut protects = false;
        for above in level..=host.depth {
            // The composed tables below the inner hypervisor's large page shadow none of its tables.
            protects |= above >= inner.0 && self.shadowed.insert((above, gpa >> shift(above) >> 9));
            if above > level {
                self.upper.insert((above, gpa >> shift(above)));
            }
        }
        let writable = host.mapped[&inner];
        self.leaves.insert((level, number), writable);
        if level > 1 {
            return protects;
        }
        if inner.0 > 1 {
            for other in number & !7..(number & !7) + 8 {
                self.leaves.entry((1, other)).or_insert(writable);
            }
            return protects;
        }
        for other in number & !7..(number & !7) + 8 {
            if other == number || self.leaves.contains_key(&(1, other)) {
                continue;
            }
            let Some(&writable) = host.mapped.get(&(1, other)) else { return protects };
            self.leaves.insert((1, other), writable);
        }
        protects
    }

    /// The inner hypervisor stores this entry.
    fn store(&mut self, (level, number): Key) {
        let table = (level, number >> 9);
        let exits = self.shadowed.contains(&table) && (level > 1 || !self.unsync.contains(&(number >> 9)));
        self.stores += u64::from(exits);
        if exits && level == 1 {
            self.unsync.insert(number >> 9);
        }
        if level > 1 {
            self.leaves.remove(&(level, number));
        }
    }

    /// The exit for `gpa` is passed on, and the inner hypervisor maps the page. True if the processor's
    /// translations of all vCPUs go, because it dropped an entry or may no longer write a table.
    pub fn map(&mut self, host: &mut Host, gpa: u64, write: bool, backed: &mut u64, cpu: usize) -> bool {
        let key = host.key(gpa);
        if write && host.backed.get(&key) == Some(&Backed::Zero) {
            // The zero page goes, and the fault is stale.
            host.resolve(gpa, write, backed, cpu, &mut None);
            if host.mapped.remove(&key).is_none() {
                return false;
            }
            self.store(key);
            self.flushes += u64::from(!self.svm);
            self.sync(host);
            return true;
        }
        let above = (key.0 + 1..=host.depth).rev().map(|level| (level, gpa >> shift(level)));
        let mut stored: Vec<Key> = above.filter(|entry| !host.upper.contains(entry)).collect();
        let before = host.mapped.get(&key).copied();
        host.resolve(gpa, write, backed, cpu, &mut None);
        if host.mapped.get(&key).copied() != before {
            stored.push(key);
        }
        stored.into_iter().for_each(|entry| self.store(entry));
        self.svm && self.sync(host)
    }

    /// Composed entries of unsync tables become what the inner hypervisor's are. True if there are such
    /// tables, which it may no longer write: the processor's translations of all vCPUs go.
    pub fn sync(&mut self, host: &Host) -> bool {
        let unsync = std::mem::take(&mut self.unsync);
        let direct = host.page > PageSize::Size4K;
        self.leaves.retain(|key, writable| {
            if direct || key.0 > 1 || !unsync.contains(&(key.1 >> 9)) {
                return true;
            }
            let now = host.mapped.get(key).copied();
            *writable = now.unwrap_or(false);
            now.is_some()
        });
        !unsync.is_empty()
    }
}
