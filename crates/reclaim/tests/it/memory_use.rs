// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All of a stream's results together against each made alone.

use crate::streams::{Act, streams};
use bifold_reclaim::{MemoryUse, NextUses, ReferenceKind, StackDistances, WorkingSets};
use proptest::prelude::*;
use std::num::NonZeroU64;

/// One step of a guest.
#[derive(Debug, Clone, Copy)]
enum Step {
    Act(Act, bool),
    Stay(Option<u64>),
    Ran(u64),
    Restart,
}

fn steps(frames: u64, length: usize) -> impl Strategy<Value = Vec<Step>> {
    (streams(frames, length), any::<u64>(), any::<bool>()).prop_map(move |(acts, seed, restarts)| {
        let mut bits = seed | 1;
        let mut draw = move |n: u64| {
            bits = bits.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (bits >> 33) % n
        };
        let mut steps = Vec::new();
        for act in acts {
            match draw(400) {
                0..3 => steps.push(Step::Stay((draw(4) > 0).then(|| draw(20)))),
                3..20 => steps.push(Step::Ran(1 + draw(40))),
                20 if restarts && draw(8) == 0 => steps.push(Step::Restart),
                _ => {}
            }
            steps.push(Step::Act(act, draw(4) == 0));
        }
        steps
    })
}

/// The results of a front of `F` hold against those made one by one.
fn check<const F: usize>(steps: &[Step]) -> Result<(), TestCaseError> {
    let (frames, length) = (600, NonZeroU64::new(100).expect("not 0"));
    let mut all = MemoryUse::<F>::new(frames, length, 1 << 20).expect("few frames");
    let mut stack = StackDistances::<F>::new(frames).expect("few frames");
    let mut uses = NextUses::new(frames, 1 << 20).expect("few frames");
    let mut sets = WorkingSets::new(frames, length).expect("few frames");
    let (mut stay, mut now) = (None, 0);
    for step in steps {
        match *step {
            Step::Act(Act::Reference(frame, kind), write) => {
                all.reference(frame, kind, write);
                stack.reference(frame, kind);
                for frame in stay.into_iter().chain([frame]) {
                    uses.reference(frame);
                }
                stay.into_iter().for_each(|frame| sets.reference(frame, false, now));
                sets.reference(frame, write, now);
            }
            Step::Act(Act::Forget(frame), _) => {
                all.forget(frame);
                stack.forget(frame);
                if stay != Some(frame) {
                    uses.forget(frame);
                }
            }
            Step::Stay(next) => {
                all.stay(next);
                stack.stay(next);
                for frame in [stay, next].into_iter().flatten() {
                    uses.reference(frame);
                    sets.reference(frame, false, now);
                }
                stay = next;
            }
            Step::Ran(n) => {
                now += n;
                all.ran(now);
            }
            Step::Restart => {
                all.restart();
                stack.restart();
                uses.restart();
                sets.restart();
                now = 0;
            }
        }
    }
    all.end();
    for kind in ReferenceKind::ALL {
        prop_assert_eq!(all.curve_of(kind), stack.curve_of(kind));
    }
    prop_assert_eq!(all.held(), stack.held());
    for size in [0, 1, 2, 5, 10, 50, 100, 200, 599, 600].map(|more| 3 * F as u64 + more) {
        prop_assert_eq!(all.optimum(size), uses.misses(size), "{} frames", size);
    }
    prop_assert_eq!(all.optimum(3 * F as u64 - 1), None);
    let intervals = all.intervals();
    let used = intervals.iter().filter(|i| i.frames > 0).map(|i| (i.frames, i.dirty)).collect::<Vec<_>>();
    prop_assert_eq!(used, sets.finish().iter().map(|s| (s.frames, s.dirty)).collect::<Vec<_>>());
    prop_assert_eq!(intervals.iter().map(|i| i.instructions).sum::<u64>(), now);
    for (at, &size) in all.sizes().iter().enumerate() {
        let sum = intervals.iter().map(|i| i.misses[at]).sum::<u64>();
        prop_assert_eq!(sum, stack.curve().misses(size));
    }
    Ok(())
}

proptest! {
    #[test]
    fn what_is_made_together_is_what_is_made_alone(steps in prop_oneof![steps(600, 8000), steps(60, 6000)]) {
        check::<2>(&steps)?;
        check::<7>(&steps)?;
        check::<64>(&steps)?;
    }
}
