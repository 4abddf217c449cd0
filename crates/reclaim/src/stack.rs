// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The LRU stack: in front the frames used last, without order but with the time of their last use, and
//! behind them a tree of the times at which frames left the front.
//!
//! A frame that is forgotten leaves a hole. A hole is memory that is free in every memory which held the
//! frame, so a miss there replaces nothing: the frames above the topmost hole move down by one, and those
//! below it keep their places. If the reference hits below the hole, the hole moves down to where the frame
//! was. So at any size the frames within the size are those that an LRU memory of this size holds. Without
//! holes the curve would be too low: the frames below would move up into memories that have dropped them.
//!
//! The stack begins as holes only, and ends in holes without end.

use crate::behind::{Behind, HOLE};
use crate::curve::MissCurve;
use crate::frames::{ReferenceKind, TooManyFrames, per_frame};
use crate::front::Front;
use std::cmp::Reverse;

/// In place of a place: the frame has none.
const NONE: u32 = u32::MAX;
const KINDS: usize = ReferenceKind::ALL.len();

/// Misses of a stream of references in LRU memories of `F` frames and more, exact, counted by the kind of the
/// reference. All kinds share one memory.
///
/// The `F` frames used last stand in front. A reference that finds its frame there hits in all these
/// memories, and only its time is noted. `F` is 1 or more; `benches/references.rs` prints what a reference
/// costs. Memory: 4 bytes for each frame of the guest; for each frame referenced, 16 to 34 bytes, and 16 more
/// for each kind of reference.
///
/// ```
/// use bifold_reclaim::{ReferenceKind, StackDistances};
///
/// let mut stack = StackDistances::<1>::new(16)?;
/// stack.reference(7, ReferenceKind::Code);
/// stack.reference(3, ReferenceKind::Data);
/// stack.reference(7, ReferenceKind::Code);
/// // The guest frees frame 3.
/// stack.forget(3);
/// stack.reference(3, ReferenceKind::Data);
/// assert_eq!(stack.curve_of(ReferenceKind::Code).misses(1), 2);
/// assert_eq!(stack.curve_of(ReferenceKind::Code).misses(2), 1);
/// assert_eq!(stack.curve().first(), 3);
/// # Ok::<(), bifold_reclaim::TooManyFrames>(())
/// ```
#[derive(Debug, Clone)]
pub struct StackDistances<const F: usize = FRONT> {
    front: Front<F>,
    behind: Behind,
    /// Of each frame of the guest: its place in the front, or `F` and its slot behind, or [`NONE`].
    places: Vec<u32>,
    counts: Counts,
    /// Counts up to the last cut.
    before: Counts,
    /// The frame that stays, which is in the front.
    staying: Option<u32>,
    outside: u64,
}

/// Frames in front unless another number is named: memories of 1 MB and more are exact.
pub const FRONT: usize = 256;

/// References by kind.
#[derive(Debug, Clone, Default)]
struct Counts {
    /// Those that found their frame in the front.
    near: [u64; KINDS],
    /// Those behind the front, by distance less `F`.
    far: [Vec<u64>; KINDS],
    /// Those to frames that held no memory.
    first: [u64; KINDS],
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        let sums = self.near.iter_mut().zip(other.near).chain(self.first.iter_mut().zip(other.first));
        sums.for_each(|(sum, n)| *sum += n);
        for (sums, counts) in self.far.iter_mut().zip(&other.far) {
            add_to(sums, counts);
        }
    }

    /// Sets all counts to 0 and keeps the memory.
    fn clear(&mut self) {
        (self.near, self.first) = Default::default();
        self.far.iter_mut().for_each(|counts| counts.fill(0));
    }
}

fn add_to(sums: &mut Vec<u64>, counts: &[u64]) {
    sums.resize(sums.len().max(counts.len()), 0);
    sums.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
}

/// A reference has brought a frame into the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entered {
    /// Its place there.
    pub place: usize,
    /// The frame that had the place, and the time of its last use.
    pub left: Option<(u32, u64)>,
}

impl<const F: usize> StackDistances<F> {
    /// An empty stack for a guest of `frames` frames.
    ///
    /// # Errors
    ///
    /// The guest has more than [`MOST_FRAMES`](crate::MOST_FRAMES).
    pub fn new(frames: u64) -> Result<Self, TooManyFrames> {
        const { assert!(F >= 1, "a memory holds the frame that is referenced") };
        Ok(StackDistances {
            front: Front::new(),
            behind: Behind::new(),
            places: per_frame(frames, NONE)?,
            counts: Counts::default(),
            before: Counts::default(),
            staying: None,
            outside: 0,
        })
    }

