// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a process's threads may run, where its memory lies, and which CPUs interrupts go to.
//!
//! Sources: `/proc/PID/task/TID/status` and `stat` (proc(5)), `/proc/PID/numa_maps` (numa(7)),
//! `/proc/PID/maps` and `smaps`, the files of the cpuset controller (cpuset(7), cgroups(7)), `/proc/irq` and
//! `/sys/kernel/irq` (`Documentation/core-api/irq/irq-affinity.rst`,
//! `Documentation/ABI/testing/sysfs-kernel-irq`).
//!
//! Everything here is read. Nothing is changed, and no page is touched.

mod cpu_groups;
mod cpuset;
mod foreign;
mod interrupts;
mod mappings;
mod numa_maps;
mod threads;

pub use cpu_groups::{CpuGroup, CpuGroups, Quota, Weight};
pub use cpuset::Cpuset;
pub use foreign::{ForeignThread, ForeignThreads};
pub use interrupts::Interrupt;
pub use mappings::{MapLine, Memory};
pub use numa_maps::NumaMap;
pub use threads::{Role, Scheduling, Thread};

use crate::Host;
use crate::memory::text;

impl Host {
    /// The kernel's name for the time since the last boot; empty if unknown.
    pub fn boot_id(&self) -> String {
        text(&self.proc.join("sys/kernel/random/boot_id")).trim().to_owned()
    }
}
