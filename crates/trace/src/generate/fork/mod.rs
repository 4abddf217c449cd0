// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A fork storm: a small process forks, its child touches some of its memory
//! and exits, over and over. The page-table work is that of Linux 6.1 on x86-64
//! without KPTI and PCID, event by event: `dup_mmap` write-protects the parent's
//! PTEs and fills the child's tables before anything can reach them
//! (`copy_present_pte`), a first touch maps a zeroed page or sixteen pages of a
//! file (`do_anonymous_page`, `do_fault_around`), a write to a shared page
//! copies the page or reuses it if no other process maps it (`do_wp_page`), and
//! exit clears every entry, then frees the tables (`unmap_vmas`,
//! `free_pgtables`). The kernel reaches all of it through its direct map of 2 MB
//! pages.
//!
//! Invented: the number of accesses beside the page-table work (slab objects,
//! kernel text), which only sets the scale; three instructions per access, one
//! per eight of a string instruction. Left out: interrupts, other processes.

mod kernel;

use super::guest::*;
use super::random::SplitMix64;
use crate::event::{Event, head, kind};
use std::collections::{HashMap, HashSet};

pub const FRAMES: u64 = 1 << 18;
const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
const VMEMMAP: u64 = 0xffff_ea00_0000_0000;
const KERNEL: u64 = 0xffff_ffff_8100_0000;

// Guest-physical layout below the frames given out.
const KERNEL_GFN: u64 = 4096;
const KERNEL_TEXT_PAGES: u64 = 64;
const SLAB_GFN: u64 = 9000;
const SLAB_PAGES: u64 = 64;
const STACK_GFN: u64 = 9100;
const VMEMMAP_GFN: u64 = 10240;
const FIRST_GFN: u64 = 16384;

/// Accesses of one cycle, about.
pub const ACCESSES: u64 = 95_600;

/// Accesses of kernel code that has nothing to do with page tables: enough for a cycle of some
/// 200,000 instructions, the order of magnitude of fork, exit and the faults between them.
const FORK_WORK: u64 = 20_000;
const EXIT_WORK: u64 = 15_000;
const FAULT_WORK: u64 = 300;
const SWITCH_WORK: u64 = 1000;
const USER_WORK: u64 = 3000;
/// `fault_around_bytes`, in pages.
const FAULT_AROUND: u64 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backing {
    /// A file, whose first page is in this frame.
    File(u64),
    /// Anonymous, written by the parent.
    Anonymous,
    /// Anonymous, touched by the child only.
    Fresh,
}

struct Area {
    start: u64,
    pages: u64,
    backing: Backing,
}

const AREAS: [Area; 7] = [
    Area { start: 0x40_0000, pages: 64, backing: Backing::File(12000) },
    Area { start: 0x60_0000, pages: 16, backing: Backing::Anonymous },
    Area { start: 0x100_0000, pages: 48, backing: Backing::Anonymous },
    Area { start: 0x140_0000, pages: 8, backing: Backing::Fresh },
    Area { start: 0x7fff_f7c0_0000, pages: 128, backing: Backing::File(12100) },
    Area { start: 0x7fff_f7e0_0000, pages: 8, backing: Backing::Anonymous },
    Area { start: 0x7fff_ffff_7000, pages: 8, backing: Backing::Anonymous },
];
const TEXT: usize = 0;
const DATA: usize = 1;
const HEAP: usize = 2;
const FRESH: usize = 3;
const LIBC: usize = 4;
const LIBC_DATA: usize = 5;
const STACK: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    Execute,
}

struct Storm {
    memory: Memory,
    random: SplitMix64,
    words: Vec<u64>,
    instructions: u64,
    /// Tables that a walk can reach, all described.
    reachable: HashSet<u64>,
    /// How many processes map an anonymous frame.
    mapped: HashMap<u64, u32>,
    /// Root of the running process.
    root: u64,
    /// Page of the program's present instruction.
    ip: u64,
}

pub fn run<E>(n: u64, push: &mut dyn FnMut(&[u64]) -> Result<(), E>) -> Result<(), E> {
    let mut storm = Storm::new();
    let parent = storm.root;
    storm.make_reachable(parent, 0..512);
    Event::Cr3(parent << 12).encode(&mut storm.words);
    storm.execute(TEXT, 0);
    storm.flush(push)?;
    for _ in 0..n {
        let child = storm.fork(parent);
        storm.flush(push)?;
        storm.switch(child);
        storm.run_child(push)?;
        storm.exit(parent);
        storm.flush(push)?;
        storm.run_parent(push)?;
    }
    Ok(())
}

/// Address of guest-physical `gpa` in the kernel's direct map.
fn direct(gpa: u64) -> u64 {
    DIRECT_MAP + gpa
}

fn page(area: usize, i: u64) -> u64 {
    AREAS[area].start + (i << 12)
}

