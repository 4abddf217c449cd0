// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The front of the LRU stack: without order, with the time of each frame's last use.

use crate::behind::HOLE;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The frames used last.
#[derive(Debug, Clone)]
pub(crate) struct Front<const F: usize> {
    /// Frames and holes.
    pub frames: [u32; F],
    /// The time of the last use; of a hole, the time that decides how deep it lies.
    pub times: [u64; F],
    pub holes: usize,
    /// References so far.
    pub now: u64,
    /// Places by a time of use that was the last one at some time.
    pub oldest: BinaryHeap<Reverse<(u64, u32)>>,
}

impl<const F: usize> Front<F> {
    pub fn new() -> Self {
        Front { frames: [HOLE; F], times: [0; F], holes: F, now: 0, oldest: BinaryHeap::with_capacity(F) }
    }

    /// The topmost hole.
    pub fn hole(&self) -> Option<usize> {
        (0..F).filter(|&i| self.frames[i] == HOLE).max_by_key(|&i| self.times[i])
    }

    /// The place of the frame that was used least recently. There are no holes.
    pub fn least_recent(&mut self) -> usize {
        loop {
            let mut top = self.oldest.peek_mut().expect("each place without a hole is in the heap");
            let Reverse((time, place)) = *top;
            let last = self.times[place as usize];
            if time == last {
                return place as usize;
            }
            // The place was used since: it goes to where it belongs.
            *top = Reverse((last, place));
        }
    }

    /// Puts a frame into a place.
    pub fn put(&mut self, place: usize, frame: u32) {
        self.frames[place] = frame;
        self.times[place] = self.now;
    }

    /// The frame at `place` is used.
    #[inline(always)]
    pub fn touch(&mut self, place: usize) {
        self.now += 1;
        if self.holes > 0 {
            self.sink_hole(place);
        }
        self.times[place] = self.now;
    }

    /// The topmost hole above `place` is filled by the frame there, and comes to be where that was.
    #[cold]
    fn sink_hole(&mut self, place: usize) {
        if let Some(hole) = self.hole().filter(|&hole| self.times[hole] > self.times[place]) {
            self.times[hole] = self.times[place];
        }
    }
}
