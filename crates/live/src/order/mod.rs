// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One order about a guest's size: memory is taken in steps, and given back.
//!
//! [`refusal()`] says why an order may not begin. [`Steer`] decides after every look. [`OrderDriver`] looks
//! and orders on a live host, and [`Order`] does all of it. [`Record`] is what has to be known to give
//! everything back; it is written down before the first change, so that a guardian, or the next command, can
//! do that if this process is killed.

mod error;
mod hand;
mod polling;
mod record;
mod refusal;
mod running;
mod steer;
#[cfg(test)]
mod tests;

pub use error::OrderError;
pub use hand::OrderDriver;
pub(crate) use hand::used;
pub use polling::Polling;
pub use record::{Again, Back, Record, WHAT, folder, places, records};
pub use refusal::{Facts, NoMonitor, Refusal, facts, refusal};
pub use running::{Event, Order, OrderRequest, preview};
pub use steer::{Act, SizeObservation, Steer, Why};

/// How a guest's memory is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By virtio-balloon: the guest chooses pages. The size is what is outside of the balloon.
    Balloon,
    /// By virtio-mem: the guest gives blocks back. The size is that of the machine with its devices.
    VirtioMem,
    /// By `memory.reclaim` of the guest's cgroup: the host pages out, and the guest does not know. The size
    /// is what the cgroup has in the host's memory. Nothing is held: pages come back when the guest uses
    /// them.
    Cgroup,
}

impl Way {
    /// All ways.
    pub const ALL: [Way; 3] = [Way::Balloon, Way::VirtioMem, Way::Cgroup];

    /// The way's name.
    pub fn name(self) -> &'static str {
        match self {
            Way::Balloon => "balloon",
            Way::VirtioMem => "virtio-mem",
            Way::Cgroup => "cgroup",
        }
    }
}

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