impl Storm {
    fn new() -> Storm {
        let mut memory = Memory::new(FRAMES, FIRST_GFN);
        let mut mapped = HashMap::new();
        let root = memory.new_table(4);
        for gfn in (0..FRAMES).step_by(512) {
            memory.map(root, direct(gfn << 12), 2, gfn << 12 | KERNEL_LARGE, KERNEL_TABLE);
        }
        for i in 0..(FRAMES * 64) >> 21 {
            let entry = (VMEMMAP_GFN + i * 512) << 12 | KERNEL_LARGE;
            memory.map(root, VMEMMAP + (i << 21), 2, entry, KERNEL_TABLE);
        }
        for i in 0..8 {
            let entry = (KERNEL_GFN + i * 512) << 12 | KERNEL_LARGE;
            memory.map(root, KERNEL + (i << 21), 2, entry, KERNEL_TABLE);
        }
        for area in &AREAS {
            for i in 0..area.pages {
                let entry = match area.backing {
                    Backing::File(first) => (first + i) << 12 | USER_TEXT,
                    Backing::Fresh => continue,
                    Backing::Anonymous => {
                        let gfn = memory.take();
                        mapped.insert(gfn, 1);
                        gfn << 12 | USER_DATA
                    }
                };
                memory.map(root, area.start + (i << 12), 1, entry, USER_TABLE);
            }
        }
        Storm {
            memory,
            random: SplitMix64(1),
            words: Vec::new(),
            instructions: 0,
            reachable: HashSet::new(),
            mapped,
            root,
            ip: page(TEXT, 0),
        }
    }

    fn flush<E>(&mut self, push: &mut dyn FnMut(&[u64]) -> Result<(), E>) -> Result<(), E> {
        Event::Insns(self.instructions).encode(&mut self.words);
        self.instructions = 0;
        push(&self.words)?;
        self.words.clear();
        Ok(())
    }

    // System calls and faults.

    fn fork(&mut self, parent: u64) -> u64 {
        self.enter_kernel();
        self.kernel_work(FORK_WORK);
        let child = self.new_table(4);
        for i in 256..512 {
            // pgd_ctor copies the kernel's half.
            self.words.push(head(kind::LOAD, direct((parent << 12) + i as u64 * 8)));
            self.words.push(head(kind::STORE_OTHER, direct((child << 12) + i as u64 * 8)));
            let entry = self.memory.entry(parent, i);
            self.memory.set(child, i, entry);
        }
        for area in AREAS.iter().filter(|a| a.backing == Backing::Anonymous) {
            for i in 0..area.pages {
                let va = area.start + (i << 12);
                let (slot, from) =
                    (index(va, 1), self.memory.find(parent, va, 1).expect("the parent's table"));
                let pte = self.memory.entry(from, slot);
                self.access(kind::LOAD, direct((from << 12) + slot as u64 * 8));
                let to = self.leaf_table(child, va);
                let gfn = (pte & FRAME) >> 12;
                self.struct_page(gfn);
                *self.mapped.get_mut(&gfn).expect("an anonymous frame is counted") += 1;
                if pte & WRITE != 0 {
                    self.set_entry(from, slot, pte & !WRITE);
                }
                self.set_entry(to, slot, pte & !(WRITE | ACCESSED));
            }
        }
        self.flush_tlb();
        child
    }

    /// The scheduler switches to a process that has not run before: its tables become reachable.
    fn switch(&mut self, child: u64) {
        self.kernel_work(SWITCH_WORK);
        self.make_reachable(child, 0..256);
        self.load_cr3(child);
        self.ip = page(TEXT, 0);
        // The first instruction in user mode is a fetch of its own, which may fault.
    }

    fn fault(&mut self, area: usize, va: u64, access: Access) {
        let present = self.pte(va) & PRESENT != 0;
        let error = u64::from(present)
            | if access == Access::Write { 2 } else { 0 }
            | 4
            | if access == Access::Execute { 16 } else { 0 };
        Event::Fault { gva: va, error }.encode(&mut self.words);
        self.enter_kernel();
        self.kernel_work(FAULT_WORK);
        let (table, slot) = (self.leaf_table(self.root, va), index(va, 1));
        let pte = self.memory.entry(table, slot);
        self.access(kind::LOAD, direct((table << 12) + slot as u64 * 8));
        let old = (pte & FRAME) >> 12;
        match AREAS[area].backing {
            Backing::File(first) => {
                let start = ((va - AREAS[area].start) >> 12) & !(FAULT_AROUND - 1);
                for i in start..(start + FAULT_AROUND).min(AREAS[area].pages) {
                    let slot = index(page(area, i), 1);
                    if self.memory.entry(table, slot) & PRESENT == 0 {
                        self.struct_page(first + i);
                        self.set_entry(table, slot, (first + i) << 12 | USER_TEXT);
                    }
                }
            }
            _ if !present => {
                let new = self.memory.take();
                self.fill_page(None, new);
                self.struct_page(new);
                self.mapped.insert(new, 1);
                self.set_entry(table, slot, new << 12 | USER_DATA);
            }
            _ if self.mapped[&old] > 1 => {
                let new = self.memory.take();
                self.fill_page(Some(old), new);
                self.struct_page(new);
                self.set_entry(table, slot, 0);
                Event::Invlpg(va & !0xfff).encode(&mut self.words);
                self.mapped.insert(new, 1);
                self.set_entry(table, slot, new << 12 | USER_DATA);
                self.struct_page(old);
                *self.mapped.get_mut(&old).expect("a copied frame is counted") -= 1;
            }
            _ => self.set_entry(table, slot, pte | WRITE | ACCESSED | DIRTY),
        }
    }

