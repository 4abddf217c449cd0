// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A memo of data translations: an access that the filter or a TLB answers has no translation at
//! hand, and looking one up in the tables is slow.

use bifold_mmu::{Gpa, Hpa, PageSize};

const SLOTS: usize = 256;

/// Where a 4 KB page is in the ideal run or in a configuration.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Frame {
    pub number: u64,
    /// The first of the page's frames that has this number: its place among them.
    pub like: usize,
}

/// Translations of pages used lately, of one vCPU.
#[derive(Debug, Clone)]
pub(super) struct Translations {
    /// 4 KB page number and generation.
    tags: Box<[(u64, u64)]>,
    /// Per slot: the size of the guest's page.
    sizes: Box<[PageSize]>,
    /// Per slot: the frame in the ideal run, then in each configuration.
    frames: Vec<Frame>,
}

impl Default for Translations {
    fn default() -> Self {
        Translations {
            tags: vec![(u64::MAX, 0); SLOTS].into(),
            sizes: vec![PageSize::Size4K; SLOTS].into(),
            frames: Vec::new(),
        }
    }
}

impl Translations {
    /// The size of the guest's page, and the 4 KB page's frames in the ideal run and in each of `configs`
    /// configurations.
    #[inline]
    pub fn get(
        &mut self,
        page: u64,
        generation: u64,
        configs: usize,
        translate: impl FnOnce() -> Option<(Gpa, PageSize)>,
        place: impl Fn(usize, Gpa) -> Hpa,
    ) -> Option<(PageSize, &[Frame])> {
        let slot = page as usize % SLOTS;
        let frames = slot * (configs + 1)..(slot + 1) * (configs + 1);
        if self.tags[slot] != (page, generation) {
            let (gpa, size) = translate()?;
            self.frames.resize(SLOTS * (configs + 1), Frame::default());
            let held = &mut self.frames[frames.clone()];
            for i in 0..held.len() {
                let number = i.checked_sub(1).map_or(gpa.frame(), |config| place(config, gpa).0 >> 12);
                let like = held[..i].iter().position(|frame| frame.number == number).unwrap_or(i);
                held[i] = Frame { number, like };
            }
            self.sizes[slot] = size;
            self.tags[slot] = (page, generation);
        }
        Some((self.sizes[slot], &self.frames[frames]))
    }
}
