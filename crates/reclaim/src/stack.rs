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
    /// `counts` and `first` are those since the last cut; these are those before.
    past: Vec<(Vec<u64>, u64)>,
    /// The frame that stays, which is in the front; a hole if there is none.
    staying: u32,
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
            past: Vec::new(),
            staying: HOLE,
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
        self.lift_staying();
        let distance = self.enter(frame);
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
        distance
    }

    /// Puts a frame that is not in the front on top. Returns its distance.
    fn enter(&mut self, frame: u32) -> Option<u32> {
        let slot = std::mem::replace(&mut self.slot_of[frame as usize], NONE);
        let slot = (slot != NONE).then_some(slot);
        let distance = slot.map(|slot| K as u32 + self.slots.after(slot));
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

    /// From now on each call of [`Self::reference`] or [`Self::forget`], and this one, is followed by a reference to `frame` that no curve
    /// counts: the page whose code runs, which is used without pause. `None`, and a frame outside of the guest's memory, end that.
    ///
    /// The reference is made when it matters. Distances of `K` and more, and first references, are those of the full stream.
    /// Distances below `K` stay below, and can be smaller by the one frame.
    ///
    /// ```
    /// use bifold_reclaim::{ReferenceKind, StackDistances};
    ///
    /// let mut stack = <StackDistances>::new(100)?;
    /// stack.reference(50, ReferenceKind::Code);
    /// stack.stay(Some(50));
    /// (0..10).for_each(|frame| _ = stack.reference(frame, ReferenceKind::Data));
    /// // The code ran all the while: 1 to 9 and 50 lie above 0.
    /// assert_eq!(stack.reference(0, ReferenceKind::Data), Some(10));
    /// assert!(stack.reference(50, ReferenceKind::Code) < Some(4));
    /// # Ok::<(), bifold_reclaim::TooManyFrames>(())
    /// ```
    pub fn stay(&mut self, frame: Option<u64>) {
        const { assert!(K >= 2, "a front of 2 holds the frame that stays while another one enters") };
        self.lift_staying();
        self.staying = HOLE;
        let Some(frame) = frame.filter(|&frame| frame < self.slot_of.len() as u64) else { return };
        let frame = frame as u32;
        match self.find(frame) {
            Some(depth) => self.lift(frame, depth),
            None => _ = self.enter(frame),
        }
        self.staying = frame;
    }

    /// Makes the reference to the frame that stays.
    ///
    /// In the full stream this frame is always on top. Here it is somewhere in the front, and lifting it gives the full stream's stack:
    ///
    /// - A reference within the front changes neither the order of the other frames nor, as the front is as long, which frames are
    ///   in it. So the same references leave the front in both streams.
    /// - Before a reference that leaves the front, the frame is lifted. From there on both streams do the same, and the frame is
    ///   on top or second, so it does not fall out of a front of 2 or more.
    /// - A hole in the front is filled by the first reference that leaves the front. Until then its place changes distances within
    ///   the front only, so that a different place does no harm.
    #[inline]
    fn lift_staying(&mut self) {
        if self.staying != HOLE {
            let depth = self.find(self.staying).expect("the frame that stays is in the front");
            self.shift(self.staying, depth);
        }
    }

    /// The guest frees `frame`, or reports it as free: the frame holds no memory from now on. No effect if it holds none, or
    /// [stays](Self::stay).
    pub fn forget(&mut self, frame: u64) {
        if u64::from(self.staying) == frame {
            return;
        }
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
        let past = self.past.get(kind as usize);
        let counts = past.map(|(counts, _)| counts).into_iter().chain([&self.counts[kind as usize]]);
        MissCurve::new(past.map_or(0, |(_, first)| *first) + self.first[kind as usize], &sum(counts))
    }

    /// Misses of all references.
    pub fn curve(&self) -> MissCurve {
        let first = self.past.iter().map(|(_, first)| first).chain(&self.first).sum();
        MissCurve::new(first, &sum(self.past.iter().map(|(counts, _)| counts).chain(&self.counts)))
    }

    /// Misses of all references since the last cut, or the start. The next cut, and no other curve, is without them.
    ///
    /// ```
    /// use bifold_reclaim::{ReferenceKind, StackDistances};
    ///
    /// let mut stack = <StackDistances>::new(16)?;
    /// [1, 2].map(|frame| stack.reference(frame, ReferenceKind::Data));
    /// assert_eq!(stack.cut().first(), 2);
    /// stack.reference(1, ReferenceKind::Data);
    /// let curve = stack.cut();
    /// assert_eq!((curve.references(), curve.first(), curve.enough()), (1, 0, 2));
    /// assert_eq!(stack.curve().references(), 3);
    /// # Ok::<(), bifold_reclaim::TooManyFrames>(())
    /// ```
    pub fn cut(&mut self) -> MissCurve {
        let curve = MissCurve::new(self.first.iter().sum(), &sum(&self.counts));
        self.past.resize_with(self.counts.len(), Default::default);
        for ((past, all), (counts, first)) in
            self.past.iter_mut().zip(self.counts.iter_mut().zip(&mut self.first))
        {
            *past = sum([&*past, &*counts]);
            *all += std::mem::take(first);
            counts.fill(0);
        }
        curve
    }
}

/// Histograms added up.
fn sum<'a>(histograms: impl IntoIterator<Item = &'a Vec<u64>>) -> Vec<u64> {
    let mut sum = Vec::new();
    for counts in histograms {
        sum.resize(sum.len().max(counts.len()), 0);
        sum.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
    }
    sum
}
