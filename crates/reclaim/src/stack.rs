// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The LRU stack: a short list of the frames used last, and behind it a tree of the times of last use.
//!
//! A frame that is forgotten leaves a hole. A hole is memory that is free in every memory which held the frame, so a miss there
//! replaces nothing: the frames above the topmost hole move down by one, and those below it keep their places. If the
//! reference hits below the hole, the hole moves down to where the frame was. So at any size the frames within the size
//! are those that an LRU memory of this size holds. Without holes the curve would be too low: the frames below would move up into
//! memories that have dropped them.
//!
//! The stack begins as holes only, and ends in holes without end.

use crate::curve::MissCurve;
use crate::frames::{ReferenceKind, TooManyFrames, per_frame};
use crate::slots::{Slots, WORD};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// In place of a frame: a hole.
const HOLE: u32 = u32::MAX;
/// In place of a slot: the frame has none.
const NONE: u32 = u32::MAX;
/// The fewest slots of the tree.
const FEWEST: u32 = 16 * WORD;

/// Stack distances of a stream of references, exact, counted by the kind of the reference.
///
/// The distance of a reference is the number of distinct frames referenced since the last reference to the same frame, and of
/// [forgotten](Self::forget) frames' places among them that no miss has filled. It is infinite for the first reference
/// since the start or since the frame was forgotten. A memory of m frames with LRU replacement hits if the distance is less
/// than m. All kinds share one memory.
///
/// `K` frames used last stand in front in an array, so that a reference found there leaves the tree alone. Any `K`, 0 included, gives
/// the same counts; `benches/references.rs` prints what a reference costs. Memory: 4 bytes for each frame of the guest; for each frame referenced, 16 to 34 bytes, and 8 more for each
/// kind of reference.
///
/// ```
/// use bifold_reclaim::{ReferenceKind, StackDistances};
///
/// let mut stack = <StackDistances>::new(16)?;
/// assert_eq!(stack.reference(7, ReferenceKind::Code), None);
/// assert_eq!(stack.reference(3, ReferenceKind::Data), None);
/// assert_eq!(stack.reference(7, ReferenceKind::Code), Some(1));
/// // The guest frees frame 3.
/// stack.forget(3);
/// assert_eq!(stack.reference(3, ReferenceKind::Data), None);
/// assert_eq!(stack.curve_of(ReferenceKind::Code).misses(1), 2);
/// assert_eq!(stack.curve_of(ReferenceKind::Code).misses(2), 1);
/// assert_eq!(stack.curve().first(), 3);
/// # Ok::<(), bifold_reclaim::TooManyFrames>(())
/// ```
#[derive(Debug, Clone)]
pub struct StackDistances<const K: usize = 4> {
    /// The top of the stack: frames and holes, the most recent first.
    front: [u32; K],
    holes_in_front: usize,
    /// The rest of the stack, the most recent last.
    slots: Slots,
    /// What has a slot: a frame or a hole. Of no use for dead slots.
    owners: Vec<u32>,
    /// Slots that are holes.
    holes: BinaryHeap<u32>,
    /// The slot of each frame of the guest that has one.
    slot_of: Vec<u32>,
    /// References by kind and distance.
    counts: [Vec<u64>; ReferenceKind::ALL.len()],
    /// References of infinite distance by kind.
    first: [u64; ReferenceKind::ALL.len()],
    outside: u64,
}

impl<const K: usize> StackDistances<K> {
    /// An empty stack for a guest of `frames` frames.
    ///
    /// # Errors
    ///
    /// The guest has more than [`MOST_FRAMES`](crate::MOST_FRAMES).
    pub fn new(frames: u64) -> Result<Self, TooManyFrames> {
        Ok(StackDistances {
            front: [HOLE; K],
            holes_in_front: K,
            slots: Slots::new(0, FEWEST),
            owners: vec![HOLE; FEWEST as usize],
            holes: BinaryHeap::new(),
            slot_of: per_frame(frames, NONE)?,
            // Long enough for all distances in the front.
            counts: std::array::from_fn(|_| vec![0; K]),
            first: Default::default(),
            outside: 0,
        })
    }

    /// A reference to `frame`: its distance in frames, or `None` if that is infinite. A frame outside of the guest's memory, of
    /// a device's registers for example, has none and is counted apart ([`Self::outside`]).
    #[inline]
    pub fn reference(&mut self, frame: u64, kind: ReferenceKind) -> Option<u32> {
        if frame >= self.slot_of.len() as u64 {
            self.outside += 1;
            return None;
        }
        let frame = frame as u32;
        if self.front.first() == Some(&frame) {
            self.counts[kind as usize][0] += 1;
            return Some(0);
        }
        match self.find(frame) {
            Some(depth) => {
                self.counts[kind as usize][depth] += 1;
                self.lift(frame, depth);
                Some(depth as u32)
            }
            None => self.behind(frame, kind),
        }
    }

    /// The place of `frame` in the front. All places are compared, as the end of a search would be mispredicted.
    #[inline(always)]
    fn find(&self, frame: u32) -> Option<usize> {
        let mut place = 0;
        for (at, &f) in (1u32..).zip(&self.front) {
            place += if f == frame { at } else { 0 };
        }
        (place as usize).checked_sub(1)
    }

