// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stack distances against a list, against memories of every size, and in closed form.

use crate::streams::{Act, lru_misses, streams};
use bifold_reclaim::{MOST_FRAMES, MissCurve, ReferenceKind, StackDistances, TooManyFrames};
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;

const ALL: [ReferenceKind; 4] = ReferenceKind::ALL;

/// The curves of all kinds and of their sum.
fn run<const F: usize>(acts: &[Act], frames: u64) -> Vec<MissCurve> {
    let mut stack = StackDistances::<F>::new(frames).expect("few frames");
    for act in acts {
        match *act {
            Act::Reference(frame, kind) => stack.reference(frame, kind),
            Act::Forget(frame) => stack.forget(frame),
        }
    }
    curves(&stack)
}

fn curves<const F: usize>(stack: &StackDistances<F>) -> Vec<MissCurve> {
    ALL.map(|kind| stack.curve_of(kind)).into_iter().chain([stack.curve()]).collect()
}

/// Frames and holes, the most recent first.
#[derive(Default)]
struct List(Vec<Option<u64>>);

impl List {
    fn forget(&mut self, frame: u64) {
        self.0.iter_mut().filter(|f| **f == Some(frame)).for_each(|f| *f = None);
    }

    /// The frame's distance.
    fn reference(&mut self, frame: u64) -> Option<u32> {
        let list = &mut self.0;
        let at = list.iter().position(|&f| f == Some(frame));
        let hole = list.iter().position(Option::is_none).filter(|&hole| at.is_none_or(|at| hole < at));
        match (hole, at) {
            (Some(hole), Some(at)) => {
                list[at] = None;
                list.remove(hole);
            }
            (Some(at), None) | (None, Some(at)) => _ = list.remove(at),
            (None, None) => {}
        }
        list.insert(0, Some(frame));
        at.map(|at| at as u32)
    }
}

/// Kinds and distances of references.
type Distances = Vec<(ReferenceKind, Option<u32>)>;

/// Distances by a list. `stays` has, for some acts, the frame that stays from before the act on: the list has
/// a reference to this frame before each other one.
fn by_list(acts: &[Act], stays: &[Option<Option<u64>>]) -> Distances {
    let (mut list, mut distances, mut stay) = (List::default(), Vec::new(), None);
    for (act, next) in acts.iter().zip(stays.iter().chain(std::iter::repeat(&None))) {
        if let Some(next) = *next {
            for frame in [stay, next].into_iter().flatten() {
                list.reference(frame);
            }
            stay = next;
        }
        match *act {
            Act::Forget(frame) if stay == Some(frame) => {}
            Act::Forget(frame) => list.forget(frame),
            Act::Reference(frame, kind) => {
                stay.map(|frame| list.reference(frame));
                distances.push((kind, list.reference(frame)));
            }
        }
    }
    distances
}

fn with_stays<const F: usize>(acts: &[Act], stays: &[Option<Option<u64>>]) -> Vec<MissCurve> {
    let mut stack = StackDistances::<F>::new(600).expect("few frames");
    for (act, next) in acts.iter().zip(stays.iter().chain(std::iter::repeat(&None))) {
        next.iter().for_each(|next| stack.stay(*next));
        match *act {
            Act::Forget(frame) => stack.forget(frame),
            Act::Reference(frame, kind) => stack.reference(frame, kind),
        }
    }
    curves(&stack)
}

