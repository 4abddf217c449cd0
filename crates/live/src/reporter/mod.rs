// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a program inside a guest reports over a virtio-serial port: page faults, which nested paging hides
//! from the host, and the progress of the guest's own work.
//!
//! The program is `bifold-reporter` (`crates/reporter`). QEMU hands its lines to the first client of a Unix
//! socket. The guest is not trusted, nor is the owner of the VM, who named the socket: nothing waits for
//! them, reads are bounded, and a figure that no guest could have is unknown.

mod connection;
mod guest;
mod port;
mod report;
#[cfg(test)]
mod tests;

pub use connection::{Reporter, ReporterError};
pub use guest::{GuestInterval, GuestReading};
pub use port::socket;
pub use report::{MOST_COUNT, MOST_NAMES, MemoryView, Report, Reports};
