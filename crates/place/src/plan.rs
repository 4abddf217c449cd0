// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a plan says. The JSON form has the same names; its schema is `bifold.place-plan/1`.

pub use crate::cost::Cost;
pub use crate::valid::BadPlan;

use bifold_host::topology::NumberSet;
use serde::{Deserialize, Serialize};

/// The name and version of the JSON form.
pub const SCHEMA: &str = "bifold.place-plan/1";

/// Guests on a host, and what to set on the host before they start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`SCHEMA`].
    pub schema: String,
    /// The guests, in the order of the wishes.
    pub guests: Vec<GuestPlan>,
    /// What to set on the host, in this order.
    pub steps: Vec<Step>,
    /// What the plan could not give, and why.
    pub notes: Vec<String>,
    /// What the guests' places cost together.
    pub cost: Cost,
    /// Whether no other placement costs less. False if the search ended at its limit of steps.
    pub proven: bool,
}

/// A guest's place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestPlan {
    /// The VM's name, as in `-name guest=NAME`.
    pub name: String,
    /// The vCPUs by number.
    pub vcpus: Vec<VcpuPlan>,
    /// The guest's nodes by number.
    pub nodes: Vec<GuestNode>,
    /// Page size of the guest's memory on the host, in KiB: 4, 2048 or 1048576.
    pub page_kib: u64,
    /// Packages, dies, cores and threads of the guest, as `-smp` has them: their product is the number of
    /// vCPUs.
    pub smp: Smp,
    /// Host CPUs for the VMM's other threads.
    #[serde(with = "list")]
    pub emulator: NumberSet,
    /// Host CPUs of each I/O thread.
    #[serde(with = "lists")]
    pub io_threads: Vec<NumberSet>,
    /// Whether the memory can be bound to nodes; false on a kernel without NUMA.
    pub bound: bool,
    /// Where the guest's cache sizes come from.
    pub caches: Caches,
    /// Whether the guest's CPU needs the flag `topoext` to show threads and caches: AMD's do.
    pub topoext: bool,
    /// Whether KSM may merge the guest's pages.
    pub ksm: bool,
    /// Why it is so, a sentence each.
    pub reasons: Vec<String>,
}

/// Where a guest's cache sizes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Caches {
    /// The host's CPUID (`host-cache-info=on`): each die of the guest is a whole L3 of the host.
    Host,
    /// QEMU's own sizes, one L3 per die (`l3-cache=on`): the guest has parts of the host's L3.
    Emulated,
}

/// A vCPU's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VcpuPlan {
    /// Number of the vCPU.
    pub vcpu: u32,
    /// Host CPU that it is pinned to.
    pub cpu: u32,
    /// Guest node that it belongs to.
    pub node: u32,
}

/// A guest node's place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestNode {
    /// Number of the guest node.
    pub node: u32,
    /// Host node that its memory is bound to.
    pub host_node: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Distance to each guest node, in order of number; 10 is local.
    pub distances: Vec<u32>,
    /// Read latency of its memory from its own CPUs in ns, if the host's firmware tells (HMAT).
    pub latency_ns: Option<u64>,
    /// Read bandwidth of its memory from its own CPUs in MB/s, if the host's firmware tells (HMAT).
    pub bandwidth_mb: Option<u64>,
}

/// Levels of the guest's CPU topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // QEMU's names
pub struct Smp {
    pub sockets: u32,
    pub dies: u32,
    pub cores: u32,
    pub threads: u32,
}

/// A setting of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The file, below /sys, /proc/sys or /proc/irq.
    pub path: String,
    /// What to write.
    pub value: String,
    /// Whether the plan cannot hold without it. A step that is only wished may fail.
    pub needed: bool,
    /// Why, a sentence.
    pub why: String,
}

/// A set of numbers in the kernel's list format.
mod list {
    use super::NumberSet;
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    pub fn serialize<S: Serializer>(set: &NumberSet, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(set)
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<NumberSet, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Several of them.
mod lists {
    use super::NumberSet;
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    pub fn serialize<S: Serializer>(sets: &[NumberSet], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(sets.iter().map(NumberSet::to_string))
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<NumberSet>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        texts.iter().map(|t| t.parse()).collect::<Result<_, _>>().map_err(D::Error::custom)
    }
}
