// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which guest frames a program uses: data, code, and the hardware's reads of the guest's tables, in the
//! order in which they happen. [`bifold_reclaim`] makes miss curves and working sets of these references.
//!
//! A fetch is a reference when code of another page begins to run; while a page's code runs, its frame counts
//! as just used. Walks are those of native paging: a miss in the TLB of the profile reads what its walk
//! caches do not hold.

use crate::Config;
use crate::known::KnownFrames;
use bifold_mmu::{Gpa, Gva};
use bifold_reclaim::{MemoryUse, MissCurve, ReferenceKind, TooManyFrames};
use std::num::NonZeroU64;

/// What [`Model::watch_uses`](crate::Model::watch_uses) counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UseOptions {
    /// Instructions of a working set's interval.
    pub interval: NonZeroU64,
    /// The most references of which Belady's optimum is kept. 4 bytes of memory each.
    pub optimum: u64,
}

/// Why the use of memory cannot be watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UseError {
    /// The guest is too large.
    #[error(transparent)]
    Frames(#[from] TooManyFrames),
    /// The walks that read the guest's tables are those of native paging.
    #[error("the use of memory needs the configuration native: add it to --configs")]
    NoNative,
}

/// The frames that a guest uses, while it runs.
#[derive(Debug)]
pub(crate) struct Uses {
    /// The number of the configuration whose walks are references.
    native: usize,
    known: KnownFrames,
    /// Per vCPU: the frame of the code that runs.
    code: Vec<Option<u64>>,
    memory: MemoryUse,
}

impl Uses {
    pub fn new(frames: u64, vcpus: usize, configs: &[Config], options: UseOptions) -> Result<Uses, UseError> {
        let native = configs.iter().position(|c| *c == Config::ALL[0]).ok_or(UseError::NoNative)?;
        Ok(Uses {
            native,
            known: KnownFrames::new(vcpus),
            code: vec![None; vcpus],
            memory: MemoryUse::new(frames, options.interval, options.optimum)?,
        })
    }

    /// Are the walks of this configuration references?
    #[inline]
    pub fn has_walks_of(&self, config: usize) -> bool {
        config == self.native
    }

    /// The frame of the page at `gva`, if it is known at once.
    #[inline(always)]
    pub fn frame(&self, vcpu: usize, gva: Gva, generation: u64) -> Option<u64> {
        self.known.get(vcpu, gva, generation)
    }

    /// Notes the frame of the page at `gva`.
    pub fn file(&mut self, vcpu: usize, gva: Gva, generation: u64, gpa: Gpa) {
        self.known.note(vcpu, gva, generation, gpa.frame());
    }

    /// A load or store.
    #[inline(always)]
    pub fn data(&mut self, frame: u64, write: bool) {
        self.memory.reference(frame, ReferenceKind::Data, write);
    }

    /// Code of another page runs from now on.
    #[inline(always)]
    pub fn fetch(&mut self, vcpu: usize, frame: u64) {
        self.memory.reference(frame, ReferenceKind::Code, false);
        self.code[vcpu] = Some(frame);
        self.memory.stay(Some(frame));
    }

    /// The events that follow are of this vCPU.
    pub fn turn(&mut self, vcpu: usize) {
        self.memory.stay(self.code[vcpu]);
    }

    /// A walk reads an entry of a guest's table.
    #[inline]
    pub fn walk(&mut self, gpa: Gpa) {
        self.memory.reference(gpa.frame(), ReferenceKind::Walk, false);
    }

    /// A device reads or writes these frames.
    pub fn transfer(&mut self, frames: std::ops::Range<u64>, write: bool) {
        // No transfer is longer than 4 GB.
        for frame in frames {
            self.memory.reference(frame, ReferenceKind::Device, write);
        }
    }

    /// The guest has run so many instructions by now.
    pub fn ran(&mut self, instructions: u64) {
        self.memory.ran(instructions);
    }

    /// The misses so far.
    pub fn curve(&self) -> MissCurve {
        self.memory.curve()
    }

    /// Counts begin again, as a region does. Memory holds what it holds.
    pub fn restart(&mut self) {
        self.memory.restart();
    }

    /// What was used.
    pub fn finish(mut self) -> MemoryUse {
        self.memory.end();
        self.memory
    }
}
