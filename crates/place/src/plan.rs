// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a plan says. The JSON form has the same names; its schema is `bifold.place-plan/1`.

pub use crate::cost::Cost;
pub use crate::valid::BadPlan;

use bifold_host::topology::NumberSet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The name and version of the JSON form.
pub const SCHEMA: &str = "bifold.place-plan/1";

/// What `bifold place plan --format json` writes: guests on a host, and what to set on the host before they
/// start. Sets of CPUs are in the kernel's list format: `0-3,8`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`SCHEMA`].
    pub schema: String,
    /// The guests, in the order asked for.
    pub guests: Vec<GuestPlan>,
    /// What to set on the host, in this order.
    pub steps: Vec<Step>,
    /// What the plan could not give, and why, for people.
    pub notes: Vec<String>,
    /// What the guests' places cost together; an earlier figure weighs more than all later ones.
    pub cost: Cost,
    /// Whether no other placement costs less. False if the search ended at its limit of steps.
    pub proven: bool,
}

/// A guest's place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuestPlan {
    /// The VM's name, as in `-name guest=NAME`.
    pub name: String,
    /// The vCPUs by number: by socket, die, core and thread.
    pub vcpus: Vec<VcpuPlan>,
    /// The guest's nodes by number.
    pub nodes: Vec<GuestNode>,
    /// Page size of the guest's memory on the host: 4, 2048 or 1048576. Unit: KiB.
    pub page_kib: u64,
    /// Levels of the guest's CPU topology, as `-smp` has them: their product is the number of vCPUs.
    pub smp: Smp,
    /// Host CPUs for the VMM's other threads.
    #[serde(with = "list")]
    #[schemars(with = "String")]
    pub emulator: NumberSet,
    /// Host CPUs of each I/O thread.
    #[serde(with = "lists")]
    #[schemars(with = "Vec<String>")]
    pub io_threads: Vec<NumberSet>,
    /// Whether the memory is bound to nodes; false on a kernel without NUMA.
    pub bound: bool,
    /// Where the guest's cache sizes come from.
    pub caches: Caches,
    /// Whether the guest's CPU needs the flag `topoext` to show threads and caches: AMD's do.
    pub topoext: bool,
    /// Whether KSM may merge the guest's pages.
    pub ksm: bool,
    /// Why the plan is so, a sentence each.
    pub reasons: Vec<String>,
}

/// Where a guest's cache sizes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Caches {
    /// The host's CPUID (`host-cache-info=on`): each die of the guest is a whole L3 of the host.
    Host,
    /// QEMU's own sizes, one L3 per die (`l3-cache=on`): the guest has parts of the host's L3.
    Emulated,
}

/// A vCPU's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VcpuPlan {
    /// Number of the vCPU.
    pub vcpu: u32,
    /// Host CPU that the vCPU is pinned to.
    pub cpu: u32,
    /// Guest node of the vCPU.
    pub node: u32,
}

/// A guest node's place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuestNode {
    /// Number of the guest node.
    pub node: u32,
    /// Host node that the memory is bound to.
    pub host_node: u32,
    /// Memory. Unit: bytes.
    pub memory: u64,
    /// Distance to each guest node, in order of number; 10 is local.
    pub distances: Vec<u32>,
    /// Read latency of the memory from the node's own CPUs (HMAT); null if the host's firmware states none.
    /// Unit: ns.
    pub latency_ns: Option<u64>,
    /// Read bandwidth of the memory from the node's own CPUs (HMAT); null if the host's firmware states none.
    /// Unit: MB/s.
    pub bandwidth_mb: Option<u64>,
}

/// Levels of the guest's CPU topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Smp {
    /// Sockets.
    pub sockets: u32,
    /// Dies of a socket.
    pub dies: u32,
    /// Cores of a die.
    pub cores: u32,
    /// Threads of a core.
    pub threads: u32,
}

/// A setting of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The file, below /sys, /proc/sys or /proc/irq.
    pub path: String,
    /// What to write.
    pub value: String,
    /// Whether the plan cannot hold without the step. Any other step may fail.
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
