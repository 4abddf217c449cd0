// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest misses while its memory grows: the estimate from the interval's curve beside an LRU memory
//! whose size changes.

use bifold_reclaim::{About, MemoryTimeline, MemoryUse, ReferenceKind};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use std::num::NonZeroU64;

const FRAMES: u64 = 2048;
const REFERENCES: usize = 20_000;

/// An LRU memory, the most recent frame last.
#[derive(Default)]
struct Memory(Vec<u64>);

impl Memory {
    /// The memory has `size` frames from now on.
    fn shrink(&mut self, size: usize) {
        self.0.drain(..self.0.len().saturating_sub(size));
    }

    fn misses(&mut self, frame: u64, size: usize) -> bool {
        let at = self.0.iter().rposition(|&f| f == frame);
        match at {
            Some(at) => _ = self.0.remove(at),
            None if self.0.len() == size => _ = self.0.remove(0),
            None => {}
        }
        self.0.push(frame);
        at.is_none()
    }
}

/// A reference of a program that is alike all the time. Its curve bends at sizes of the grid, so that the
/// lines between are near it.
fn reference(kind: usize, at: usize, random: &mut Pcg64) -> u64 {
    match kind {
        0 => random.random_range(0..1536),
        1 => (FRAMES as f64).powf(random.random::<f64>()) as u64 - 1,
        2 => at as u64 % 896,
        _ if random.random_range(0..4) == 0 => random.random_range(400..FRAMES),
        _ => random.random_range(0..400),
    }
}

#[test]
fn misses_of_growing_memory_are_estimated_from_the_curve() {
    for kind in 0..4 {
        let mut random = Pcg64::seed_from_u64(kind as u64);
        let mut uses = MemoryUse::<64>::new(FRAMES, NonZeroU64::MIN, 0).expect("few frames");
        let about = About { guest_frames: FRAMES, ..About::default() };
        let (mut memory, mut sizes, mut exact, mut at) = (Memory::default(), Vec::new(), Vec::new(), 0);
        for interval in 1..41 {
            let size = random.random_range(4..8) << random.random_range(4..9);
            memory.shrink(size);
            sizes.push((memory.0.len() as f64, size as f64, (uses.held() as usize - memory.0.len()) as f64));
            let mut misses = 0;
            for _ in 0..REFERENCES {
                let frame = reference(kind, at, &mut random);
                at += 1;
                uses.reference(frame, ReferenceKind::Data, false);
                misses += u64::from(memory.misses(frame, size));
            }
            exact.push((misses as f64, memory.0.len() as f64));
            uses.ran(interval);
        }
        let timeline = MemoryTimeline::of(about, &uses, 1.0);
        // First references come in the beginning of the first interval: it is not alike all the time.
        for i in 1..40 {
            let (held, size, out) = sizes[i];
            let (misses, after) = timeline.curve(i).misses_while_growing(held, size, out);
            let (expected, grown) = exact[i];
            let slack = 0.04 * expected + 60.0;
            assert!(
                (misses - expected).abs() <= slack,
                "{kind}, {i}: {misses}, not {expected}, {held} of {size}"
            );
            assert!((after - grown).abs() <= 0.04 * grown, "{kind}, {i}: holds {after}, not {grown}");
        }
    }
}