    /// A reference to `frame`. A frame outside of the guest's memory, of a device's registers for example, is
    /// counted apart ([`Self::outside`]).
    #[inline]
    pub fn reference(&mut self, frame: u64, kind: ReferenceKind) {
        match self.place(frame) {
            Some(place) => self.near(place, kind),
            None => _ = self.far(frame, kind),
        }
    }

    /// The place of `frame` in the front.
    #[inline(always)]
    pub(crate) fn place(&self, frame: u64) -> Option<usize> {
        let place = *self.places.get(usize::try_from(frame).ok()?)? as usize;
        (place < F).then_some(place)
    }

    /// A reference to the frame at a place in the front.
    #[inline(always)]
    pub(crate) fn near(&mut self, place: usize, kind: ReferenceKind) {
        self.front.touch(place);
        self.counts.near[kind as usize] += 1;
    }

    /// A reference to a frame that is not in the front. None if it is outside.
    #[inline(never)]
    pub(crate) fn far(&mut self, frame: u64, kind: ReferenceKind) -> Option<Entered> {
        if frame >= self.places.len() as u64 {
            self.outside += 1;
            return None;
        }
        let (distance, entered) = self.enter(frame as u32);
        match distance {
            None => self.counts.first[kind as usize] += 1,
            Some(distance) => {
                let counts = &mut self.counts.far[kind as usize];
                if counts.len() <= distance as usize {
                    counts.resize(distance as usize + 1, 0);
                }
                counts[distance as usize] += 1;
            }
        }
        Some(entered)
    }

    /// Puts a frame that is not in the front on top. Its distance less `F`, if it was behind.
    fn enter(&mut self, frame: u32) -> (Option<u32>, Entered) {
        self.touch_staying();
        let StackDistances { front, behind, places, .. } = self;
        front.now += 1;
        let slot = places[frame as usize];
        let slot = (slot != NONE).then(|| slot - F as u32);
        let distance = slot.map(|slot| behind.above(slot));
        let (place, left) = match front.hole() {
            _ if front.holes == 0 => {
                let place = front.least_recent();
                let left = (front.frames[place], front.times[place]);
                behind.exchange(slot, left.0, &mut |frame, slot| places[frame as usize] = F as u32 + slot);
                (place, Some(left))
            }
            hole => {
                let place = hole.expect("holes are counted");
                front.holes -= 1;
                front.oldest.push(Reverse((front.now, place as u32)));
                slot.into_iter().for_each(|slot| behind.dig(slot));
                (place, None)
            }
        };
        front.put(place, frame);
        places[frame as usize] = place as u32;
        (distance, Entered { place, left })
    }

    /// From now on a reference to `frame` that no curve counts comes before each other reference: the page
    /// whose code runs, which is used without pause. `None`, and a frame outside of the guest's memory, end
    /// that. The frame counts as used now.
    ///
    /// The reference is made where the front is left. A reference within the front changes neither the order
    /// of the other frames nor which frames are in the front, so the misses of memories of `F` frames and
    /// more are those of the full stream.
    ///
    /// ```
    /// use bifold_reclaim::{ReferenceKind, StackDistances};
    ///
    /// let mut stack = StackDistances::<2>::new(100)?;
    /// stack.reference(50, ReferenceKind::Code);
    /// stack.stay(Some(50));
    /// (0..10).for_each(|frame| stack.reference(frame, ReferenceKind::Data));
    /// stack.reference(50, ReferenceKind::Code);
    /// // The code ran all the while, so its frame was never out.
    /// assert_eq!(stack.curve_of(ReferenceKind::Code).misses(2), 1);
    /// # Ok::<(), bifold_reclaim::TooManyFrames>(())
    /// ```
    pub fn stay(&mut self, frame: Option<u64>) {
        self.staying_from_now(frame);
    }

    /// [`Self::stay`]. What has entered the front for it.
    pub(crate) fn staying_from_now(&mut self, frame: Option<u64>) -> Option<Entered> {
        const { assert!(F >= 2, "a front of 2 holds the frame that stays while another one enters") };
        self.touch_staying();
        self.staying = None;
        let frame = frame.filter(|&frame| frame < self.places.len() as u64)?;
        let entered = match self.place(frame) {
            Some(place) => {
                self.front.touch(place);
                None
            }
            None => Some(self.enter(frame as u32).1),
        };
        self.staying = Some(frame as u32);
        entered
    }

