// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The replayed guest tables, with their look-up cache, against a walk over a map:
//! tables come, change level, are stored to and go, in any order.

use crate::random::cases;
use crate::reference::{ACCESSED, ADDRESS, DIRTY, LARGE, PRESENT, WRITE};
use bifold_mmu::format::X86_64_4_LEVEL;
use bifold_mmu::{Gpa, Gva};
use bifold_model::guest::GuestTables;
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Debug, Clone)]
enum Op {
    Add { gfn: u64, level: u8, entries: Vec<(usize, u64)> },
    Store { gfn: u64, index: usize, entry: u64 },
    Retire { gfn: u64 },
    Access { root: u64, va: u64, write: bool },
}

const INDICES: [usize; 3] = [0, 5, 511];
/// Few frames, so that they meet; the last two beyond 64 GB.
const FRAMES: [u64; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 1 << 24, 1 << 25];

fn entry() -> impl Strategy<Value = u64> {
    (0usize..10, any::<u8>(), 0u8..8).prop_map(|(frame, bits, large)| {
        let bits = u64::from(bits) & (PRESENT | WRITE | ACCESSED | DIRTY)
            | if bits & 0x1c != 0 { PRESENT | WRITE } else { 0 };
        FRAMES[frame] << 12 | bits | if large == 0 { LARGE } else { 0 }
    })
}

fn op() -> impl Strategy<Value = Op> {
    let gfn = || (0usize..10).prop_map(|i| FRAMES[i]);
    let index = || (0usize..3).prop_map(|i| INDICES[i]);
    let va = proptest::collection::vec(index(), 4).prop_map(|i| {
        let va = i.iter().fold(0u64, |va, &i| va << 9 | i as u64) << 12;
        if va >> 47 != 0 { va | 0xffff << 48 } else { va }
    });
    prop_oneof![
        2 => (gfn(), 1u8..5, proptest::collection::vec((index(), entry()), 0..4))
            .prop_map(|(gfn, level, entries)| Op::Add { gfn, level, entries }),
        4 => (gfn(), index(), entry()).prop_map(|(gfn, index, entry)| Op::Store { gfn, index, entry }),
        1 => gfn().prop_map(|gfn| Op::Retire { gfn }),
        12 => (0usize..3, va, any::<bool>()).prop_map(|(root, va, write)| Op::Access { root: FRAMES[root] << 12, va, write }),
    ]
}

type Naive = HashMap<u64, (u8, [u64; 512])>;

fn read(tables: &Naive, at: u64) -> u64 {
    tables.get(&(at >> 12)).map_or(0, |t| t.1[(at >> 3) as usize % 512])
}

/// Level, address and value of the last entry, whether it maps, and whether writes are allowed.
fn naive(tables: &Naive, table: u64, level: u8, va: u64, writable: bool) -> (u8, u64, u64, bool, bool) {
    let at = table + 8 * (va >> (3 + 9 * u32::from(level)) & 511);
    let entry = read(tables, at);
    let writable = writable && entry & WRITE != 0;
    if entry & PRESENT == 0 {
        return (level, at, entry, false, writable);
    }
    if level == 1 || (level < 4 && entry & LARGE != 0) {
        return (level, at, entry, true, writable);
    }
    naive(tables, entry & ADDRESS, level - 1, va, writable)
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn a_look_up_equals_the_naive_walk_and_sets_the_leafs_bits_alone(ops in proptest::collection::vec(op(), 1..400)) {
        let mut fast = GuestTables::new(&X86_64_4_LEVEL);
        let mut slow = Naive::new();
        for op in ops {
            match op {
                Op::Add { gfn, level, entries } => {
                    let mut page = [0; 512];
                    entries.iter().for_each(|&(i, e)| page[i] = e);
                    fast.add(gfn, level, &page);
                    slow.insert(gfn, (level, page));
                }
                Op::Store { gfn, index, entry } => {
                    fast.store(Gpa((gfn << 12) + 8 * index as u64), entry);
                    if let Some(t) = slow.get_mut(&gfn) { t.1[index] = entry; }
                }
                Op::Retire { gfn } => {
                    fast.retire(gfn);
                    slow.remove(&gfn);
                }
                Op::Access { root, va, write } => {
                    let (level, at, entry, maps, writable) = naive(&slow, root, 4, va, true);
                    match fast.lookup(Gpa(root), Gva(va)) {
                        Err(step) => {
                            prop_assert!(!maps);
                            prop_assert_eq!((step.level, step.at, step.entry), (level, at, entry));
                        }
                        Ok(leaf) => {
                            prop_assert!(maps);
                            prop_assert_eq!((leaf.step.level, leaf.step.at, leaf.step.entry), (level, at, entry));
                            prop_assert_eq!(leaf.writable, writable);
                            let mask = (1u64 << (3 + 9 * level as u32)) - 1;
                            prop_assert_eq!(leaf.gpa(Gva(va | 0xabc)).0, (entry & ADDRESS & !mask) | ((va | 0xabc) & mask));
                            fast.touch(&leaf, write);
                            let bits = ACCESSED | if write { DIRTY } else { 0 };
                            slow.get_mut(&(at >> 12)).unwrap().1[(at >> 3) as usize % 512] |= bits;
                        }
                    }
                    if let Some(frame) = fast.peek(Gpa(root), Gva(va)) {
                        let (level, _, entry, ..) = naive(&slow, root, 4, va, true);
                        prop_assert_eq!((level, (entry & ADDRESS) >> 12), (1, frame));
                    }
                }
            }
        }
        prop_assert_eq!(fast.len(), slow.len());
        for (gfn, (level, entries)) in &slow {
            prop_assert_eq!(fast.level(*gfn), Some(*level));
            prop_assert!(fast.entries(*gfn, 0) == Some(entries), "entries of table {gfn:#x}");
        }
    }
}
