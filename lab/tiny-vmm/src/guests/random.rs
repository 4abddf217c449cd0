// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes random guests, for sequences that no hand-made guest has.
//!
//! A random guest has two vCPUs and eight roots. Each root has a page directory, and the directories share
//! leaf tables and 2 MB pages. The guest makes loads, stores and faults; it rewrites entries, and links and
//! unlinks tables by MOV, STOS and REP STOS; it uses INVLPG, CR3 and CR4. Like a kernel, the guest
//! invalidates an entry after it has changed it and before it uses it, and a vCPU that takes over reloads
//! CR3. Guests with even seeds invalidate by INVLPG, guests with odd seeds by reloading CR3. Without this
//! rule the outcome would depend on the time of the last TLB flush, which the host's interrupts decide, and
//! on whether hardware or KVM set an A or D bit first.

use super::VA;
use crate::guest::{ABSENT, CR4, CR4_PGE, Guest};
use crate::tables::{ACCESSED, DATA, FRAME, FRESH, LARGE, PRESENT, TABLE, WRITE, index};

/// Numbers of roots and leaf tables.
const PLENTY: [u64; 2] = [6, 6];
/// The numbers in a VM with less than 16 MB, which may have 64 shadow pages (`KVM_MIN_ALLOC_MMU_PAGES`).
const SCARCE: [u64; 2] = [20, 20];
/// Number of used entries per page directory and per leaf table.
const SLOTS: u64 = 4;
const PAGES: u64 = 20;
const FRAMES: u64 = 48;
/// 2 MB pages.
const LARGE_PAGES: u64 = 2;
const VCPUS: u64 = 2;
const PHASES: u64 = 40;
const OPERATIONS: u64 = 6;

/// splitmix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

struct Random {
    g: Guest,
    rng: Rng,
    roots: Vec<u64>,
    /// Page directories by root, leaf tables, and the aliases of both.
    directories: Vec<u64>,
    leaves: Vec<u64>,
    directory_alias: Vec<u64>,
    leaf_alias: Vec<u64>,
    gpa: u64,
    large_gpa: u64,
    /// The root of each vCPU, and the current vCPU.
    current: [usize; VCPUS as usize],
    vcpu: usize,
    /// Slots and pages that were used last and are used again soon.
    recent: [u64; 2],
    /// Whether changes are followed by INVLPG (otherwise by a reload of CR3).
    invlpg: bool,
    /// The phase's operations, for its name.
    log: String,
}

fn va(slot: u64, page: u64) -> u64 {
    VA + (slot << 21) + (page << 12)
}

impl Random {
    fn new(seed: u64, memory: u64) -> Random {
        let mut g = Guest::new("random", memory, VCPUS as usize);
        g.handle_faults();
        let rng = Rng(seed);
        let [roots, leaves] = if memory < 16 << 20 { SCARCE } else { PLENTY };
        let roots: Vec<u64> = (0..roots).map(|n| if n == 0 { g.root } else { g.new_root() }).collect();
        let leaves: Vec<u64> = (0..leaves).map(|_| g.tables.table(1)).collect();
        let gpa = g.data(FRAMES, 8);
        let large_gpa = g.data(LARGE_PAGES << 9, 512);
        let mut directories = Vec::new();
        for &root in &roots {
            // So that the directory exists.
            g.tables.map(root, va(0, 0), 2, ABSENT);
            directories.push(g.tables.find(root, VA, 2).expect("just made"));
        }
        let directory_alias = directories.iter().map(|&t| g.expose(t)).collect();
        let leaf_alias = leaves.iter().map(|&t| g.expose(t)).collect();
        let mut r = Random {
            g,
            rng,
            roots,
            directories,
            leaves,
            directory_alias,
            leaf_alias,
            gpa,
            large_gpa,
            current: [0; VCPUS as usize],
            vcpu: 0,
            recent: [0, 0],
            invlpg: seed % 2 == 0,
            log: String::new(),
        };
        for leaf in r.leaves.clone() {
            for page in 0..PAGES {
                let entry = r.entry();
                r.g.tables.set(leaf, page as usize, entry);
            }
        }
        for directory in r.directories.clone() {
            for slot in 0..SLOTS {
                let entry = r.directory_entry();
                r.g.tables.set(directory, slot as usize, entry);
            }
        }
        r
    }

