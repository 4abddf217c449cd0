// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The CPUs, caches and memory of a machine, as sysfs describes them.
//!
//! Sources: `Documentation/ABI/stable/sysfs-devices-node`, `sysfs-devices-system-cpu`,
//! `admin-guide/cputopology.rst`, `admin-guide/mm/numaperf.rst` and `admin-guide/mm/hugetlbpage.rst` of
//! Linux.

mod cgroup;
mod cpus;
mod devices;
mod list;
mod nodes;
mod read;
mod tree;

pub(crate) use cgroup::{MountRow, below, mounts};
pub use list::{BadList, NumberSet};

use std::collections::BTreeMap;

/// A machine. Numbers of CPUs and nodes need not be consecutive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    /// All present CPUs by number, offline ones as well.
    pub cpus: BTreeMap<u32, Cpu>,
    /// All online nodes by number. A node may have no CPU, or no memory.
    pub nodes: BTreeMap<u32, Node>,
    /// Data and unified caches, each once, in order of level and first CPU.
    pub caches: Vec<Cache>,
    /// CPUs that the scheduler leaves alone (`isolcpus=`).
    pub isolated: NumberSet,
    /// CPUs whose tick stops while one thread runs there (`nohz_full=`).
    pub tickless: NumberSet,
    /// PCI devices, in order of address.
    pub devices: Vec<Device>,
    /// Whether the kernel has NUMA. Without NUMA, node 0 stands for the whole machine and memory cannot be
    /// bound.
    pub numa: bool,
    /// What the calling process may use, if its cgroup tells.
    pub allowed: Option<Allowed>,
    /// What is missing, damaged or contradictory, a sentence each.
    pub notes: Vec<String>,
}

/// CPUs and nodes that the processes of a cgroup may use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowed {
    /// The cgroup, such as `/machine.slice`; `/` within a container is the container's.
    pub group: String,
    /// Its CPUs.
    pub cpus: NumberSet,
    /// The nodes that its memory may come from.
    pub nodes: NumberSet,
    /// The container's kind, such as `docker`, if the caller runs in one.
    pub container: Option<String>,
}

/// A CPU: one thread of a core.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cpu {
    /// Whether the kernel runs on it. An offline CPU has no other facts.
    pub online: bool,
    /// Number of the package (socket).
    pub package: Option<i32>,
    /// Number of the die within the package.
    pub die: Option<i32>,
    /// Number of the core within its die.
    pub core: Option<i32>,
    /// CPUs of the same core, this one included.
    pub threads: NumberSet,
    /// Its node; 0 on a kernel without NUMA.
    pub node: Option<u32>,
}

/// A node: CPUs, memory, or both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// Its online CPUs.
    pub cpus: NumberSet,
    /// Bytes of memory; 0 for a node without memory.
    pub memory: u64,
    /// Bytes of free memory.
    pub free: u64,
    /// Bytes of page tables, nested and shadow ones (`SecPageTables`, Linux 6.1 and newer).
    pub kvm_tables: Option<u64>,
    /// SLIT distance to each node; 10 is local. Empty if the kernel tells none.
    pub distances: BTreeMap<u32, u32>,
    /// Pools of huge pages, by page size in KiB.
    pub huge: BTreeMap<u64, HugePool>,
    /// How fast its best initiators reach its memory (HMAT, `access0`).
    pub access: Option<Access>,
    /// The same for initiators with CPUs only (`access1`).
    pub cpu_access: Option<Access>,
    /// Caches in front of its memory, in order of level.
    pub side_caches: Vec<SideCache>,
}

/// A cache in front of a node's memory (HMAT, `memory_side_cache`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SideCache {
    /// Level; 1 is nearest to the memory.
    pub level: u32,
    /// Bytes.
    pub bytes: u64,
    /// Bytes of a line.
    pub line: u32,
}

/// Huge pages of one size on one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the kernel's names
pub struct HugePool {
    pub total: u64,
    pub free: u64,
    pub surplus: u64,
}

/// Speed of a node's memory as the firmware states it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Nodes whose CPUs reach it that fast.
    pub initiators: NumberSet,
    /// Read latency in ns.
    pub read_latency: Option<u64>,
    /// Write latency in ns.
    pub write_latency: Option<u64>,
    /// Read bandwidth in MB/s.
    pub read_bandwidth: Option<u64>,
    /// Write bandwidth in MB/s.
    pub write_bandwidth: Option<u64>,
}

/// A data or unified cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cache {
    /// Level, from 1 on.
    pub level: u32,
    /// Number within its level, as the hardware has it; `None` on old kernels.
    pub id: Option<u32>,
    /// Bytes.
    pub bytes: u64,
    /// Bytes of a line.
    pub line: u32,
    /// Ways of associativity; 0 if it is full or not known.
    pub ways: u32,
    /// The CPUs that share it.
    pub cpus: NumberSet,
}

/// A PCI device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// Address, such as `0000:3b:00.0`.
    pub address: String,
    /// Class code, such as 0x020000 for Ethernet.
    pub class: u32,
    /// Its node, if the firmware tells.
    pub node: Option<u32>,
    /// Its CPUs' list.
    pub cpus: NumberSet,
    /// Interfaces or disks that it drives: `eth0`, `nvme0n1`.
    pub names: Vec<String>,
    /// Its interrupts.
    pub interrupts: NumberSet,
    /// Its driver, such as `nvme`; `None` without one.
    pub driver: Option<String>,
}

impl Device {
    /// Whether a guest or another program has the device for itself: the driver is `vfio-pci` or one of its
    /// variants (`mlx5_vfio_pci` and others, `drivers/vfio/pci` of Linux).
    pub fn is_passed_through(&self) -> bool {
        self.driver.as_ref().is_some_and(|name| name.contains("vfio"))
    }
}

#[cfg(test)]
mod tests;
