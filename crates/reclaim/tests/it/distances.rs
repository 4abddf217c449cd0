// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stack distances against a list, against memories of every size, and in closed form.

use crate::streams::{Act, lru_misses, streams};
use bifold_reclaim::{MOST_FRAMES, MissCurve, ReferenceKind, StackDistances, TooManyFrames};
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;

const ALL: [ReferenceKind; 4] = ReferenceKind::ALL;

/// The curves of all kinds and of their sum, and each reference's distance.
fn run<const K: usize>(acts: &[Act], frames: u64) -> (Vec<MissCurve>, Vec<Option<u32>>) {
    let mut stack = StackDistances::<K>::new(frames).expect("few frames");
    let mut distances = Vec::new();
    for act in acts {
        match *act {
            Act::Reference(frame, kind) => distances.push(stack.reference(frame, kind)),
            Act::Forget(frame) => stack.forget(frame),
        }
    }
    (ALL.map(|kind| stack.curve_of(kind)).into_iter().chain([stack.curve()]).collect(), distances)
}

/// Distances by a list of frames and holes, the most recent first.
fn by_list(acts: &[Act]) -> Vec<Option<u32>> {
    let (mut list, mut distances) = (Vec::<Option<u64>>::new(), Vec::new());
    for act in acts {
        match *act {
            Act::Forget(frame) => list.iter_mut().filter(|f| **f == Some(frame)).for_each(|f| *f = None),
            Act::Reference(frame, _) => {
                let at = list.iter().position(|&f| f == Some(frame));
                distances.push(at.map(|d| d as u32));
                let hole =
                    list.iter().position(Option::is_none).filter(|&hole| at.is_none_or(|at| hole < at));
                match (hole, at) {
                    (Some(hole), Some(at)) => {
                        list[at] = None;
                        list.remove(hole);
                    }
                    (Some(at), None) | (None, Some(at)) => _ = list.remove(at),
                    (None, None) => {}
                }
                list.insert(0, Some(frame));
            }
        }
    }
    distances
}

proptest! {
    #[test]
    fn any_front_gives_the_list_s_distances(acts in streams(600, 6000)) {
        let expected = by_list(&acts);
        let (curves, distances) = run::<0>(&acts, 600);
        prop_assert_eq!(&distances, &expected);
        for other in [run::<1>(&acts, 600), run::<2>(&acts, 600), run::<16>(&acts, 600), run::<256>(&acts, 600)] {
            prop_assert_eq!(&other.1, &expected);
            prop_assert_eq!(&other.0, &curves);
        }
    }

    #[test]
    fn curves_are_the_misses_of_memories_of_every_size(acts in streams(24, 600)) {
        let curves = run::<4>(&acts, 24).0;
        for size in 0..26 {
            let misses = lru_misses(&acts, size);
            for kind in ALL {
                prop_assert_eq!(curves[kind as usize].misses(size as u64), misses[kind as usize], "{:?}, {}", kind, size);
            }
            prop_assert_eq!(curves[4].misses(size as u64), misses.iter().sum::<u64>());
        }
    }

    #[test]
    fn frames_that_were_referenced_and_not_forgotten_are_held(acts in streams(200, 2000)) {
        let mut stack = StackDistances::<8>::new(200).expect("few frames");
        let mut held = std::collections::BTreeSet::new();
        for act in acts {
            match act {
                Act::Reference(frame, kind) => {
                    stack.reference(frame, kind);
                    held.insert(frame);
                }
                Act::Forget(frame) => {
                    stack.forget(frame);
                    held.remove(&frame);
                }
            }
            prop_assert_eq!(stack.held(), held.len() as u64);
        }
    }
}

#[test]
fn a_loop_over_n_frames_misses_always_below_n_and_then_never() {
    for n in [1, 15, 16, 17, 256, 3000] {
        let mut stack = <StackDistances>::new(n).expect("few frames");
        for frame in (0..n).cycle().take(10 * n as usize) {
            stack.reference(frame, ReferenceKind::Data);
        }
        let curve = stack.curve();
        assert_eq!((curve.misses(n - 1), curve.misses(n), curve.enough()), (10 * n, n, n));
    }
}

#[test]
fn uniform_references_to_n_frames_miss_in_proportion_to_what_is_missing() {
    const N: u64 = 2000;
    const REFERENCES: u64 = 400_000;
    let mut random = Pcg64::seed_from_u64(1);
    let mut stack = <StackDistances>::new(N).expect("few frames");
    // Once all frames were referenced, each depth of the stack is as likely as any other, whatever was referenced before.
    (0..N).for_each(|frame| _ = stack.reference(frame, ReferenceKind::Code));
    (0..REFERENCES).for_each(|_| _ = stack.reference(random.random_range(0..N), ReferenceKind::Data));
    let curve = stack.curve_of(ReferenceKind::Data);
    assert_eq!((curve.references(), curve.first()), (REFERENCES, 0));
    for size in (0..=N).step_by(100) {
        let p = 1.0 - size as f64 / N as f64;
        let band = 5.0 * (REFERENCES as f64 * p * (1.0 - p)).sqrt();
        let (misses, expected) = (curve.misses(size) as f64, REFERENCES as f64 * p);
        assert!(
            (misses - expected).abs() <= band,
            "{misses} misses with {size} frames: {expected} +- {band}"
        );
    }
}

#[test]
fn memory_that_was_freed_serves_the_next_miss() {
    let mut stack = <StackDistances>::new(8).expect("few frames");
    (0..4).for_each(|frame| _ = stack.reference(frame, ReferenceKind::Data));
    // A memory of 3 frames holds 3, 2, 1. It does not get 0 back by the free of 2.
    stack.forget(2);
    assert_eq!(stack.reference(0, ReferenceKind::Data), Some(3));
    // 0 came into the free frame, and 1 stayed.
    assert_eq!(stack.reference(1, ReferenceKind::Data), Some(2));
}

#[test]
fn frames_outside_are_counted_apart() {
    let mut stack = <StackDistances>::new(4).expect("few frames");
    for frame in [3, 4, u64::from(u32::MAX), 1 << 32 | 3, u64::MAX] {
        assert_eq!(stack.reference(frame, ReferenceKind::Device), None);
        stack.forget(frame);
    }
    assert_eq!((stack.outside(), stack.held(), stack.curve().references()), (4, 0, 1));
}

#[test]
fn a_guest_of_too_many_frames_is_refused() {
    let frames = MOST_FRAMES + 1;
    assert_eq!(<StackDistances>::new(frames).err(), Some(TooManyFrames { frames }));
}
