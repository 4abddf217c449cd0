// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Miss curves, Belady's optimum and working sets of one stream, at little more than the cost of the curves.
//!
//! Most references find their frame in the front of the LRU stack. The optimum and the working sets hear of
//! frames that enter the front, that leave it, and that are in it at the end of an epoch or an interval.
//!
//! For the optimum this drops references. An epoch is `F` references that bring a frame into the front. The
//! optimum hears of a frame's entry, and of its last use in each epoch and before it leaves. Between two
//! references that it hears of, `3 F - 1` other frames at most are used: those that were in the front, and
//! those that came in during two epochs, because a frame that is not used while `F` come in leaves. So
//! memories of `3 F` frames and more have the misses of the full stream (the safely allowed drop of Kaplan,
//! Smaragdakis and Wilson, as in [`NextUses`]).

use crate::curve::MissCurve;
use crate::frames::{ReferenceKind, TooManyFrames};
use crate::grid::sizes;
use crate::optimum::NextUses;
use crate::stack::{Entered, FRONT, StackDistances};
use crate::working_set::WorkingSets;
use std::num::NonZeroU64;

/// What a guest used of its memory in an interval.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IntervalUse {
    /// Instructions of the interval.
    pub instructions: u64,
    /// Distinct frames that were referenced.
    pub frames: u64,
    /// Those of them that were written.
    pub dirty: u64,
    /// Frames that hold memory at the end.
    pub held: u64,
    /// References.
    pub references: u64,
    /// References to frames that held no memory.
    pub first: u64,
    /// Misses of LRU memories of the sizes of [`MemoryUse::sizes`].
    pub misses: Vec<u64>,
}

/// What a guest uses of its memory.
///
/// ```
/// use bifold_reclaim::{MemoryUse, ReferenceKind};
/// use std::num::NonZeroU64;
///
/// let mut uses = MemoryUse::<16>::new(1000, NonZeroU64::new(100_000).unwrap(), 1 << 20)?;
/// // A loop over 100 frames.
/// for frame in (0..100).cycle().take(10_000) {
///     uses.reference(frame, ReferenceKind::Data, false);
/// }
/// uses.end();
/// assert_eq!(uses.curve().misses(99), 10_000);
/// assert_eq!(uses.optimum(99), Some(200));
/// assert_eq!(uses.intervals()[0].frames, 100);
/// # Ok::<(), bifold_reclaim::TooManyFrames>(())
/// ```
#[derive(Debug, Clone)]
pub struct MemoryUse<const F: usize = FRONT> {
    stack: StackDistances<F>,
    sets: WorkingSets,
    uses: NextUses,
    /// By place in the front: the frame was written in this interval.
    written: [bool; F],
    /// By place: the time of the last reference that `uses` hears of.
    heard: [u64; F],
    /// References of this epoch that `uses` has not heard of yet, with their times.
    epoch: Vec<(u64, u32)>,
    /// Frames that have entered in this epoch.
    entered: usize,
    /// The time at which the interval began.
    interval_begin: u64,
    /// Instructions so far, at the interval's beginning, and at which the interval ends.
    instructions: u64,
    begun_at: u64,
    ends_at: u64,
    length: NonZeroU64,
    sizes: Vec<u64>,
    intervals: Vec<IntervalUse>,
}

impl<const F: usize> MemoryUse<F> {
    /// Nothing used yet of `frames` frames. Working sets are those of intervals of `interval` instructions.
    /// For the optimum, `most` references are kept at most, of 4 bytes each.
    ///
    /// # Errors
    ///
    /// The guest has more than [`MOST_FRAMES`](crate::MOST_FRAMES).
    pub fn new(frames: u64, interval: NonZeroU64, most: u64) -> Result<Self, TooManyFrames> {
        Ok(MemoryUse {
            stack: StackDistances::new(frames)?,
            sets: WorkingSets::new(frames, NonZeroU64::MAX)?,
            uses: NextUses::for_memories_of(3 * F as u64, frames, most)?,
            written: [false; F],
            heard: [0; F],
            epoch: Vec::with_capacity(3 * F),
            entered: 0,
            interval_begin: 0,
            instructions: 0,
            begun_at: 0,
            ends_at: interval.get(),
            length: interval,
            sizes: sizes(F as u64, frames),
            intervals: Vec::new(),
        })
    }

    /// A reference to `frame`; `write` if it is a store.
    #[inline(always)]
    pub fn reference(&mut self, frame: u64, kind: ReferenceKind, write: bool) {
        match self.stack.place(frame) {
            Some(place) => {
                self.stack.near(place, kind);
                self.written[place] |= write;
            }
            None => self.far(frame, kind, write),
        }
    }

    #[inline(never)]
    fn far(&mut self, frame: u64, kind: ReferenceKind, write: bool) {
        if let Some(entered) = self.stack.far(frame, kind) {
            self.enter(entered, frame as u32, write);
        }
    }

