// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much memory a guest needs, from its references to guest frames (4 KB, counted by guest frame number).
//!
//! - [`MemoryUse`]: all of the following, of one stream.
//! - [`StackDistances`]: the misses of a memory with LRU replacement at every size at once (Mattson, Gecsei,
//!   Slutz and Traiger, "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970), as
//!   [`MissCurve`]s.
//! - [`NextUses`]: the fewest misses that any replacement can have at a size (Belady, "A study of replacement
//!   algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966).
//! - [`WorkingSets`]: the frames used and written in each interval (Denning, "The working set model for
//!   program behavior", Communications of the ACM 11(5), 1968).
//!
//! All three follow a guest that gives frames back, by a balloon or a report of free pages: a frame that is
//! *forgotten* holds no memory until its next reference. They know no event format: the caller says which
//! frames are referenced.
//!
//! - [`MemoryTimeline`]: a guest's need over time, in a file.
//!
//! Left out: pages larger than 4 KB, and the cost of a miss.
//!
//! ```
//! use bifold_reclaim::{NextUses, ReferenceKind, StackDistances};
//!
//! // A loop over three frames.
//! let (mut lru, mut best) = (StackDistances::<2>::new(8)?, NextUses::new(8, 1000)?);
//! for frame in (0..3).cycle().take(30) {
//!     lru.reference(frame, ReferenceKind::Data);
//!     best.reference(frame);
//! }
//! let curve = lru.curve();
//! // LRU drops the very frame that the loop needs next.
//! assert_eq!((curve.misses(2), curve.misses(3)), (30, 3));
//! assert_eq!((best.misses(2), best.misses(3)), (Some(16), Some(3)));
//! # Ok::<(), bifold_reclaim::TooManyFrames>(())
//! ```
#![forbid(unsafe_code)]

mod behind;
mod curve;
mod frames;
mod front;
mod grid;
mod memory_use;
mod optimum;
mod partition;
mod plan;
mod policies;
mod replay;
mod slots;
mod stack;
mod steps;
pub mod timeline;
mod times;
mod working_set;

pub use curve::MissCurve;
pub use frames::{MOST_FRAMES, ReferenceKind, TooManyFrames};
pub use grid::{Curve, sizes};
pub use memory_use::{IntervalUse, MemoryUse};
pub use optimum::NextUses;
pub use plan::{Costliest, GuestPlan, Plan, PlanError, PolicyPlan, Setting, Worst, plan};
pub use policies::{GuestObservation, OnLine, PolicyName};
pub use stack::{FRONT, StackDistances};
pub use timeline::{About, Interval, MemoryTimeline, MemoryTimelineError};
pub use working_set::{WorkingSet, WorkingSets};
