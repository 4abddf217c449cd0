// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A topology as JSON. Sets of numbers are in the kernel's list format; what is not known is null.

use bifold_host::topology::{self as host, Topology};
use schemars::JsonSchema;
use serde::Serialize;

/// Name and version of the document.
const SCHEMA: &str = "bifold.place-show/1";

/// What `bifold place show --format json` writes: a host's CPUs, nodes, caches, devices and limits. A list is
/// in the kernel's format, such as `0-3,8`; a list that is empty is an empty text. What is not known is null.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'static str,
    /// Whether the kernel has NUMA. Without NUMA, node 0 stands for the whole machine.
    numa: bool,
    /// The present CPUs.
    cpus: Vec<Cpu>,
    /// The online nodes.
    nodes: Vec<Node>,
    /// Data and unified caches, each once.
    caches: Vec<Cache>,
    /// CPUs that the scheduler leaves alone. A list.
    isolated: String,
    /// CPUs whose tick stops while one thread runs there. A list.
    tickless: String,
    /// PCI devices.
    devices: Vec<Device<'a>>,
    /// What the cgroup may use; null if the kernel does not tell.
    allowed: Option<Allowed<'a>>,
    /// What is missing, damaged or contradictory, for people.
    notes: &'a [String],
}

#[derive(Serialize, JsonSchema)]
struct Cpu {
    /// Number of the CPU.
    cpu: u32,
    /// Whether the kernel runs on the CPU. An offline CPU has null in all other fields.
    online: bool,
    /// Number of the package; null if not known.
    package: Option<i32>,
    /// Number of the die within the package; null if not known.
    die: Option<i32>,
    /// The kernel's number of the core; null if not known.
    core: Option<i32>,
    /// CPUs of the same core, this one included; null if the CPU is offline. A list.
    threads: Option<String>,
    /// Number of the node; null if not known.
    node: Option<u32>,
}

#[derive(Serialize, JsonSchema)]
struct Node {
    /// Number of the node.
    node: u32,
    /// Online CPUs of the node. A list.
    cpus: String,
    /// Memory. Unit: bytes.
    memory_bytes: u64,
    /// Free memory. Unit: bytes.
    free_bytes: u64,
    /// Page tables that KVM made for VMs; null before Linux 6.1. Unit: bytes.
    kvm_tables_bytes: Option<u64>,
    /// Distances by the firmware; empty if the firmware has none.
    distances: Vec<Distance>,
    /// Pools of huge pages.
    huge_pages: Vec<HugePool>,
    /// Speed for the fastest initiators (HMAT, `access0`); null if the firmware states none.
    access: Option<Access>,
    /// Speed for the fastest CPUs (HMAT, `access1`); null if the firmware states none.
    cpu_access: Option<Access>,
    /// Caches in front of the memory.
    side_caches: Vec<SideCache>,
}

#[derive(Serialize, JsonSchema)]
struct Distance {
    /// Number of the other node.
    to: u32,
    /// The distance; 10 is local.
    distance: u32,
}

#[derive(Serialize, JsonSchema)]
struct HugePool {
    /// Size of a page. Unit: KiB.
    page_kib: u64,
    /// Pages of the pool, surplus ones included.
    total: u64,
    /// Free pages.
    free: u64,
    /// Pages beyond the configured number.
    surplus: u64,
}

#[derive(Serialize, JsonSchema)]
struct Access {
    /// Nodes with these initiators. A list.
    initiators: String,
    /// Read latency; null if the firmware states none. Unit: ns.
    read_latency_ns: Option<u64>,
    /// Write latency; null if the firmware states none. Unit: ns.
    write_latency_ns: Option<u64>,
    /// Read bandwidth; null if the firmware states none. Unit: MB/s.
    read_bandwidth_mb_s: Option<u64>,
    /// Write bandwidth; null if the firmware states none. Unit: MB/s.
    write_bandwidth_mb_s: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
struct SideCache {
    /// Level; 1 is nearest to the memory.
    level: u32,
    /// Size. Unit: bytes.
    bytes: u64,
    /// Size of a line. Unit: bytes.
    line_bytes: u32,
}

#[derive(Serialize, JsonSchema)]
struct Cache {
    /// Level, from 1 on.
    level: u32,
    /// The hardware's number within the level; null on old kernels.
    id: Option<u32>,
    /// Size. Unit: bytes.
    bytes: u64,
    /// Size of a line. Unit: bytes.
    line_bytes: u32,
    /// Ways of associativity; 0 if the cache is fully associative or the ways are not known.
    ways: u32,
    /// The CPUs that share the cache. A list.
    cpus: String,
}

#[derive(Serialize, JsonSchema)]
struct Device<'a> {
    /// Domain, bus, device and function.
    address: &'a str,
    /// Class code, six hexadecimal digits.
    class: String,
    /// Number of the node; null if the firmware does not tell.
    node: Option<u32>,
    /// CPUs near the device. A list.
    cpus: String,
    /// Interfaces and disks that the device drives.
    names: &'a [String],
    /// Numbers of the device's interrupts. A list.
    interrupts: String,
}

