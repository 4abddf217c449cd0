// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random updates, as GUPS of the HPC Challenge makes them: a load and a store at a uniformly random place of
//! one large table. The places follow from arithmetic alone, so the updates are independent of each other.
//! The guest maps the table with 4 KB or with 2 MB pages and has written every page before.
//!
//! The table may be far larger than the memory of the machine that runs the model: only its page tables
//! exist.

use super::guest::{CHUNK, LARGE, Memory, USER_DATA, USER_TABLE, USER_TEXT};
use super::random::SplitMix64;
use crate::event::{Event, head, kind};

const DATA: u64 = 0x7f00_0000_0000;
const CODE: u64 = 0x40_1000;
const SEED: u64 = 1;
/// Instructions of an update. The inner loop of HPCC's `RandomAccess` as GCC compiles it: shift, sign, mask
/// and exclusive or make the next number, one masks it to an index, one updates the table, two end the loop.
const INSNS: u64 = 8;

/// What the table consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// Its size, a multiple of 2 MB.
    pub bytes: u64,
    /// Level of the entries that map it: 1 for 4 KB pages, 2 for 2 MB pages.
    pub level: u8,
}

impl Table {
    fn shift(self) -> u32 {
        if self.level == 1 { 12 } else { 21 }
    }

    /// The first frame of the table, at a multiple of 2 MB: before it lie page tables and code.
    fn first_frame(self) -> u64 {
        ((self.bytes >> 21) + (self.bytes >> 30) + 64).next_multiple_of(512)
    }

    /// Frames of the guest.
    pub fn frames(self) -> u64 {
        self.first_frame() + (self.bytes >> 12)
    }
}

pub fn run<E>(table: Table, n: u64, push: &mut dyn FnMut(&[u64]) -> Result<(), E>) -> Result<(), E> {
    start(table, push)?;
    let mut random = SplitMix64(SEED);
    let entries = table.bytes / 8;
    let mut words = Vec::with_capacity(CHUNK + 1);
    let mut i = 0;
    while i < n {
        let now = (n - i).min(CHUNK as u64 / 2);
        words.clear();
        for _ in 0..now {
            let va = DATA + random.below(entries) * 8;
            words.push(head(kind::LOAD, va));
            words.push(head(kind::STORE, va));
        }
        words.push(head(kind::INSNS, now * INSNS));
        push(&words)?;
        i += now;
    }
    Ok(())
}

fn start<E>(table: Table, push: &mut dyn FnMut(&[u64]) -> Result<(), E>) -> Result<(), E> {
    let mut memory = Memory::new(table.frames(), 16);
    let root = memory.new_table(4);
    let gfn = memory.take();
    memory.map(root, CODE, 1, gfn << 12 | USER_TEXT, USER_TABLE);
    let large = if table.level == 2 { LARGE } else { 0 };
    for page in 0..table.bytes >> table.shift() {
        let gpa = (table.first_frame() << 12) + (page << table.shift());
        memory.map(root, DATA + (page << table.shift()), table.level, gpa | USER_DATA | large, USER_TABLE);
    }
    let mut words = Vec::new();
    memory.describe(root, 0..512, &mut words, push)?;
    Event::Cr3(root << 12).encode(&mut words);
    Event::Fetch(CODE).encode(&mut words);
    push(&words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::decode;

    fn accesses(table: Table, n: u64) -> (Vec<u64>, Vec<u64>, u64) {
        let (mut loads, mut stores, mut instructions) = (Vec::new(), Vec::new(), 0);
        run::<()>(table, n, &mut |mut words| {
            while !words.is_empty() {
                let (event, length) = decode(words, 0).unwrap();
                match event {
                    Event::Load(va) => loads.push(va),
                    Event::Store(va) => stores.push(va),
                    Event::Insns(i) => instructions += i,
                    _ => {}
                }
                words = &words[length..];
            }
            Ok(())
        })
        .unwrap();
        (loads, stores, instructions)
    }

    #[test]
    fn each_update_loads_and_stores_one_place_inside_the_table() {
        let table = Table { bytes: 64 << 20, level: 1 };
        let (loads, stores, instructions) = accesses(table, 10_000);
        assert_eq!(loads, stores);
        assert_eq!((loads.len(), instructions), (10_000, 80_000));
        assert!(loads.iter().all(|va| (DATA..DATA + table.bytes).contains(va) && va % 8 == 0));
    }

    #[test]
    fn both_page_sizes_give_the_same_addresses() {
        let [small, large] = [1, 2].map(|level| accesses(Table { bytes: 64 << 20, level }, 1000).0);
        assert_eq!(small, large);
    }

    #[test]
    fn updates_are_uniform_over_the_pages() {
        let table = Table { bytes: 4 << 20, level: 1 };
        let mut pages = vec![0u32; 1024];
        accesses(table, 102_400).0.iter().for_each(|va| pages[((va - DATA) >> 12) as usize] += 1);
        // Mean 100 and standard deviation 10: six of them on either side.
        assert!(pages.iter().all(|n| (40..=160).contains(n)), "{pages:?}");
    }

    #[test]
    fn tables_and_data_of_the_largest_table_have_room() {
        for (bytes, level) in [(2 << 20, 1), (2 << 20, 2), (512 << 20, 1), (1 << 30, 2)] {
            let (loads, ..) = accesses(Table { bytes, level }, 1);
            assert_eq!(loads.len(), 1);
        }
    }
}
