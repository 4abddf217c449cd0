// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Misses at every size of memory.

/// Misses of a memory with LRU replacement, at every size from a smallest on, in frames of 4 KB.
///
/// ```
/// use bifold_reclaim::{ReferenceKind, StackDistances};
///
/// let mut stack = StackDistances::<1>::new(16)?;
/// for frame in [1, 2, 1, 3, 2] {
///     stack.reference(frame, ReferenceKind::Data);
/// }
/// let curve = stack.curve();
/// assert_eq!(curve.references(), 5);
/// assert_eq!(curve.first(), 3);
/// // Two frames hold 1 at its second reference, but not 2, between whose references are 1 and 3.
/// assert_eq!([1, 2, 3].map(|frames| curve.misses(frames)), [5, 4, 3]);
/// assert_eq!(curve.enough(), 3);
/// # Ok::<(), bifold_reclaim::TooManyFrames>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissCurve {
    references: u64,
    least: u64,
    /// From the smallest size on; the last is that of first references, and of all larger sizes.
    misses: Vec<u64>,
}

impl MissCurve {
    /// Of references that hit in memories of `least` frames and more, those that were the first ones to their
    /// frames, and a histogram of the others by stack distance less `least`.
    pub(crate) fn new(least: u64, near: u64, first: u64, far: &[u64]) -> Self {
        let used = far.iter().rposition(|&n| n != 0).map_or(0, |i| i + 1);
        let mut misses = vec![first; used + 1];
        for size in (0..used).rev() {
            misses[size] = misses[size + 1] + far[size];
        }
        MissCurve { references: near + misses[0], least, misses }
    }

    /// The smallest memory, in frames, that the curve is for.
    pub fn least(&self) -> u64 {
        self.least
    }

    /// Misses with a memory of `frames` frames, at least [`Self::least`].
    ///
    /// # Panics
    ///
    /// The curve is not for so small a memory.
    pub fn misses(&self, frames: u64) -> u64 {
        let last = self.misses.len() - 1;
        let size = frames.checked_sub(self.least).expect("a memory that the curve is for");
        self.misses[usize::try_from(size).map_or(last, |i| i.min(last))]
    }

    /// All references.
    pub fn references(&self) -> u64 {
        self.references
    }

    /// Misses at any size: references to frames that were never referenced before, or were forgotten since.
    pub fn first(&self) -> u64 {
        self.misses[self.misses.len() - 1]
    }

    /// The smallest memory, in frames, in which only first references miss. No smaller one than the curve is
    /// for.
    pub fn enough(&self) -> u64 {
        self.least + self.misses.len() as u64 - 1
    }
}
