// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One order about a guest's size: memory is taken in steps, and given back.
//!
//! [`refusal()`] says why an order may not begin, by the [`facts()`] of a look. [`Steer`] decides after every
//! look, and [`Order`] carries the decisions out on a live host. [`Way`] has all that differs between
//! balloon, virtio-mem and cgroup. [`Record`] is what has to be known to give everything back; it is written
//! down before the first change, so that a guardian, or the next command, can do that if this process is
//! killed.

mod driver;
mod error;
mod facts;
mod polling;
mod record;
mod refusal;
mod running;
mod steer;
#[cfg(test)]
mod tests;
mod way;

use driver::OrderDriver;

pub use error::OrderError;
pub(crate) use facts::used;
pub use facts::{Facts, NoMonitor, facts};
pub use polling::Polling;
pub use record::{Again, Back, Record, WHAT, folder, places, records};
pub use refusal::{Refusal, refusal};
pub use running::{Event, Order, OrderRequest, preview};
pub use steer::{Act, SizeObservation, Steer, Why, mib};
pub use way::Way;

/// What an order is to reach, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Goal {
    /// How.
    pub way: Way,
    /// The size, in bytes.
    pub size: u64,
    /// The least size by the user; otherwise it follows from what the guest uses.
    pub floor: Option<u64>,
    /// Bytes of a step by the user.
    pub step: Option<u64>,
    /// Whether figures are awaited after each step: the guest's statistics, or the host's counts.
    pub statistics: bool,
    /// Seconds between two updates of them.
    pub polling_s: u64,
    /// Whether the guest gets the memory back by itself when it runs short: out of its balloon
    /// (deflate-on-oom), or from the host's swap.
    pub deflates: bool,
    /// How far the size may be from its target and count as settled.
    pub slack: u64,
    /// Sizes differ by multiples of this.
    pub unit: u64,
}
