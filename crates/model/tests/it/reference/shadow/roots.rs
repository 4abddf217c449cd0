// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Roots of shadow tables: the current one and those that a vCPU keeps.

use super::*;

/// A value of CR3, and its shadow page, or one for each gigabyte.
pub(super) type Root = (u64, [Option<usize>; 4]);

/// Roots of a vCPU.
#[derive(Clone, Default)]
pub(super) struct Roots {
    pub cr3: u64,
    /// The current one, then three that are kept.
    pub roots: [Option<Root>; 4],
    /// Of PAE: what the entries at the root were.
    pub registers: [u64; 4],
    /// Where the last store was repeated.
    pub retried: Option<u64>,
}

impl Shadow {
    /// Roots are four entries, and no shadow pages.
    fn has_four(&self) -> bool {
        self.depth == 2
    }

    /// The page at which walks of an address begin.
    pub fn root(&self, cpu: usize, va: u64) -> Option<usize> {
        let which = if self.has_four() { va >> 30 & 3 } else { 0 };
        self.cpus[cpu].roots[0].and_then(|(_, pages)| pages[which as usize])
    }

    /// A page of this root was zapped. A root of four entries counts as such.
    fn is_lost(&self, cpu: usize, n: usize) -> bool {
        self.cpus[cpu].roots[n].is_some_and(|(_, pages)| {
            self.has_four() || pages.iter().flatten().any(|page| self.pages[*page].zapped)
        })
    }

    /// A vCPU's root, the current one or one that it keeps, is let go.
    pub(super) fn leave_root(&mut self, cpu: usize, n: usize) {
        let Some((_, pages)) = self.cpus[cpu].roots[n].take() else { return };
        for page in pages.into_iter().flatten() {
            self.pages[page].roots -= 1;
            if self.pages[page].roots == 0 && self.pages[page].zapped {
                self.zap(page);
            }
        }
    }

    pub(super) fn make_root(&mut self, cpu: usize) {
        let cr3 = self.cpus[cpu].cr3;
        let mut pages = [None; 4];
        for (i, page) in pages.iter_mut().enumerate().take(if self.has_four() { 4 } else { 1 }) {
            let register = self.cpus[cpu].registers[i];
            let (table, part) = match self.format {
                Tables::Pae if register & 1 == 0 => continue,
                Tables::Pae => (register & ADDRESS, 0),
                _ => (cr3 & ADDRESS, i as u64),
            };
            let made = self.get((table >> 12, part), self.depth, false, 7);
            self.pages[made].roots += 1;
            *page = Some(made);
        }
        self.cpus[cpu].roots[0] = Some((cr3, pages));
        self.ask_one(cpu);
    }

    /// PAE: other entries at the root than before make it end.
    pub fn load_registers(&mut self, cpu: usize, registers: [u64; 4]) {
        if std::mem::replace(&mut self.cpus[cpu].registers, registers) != registers {
            self.leave_root(cpu, 0);
            self.bury();
        }
    }

    /// The vCPU begins on this root.
    pub fn begin(&mut self, cpu: usize, cr3: u64) {
        self.leave_root(cpu, 0);
        self.bury();
        self.cpus[cpu].cr3 = cr3;
        self.make_root(cpu);
        (self.made, self.zapped) = (0, 0);
    }

    /// A load of CR3 of an address space that is shadowed.
    pub fn load_root(&mut self, cpu: usize, cr3: u64, guest: &Guest, host: &Host, done: &mut Sample) {
        done.exits_cr3_write += 1;
        if cr3 != self.cpus[cpu].cr3 || self.cpus[cpu].roots[0].is_none() {
            self.cpus[cpu].cr3 = cr3;
            if !self.find_root(cpu, cr3) {
                done.root_misses += 1;
                self.make_root(cpu);
            }
        }
        // Under agile paging no table is out of sync, and the load flushes as the guest's own would.
        if self.limit == 0 {
            self.sync_roots(cpu, guest, host);
            self.ask_one(cpu);
        }
        self.settle(Some((guest, host)), done);
    }

    /// Looks for the root among those that the vCPU keeps, which move by one place each; the last goes if it
    /// is not there.
    fn find_root(&mut self, cpu: usize, cr3: u64) -> bool {
        if self.has_four() {
            self.leave_root(cpu, 0);
            self.bury();
        }
        if self.cpus[cpu].roots[0].is_none() {
            return false;
        }
        for n in 0..4 {
            self.cpus[cpu].roots.swap(0, n);
            let Some((value, [Some(page), ..])) = self.cpus[cpu].roots[0] else { continue };
            if value == cr3 && !self.pages[page].zapped {
                self.pages[page].floods = 0;
                return true;
            }
        }
        self.leave_root(cpu, 0);
        self.bury();
        false
    }

    /// The way back into the guest: zapped roots are made again, and the work is counted.
    pub fn settle(&mut self, world: Option<(&Guest, &Host)>, done: &mut Sample) {
        if std::mem::take(&mut self.lost_root) {
            for cpu in 0..self.cpus.len() {
                for n in 1..4 {
                    if self.is_lost(cpu, n) {
                        self.leave_root(cpu, n);
                    }
                }
                let reload = self.is_lost(cpu, 0);
                if reload {
                    self.leave_root(cpu, 0);
                }
                self.bury();
                if reload {
                    self.make_root(cpu);
                    if let Some((guest, host)) = world {
                        self.sync_roots(cpu, guest, host);
                    }
                }
            }
        }
        done.shadow_pages_made += std::mem::take(&mut self.made);
        done.syncs += std::mem::take(&mut self.syncs);
        done.shadow_pages_zapped += std::mem::take(&mut self.zapped);
    }
}
