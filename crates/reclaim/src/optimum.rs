// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The optimal replacement: of the frames in memory, drop the one whose next use is the farthest (Belady
//! 1966, MIN; Mattson and others 1970 prove it optimal).
//!
//! The first pass runs beside the guest and writes down which frames are referenced. The second pass finds
//! the time of each reference's next use and needs nothing else: the memory is a set of times of next use,
//! and a reference hits if its own time is in the set. A frame without a next use, as its guest frees it
//! before or never uses it again, takes no room once it was used.
//!
//! A record for memories of at least k frames does without most references: of three to the same frame, the
//! one in the middle hits and changes nothing if fewer than k other frames are used between the first and the
//! third (Kaplan, Smaragdakis and Wilson, "Trace reduction for virtual memory simulations", SIGMETRICS 1999,
//! the safely allowed drop). A small table of frames used recently bounds how many frames are used in
//! between: those in the table at the start and those that came into it since.

use crate::frames::{TooManyFrames, per_frame};
use crate::times::Times;

/// No time.
const NONE: u32 = u32::MAX;
/// In place of a reference: it was left out.
const LEFT_OUT: u32 = u32::MAX;
/// Set in a reference to a frame that held no memory.
const FRESH: u32 = 1 << 31;
/// Frames in the table.
const RECENT: usize = 16;
/// The fewest references left out for which the record is moved together.
const MANY: u32 = 4096;
/// In place of a count of frames that came: longer ago than any bound.
const LONG_AGO: u32 = 0;

/// What is known of a frame.
#[derive(Debug, Clone, Copy)]
struct Past {
    /// The time of its last reference.
    last: u32,
    /// Frames that had come into the table by then.
    came: u32,
    /// The same at the reference before that, of those in the record.
    came_before: u32,
}

/// A frame that holds no memory.
const NO_PAST: Past = Past { last: NONE, came: LONG_AGO, came_before: LONG_AGO };

/// References in order, for the fewest misses that any replacement on demand can have.
///
/// A reference to the frame that was referenced just before hits in any memory, so it is counted and not
/// recorded. For [large memories](Self::for_memories_of) most other references are left out too, and no count
/// changes. Memory: 4 bytes for each reference recorded, up to a limit, a third more at worst for those that
/// are left out later, and 12 bytes for each frame of the guest. A pass for one size needs 4 bytes and a bit
/// for each reference recorded, and 4 bytes for each frame.
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
/// assert_eq!(uses.misses(2), Some(4));
/// assert_eq!(uses.misses(3), Some(3));
/// # Ok::<(), bifold_reclaim::TooManyFrames>(())
/// ```
#[derive(Debug, Clone)]
pub struct NextUses {
    /// Frames, [`FRESH`] or not, and references [`LEFT_OUT`].
    record: Vec<u32>,
    pasts: Vec<Past>,
    /// By the low bits of their numbers.
    recent: [u32; RECENT],
    /// Frames that came into the table. Starts at `least`, so that [`LONG_AGO`] is as long ago as it says.
    came: u32,
    /// The smallest memory that the record is exact for.
    least: u32,
    most: usize,
    /// References left out that are still in the record, and the time of the first.
    left_out: u32,
    first_left_out: usize,
    references: u64,
    dropped: u64,
    outside: u64,
    /// Misses count from this place of the record on.
    begin: usize,
}

impl NextUses {
    /// Nothing recorded yet of a guest of `frames` frames; at most `most` references will be, and never more
    /// than 2^32 - 1.
    ///
    /// # Errors
    ///
    /// The guest has more than [`MOST_FRAMES`](crate::MOST_FRAMES).
    pub fn new(frames: u64, most: u64) -> Result<Self, TooManyFrames> {
        Self::for_memories_of(0, frames, most)
    }

    /// As [`Self::new`], with less recorded: of memories smaller than `least` frames, the misses will not be
    /// known.
    ///
    /// ```
    /// use bifold_reclaim::NextUses;
    ///
    /// let [mut whole, mut less] = [NextUses::new(200, 1000)?, NextUses::for_memories_of(64, 200, 1000)?];
    /// for frame in (0..16).cycle().take(500).chain(0..200) {
    ///     whole.reference(frame);
    ///     less.reference(frame);
    /// }
    /// assert_eq!(whole.misses(64), less.misses(64));
    /// assert_eq!(less.misses(63), None);
    /// # Ok::<(), bifold_reclaim::TooManyFrames>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The guest has more than [`MOST_FRAMES`](crate::MOST_FRAMES).
    pub fn for_memories_of(least: u64, frames: u64, most: u64) -> Result<Self, TooManyFrames> {
        let pasts = per_frame(frames, NO_PAST)?;
        // A memory of all frames has only first misses, so no bound above it is of use.
        let least = least.min(frames.max(1)) as u32;
        Ok(NextUses {
            record: Vec::new(),
            pasts,
            recent: [NONE; RECENT],
            came: least,
            least,
            most: most.min(u64::from(NONE)) as usize,
            left_out: 0,
            first_left_out: usize::MAX,
            references: 0,
            dropped: 0,
            outside: 0,
            begin: 0,
        })
    }