#[derive(Serialize, JsonSchema)]
struct Allowed<'a> {
    /// The cgroup whose files set these limits: the group itself, or the nearest one above.
    cgroup: &'a str,
    /// CPUs. A list.
    cpus: String,
    /// Nodes that memory may come from. A list.
    nodes: String,
    /// Kind of the container that the process runs in; null outside.
    container: Option<&'a str>,
}

/// The schema of the document.
pub fn schema() -> serde_json::Value {
    bifold_report::schema::schema::<Document>(SCHEMA)
}

pub fn document(t: &Topology) -> anyhow::Result<String> {
    let document = Document {
        schema: SCHEMA,
        bifold: bifold_base::version(),
        numa: t.numa,
        cpus: t.cpus.iter().map(cpu).collect(),
        nodes: t.nodes.iter().map(node).collect(),
        caches: t.caches.iter().map(cache).collect(),
        isolated: t.isolated.to_string(),
        tickless: t.tickless.to_string(),
        devices: t.devices.iter().map(device).collect(),
        allowed: t.allowed.as_ref().map(allowed),
        notes: &t.notes,
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn cpu((number, c): (&u32, &host::Cpu)) -> Cpu {
    let threads = c.online.then(|| c.threads.to_string());
    let host::Cpu { online, package, die, core, node, .. } = *c;
    Cpu { cpu: *number, online, package, die, core, threads, node }
}

fn node((number, n): (&u32, &host::Node)) -> Node {
    let distance = |(to, distance): (&u32, &u32)| Distance { to: *to, distance: *distance };
    let pool = |(page_kib, p): (&u64, &host::HugePool)| {
        let host::HugePool { total, free, surplus } = *p;
        HugePool { page_kib: *page_kib, total, free, surplus }
    };
    let side = |c: &host::SideCache| SideCache { level: c.level, bytes: c.bytes, line_bytes: c.line };
    Node {
        node: *number,
        cpus: n.cpus.to_string(),
        memory_bytes: n.memory,
        free_bytes: n.free,
        kvm_tables_bytes: n.kvm_tables,
        distances: n.distances.iter().map(distance).collect(),
        huge_pages: n.huge.iter().map(pool).collect(),
        access: n.access.as_ref().map(access),
        cpu_access: n.cpu_access.as_ref().map(access),
        side_caches: n.side_caches.iter().map(side).collect(),
    }
}

fn access(a: &host::Access) -> Access {
    Access {
        initiators: a.initiators.to_string(),
        read_latency_ns: a.read_latency,
        write_latency_ns: a.write_latency,
        read_bandwidth_mb_s: a.read_bandwidth,
        write_bandwidth_mb_s: a.write_bandwidth,
    }
}

fn cache(c: &host::Cache) -> Cache {
    let host::Cache { level, id, bytes, line, ways, .. } = *c;
    Cache { level, id, bytes, line_bytes: line, ways, cpus: c.cpus.to_string() }
}

fn device(d: &host::Device) -> Device<'_> {
    Device {
        address: &d.address,
        class: format!("{:06x}", d.class),
        node: d.node,
        cpus: d.cpus.to_string(),
        names: &d.names,
        interrupts: d.interrupts.to_string(),
    }
}

fn allowed(a: &host::Allowed) -> Allowed<'_> {
    Allowed {
        cgroup: &a.group,
        cpus: a.cpus.to_string(),
        nodes: a.nodes.to_string(),
        container: a.container.as_deref(),
    }
}