    /// Makes the reference to the frame that stays.
    pub(crate) fn touch_staying(&mut self) {
        if let Some(staying) = self.staying {
            self.front.touch(self.places[staying as usize] as usize);
        }
    }

    /// The guest frees `frame`, or reports it as free: the frame holds no memory from now on. No effect if it
    /// holds none, or [stays](Self::stay).
    pub fn forget(&mut self, frame: u64) {
        if self.stays(frame) {
            return;
        }
        let Some(place) = usize::try_from(frame).ok().and_then(|i| self.places.get_mut(i)) else { return };
        match std::mem::replace(place, NONE) {
            NONE => {}
            place if (place as usize) < F => {
                self.front.frames[place as usize] = HOLE;
                self.front.holes += 1;
                self.front.oldest.retain(|&Reverse((_, at))| at != place);
            }
            slot => self.behind.dig(slot - F as u32),
        }
    }

    /// Does `frame` [stay](Self::stay)?
    pub(crate) fn stays(&self, frame: u64) -> bool {
        self.staying.is_some_and(|staying| u64::from(staying) == frame)
    }

    /// The time of the last use of the frame at a place in the front.
    pub(crate) fn last_use(&self, place: usize) -> u64 {
        self.front.times[place]
    }

    /// Counts begin again. The stack stays: a frame that was referenced before is no first reference.
    pub fn restart(&mut self) {
        self.counts.clear();
        self.before = Counts::default();
        self.outside = 0;
    }

    /// Frames that hold memory: those referenced and not forgotten since.
    pub fn held(&self) -> u64 {
        self.behind.held() + (F - self.front.holes) as u64
    }

    /// References outside of the guest's memory. No curve has them.
    pub fn outside(&self) -> u64 {
        self.outside
    }

    /// The frames in the front and the times of their last uses, by place.
    pub(crate) fn front(&self) -> impl Iterator<Item = (usize, u32, u64)> {
        let Front { frames, times, .. } = &self.front;
        frames.iter().zip(times).enumerate().filter(|(_, (f, _))| **f != HOLE).map(|(i, (&f, &t))| (i, f, t))
    }

    /// References so far, those to the frame that stays included: the time.
    pub(crate) fn now(&self) -> u64 {
        self.front.now
    }

    /// Misses of references of one kind, in a memory shared by all kinds.
    pub fn curve_of(&self, kind: ReferenceKind) -> MissCurve {
        Self::curve_from([&self.before, &self.counts], &[kind])
    }

    /// Misses of all references.
    pub fn curve(&self) -> MissCurve {
        Self::curve_from([&self.before, &self.counts], &ReferenceKind::ALL)
    }

    fn curve_from<'a>(parts: impl IntoIterator<Item = &'a Counts>, kinds: &[ReferenceKind]) -> MissCurve {
        let (mut near, mut first, mut far) = (0, 0, Vec::new());
        for part in parts {
            for &kind in kinds {
                near += part.near[kind as usize];
                first += part.first[kind as usize];
                add_to(&mut far, &part.far[kind as usize]);
            }
        }
        MissCurve::new(F as u64, near, first, &far)
    }

    /// Misses of all references since the last cut, or the start. The next cut, and no other curve, is
    /// without them.
    ///
    /// ```
    /// use bifold_reclaim::{ReferenceKind, StackDistances};
    ///
    /// let mut stack = StackDistances::<1>::new(16)?;
    /// [1, 2].map(|frame| stack.reference(frame, ReferenceKind::Data));
    /// assert_eq!(stack.cut().first(), 2);
    /// stack.reference(1, ReferenceKind::Data);
    /// let curve = stack.cut();
    /// assert_eq!((curve.references(), curve.first(), curve.enough()), (1, 0, 2));
    /// assert_eq!(stack.curve().references(), 3);
    /// # Ok::<(), bifold_reclaim::TooManyFrames>(())
    /// ```
    pub fn cut(&mut self) -> MissCurve {
        let curve = Self::curve_from([&self.counts], &ReferenceKind::ALL);
        self.before.add(&self.counts);
        self.counts.clear();
        curve
    }
}