    /// An entry of a page directory.
    fn directory_entry(&mut self) -> u64 {
        let leaf = self.leaves[self.rng.below(self.leaves.len() as u64) as usize] << 12;
        let large = (self.large_gpa + (self.rng.below(LARGE_PAGES) << 21)) | LARGE;
        match self.rng.below(10) {
            0..2 => ABSENT,
            2 => large | FRESH,
            3 => large | DATA,
            4 if self.rng.below(2) == 0 => large | (DATA & !WRITE),
            4 => leaf | (TABLE & !WRITE),
            _ => leaf | TABLE,
        }
    }

    /// An entry of a leaf table.
    fn entry(&mut self) -> u64 {
        let gpa = self.gpa + (self.rng.below(FRAMES) << 12);
        match self.rng.below(10) {
            0 => ABSENT,
            1 => gpa | FRESH,
            2 => gpa | FRESH | ACCESSED,
            3 => gpa | (DATA & !WRITE),
            4 => gpa | (PRESENT | ACCESSED),
            _ => gpa | DATA,
        }
    }

    fn root(&self) -> u64 {
        self.roots[self.current[self.vcpu]]
    }

    fn directory(&self) -> u64 {
        self.directories[self.current[self.vcpu]]
    }

    /// Whether the address is mapped and writable under the current root.
    fn lookup(&self, va: u64) -> (bool, bool) {
        let upper = self.g.tables.entry(self.directory(), index(va, 2));
        if upper & PRESENT == 0 || upper & LARGE != 0 {
            return (upper & PRESENT != 0, upper & WRITE != 0);
        }
        let entry = self.g.tables.entry((upper & FRAME) >> 12, index(va, 1));
        (entry & PRESENT != 0, entry & upper & WRITE != 0)
    }

    /// Draws a slot and a page: any, recently used ones, or in the same block of 8 entries.
    fn place(&mut self) -> (u64, u64) {
        let [slot, page] = self.recent;
        let (slot, page) = match self.rng.below(4) {
            0 => (slot, page),
            1 => (slot, (page & !7 | self.rng.below(8)).min(PAGES - 1)),
            2 => (slot, self.rng.below(PAGES)),
            _ => (self.rng.below(SLOTS), self.rng.below(PAGES)),
        };
        self.recent = [slot, page];
        (slot, page)
    }

    fn access(&mut self) {
        let (slot, page) = self.place();
        let va = va(slot, page);
        let write = self.rng.below(2) == 0;
        let (present, writable) = self.lookup(va);
        let kind = if write { "store" } else { "load" };
        self.log += &format!(" {kind} {slot}.{page}");
        let bits = if write { 2 } else { 0 };
        if !present {
            self.log += "!";
            self.g.fault(va, write, bits);
        } else if write && !writable {
            self.log += "!";
            self.g.fault(va, true, bits | 1);
        } else if write {
            self.g.store(va);
        } else {
            self.g.load(va);
        }
    }

    /// Invalidates an entry of a leaf table under the current root.
    fn invalidate(&mut self, leaf: u64, page: u64) {
        for slot in 0..SLOTS {
            let entry = self.g.tables.entry(self.directory(), slot as usize);
            if entry & (PRESENT | LARGE) == PRESENT && (entry & FRAME) >> 12 == leaf {
                if !self.invlpg {
                    return self.reload();
                }
                self.log += &format!(" invlpg {slot}.{page}");
                self.g.invlpg(va(slot, page));
            }
        }
    }