    fn exit(&mut self, parent: u64) {
        self.enter_kernel();
        self.kernel_work(EXIT_WORK);
        let (child, mut pages, mut tables) = (self.root, Vec::new(), Vec::new());
        for area in &AREAS {
            for va in (0..area.pages).map(|i| area.start + (i << 12)) {
                let Some(table) = self.memory.find(child, va, 1) else { continue };
                let slot = index(va, 1);
                let pte = self.memory.entry(table, slot);
                self.access(kind::LOAD, direct((table << 12) + slot as u64 * 8));
                if pte & PRESENT == 0 {
                    continue;
                }
                self.set_entry(table, slot, 0);
                let gfn = (pte & FRAME) >> 12;
                self.struct_page(gfn);
                if let Some(count) = self.mapped.get_mut(&gfn) {
                    *count -= 1;
                    if *count == 0 {
                        self.mapped.remove(&gfn);
                        pages.push(gfn);
                    }
                }
            }
        }
        self.unlink(child, 0..256, &mut tables);
        // Frames are free only after the flush (`tlb_finish_mmu`).
        self.flush_tlb();
        for gfn in pages {
            self.struct_page(gfn);
            self.memory.give_back(gfn);
        }
        for gfn in tables {
            self.retire(gfn);
        }
        self.kernel_work(SWITCH_WORK);
        self.load_cr3(parent);
        self.retire(child);
        self.ip = page(TEXT, 0);
        self.return_to_user();
    }

    // User mode.

    fn pte(&self, va: u64) -> u64 {
        self.memory.find(self.root, va, 1).map_or(0, |t| self.memory.entry(t, index(va, 1)))
    }

    fn touch(&mut self, area: usize, va: u64, access: Access) {
        let wanted = PRESENT | if access == Access::Write { WRITE } else { 0 };
        if self.pte(va) & wanted != wanted {
            self.fault(area, va, access);
            if access == Access::Execute {
                self.ip = va;
            }
            self.return_to_user();
        }
        match access {
            Access::Read => self.access(kind::LOAD, va),
            Access::Write => self.access(kind::STORE, va),
            Access::Execute => {
                self.ip = va;
                self.words.push(head(kind::FETCH, va));
            }
        }
    }

    fn execute(&mut self, area: usize, i: u64) {
        self.touch(area, page(area, i), Access::Execute);
    }

    fn random_in(&mut self, area: usize, pages: u64) -> u64 {
        AREAS[area].start + self.random.below(pages * 512) * 8
    }

    /// A program at work: `n` accesses to its first `heap` pages of heap and the rest.
    fn user_work<E>(
        &mut self,
        n: u64,
        heap: u64,
        push: &mut dyn FnMut(&[u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        for i in 0..n {
            if i % 16 == 0 {
                let (area, pages) = if i % 64 == 0 { (LIBC, 40) } else { (TEXT, 24) };
                let i = self.random.below(pages);
                self.execute(area, i);
            }
            let (area, pages, access) = match i % 8 {
                0 | 3 => (STACK, 3, Access::Write),
                1 | 5 => (STACK, 3, Access::Read),
                2 => (DATA, 5, if i % 3 == 0 { Access::Write } else { Access::Read }),
                4 => (LIBC_DATA, 3, if i % 5 == 0 { Access::Write } else { Access::Read }),
                6 => (HEAP, heap, Access::Write),
                _ => (HEAP, 48, Access::Read),
            };
            let va = self.random_in(area, pages);
            self.touch(area, va, access);
            if self.words.len() >= CHUNK {
                self.flush(push)?;
            }
        }
        self.flush(push)
    }

    fn run_child<E>(&mut self, push: &mut dyn FnMut(&[u64]) -> Result<(), E>) -> Result<(), E> {
        self.execute(TEXT, 0);
        for i in 0..6 {
            self.touch(FRESH, page(FRESH, i), Access::Write);
            self.flush(push)?;
        }
        self.user_work(USER_WORK, 12, push)
    }

    fn run_parent<E>(&mut self, push: &mut dyn FnMut(&[u64]) -> Result<(), E>) -> Result<(), E> {
        self.user_work(USER_WORK / 2, 16, push)
    }
}