    /// Moves `frame` to the top from `depth` in the front.
    #[inline]
    fn lift(&mut self, frame: u32, depth: usize) {
        if self.holes_in_front > 0 {
            if let Some(hole) = self.front[..depth].iter().position(|&f| f == HOLE) {
                self.shift(frame, hole);
                self.front[depth] = HOLE;
                return;
            }
        }
        self.shift(frame, depth);
    }

    /// Puts `frame` on top; what was above `depth` moves down by one, in place of what was there.
    #[inline(always)]
    fn shift(&mut self, frame: u32, depth: usize) {
        let old = self.front;
        for (at, f) in (1u32..).zip(&mut self.front[1..]) {
            *f = if at <= depth as u32 { old[at as usize - 1] } else { *f };
        }
        self.front[0] = frame;
    }

    /// A reference to a frame that is not in the front.
    #[inline(never)]
    fn behind(&mut self, frame: u32, kind: ReferenceKind) -> Option<u32> {
        let slot = std::mem::replace(&mut self.slot_of[frame as usize], NONE);
        let slot = (slot != NONE).then_some(slot);
        let distance = slot.map(|slot| K as u32 + self.slots.after(slot));
        match distance {
            None => self.first[kind as usize] += 1,
            Some(distance) => {
                let counts = &mut self.counts[kind as usize];
                if counts.len() <= distance as usize {
                    counts.resize(distance as usize + 1, 0);
                }
                counts[distance as usize] += 1;
            }
        }
        if self.holes_in_front > 0 {
            let hole = self.front.iter().position(|&f| f == HOLE).expect("holes are counted");
            self.shift(frame, hole);
            self.holes_in_front -= 1;
            slot.into_iter().for_each(|slot| self.dig(slot));
            return distance;
        }
        let pushed = match K {
            0 => frame,
            _ => {
                let last = self.front[K - 1];
                self.shift(frame, K - 1);
                last
            }
        };
        self.fill(slot);
        self.push(pushed);
        distance
    }

    /// Makes the place in the tree that the next push needs: takes the topmost hole above `slot`, which becomes a hole then, or else
    /// `slot`.
    fn fill(&mut self, slot: Option<u32>) {
        match (self.holes.peek_mut(), slot) {
            (Some(hole), None) => self.slots.remove(PeekMut::pop(hole)),
            (Some(mut hole), Some(slot)) if *hole > slot => {
                self.slots.remove(std::mem::replace(&mut *hole, slot));
                self.owners[slot as usize] = HOLE;
            }
            (_, Some(slot)) => self.slots.remove(slot),
            (None, None) => {}
        }
    }

    /// Files `frame` as the most recent of the tree.
    fn push(&mut self, frame: u32) {
        if self.slots.is_full() {
            self.compact();
        }
        let slot = self.slots.push();
        self.owners[slot as usize] = frame;
        self.slot_of[frame as usize] = slot;
    }

    /// Turns the slot of a frame into a hole.
    fn dig(&mut self, slot: u32) {
        self.owners[slot as usize] = HOLE;
        self.holes.push(slot);
    }

    /// Numbers the live slots from 0, and makes room for three times as many.
    #[cold]
    fn compact(&mut self) {
        let Self { slots, owners, slot_of, .. } = self;
        let mut holes = std::mem::take(&mut self.holes).into_vec();
        holes.clear();
        let mut live = 0;
        for slot in slots.iter() {
            let owner = owners[slot as usize];
            owners[live as usize] = owner;
            if owner == HOLE {
                holes.push(live);
            } else {
                slot_of[owner as usize] = live;
            }
            live += 1;
        }
        self.holes = holes.into();
        let capacity = (live.div_ceil(WORD) * WORD * 4).max(FEWEST);
        slots.reset(live, capacity);
        owners.resize(capacity as usize, HOLE);
    }

    /// The guest frees `frame`, or reports it as free: the frame holds no memory from now on. No effect if it holds none.
    pub fn forget(&mut self, frame: u64) {
        let Some(slot) = usize::try_from(frame).ok().and_then(|i| self.slot_of.get_mut(i)) else { return };
        match std::mem::replace(slot, NONE) {
            NONE => {
                let frame = frame as u32;
                if let Some(at) = self.front.iter_mut().find(|f| **f == frame) {
                    *at = HOLE;
                    self.holes_in_front += 1;
                }
            }
            slot => self.dig(slot),
        }
    }

    /// Frames that hold memory: those referenced and not forgotten since.
    pub fn held(&self) -> u64 {
        u64::from(self.slots.live()) - self.holes.len() as u64 + (K - self.holes_in_front) as u64
    }

    /// References outside of the guest's memory. No curve has them.
    pub fn outside(&self) -> u64 {
        self.outside
    }

    /// Misses of references of one kind, in a memory shared by all kinds.
    pub fn curve_of(&self, kind: ReferenceKind) -> MissCurve {
        MissCurve::new(self.first[kind as usize], &self.counts[kind as usize])
    }

    /// Misses of all references.
    pub fn curve(&self) -> MissCurve {
        let depth = self.counts.iter().map(Vec::len).max().unwrap_or(0);
        let mut sum = vec![0; depth];
        for counts in &self.counts {
            sum.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
        }
        MissCurve::new(self.first.iter().sum(), &sum)
    }
}
