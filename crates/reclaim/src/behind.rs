// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The LRU stack behind the front: a tree of the times at which frames left the front. See [`crate::stack`]
//! for holes.

use crate::slots::{Slots, WORD};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// In place of a frame: a hole.
pub(crate) const HOLE: u32 = u32::MAX;
/// The fewest slots of the tree.
const FEWEST: u32 = 16 * WORD;

/// Frames and holes behind the front, each with a slot; the most recent last.
#[derive(Debug, Clone)]
pub(crate) struct Behind {
    slots: Slots,
    /// What has a slot: a frame or a hole. Of no use for dead slots.
    owners: Vec<u32>,
    /// Slots that are holes.
    holes: BinaryHeap<u32>,
}

impl Behind {
    pub fn new() -> Behind {
        Behind { slots: Slots::new(0, FEWEST), owners: vec![HOLE; FEWEST as usize], holes: BinaryHeap::new() }
    }

    /// Frames and holes above the slot.
    #[inline]
    pub fn above(&self, slot: u32) -> u32 {
        self.slots.after(slot)
    }

    /// Frames.
    pub fn held(&self) -> u64 {
        u64::from(self.slots.live()) - self.holes.len() as u64
    }

    /// Turns the slot of a frame into a hole.
    pub fn dig(&mut self, slot: u32) {
        self.owners[slot as usize] = HOLE;
        self.holes.push(slot);
    }

    /// A frame has left its slot for the front, if it had one here, and `frame` comes from there: it is the
    /// most recent from now on. The topmost hole above the slot is filled; without one, the slot is gone.
    /// `moved` hears of frames that get another slot.
    pub fn exchange(&mut self, slot: Option<u32>, frame: u32, moved: &mut impl FnMut(u32, u32)) {
        match (self.holes.peek_mut(), slot) {
            (Some(hole), None) => self.slots.remove(PeekMut::pop(hole)),
            (Some(mut hole), Some(slot)) if *hole > slot => {
                self.slots.remove(std::mem::replace(&mut *hole, slot));
                self.owners[slot as usize] = HOLE;
            }
            (_, Some(slot)) => self.slots.remove(slot),
            (None, None) => {}
        }
        if self.slots.is_full() {
            self.compact(moved);
        }
        let slot = self.slots.push();
        self.owners[slot as usize] = frame;
        moved(frame, slot);
    }

    /// Numbers the live slots from 0, and makes room for three times as many.
    #[cold]
    fn compact(&mut self, moved: &mut impl FnMut(u32, u32)) {
        let Self { slots, owners, .. } = self;
        let mut holes = std::mem::take(&mut self.holes).into_vec();
        holes.clear();
        let mut live = 0;
        for slot in slots.iter() {
            let owner = owners[slot as usize];
            owners[live as usize] = owner;
            if owner == HOLE {
                holes.push(live);
            } else {
                moved(owner, live);
            }
            live += 1;
        }
        self.holes = holes.into();
        let capacity = (live.div_ceil(WORD) * WORD * 4).max(FEWEST);
        slots.reset(live, capacity);
        owners.resize(capacity as usize, HOLE);
    }
}
