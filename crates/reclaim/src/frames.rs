// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guest frame numbers and what refers to frames.

/// The most 4 KB frames of a guest: 2 TB of memory. Four times as many slots then have numbers of 32 bits.
pub const MOST_FRAMES: u64 = 1 << 29;

/// The guest has more memory than frames can be followed of.
///
/// ```
/// use bifold_reclaim::{MOST_FRAMES, NextUses};
///
/// let error = NextUses::new(MOST_FRAMES + 1, 1).unwrap_err();
/// assert_eq!(error.to_string(), "a guest of 536870913 frames of 4 KB: use one of at most 536870912");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a guest of {frames} frames of 4 KB: use one of at most {MOST_FRAMES}")]
pub struct TooManyFrames {
    /// Its frames of 4 KB.
    pub frames: u64,
}

/// Why a frame is referenced.
///
/// ```
/// use bifold_reclaim::ReferenceKind;
///
/// let names = ReferenceKind::ALL.map(ReferenceKind::name);
/// assert_eq!(names, ["data", "code", "walk", "device"]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReferenceKind {
    /// A load or store of the guest.
    Data,
    /// An instruction fetch.
    Code,
    /// A page walk's read or write of the guest's tables.
    Walk,
    /// A device's read or write (DMA).
    Device,
}

impl ReferenceKind {
    /// All kinds, in the order of their declaration.
    pub const ALL: [ReferenceKind; 4] =
        [ReferenceKind::Data, ReferenceKind::Code, ReferenceKind::Walk, ReferenceKind::Device];

    /// The name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            ReferenceKind::Data => "data",
            ReferenceKind::Code => "code",
            ReferenceKind::Walk => "walk",
            ReferenceKind::Device => "device",
        }
    }
}

/// A value for each frame of a guest.
pub(crate) fn per_frame<T: Clone>(frames: u64, value: T) -> Result<Vec<T>, TooManyFrames> {
    if frames > MOST_FRAMES {
        return Err(TooManyFrames { frames });
    }
    Ok(vec![value; frames as usize])
}
