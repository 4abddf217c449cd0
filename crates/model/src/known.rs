// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest frames behind the pages that vCPUs used last: what observers of frames ask at every access.

use bifold_mmu::Gva;

/// Pages of each vCPU whose frame is known at once.
const SLOTS: usize = 512;

/// A page whose frame is known.
#[derive(Debug, Clone, Copy)]
struct Slot {
    page: u64,
    generation: u64,
    frame: u64,
}

/// Frames by page, per vCPU. A translation holds for a generation of its vCPU.
#[derive(Debug)]
pub(crate) struct KnownFrames {
    slots: Vec<Box<[Slot; SLOTS]>>,
}

impl KnownFrames {
    pub fn new(vcpus: usize) -> KnownFrames {
        let none = Slot { page: u64::MAX, generation: 0, frame: 0 };
        KnownFrames { slots: vec![Box::new([none; SLOTS]); vcpus] }
    }

    /// The frame of the page at `gva`, if it is known.
    #[inline(always)]
    pub fn get(&self, vcpu: usize, gva: Gva, generation: u64) -> Option<u64> {
        let page = gva.0 >> 12;
        let slot = &self.slots[vcpu][page as usize % SLOTS];
        (slot.page == page && slot.generation == generation).then_some(slot.frame)
    }

    /// Notes the frame of the page at `gva`.
    pub fn note(&mut self, vcpu: usize, gva: Gva, generation: u64, frame: u64) {
        let page = gva.0 >> 12;
        self.slots[vcpu][page as usize % SLOTS] = Slot { page, generation, frame };
    }
}
