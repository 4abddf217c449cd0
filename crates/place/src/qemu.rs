// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's plan as arguments of QEMU 7.2 or newer: name, machine, CPU, topology, memory by node, I/O
//! threads.
//!
//! Devices and disks are the user's. QEMU does not pin: threads exist only after start, vCPUs' only after all
//! memory is allocated. [`pins`] says which thread belongs where.
//!
//! Sources: `qemu-options.hx` (`-smp`, `-numa`, `-object`) and `qapi/qom.json` of QEMU. `-numa node,cpus=`
//! takes the numbers of vCPUs, which are the plan's own.

use crate::plan::{Caches, GuestNode, GuestPlan};
use bifold_host::topology::NumberSet;

/// A text as a value in a list of options: a comma stands twice.
fn value(text: &str) -> String {
    text.replace(',', ",,")
}

/// CPUs of the guest node's vCPUs, and the vCPUs themselves.
fn of_node(plan: &GuestPlan, node: &GuestNode) -> (NumberSet, NumberSet) {
    let own = plan.vcpus.iter().filter(|v| v.node == node.node);
    (own.clone().map(|v| v.cpu).collect(), own.map(|v| v.vcpu).collect())
}

/// `,KEY=0-3,KEY=8` for each range of a set.
fn ranges(key: &str, set: &NumberSet) -> String {
    set.to_string().split(',').map(|range| format!(",{key}={range}")).collect()
}

/// Whether the firmware's figures of all nodes are known: QEMU's HMAT needs an initiator for each node.
fn hmat(plan: &GuestPlan) -> bool {
    plan.nodes.iter().all(|n| n.latency_ns.is_some() || n.bandwidth_mb.is_some())
}

/// `-cpu`: the host's, with its caches and threads.
pub fn cpu(plan: &GuestPlan) -> String {
    let caches = match plan.caches {
        Caches::Host => ",host-cache-info=on,l3-cache=off",
        Caches::Emulated => ",host-cache-info=off,l3-cache=on",
    };
    format!("host{caches}{}", if plan.topoext { ",topoext=on" } else { "" })
}

/// All arguments, options and their values alternating.
pub fn arguments(plan: &GuestPlan) -> Vec<String> {
    let mut args = vec!["-name".into(), format!("guest={},debug-threads=on", value(&plan.name))];
    let merge = if plan.ksm { "on" } else { "off" };
    let hmat_on = if hmat(plan) { ",hmat=on" } else { "" };
    args.extend(["-machine".into(), format!("q35,accel=kvm,mem-merge={merge}{hmat_on}")]);
    args.extend(["-cpu".into(), cpu(plan)]);
    args.extend(topology(plan));
    for i in 0..plan.io_threads.len() {
        args.extend(["-object".into(), format!("iothread,id=io{i}")]);
    }
    args
}

/// The arguments for vCPUs, memory and nodes, which suit any machine and CPU of QEMU's.
pub fn topology(plan: &GuestPlan) -> Vec<String> {
    let smp = plan.smp;
    let memory: u64 = plan.nodes.iter().map(|n| n.memory).sum();
    let mut args = vec![
        "-smp".into(),
        format!(
            "{},sockets={},dies={},cores={},threads={}",
            plan.vcpus.len(),
            smp.sockets,
            smp.dies,
            smp.cores,
            smp.threads
        ),
        "-m".into(),
        format!("{}K", memory >> 10),
    ];
    for node in &plan.nodes {
        let (_, vcpus) = of_node(plan, node);
        args.extend(backend(plan, node));
        // The node itself initiates accesses to its memory.
        let initiator = if hmat(plan) { format!(",initiator={}", node.node) } else { String::new() };
        let cpus = ranges("cpus", &vcpus);
        args.extend(["-numa".into(), format!("node,nodeid={0}{cpus},memdev=ram{0}{initiator}", node.node)]);
    }
    for from in &plan.nodes {
        for (to, distance) in from.distances.iter().enumerate().filter(|(to, _)| *to as u32 != from.node) {
            args.extend(["-numa".into(), format!("dist,src={},dst={to},val={distance}", from.node)]);
        }
    }
    if hmat(plan) {
        args.extend(plan.nodes.iter().flat_map(speeds));
    }
    args
}

/// The memory of a guest node. Threads on the node's own CPUs allocate it, before vCPUs run there.
fn backend(plan: &GuestPlan, node: &GuestNode) -> Vec<String> {
    let (cpus, _) = of_node(plan, node);
    let id = node.node;
    let huge = match plan.page_kib {
        4 => String::new(),
        kib => format!(",hugetlb=on,hugetlbsize={kib}K"),
    };
    // Without huge pages, anonymous memory: the kernel may use transparent huge pages, and KSM may merge.
    let kind = if plan.page_kib == 4 { "ram" } else { "memfd" };
    let bind = if plan.bound { format!(",host-nodes={},policy=bind", node.host_node) } else { String::new() };
    vec![
        "-object".into(),
        format!("thread-context,id=near{id}{}", ranges("cpu-affinity", &cpus)),
        "-object".into(),
        format!(
            "memory-backend-{kind},id=ram{id},size={}K{huge}{bind},prealloc=on,prealloc-threads={},prealloc-context=near{id}",
            node.memory >> 10,
            cpus.len()
        ),
    ]
}

/// Speed of a node's memory, as the host's firmware tells.
fn speeds(node: &GuestNode) -> Vec<String> {
    let mut args = Vec::new();
    let mut add = |kind: &str, figure: String| {
        let of = format!("hmat-lb,initiator={0},target={0},hierarchy=memory", node.node);
        args.extend(["-numa".into(), format!("{of},data-type=access-{kind},{figure}")]);
    };
    if let Some(ns) = node.latency_ns {
        add("latency", format!("latency={ns}"));
    }
    if let Some(mb) = node.bandwidth_mb {
        add("bandwidth", format!("bandwidth={mb}M"));
    }
    args
}

/// A thread of QEMU's and the CPUs that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The name that the thread has with `debug-threads=on`.
    pub thread: String,
    /// Its CPUs.
    pub cpus: NumberSet,
}

/// Where QEMU's threads belong, apart from those that keep the emulator's CPUs.
pub fn pins(plan: &GuestPlan) -> Vec<Pin> {
    let vcpu = |v: &crate::plan::VcpuPlan| Pin {
        thread: format!("CPU {}/KVM", v.vcpu),
        cpus: [v.cpu].into_iter().collect(),
    };
    let io = |(i, cpus): (usize, &NumberSet)| Pin { thread: format!("IO io{i}"), cpus: cpus.clone() };
    plan.vcpus.iter().map(vcpu).chain(plan.io_threads.iter().enumerate().map(io)).collect()
}
