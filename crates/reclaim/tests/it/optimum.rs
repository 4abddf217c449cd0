// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Belady's optimum against all possible replacements, and beside LRU.

use crate::streams::{Act, lru_misses, streams};
use bifold_reclaim::{NextUses, ReferenceKind};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn record(acts: &[Act], frames: u64, most: u64) -> NextUses {
    recorded(acts, NextUses::new(frames, most).expect("few frames"))
}

fn recorded(acts: &[Act], mut uses: NextUses) -> NextUses {
    for act in acts {
        match *act {
            Act::Reference(frame, _) => uses.reference(frame),
            Act::Forget(frame) => uses.forget(frame),
        }
    }
    uses
}

/// The fewest misses by trying every replacement: the fewest so far for each content of the memory, a bit per
/// frame.
fn by_trial(acts: &[Act], size: u32) -> u64 {
    let mut best = BTreeMap::from([(0u32, 0u64)]);
    for act in acts {
        let mut after = BTreeMap::new();
        let mut reach = |memory: u32, misses: u64| {
            let fewest = after.entry(memory).or_insert(misses);
            *fewest = misses.min(*fewest);
        };
        for (memory, misses) in best {
            match *act {
                Act::Forget(frame) => reach(memory & !(1 << frame), misses),
                Act::Reference(frame, _) if memory >> frame & 1 != 0 => reach(memory, misses),
                Act::Reference(frame, _) if memory.count_ones() < size => {
                    reach(memory | 1 << frame, misses + 1)
                }
                Act::Reference(frame, _) => {
                    for victim in (0..32).filter(|victim| memory >> victim & 1 != 0) {
                        reach(memory & !(1 << victim) | 1 << frame, misses + 1);
                    }
                }
            }
        }
        best = after;
    }
    best.into_values().min().expect("a content")
}

/// Loops over few frames, each for a while, with jumps to others and now and then a free.
fn phases() -> impl Strategy<Value = Vec<Act>> {
    let phase = (0u64..500, 1u64..100, 1usize..2000, 1u64..40, 1u64..200);
    proptest::collection::vec(phase, 1..8).prop_map(|phases| {
        let of = |(start, frames, length, jump, free): (u64, u64, usize, u64, u64)| {
            (0..length as u64).flat_map(move |at| {
                let frame = start + at % frames;
                let other = (frame * 7919 + at) % 600;
                let other = match at {
                    at if at % free == free - 1 => Some(Act::Forget(other)),
                    at if at % jump == jump - 1 => Some(Act::Reference(other, ReferenceKind::Data)),
                    _ => None,
                };
                [Some(Act::Reference(frame, ReferenceKind::Data)), other].into_iter().flatten()
            })
        };
        phases.into_iter().flat_map(of).collect()
    })
}

proptest! {
    #[test]
    fn no_replacement_misses_less(acts in streams(7, 40)) {
        let uses = record(&acts, 7, 1000);
        for size in 1..=7 {
            prop_assert_eq!(uses.misses(u64::from(size)), Some(by_trial(&acts, size)), "{} frames", size);
        }
    }

    #[test]
    fn lru_misses_at_least_as_often(acts in streams(100, 2000)) {
        let uses = record(&acts, 100, 10_000);
        let mut before = u64::MAX;
        for size in [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 100, 1000] {
            let misses = uses.misses(size).expect("any size");
            prop_assert!(misses <= lru_misses(&acts, size as usize).iter().sum());
            prop_assert!(misses <= before, "more memory, more misses");
            before = misses;
        }
        prop_assert_eq!(before, lru_misses(&acts, 100).iter().sum::<u64>());
    }

    #[test]
    fn a_record_for_large_memories_gives_them_the_same_misses(
        acts in prop_oneof![streams(100, 6000), streams(600, 12_000), phases()], least in 0u64..120,
    ) {
        let whole = record(&acts, 600, 100_000);
        let less = recorded(&acts, NextUses::for_memories_of(least, 600, 100_000).expect("few frames"));
        prop_assert_eq!(less.references(), whole.references());
        for size in (0..12).map(|i| least + i * i) {
            prop_assert_eq!(less.misses(size), whole.misses(size), "{} frames", size);
        }
        for size in 0..least {
            prop_assert_eq!(less.misses(size), None);
        }
    }

    #[test]
    fn a_full_record_is_that_of_its_references(acts in streams(10, 200), most in 0u64..100) {
        let uses = record(&acts, 10, most);
        let references = |acts: &[Act]| acts.iter().filter(|a| matches!(a, Act::Reference(..))).count() as u64;
        prop_assert_eq!(uses.references() + uses.dropped(), references(&acts));
        let recorded = (0..=acts.len()).find(|&n| references(&acts[..n]) == uses.references());
        let prefix = &acts[..recorded.expect("a prefix")];
        for size in [0, 1, 2, 4, 8] {
            prop_assert_eq!(uses.misses(size), record(prefix, 10, 1000).misses(size));
        }
    }
}

#[test]
fn a_loop_over_n_frames_keeps_all_but_one_of_the_memory() {
    const N: u64 = 100;
    const ROUNDS: u64 = 50;
    let mut uses = NextUses::new(N, 1 << 20).expect("few frames");
    (0..N).cycle().take((N * ROUNDS) as usize).for_each(|frame| uses.reference(frame));
    // Of m frames, m - 1 stay during each N - 1 references, and one lets the others pass.
    for m in [2, 10, 50, 99] {
        let misses = uses.misses(m).expect("any size") - m;
        let expected = ((N * ROUNDS - m) as f64) * (N - m) as f64 / (N - 1) as f64;
        assert!(
            (misses as f64 - expected).abs() <= N as f64,
            "{misses} misses with {m} frames, not {expected}"
        );
    }
}

#[test]
fn frames_outside_are_counted_apart() {
    let mut uses = NextUses::new(4, 10).expect("few frames");
    for frame in [3, 4, 1 << 32 | 3, u64::MAX] {
        uses.reference(frame);
        uses.forget(frame);
    }
    assert_eq!((uses.outside(), uses.references(), uses.misses(1)), (3, 1, Some(1)));
}