    /// A reference to `frame`. Frames outside of the guest's memory are counted apart ([`Self::outside`]). At
    /// the first reference beyond the limit the record ends: that reference and all later ones are counted as
    /// [dropped](Self::dropped).
    #[inline]
    pub fn reference(&mut self, frame: u64) {
        let Some(past) = usize::try_from(frame).ok().and_then(|i| self.pasts.get_mut(i)) else {
            self.outside += 1;
            return;
        };
        if self.dropped > 0 {
            self.dropped += 1;
            return;
        }
        let now = self.record.len();
        if past.last != NONE && past.last as usize + 1 == now {
            self.references += 1;
            return;
        }
        if now == self.most {
            self.dropped = 1;
            return;
        }
        let frame = frame as u32;
        let recent = &mut self.recent[frame as usize % RECENT];
        let comes = *recent != frame;
        *recent = frame;
        self.came += u32::from(comes);
        let entry = frame | if past.last == NONE { FRESH } else { 0 };
        if u64::from(self.came - past.came_before) + (RECENT as u64) < u64::from(self.least) {
            // The last reference is in the middle between the one before and this one.
            self.record[past.last as usize] = LEFT_OUT;
            self.left_out += 1;
            self.first_left_out = self.first_left_out.min(past.last as usize);
        } else {
            past.came_before = past.came;
        }
        (past.last, past.came) = (now as u32, self.came);
        self.record.push(entry);
        self.references += 1;
        if self.left_out >= MANY && self.left_out as usize >= (now - self.first_left_out) / 4 {
            self.compact();
        }
        if self.came == u32::MAX {
            self.count_again();
        }
    }

    /// Moves the record together.
    #[cold]
    fn compact(&mut self) {
        let first = self.first_left_out;
        let mut to = first;
        let begin = self.begin;
        for from in first..self.record.len() {
            let entry = self.record[from];
            if from == begin {
                self.begin = to;
            }
            if entry == LEFT_OUT {
                continue;
            }
            self.record[to] = entry;
            let past = &mut self.pasts[(entry & !FRESH) as usize];
            if past.last as usize == from {
                past.last = to as u32;
            }
            to += 1;
        }
        if begin == self.record.len() {
            self.begin = to;
        }
        self.record.truncate(to);
        (self.left_out, self.first_left_out) = (0, usize::MAX);
    }

    /// Counts the frames that came from the start again. All that came before did so long ago.
    #[cold]
    fn count_again(&mut self) {
        for past in &mut self.pasts {
            (past.came, past.came_before) = (LONG_AGO, LONG_AGO);
        }
        self.came = self.least;
    }

    /// The guest frees `frame`, or reports it as free: its next reference misses at any size.
    pub fn forget(&mut self, frame: u64) {
        let Some(past) = usize::try_from(frame).ok().and_then(|i| self.pasts.get_mut(i)) else { return };
        *past = NO_PAST;
        // What the frame holds after its next reference counts as another frame.
        let recent = &mut self.recent[frame as usize % RECENT];
        if u64::from(*recent) == frame {
            *recent = NONE;
        }
    }

    /// Counts begin again. What was referenced so far decides what a memory holds by now.
    pub fn restart(&mut self) {
        self.begin = self.record.len();
        (self.references, self.outside) = (0, 0);
    }

    /// References in the record, with those that were left out.
    pub fn references(&self) -> u64 {
        self.references
    }

    /// References that came after the record was full. [`Self::misses`] is without them.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// References outside of the guest's memory.
    pub fn outside(&self) -> u64 {
        self.outside
    }

    /// Bytes of the record and of what is known of frames.
    pub fn bytes(&self) -> u64 {
        (size_of_val(&self.record[..]) + size_of_val(&self.pasts[..])) as u64
    }

    /// The fewest misses with a memory of `frames` frames of 4 KB that holds each frame while it is
    /// referenced: two passes over the record. `None` of a memory that is smaller than the record is
    /// [for](Self::for_memories_of).
    pub fn misses(&self, frames: u64) -> Option<u64> {
        self.misses_of(&[frames])[0]
    }

    /// As [`Self::misses`], for several memories: one pass over the record, and one more for each.
    pub fn misses_of(&self, sizes: &[u64]) -> Vec<Option<u64>> {
        let next = self.next();
        let of = |&frames: &u64| match frames {
            n if n < u64::from(self.least) => None,
            0 => Some(self.references),
            n => Some(self.pass(&next, n)),
        };
        sizes.iter().map(of).collect()
    }

    fn pass(&self, next: &[u32], frames: u64) -> u64 {
        let mut needed = Times::new(next.len());
        let begin = self.record[..self.begin].iter().filter(|&&entry| entry != LEFT_OUT).count();
        let (mut held, mut misses) = (0, 0);
        for (now, &next) in next.iter().enumerate() {
            if needed.remove(now) {
                held -= 1;
            } else {
                misses += u64::from(now >= begin);
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

    /// The time of each reference's next use, by time. References left out have neither a time nor a use.
    fn next(&self) -> Vec<u32> {
        let kept = self.record.iter().filter(|&&entry| entry != LEFT_OUT);
        let mut now = kept.clone().count();
        let mut next = vec![NONE; now];
        let mut uses = vec![NONE; self.pasts.len()];
        for &entry in kept.rev() {
            now -= 1;
            let used = &mut uses[(entry & !FRESH) as usize];
            next[now] = std::mem::replace(used, if entry & FRESH == 0 { now as u32 } else { NONE });
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_is_used_up_begins_again() {
        let frames = || (0..40).chain(0..3).cycle().take(2000).chain(0..100).chain(0..100);
        let mut uses = NextUses::for_memories_of(64, 100, 10_000).expect("few frames");
        let mut used_up = uses.clone();
        used_up.came = u32::MAX - 500;
        frames().for_each(|frame| uses.reference(frame));
        frames().for_each(|frame| used_up.reference(frame));
        assert!(used_up.came < 10_000, "it began again: {}", used_up.came);
        for size in 64..=100 {
            assert_eq!(used_up.misses(size), uses.misses(size));
        }
    }
}
