// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a check looks at: facts of the host and of its guests, read once.
//!
//! The rules ([`super::rules`]) are functions of these facts, of the host's topology and of a plan. They read
//! nothing themselves, so every mistake can be made up in a test.

use crate::view::View;
use bifold_host::placement::{CpuGroup, Cpuset, ForeignThread, Interrupt, Memory, Role, Thread};
use bifold_host::topology::NumberSet;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// The facts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlacementFacts {
    /// Of the host.
    pub host: HostFacts,
    /// Of its guests: the one that is checked, and the others in so far as they share its CPUs and memory.
    pub guests: Vec<GuestFacts>,
}

/// Facts of a host. `None` is unknown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostFacts {
    /// `/proc/sys/kernel/numa_balancing`.
    pub numa_balancing: Option<u64>,
    /// KSM's `run`.
    pub ksm_run: Option<u64>,
    /// KSM's `merge_across_nodes`.
    pub ksm_across: Option<u64>,
    /// The interrupts that drivers have.
    pub interrupts: Vec<Interrupt>,
    /// Threads of processes that are no guests, on the CPUs that the checked guests' vCPUs are pinned to.
    pub foreign: Vec<ForeignThread>,
    /// Seconds since boot.
    pub uptime_s: Option<f64>,
    /// The present values of the plan's settings, by path; `None` if the file cannot be read.
    pub settings: BTreeMap<String, Option<String>>,
}

/// Facts of a guest.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GuestFacts {
    /// Process id.
    pub pid: u32,
    /// The VM's name.
    pub name: String,
    /// Whether KVM runs it.
    pub kvm: bool,
    /// The process's threads.
    pub threads: Vec<Thread>,
    /// The cpuset of the process.
    pub cpuset: Option<Cpuset>,
    /// The cpusets of threads whose cgroup is not the process's, by thread id.
    pub thread_cpusets: BTreeMap<u32, Cpuset>,
    /// The cgroups of its vCPUs' threads, and all above them: what they say about CPU time.
    pub cpu_groups: Vec<CpuGroup>,
    /// What the guest sees, by its command line.
    pub view: Option<View>,
    /// The guest's memory.
    pub blocks: Vec<Block>,
    /// What could not be read.
    pub unknown: Vec<Unknown>,
}

/// Something that a check could not look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Unknown {
    /// What, and why, as a sentence.
    pub what: String,
    /// Whether root could look.
    #[serde(rename = "needs_root")]
    pub privilege: bool,
}

/// A piece of a guest's memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Block {
    /// The guest node that it belongs to; `None` if unknown.
    pub node: Option<u32>,
    /// The mapping.
    pub memory: Memory,
    /// Where its pages are.
    pub pages: Pages,
}

/// Where pages are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pages {
    /// Pages that were looked at, those without memory included.
    pub looked: u64,
    /// All pages.
    pub all: u64,
    /// Pages on each node, of those that were looked at.
    pub nodes: BTreeMap<u32, u64>,
}

impl Pages {
    /// Pages with memory, of those that were looked at.
    pub fn present(&self) -> u64 {
        self.nodes.values().sum()
    }

    /// Adds those of another piece.
    pub fn add(&mut self, other: &Pages) {
        self.looked += other.looked;
        self.all += other.all;
        other.nodes.iter().for_each(|(node, n)| *self.nodes.entry(*node).or_default() += n);
    }

    /// Whether not every page was looked at.
    pub fn is_sample(&self) -> bool {
        self.looked < self.all
    }
}

impl GuestFacts {
    /// The threads of vCPUs by number.
    pub fn vcpus(&self) -> BTreeMap<u32, &Thread> {
        let mut vcpus = BTreeMap::new();
        for thread in &self.threads {
            if let Role::Vcpu(number) = thread.role {
                vcpus.insert(number, thread);
            }
        }
        vcpus
    }

    /// The CPU of each vCPU that may run on one CPU only.
    pub fn pins(&self) -> BTreeMap<u32, u32> {
        let pin =
            |(vcpu, t): (u32, &Thread)| Some((vcpu, t.cpus.iter().next().filter(|_| t.cpus.len() == 1)?));
        self.vcpus().into_iter().filter_map(pin).collect()
    }

    /// The CPUs that vCPUs are pinned to.
    pub fn pinned_cpus(&self) -> NumberSet {
        self.pins().into_values().collect()
    }

    /// The cpuset of a thread.
    pub fn cpuset_of(&self, thread: u32) -> Option<&Cpuset> {
        self.thread_cpusets.get(&thread).or(self.cpuset.as_ref())
    }

    /// The process's first thread.
    pub fn main(&self) -> Option<&Thread> {
        self.threads.iter().find(|t| t.id == self.pid)
    }

    /// The guest's nodes; one without `-numa` has node 0.
    pub fn nodes(&self) -> Vec<u32> {
        let nodes = self.view.as_ref().map(|v| v.nodes.keys().copied().collect::<Vec<_>>());
        nodes.filter(|n| !n.is_empty()).unwrap_or_else(|| vec![0])
    }

    /// The node of a vCPU within the guest.
    pub fn node_of(&self, vcpu: u32) -> u32 {
        self.view.as_ref().map_or(0, |v| v.node_of(vcpu))
    }

    /// The pages of a guest node, and its pieces.
    pub fn pages_of(&self, node: u32) -> (Pages, Vec<&Block>) {
        let blocks: Vec<&Block> = self.blocks.iter().filter(|b| b.node == Some(node)).collect();
        let mut pages = Pages::default();
        blocks.iter().for_each(|b| pages.add(&b.pages));
        (pages, blocks)
    }
}
