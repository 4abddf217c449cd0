// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory as a map of words, and a walk by recursion over bit positions written out
//! here (Intel SDM vol. 3A, tables 4-8 to 4-20): walker = reference walker.

use bifold_mmu::format::{PAE, X86_64_4_LEVEL, X86_64_5_LEVEL};
use bifold_mmu::{Format, Start, Step, Walk, walk};
use proptest::prelude::*;
use std::collections::BTreeMap;

pub struct Memory {
    pub words: BTreeMap<u64, u64>,
    next: u64,
}

/// Address of the entry for `va` in a table of `level`.
fn entry_at(depth: u8, level: u8, table: u64, va: u64) -> u64 {
    let top_of_pae = depth == 3 && level == 3;
    let bits = if top_of_pae { 2 } else { 9 };
    let shift = [12, 21, 30, 39, 48][usize::from(level) - 1];
    table + 8 * (va >> shift & ((1 << bits) - 1))
}

fn leaf(depth: u8, level: u8, entry: u64) -> bool {
    match level {
        1 => true,
        2 => entry & 0x80 != 0,
        3 => depth > 3 && entry & 0x80 != 0,
        _ => false,
    }
}

impl Memory {
    /// Tables are taken from `next` up.
    pub fn new(next: u64) -> Memory {
        Memory { words: BTreeMap::new(), next }
    }

    pub fn read(&self, at: u64) -> u64 {
        self.words.get(&at).copied().unwrap_or(0)
    }

    pub fn map(&mut self, format: &Format, root: u64, va: u64, level: u8, target: u64) {
        let depth = format.depth();
        let mut table = root;
        for l in (level + 1..=depth).rev() {
            let at = entry_at(depth, l, table, va);
            if self.read(at) == 0 {
                self.words.insert(at, self.next | 3);
                self.next += 0x1000;
            }
            table = self.read(at) & !0xfff;
        }
        let large = if level > 1 { 0x80 } else { 0 };
        self.words.insert(entry_at(depth, level, table, va), target | large | 3);
    }
}

/// Where a walk ends, by recursion.
pub fn end_of(format: &Format, memory: &Memory, root: u64, va: u64) -> Step {
    fn down(depth: u8, level: u8, memory: &Memory, table: u64, va: u64) -> Step {
        let at = entry_at(depth, level, table, va);
        let entry = memory.read(at);
        if entry & 1 == 0 || leaf(depth, level, entry) {
            return Step { level, at, entry };
        }
        down(depth, level - 1, memory, entry & 0x000f_ffff_ffff_f000, va)
    }
    let depth = format.depth();
    down(depth, depth, memory, root, va)
}

proptest! {
    #[test]
    fn a_walk_ends_where_the_recursive_one_does(
        entries in proptest::collection::vec((0u64..6, 0usize..5, 0u64..6, any::<u8>()), 1..60),
        walks in proptest::collection::vec((0usize..3, proptest::collection::vec(0usize..5, 5), any::<u16>()), 1..40),
    ) {
        // Six tables that point to each other, at few indices that the addresses use.
        const INDICES: [u64; 5] = [0, 1, 3, 256, 511];
        let mut memory = Memory::new(0);
        for (table, index, target, bits) in entries {
            let entry = (target + 1) << 12 | u64::from(bits & 0x87) | 1 << 63;
            memory.words.insert(((table + 1) << 12) + 8 * INDICES[index], entry);
        }
        for (format, indices, offset) in walks {
            let format = [&X86_64_4_LEVEL, &X86_64_5_LEVEL, &PAE][format];
            let va = indices.iter().fold(0, |va, &i| va << 9 | INDICES[i]) << 12 | u64::from(offset) & 0xfff;
            let mut read = Vec::new();
            let start = Start { level: format.depth(), table: 0x1000 };
            let end = walk::<()>(format, start, va, |level, at| {
                read.push((level, at));
                Ok(memory.read(at))
            }).unwrap();
            let expected = end_of(format, &memory, 0x1000, va);
            let step = match end {
                Walk::Leaf(step) => { prop_assert!(step.entry & 1 != 0); step }
                Walk::NotPresent(step) => { prop_assert!(step.entry & 1 == 0); step }
            };
            prop_assert_eq!(step, expected);
            prop_assert_eq!(read.len(), usize::from(format.depth() - step.level) + 1);
            prop_assert_eq!(read.last().copied(), Some((step.level, step.at)));
        }
    }

    #[test]
    fn a_walk_that_cannot_read_an_entry_is_abandoned_there(stop in 1u8..=4) {
        let mut memory = Memory::new(0x2000);
        memory.map(&X86_64_4_LEVEL, 0x1000, 0x1234_5678, 1, 0x9000);
        let start = Start { level: 4, table: 0x1000 };
        let end = walk(&X86_64_4_LEVEL, start, 0x1234_5678, |level, at| if level == stop { Err(level) } else { Ok(memory.read(at)) });
        prop_assert_eq!(end, Err(stop));
    }
}

#[test]
fn a_large_leafs_target_has_the_bits_below_its_size_cleared() {
    let entry = 0x0000_1234_5678_9083; // PAT and others of the low bits set
    assert_eq!(X86_64_4_LEVEL.target(2, entry), 0x0000_1234_5660_0000);
    assert_eq!(X86_64_4_LEVEL.target(3, entry), 0x0000_1234_4000_0000);
    assert_eq!(X86_64_4_LEVEL.target(1, entry), 0x0000_1234_5678_9000);
    assert_eq!(PAE.target(3, entry), 0x0000_1234_5678_9000, "PAE's third level maps no pages");
}
