// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Working sets: the distinct frames that a guest uses in an interval (Denning 1968). Intervals follow each
//! other and do not overlap; Denning's window slides.

use crate::frames::{TooManyFrames, per_frame};
use std::num::NonZeroU64;

/// The frames used in one interval.
///
/// ```
/// use bifold_reclaim::WorkingSet;
///
/// let set = WorkingSet { interval: 2, frames: 256, dirty: 64 };
/// assert_eq!(set.frames * 4096, 1 << 20);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkingSet {
    /// The interval, counted from 0.
    pub interval: u64,
    /// Distinct frames of 4 KB that were referenced.
    pub frames: u64,
    /// Those of them that were written.
    pub dirty: u64,
}

/// The working set of each interval of a number of instructions.
///
/// Memory: 4 bytes for each frame of the guest, and 24 for each interval with a reference.
///
/// ```
/// use bifold_reclaim::{WorkingSet, WorkingSets};
/// use std::num::NonZeroU64;
///
/// let mut sets = WorkingSets::new(16, NonZeroU64::new(1000).unwrap())?;
/// sets.reference(1, false, 10);
/// sets.reference(1, true, 20);
/// sets.reference(2, false, 999);
/// sets.reference(2, false, 3000);
/// assert_eq!(
///     sets.finish(),
///     [
///         WorkingSet { interval: 0, frames: 2, dirty: 1 },
///         WorkingSet { interval: 3, frames: 1, dirty: 0 },
///     ]
/// );
/// # Ok::<(), bifold_reclaim::TooManyFrames>(())
/// ```
#[derive(Debug, Clone)]
pub struct WorkingSets {
    length: NonZeroU64,
    /// Instructions at the end of the current interval.
    end: u64,
    current: WorkingSet,
    /// By frame: the mark of the interval of its last use, plus 1 if it was written there.
    marks: Vec<u32>,
    /// The current interval's mark, which is even.
    mark: u32,
    closed: Vec<WorkingSet>,
    outside: u64,
}

impl WorkingSets {
    /// Intervals of `instructions` each of a guest of `frames` frames.
    ///
    /// # Errors
    ///
    /// The guest has more than [`MOST_FRAMES`](crate::MOST_FRAMES).
    pub fn new(frames: u64, instructions: NonZeroU64) -> Result<Self, TooManyFrames> {
        Ok(WorkingSets {
            length: instructions,
            end: instructions.get(),
            current: WorkingSet::default(),
            marks: per_frame(frames, 0)?,
            mark: 2,
            closed: Vec::new(),
            outside: 0,
        })
    }

    /// A reference to `frame`, or with `write` a store, after so many instructions of all of the guest's
    /// vCPUs. A reference that lies before the current interval counts in the current one: streams of several
    /// vCPUs join in batches. Frames outside of the guest's memory are counted apart ([`Self::outside`]).
    #[inline]
    pub fn reference(&mut self, frame: u64, write: bool, instructions: u64) {
        if instructions >= self.end {
            self.begin(instructions / self.length);
        }
        let Some(mark) = usize::try_from(frame).ok().and_then(|i| self.marks.get_mut(i)) else {
            self.outside += 1;
            return;
        };
        let now = self.mark | u32::from(write);
        if *mark < now {
            self.current.frames += u64::from(*mark < self.mark);
            self.current.dirty += u64::from(write);
            *mark = now;
        }
    }

    /// Closes the current interval and begins another.
    #[cold]
    fn begin(&mut self, interval: u64) {
        // The end of an interval may be past what 64 bits count.
        if interval == self.current.interval {
            return;
        }
        self.close();
        self.current = WorkingSet { interval, ..WorkingSet::default() };
        self.end = interval.saturating_add(1).saturating_mul(self.length.get());
        self.next_mark();
    }

    fn next_mark(&mut self) {
        self.mark = self.mark.checked_add(2).unwrap_or_else(|| {
            self.marks.fill(0);
            2
        });
    }

    fn close(&mut self) {
        if self.current.frames > 0 {
            self.closed.push(self.current);
        }
    }

    /// Begins again with the first interval.
    pub fn restart(&mut self) {
        self.marks.fill(0);
        self.mark = 2;
        (self.current, self.end, self.outside) = (WorkingSet::default(), self.length.get(), 0);
        self.closed.clear();
    }

    /// The intervals that are over, in order, without those in which no frame was referenced.
    pub fn closed(&self) -> &[WorkingSet] {
        &self.closed
    }

    /// References outside of the guest's memory.
    pub fn outside(&self) -> u64 {
        self.outside
    }

    /// Takes out the current interval, and begins it again without frames.
    pub(crate) fn take(&mut self) -> WorkingSet {
        self.next_mark();
        let begun = WorkingSet { interval: self.current.interval, ..WorkingSet::default() };
        std::mem::replace(&mut self.current, begun)
    }

    /// All intervals, in order, without those in which no frame was referenced.
    pub fn finish(mut self) -> Vec<WorkingSet> {
        self.close();
        self.closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_that_are_used_up_begin_again() {
        let mut sets = WorkingSets::new(4, NonZeroU64::MIN).expect("few frames");
        sets.reference(0, true, 0);
        sets.mark = u32::MAX - 1;
        sets.reference(0, true, 1);
        sets.reference(1, false, 1);
        sets.reference(1, true, 2);
        assert_eq!(
            sets.finish().iter().map(|s| (s.frames, s.dirty)).collect::<Vec<_>>(),
            [(1, 1), (2, 1), (1, 1)]
        );
    }

    #[test]
    fn the_last_instruction_has_an_interval() {
        let mut sets = WorkingSets::new(4, NonZeroU64::MIN).expect("few frames");
        sets.reference(0, false, u64::MAX);
        sets.reference(1, false, u64::MAX);
        assert_eq!(sets.finish(), [WorkingSet { interval: u64::MAX, frames: 2, dirty: 0 }]);
    }
}
