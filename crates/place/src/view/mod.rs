// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest sees of CPUs and memory, from QEMU's command line.
//!
//! The rules are QEMU's: levels of `-smp` that are missing (`hw/core/machine-smp.c`, cores before sockets),
//! CPUs that no `-numa` names go to nodes by socket (`x86_get_default_cpu_node_id`), nodes without
//! `-numa dist` are 10 and 20 apart (`hw/core/numa.c`), and a guest's L3 is one per die
//! (`target/i386/cpu.c`).

mod read;

use bifold_host::CommandLine;
use bifold_host::topology::NumberSet;
use std::collections::BTreeMap;

/// Distance of a node to itself, and default to others (ACPI SLIT, `NUMA_DISTANCE_MIN` and `_DEFAULT` of
/// QEMU).
pub const LOCAL: u32 = 10;
/// Default distance to another node.
pub const REMOTE: u32 = 20;

/// A guest as its command line describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// Levels of the CPU topology; their product is `most_vcpus`.
    pub levels: Levels,
    /// vCPUs at the start.
    pub vcpus: u32,
    /// vCPUs with those that can be added.
    pub most_vcpus: u32,
    /// Nodes by number; empty if the guest has none.
    pub nodes: BTreeMap<u32, ViewNode>,
    /// Distances that `-numa dist` gives, by source and destination.
    pub distances: BTreeMap<(u32, u32), u32>,
    /// Memory backends in the order in which QEMU makes them.
    pub backends: Vec<Backend>,
    /// Bytes of memory (`-m`).
    pub memory: u64,
    /// The backend of all memory (`-machine memory-backend=`), if there is one.
    pub whole: Option<String>,
    /// What shares an L3; `None` if the guest sees no L3.
    pub l3: Option<Level>,
    /// Ids of I/O threads in order.
    pub io_threads: Vec<String>,
    /// PCI addresses of devices of the host that the guest has.
    pub devices: Vec<String>,
    /// Backends of memory in DIMMs and virtio devices, by id.
    pub plugged: Vec<String>,
}

/// Levels of a CPU topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // QEMU's names
pub struct Levels {
    pub sockets: u32,
    pub dies: u32,
    pub modules: u32,
    pub cores: u32,
    pub threads: u32,
}

impl Default for Levels {
    fn default() -> Levels {
        Levels { sockets: 1, dies: 1, modules: 1, cores: 1, threads: 1 }
    }
}

/// A level of the CPU topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // QEMU's names
pub enum Level {
    Socket,
    Die,
    Module,
    Core,
    Thread,
}

/// A guest node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ViewNode {
    /// Its vCPUs.
    pub vcpus: NumberSet,
    /// Its memory backend.
    pub backend: Option<String>,
    /// Its bytes, if no backend has them.
    pub memory: Option<u64>,
}

/// A memory backend.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backend {
    /// Its id.
    pub id: String,
    /// Whether a file backs it: a memfd, or a file of `mem-path`.
    pub file: bool,
    /// `mem-path`, if there is one.
    pub path: Option<String>,
    /// Bytes.
    pub bytes: u64,
    /// Whether it is to be in hugetlbfs.
    pub huge: bool,
    /// Host nodes that it is bound to.
    pub host_nodes: NumberSet,
    /// The policy: `default`, `bind`, `preferred`, `interleave`.
    pub policy: String,
    /// Whether QEMU allocates it at the start.
    pub prealloc: bool,
}

impl Levels {
    /// Numbers of socket, die, module, core and thread of a vCPU; threads count fastest.
    pub fn of(&self, vcpu: u32) -> [u32; 5] {
        let mut rest = vcpu;
        let mut next = |n: u32| {
            let digit = rest % n.max(1);
            rest /= n.max(1);
            digit
        };
        let [thread, core, module, die] = [self.threads, self.cores, self.modules, self.dies].map(&mut next);
        [rest, die, module, core, thread]
    }

    /// How many vCPUs the levels have.
    pub fn product(&self) -> u64 {
        [self.sockets, self.dies, self.modules, self.cores, self.threads]
            .into_iter()
            .fold(1, |all, n| u64::from(n).saturating_mul(all))
    }

    /// Whether two vCPUs are in the same element of a level.
    pub fn together(&self, level: Level, a: u32, b: u32) -> bool {
        let parts = 1 + level as usize;
        self.of(a)[..parts] == self.of(b)[..parts]
    }
}

impl View {
    /// The guest's view; `None` if the command line is not QEMU's.
    pub fn parse(line: &CommandLine) -> Option<View> {
        read::view(line)
    }

    /// The node of a vCPU; 0 if the guest has no nodes.
    pub fn node_of(&self, vcpu: u32) -> u32 {
        let found = self.nodes.iter().find(|(_, n)| n.vcpus.contains(vcpu));
        found.map_or(0, |(number, _)| *number)
    }

    /// Distance between two guest nodes.
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        let given = |key| self.distances.get(&key).copied();
        let default = if from == to { LOCAL } else { REMOTE };
        // QEMU takes one direction for both if the other is missing.
        given((from, to)).or_else(|| given((to, from))).unwrap_or(default)
    }

    /// A backend by id.
    pub fn backend(&self, id: &str) -> Option<&Backend> {
        self.backends.iter().find(|b| b.id == id)
    }

    /// Bytes of a node's memory.
    pub fn node_bytes(&self, node: u32) -> Option<u64> {
        let node = self.nodes.get(&node)?;
        node.memory.or_else(|| Some(self.backend(node.backend.as_ref()?)?.bytes))
    }
}

#[cfg(test)]
mod tests;