    fn change_leaf(&mut self) {
        let (slot, page) = self.place();
        let entry = self.g.tables.entry(self.directory(), slot as usize);
        // Mostly the table that the place is mapped by.
        let mapped = self.leaves.iter().position(|&t| entry & FRAME == t << 12);
        let n = match mapped {
            Some(n) if self.rng.below(4) != 0 => n as u64,
            _ => self.rng.below(self.leaves.len() as u64),
        };
        let (leaf, alias) = (self.leaves[n as usize], self.leaf_alias[n as usize]);
        let how = self.rng.below(12);
        let count = if how == 0 { self.rng.below(6) + 2 } else { 1 };
        let new = self.entry();
        self.log += &format!(" leaf {n}[{page}+{count}]={new:x}");
        let old: Vec<u64> = (page..page + count).map(|p| self.g.tables.entry(leaf, p as usize)).collect();
        if how < 2 {
            self.log += "s";
            self.g.set_by_stos(alias, leaf, page as usize, count as usize, new);
        } else {
            self.g.set(alias, leaf, page as usize, new);
        }
        for (page, _) in (page..).zip(old).filter(|(_, old)| old & PRESENT != 0) {
            self.invalidate(leaf, page);
        }
    }

    fn change_directory(&mut self) {
        let (n, slot) = (self.rng.below(self.roots.len() as u64) as usize, self.rng.below(SLOTS));
        let (table, alias) = (self.directories[n], self.directory_alias[n]);
        let old = self.g.tables.entry(table, slot as usize);
        let new = self.directory_entry();
        self.log += &format!(" directory {n}[{slot}]={new:x}");
        if self.rng.below(8) == 0 {
            self.log += "s";
            self.g.set_by_stos(alias, table, slot as usize, 1, new);
        } else {
            self.g.set(alias, table, slot as usize, new);
        }
        if old & PRESENT != 0 && n == self.current[self.vcpu] {
            self.reload();
        }
    }

    fn reload(&mut self) {
        self.log += " reload";
        self.g.load_cr3(self.root());
    }

    /// Changes to another vCPU.
    fn take_over(&mut self, vcpu: usize) {
        self.vcpu = vcpu;
        self.g.on(vcpu);
    }

    fn operation(&mut self) {
        match self.rng.below(20) {
            0..12 => self.access(),
            12..15 => self.change_leaf(),
            15..16 => self.change_directory(),
            16..18 => {
                let root = self.rng.below(self.roots.len() as u64) as usize;
                self.current[self.vcpu] = root;
                self.log += &format!(" root {root}");
                self.g.load_cr3(self.root());
            }
            18 if self.invlpg => {
                let (slot, page) = self.place();
                self.log += &format!(" invlpg {slot}.{page}");
                self.g.invlpg(va(slot, page));
            }
            _ => {
                self.log += " toggle";
                self.g.load_cr4(CR4 & !CR4_PGE);
                self.g.load_cr4(CR4);
            }
        }
    }
}

/// The guest of a seed.
pub fn random(seed: u64, memory: u64) -> Guest {
    let mut r = Random::new(seed, memory);
    r.g.phase("warm");
    r.g.warm_system();
    for n in 0..PHASES {
        let last = r.vcpu;
        if r.rng.below(4) == 0 {
            r.take_over(1 - last);
        }
        r.g.phase("");
        r.log = format!("{seed}.{n}:");
        if r.vcpu != last {
            r.reload();
        }
        (0..OPERATIONS).for_each(|_| r.operation());
        let log = std::mem::take(&mut r.log);
        r.g.phases.last_mut().expect("just begun").name = log;
    }
    r.g.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_guest() {
        let (a, b) = (random(1, 64 << 20), random(1, 64 << 20));
        assert_eq!(a.words(), b.words());
        assert_ne!(a.words(), random(2, 64 << 20).words());
        assert_eq!(a.phases.len() as u64, PHASES + 1);
    }
}
