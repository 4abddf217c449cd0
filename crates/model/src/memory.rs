// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory that walks refer to, and the counts of those references.
//!
//! Every reference of every walk passes [`Hardware::touch`] with the levels of its walk step
//! and its host-physical address. A [`Memory`] says which level of the machine's memory answers:
//! [`crate::cache`] has one with data caches, and [`Uncached`] knows none.

use crate::page::Page;
use bifold_mmu::{Hpa, WalkCache};

/// What can answer a reference: 0 where that is not known (no data caches, or a line outside the
/// sample), then cache levels 1 to 3, then memory.
pub const HITS: usize = 5;

/// References of walks by `[guest level][host level][level of memory that answered]`.
///
/// Host level 0 is the guest's own entry. Guest level 0 is the nested walk of the data's own
/// address. Walks of one dimension have host level 0 throughout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refs([[[u64; HITS]; 6]; 6]);

impl Refs {
    /// References by `[guest level][host level]`, wherever memory answered them.
    pub fn by_step(&self) -> [[u64; 6]; 6] {
        self.0.map(|row| row.map(|hits| hits.iter().sum()))
    }

    /// References of one walk step by the level of memory that answered.
    pub fn hits(&self, guest: usize, host: usize) -> [u64; HITS] {
        self.0[guest][host]
    }

    /// References of one walk step, wherever memory answered them.
    #[inline]
    pub fn at(&self, guest: usize, host: usize) -> u64 {
        self.0[guest][host].iter().sum()
    }

    /// Adds what `now` has counted since `earlier`.
    pub fn add_since(&mut self, now: &Refs, earlier: &Refs) {
        let counts = now.0.as_flattened().as_flattened();
        let before = earlier.0.as_flattened().as_flattened();
        let sums = self.0.as_flattened_mut().as_flattened_mut();
        for (sum, (now, before)) in sums.iter_mut().zip(counts.iter().zip(before)) {
            *sum += now - before;
        }
    }

    /// Adds `scale` of each count of `other`.
    pub fn add_scaled(&mut self, other: &Refs, scale: impl Fn(u64) -> u64) {
        let sums = self.0.as_flattened_mut().as_flattened_mut();
        for (sum, n) in sums.iter_mut().zip(other.0.as_flattened().as_flattened()) {
            *sum += scale(*n);
        }
    }
}

/// Memory as walks see it.
pub trait Memory {
    /// A walk reads the entry at host-physical address `at`, in the step of `guest` and `host`
    /// level. `page` has what decides on which node that address lies. Returns the level of memory
    /// that answers, below [`HITS`]. To compute `at` costs a permutation and `page` a look-up, so an
    /// implementation calls only what it needs.
    fn touch(&mut self, guest: u8, host: u8, at: impl FnOnce() -> Hpa, page: impl FnOnce() -> Page) -> usize;
}

/// Memory without data caches: all references are answered alike.
#[derive(Debug, Clone, Copy, Default)]
pub struct Uncached;

impl Memory for Uncached {
    #[inline(always)]
    fn touch(&mut self, _: u8, _: u8, _: impl FnOnce() -> Hpa, _: impl FnOnce() -> Page) -> usize {
        0
    }
}

/// What a walk of a vCPU uses: its walk caches, and for each reference the memory and the counts.
#[derive(Debug)]
pub struct Hardware<'a, M> {
    /// The vCPU's walk caches.
    pub caches: &'a mut WalkCache,
    /// The memory that answers.
    pub memory: &'a mut M,
    /// The counts.
    pub refs: &'a mut Refs,
}

impl<M: Memory> Hardware<'_, M> {
    /// One reference: see [`Memory::touch`].
    #[inline(always)]
    pub fn touch(&mut self, guest: u8, host: u8, at: impl FnOnce() -> Hpa, page: impl FnOnce() -> Page) {
        let hit = self.memory.touch(guest, host, at, page);
        self.refs.0[usize::from(guest)][usize::from(host)][hit] += 1;
    }
}