    /// `frame` has entered the front.
    fn enter(&mut self, Entered { place, left }: Entered, frame: u32, write: bool) {
        if let Some((left, last)) = left {
            if last > self.interval_begin {
                self.sets.reference(u64::from(left), self.written[place], 0);
            }
            if last > self.heard[place] {
                self.epoch.push((last, left));
            }
        }
        self.written[place] = write;
        self.heard[place] = self.stack.now();
        self.epoch.push((self.stack.now(), frame));
        self.entered += 1;
        if self.entered == F {
            self.end_epoch();
        }
    }

    /// `uses` hears of all references so far that it has to.
    fn end_epoch(&mut self) {
        for (place, frame, last) in self.stack.front() {
            if last > self.heard[place] {
                self.heard[place] = last;
                self.epoch.push((last, frame));
            }
        }
        self.epoch.sort_unstable();
        self.epoch.drain(..).for_each(|(_, frame)| self.uses.reference(u64::from(frame)));
        self.entered = 0;
    }

    /// The frame of the code that runs: see [`StackDistances::stay`]. Working sets and optimum have it, too.
    pub fn stay(&mut self, frame: Option<u64>) {
        if let (Some(entered), Some(frame)) = (self.stack.staying_from_now(frame), frame) {
            self.enter(entered, frame as u32, false);
        }
    }

    /// The guest frees `frame`, or reports it as free.
    pub fn forget(&mut self, frame: u64) {
        if self.stack.stays(frame) {
            return;
        }
        self.end_epoch();
        if let Some(place) = self.stack.place(frame) {
            if self.stack.last_use(place) > self.interval_begin {
                self.sets.reference(frame, self.written[place], 0);
            }
        }
        self.stack.forget(frame);
        self.uses.forget(frame);
    }

    /// The guest has run so many instructions since the start, on all vCPUs together.
    #[inline]
    pub fn ran(&mut self, instructions: u64) {
        self.instructions = instructions;
        if instructions >= self.ends_at {
            self.end_interval();
        }
    }

    /// Puts the interval by.
    #[cold]
    fn end_interval(&mut self) {
        if self.stack.now() > self.interval_begin {
            self.stack.touch_staying();
        }
        for (place, frame, last) in self.stack.front() {
            if last > self.interval_begin {
                self.sets.reference(u64::from(frame), self.written[place], 0);
            }
        }
        let (set, curve) = (self.sets.take(), self.stack.cut());
        self.intervals.push(IntervalUse {
            instructions: self.instructions - self.begun_at,
            frames: set.frames,
            dirty: set.dirty,
            held: self.stack.held(),
            references: curve.references(),
            first: curve.first(),
            // A guest of fewer frames than `F` fits into all of them.
            misses: self.sizes.iter().map(|&size| curve.misses(size.max(F as u64))).collect(),
        });
        self.begin_interval();
    }

    fn begin_interval(&mut self) {
        self.written = [false; F];
        self.interval_begin = self.stack.now();
        self.begun_at = self.instructions;
        self.ends_at = (self.instructions / self.length + 1).saturating_mul(self.length.get());
    }

    /// Counts begin again. Memory holds what it holds.
    pub fn restart(&mut self) {
        self.end_epoch();
        self.stack.restart();
        self.uses.restart();
        self.sets.restart();
        self.intervals.clear();
        self.instructions = 0;
        self.begin_interval();
    }

    /// The stream ends. To be called before results are read.
    pub fn end(&mut self) {
        self.end_epoch();
        if self.stack.now() > self.interval_begin || self.instructions > self.begun_at {
            self.end_interval();
        }
    }

    /// Misses of all references in LRU memories.
    pub fn curve(&self) -> MissCurve {
        self.stack.curve()
    }

    /// Misses of references of one kind, in an LRU memory shared by all kinds.
    pub fn curve_of(&self, kind: ReferenceKind) -> MissCurve {
        self.stack.curve_of(kind)
    }

    /// The fewest misses that any replacement can have in a memory of `frames` frames. `None` with less than
    /// `3 F` frames, and if there were more references than are kept.
    pub fn optimum(&self, frames: u64) -> Option<u64> {
        self.optima(&[frames])[0]
    }

    /// [`Self::optimum`] of several memories, in less time than one by one.
    pub fn optima(&self, sizes: &[u64]) -> Vec<Option<u64>> {
        if self.is_optimum_cut() { vec![None; sizes.len()] } else { self.uses.misses_of(sizes) }
    }

    /// Were there more references than are kept for the optimum?
    pub fn is_optimum_cut(&self) -> bool {
        self.uses.dropped() > 0
    }

    /// The intervals, in order.
    pub fn intervals(&self) -> &[IntervalUse] {
        &self.intervals
    }

    /// The sizes of [`IntervalUse::misses`], in frames: see [`sizes`].
    pub fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// Frames that hold memory.
    pub fn held(&self) -> u64 {
        self.stack.held()
    }

    /// References outside of the guest's memory, which are in none of the above.
    pub fn outside(&self) -> u64 {
        self.stack.outside()
    }
}