/// Holds curves against distances, at every size from the curves' smallest on.
fn same(curves: &[MissCurve], distances: &Distances) -> Result<(), TestCaseError> {
    let of = |kind: Option<ReferenceKind>| {
        let of_kind = |&&(k, _): &&(ReferenceKind, Option<u32>)| kind.is_none_or(|kind| k == kind);
        distances.iter().filter(of_kind).map(|&(_, d)| d.map_or(u64::MAX, u64::from)).collect::<Vec<_>>()
    };
    for (curve, kind) in curves.iter().zip(ALL.map(Some).into_iter().chain([None])) {
        let mut distances = of(kind);
        distances.sort_unstable();
        prop_assert_eq!(curve.references(), distances.len() as u64);
        for size in curve.least()..602.max(curve.least() + 2) {
            let misses = distances.len() - distances.partition_point(|&d| d < size);
            prop_assert_eq!(curve.misses(size), misses as u64, "{:?} with {} frames", kind, size);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_front_gives_the_list_s_misses(acts in streams(600, 6000)) {
        let expected = by_list(&acts, &[]);
        same(&run::<1>(&acts, 600), &expected)?;
        same(&run::<2>(&acts, 600), &expected)?;
        same(&run::<5>(&acts, 600), &expected)?;
        same(&run::<16>(&acts, 600), &expected)?;
        same(&run::<256>(&acts, 600), &expected)?;
    }

    #[test]
    fn a_frame_that_stays_is_referenced_all_the_time(
        acts in prop_oneof![streams(600, 6000), streams(12, 3000)],
        stays in proptest::collection::vec(prop::option::weighted(0.1, prop::option::weighted(0.9, 0u64..12)), 0..6000),
    ) {
        let expected = by_list(&acts, &stays);
        same(&with_stays::<2>(&acts, &stays), &expected)?;
        same(&with_stays::<3>(&acts, &stays), &expected)?;
        same(&with_stays::<16>(&acts, &stays), &expected)?;
    }

    #[test]
    fn cuts_add_up_to_the_whole(acts in streams(100, 2000), cuts in proptest::collection::vec(0usize..2000, 0..4)) {
        let mut stack = StackDistances::<2>::new(100).expect("few frames");
        let mut parts = Vec::new();
        for (at, act) in acts.iter().enumerate() {
            match *act {
                Act::Reference(frame, kind) => stack.reference(frame, kind),
                Act::Forget(frame) => stack.forget(frame),
            }
            if cuts.contains(&at) {
                parts.push(stack.cut());
            }
        }
        let whole = run::<2>(&acts, 100);
        prop_assert_eq!(&curves(&stack), &whole);
        parts.push(stack.cut());
        for size in 2..=101 {
            prop_assert_eq!(parts.iter().map(|part| part.misses(size)).sum::<u64>(), whole[4].misses(size));
        }
    }

    #[test]
    fn counts_that_begin_again_know_the_frames_before(acts in streams(100, 2000), at in 0usize..2000) {
        let at = at.min(acts.len());
        let mut stack = StackDistances::<3>::new(100).expect("few frames");
        for (n, act) in acts.iter().enumerate() {
            if n == at {
                stack.restart();
            }
            match *act {
                Act::Reference(frame, kind) => stack.reference(frame, kind),
                Act::Forget(frame) => stack.forget(frame),
            }
        }
        if at < acts.len() {
            let before = acts[..at].iter().filter(|a| matches!(a, Act::Reference(..))).count();
            same(&curves(&stack), &by_list(&acts, &[])[before..].to_vec())?;
        }
    }

    #[test]
    fn curves_are_the_misses_of_memories_of_every_size(acts in streams(24, 600)) {
        let curves = run::<1>(&acts, 24);
        for size in 1..26 {
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
    for n in [2, 15, 16, 17, 256, 3000] {
        let mut stack = StackDistances::<1>::new(n).expect("few frames");
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
    // Once all frames were referenced, each depth of the stack is as likely as any other, whatever was
    // referenced before.
    (0..N).for_each(|frame| stack.reference(frame, ReferenceKind::Code));
    (0..REFERENCES).for_each(|_| stack.reference(random.random_range(0..N), ReferenceKind::Data));
    let curve = stack.curve_of(ReferenceKind::Data);
    assert_eq!((curve.references(), curve.first()), (REFERENCES, 0));
    for size in (300..=N).step_by(100) {
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
    let mut stack = StackDistances::<1>::new(8).expect("few frames");
    (0..4).for_each(|frame| stack.reference(frame, ReferenceKind::Data));
    // A memory of 3 frames holds 3, 2, 1. It does not get 0 back by the free of 2.
    stack.forget(2);
    stack.reference(0, ReferenceKind::Code);
    assert_eq!((stack.curve_of(ReferenceKind::Code).misses(3), stack.curve().misses(4)), (1, 4));
    // 0 came into the free frame, and 1 stayed.
    stack.reference(1, ReferenceKind::Walk);
    assert_eq!([2, 3].map(|size| stack.curve_of(ReferenceKind::Walk).misses(size)), [1, 0]);
}

#[test]
fn frames_outside_are_counted_apart() {
    let mut stack = <StackDistances>::new(4).expect("few frames");
    for frame in [3, 4, u64::from(u32::MAX), 1 << 32 | 3, u64::MAX] {
        stack.reference(frame, ReferenceKind::Device);
        stack.forget(frame);
    }
    assert_eq!((stack.outside(), stack.held(), stack.curve().references()), (4, 0, 1));
}

#[test]
fn a_guest_of_too_many_frames_is_refused() {
    let frames = MOST_FRAMES + 1;
    assert_eq!(<StackDistances>::new(frames).err(), Some(TooManyFrames { frames }));
}
