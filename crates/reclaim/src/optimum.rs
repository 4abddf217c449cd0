// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The optimal replacement: of the frames in memory, drop the one whose next use is the farthest (Belady 1966, MIN; Mattson and
//! others 1970 prove it optimal).
//!
//! The first pass runs beside the guest and writes down the time of each reference's next use. The second pass needs
//! nothing else: the memory is a set of times of next use, and a reference hits if its own time is in the set. A frame without a next
//! use, as its guest frees it before or never uses it again, takes no room once it was used.

use crate::frames::{TooManyFrames, per_frame};
use crate::times::Times;

/// In place of a time: there is none.
const NONE: u32 = u32::MAX;

/// References by the time of their next use, for the fewest misses that any replacement on demand can have.
///
/// Time is a count of references. A reference to the frame that was referenced just before hits in any memory, so it is counted and not
/// recorded. Memory: 4 bytes for each reference recorded, up to a limit, and for each frame of the guest. A pass for one
/// size needs one bit more for each reference recorded.
///
/// ```
/// use bifold_reclaim::NextUses;
///
/// let mut uses = NextUses::new(16, 1_000_000)?;
/// for frame in [1, 2, 3, 1, 2, 2] {
///     uses.reference(frame);
/// }
/// assert_eq!(uses.references(), 6);
/// // 3 takes the place of 2, whose next use is farther than that of 1.
/// assert_eq!(uses.misses(2), 4);
/// assert_eq!(uses.misses(3), 3);
/// # Ok::<(), bifold_reclaim::TooManyFrames>(())
/// ```
#[derive(Debug, Clone)]
pub struct NextUses {
    /// By time.
    next: Vec<u32>,
    /// The time of each frame's last use.
    last: Vec<u32>,
    most: usize,
    /// References to the frame referenced just before.
    repeats: u64,
    dropped: u64,
    outside: u64,
}

impl NextUses {
    /// Nothing recorded yet of a guest of `frames` frames; at most `most` references will be, and never more than 2^32 - 1.
    ///
    /// # Errors
    ///
    /// The guest has more than [`MOST_FRAMES`](crate::MOST_FRAMES).
    pub fn new(frames: u64, most: u64) -> Result<Self, TooManyFrames> {
        Ok(NextUses {
            next: Vec::new(),
            last: per_frame(frames, NONE)?,
            most: most.min(u64::from(NONE)) as usize,
            repeats: 0,
            dropped: 0,
            outside: 0,
        })
    }

    /// A reference to `frame`. Frames outside of the guest's memory are counted apart ([`Self::outside`]). At the first reference beyond
    /// the limit the record ends: that reference and all later ones are counted as [dropped](Self::dropped).
    #[inline]
    pub fn reference(&mut self, frame: u64) {
        let Some(last) = usize::try_from(frame).ok().and_then(|i| self.last.get_mut(i)) else {
            self.outside += 1;
            return;
        };
        if self.dropped > 0 {
            self.dropped += 1;
            return;
        }
        let now = self.next.len();
        if *last != NONE && *last as usize + 1 == now {
            self.repeats += 1;
            return;
        }
        if now == self.most {
            self.dropped = 1;
            return;
        }
        if *last != NONE {
            self.next[*last as usize] = now as u32;
        }
        *last = now as u32;
        self.next.push(NONE);
    }

    /// The guest frees `frame`, or reports it as free: its next reference misses at any size.
    pub fn forget(&mut self, frame: u64) {
        let last = usize::try_from(frame).ok().and_then(|i| self.last.get_mut(i));
        last.into_iter().for_each(|last| *last = NONE);
    }

    /// References in the record, with those to the frame referenced just before.
    pub fn references(&self) -> u64 {
        self.next.len() as u64 + self.repeats
    }

    /// References that came after the record was full. [`Self::misses`] is without them.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// References outside of the guest's memory.
    pub fn outside(&self) -> u64 {
        self.outside
    }

    /// The fewest misses with a memory of `frames` frames of 4 KB that holds each frame while it is referenced: one pass over the record.
    pub fn misses(&self, frames: u64) -> u64 {
        if frames == 0 {
            return self.references();
        }
        let mut needed = Times::new(self.next.len());
        let (mut held, mut misses) = (0, 0);
        for (now, &next) in self.next.iter().enumerate() {
            if needed.remove(now) {
                held -= 1;
            } else {
                misses += 1;
                if held == frames {
                    needed.last().into_iter().for_each(|last| _ = needed.remove(last));
                    held -= 1;
                }
            }
            if next != NONE {
                needed.insert(next as usize);
                held += 1;
            }
        }
        misses
    }
}
