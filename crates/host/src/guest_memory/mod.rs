// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Facts of a guest's memory on the host: what QEMU's monitor says of balloon and virtio-mem, what the kernel
//! counts for the guest's process and its cgroup, and the host's swap.
//!
//! A figure that a guest, a device or a kernel does not give is `None`. Nothing here changes a guest.

mod devices;
mod group;
mod monitor;
mod process;
mod room;
mod swap;

pub use devices::{Balloon, GuestStatistics, Machine, VirtioMem};
pub use group::{Limit, MemoryGroup, NoMemoryGroup};
pub use monitor::{Monitor, MonitorPlace};
pub use process::ProcessMemory;
pub use room::{Room, ShadowNeed, Shortage};
pub use swap::Swap;
