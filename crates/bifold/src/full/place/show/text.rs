// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A topology for people: the host, a table of nodes, distances, what the firmware says of memory, then each
//! node's CPUs, caches, cores and devices. No line has more than 80 columns, except in tables with very many
//! nodes.

use crate::full::place::words::{counted, counts, folded, kind, siblings, size};
use bifold_host::printable;
use bifold_host::topology::{Access, Cache, Device, Node, NumberSet, Topology};
use bifold_report::text_table;
use std::collections::BTreeSet;

/// Stands for what is not known.
const UNKNOWN: &str = "-";

pub fn table(t: &Topology) -> String {
    let mut parts = vec![host(t), nodes(t)];
    parts.extend(distances(t));
    parts.extend(accesses(t));
    parts.extend(t.nodes.iter().filter_map(|(number, node)| one_node(t, *number, node)));
    parts.extend(elsewhere(t));
    parts.join("\n")
}

/// The lines about the whole host.
fn host(t: &Topology) -> String {
    let [packages, dies, cores] = counts(t);
    let (online, offline): (Vec<_>, Vec<_>) = t.cpus.iter().partition(|(_, c)| c.online);
    let mut out = folded(
        0,
        "host",
        &[
            counted(packages, "package", "packages"),
            counted(dies, "die", "dies"),
            counted(cores, "core", "cores"),
            counted(online.len(), "CPU", "CPUs"),
        ],
    );
    let memory = size(t.nodes.values().map(|n| n.memory).sum());
    let in_nodes = match t.numa {
        true => format!("{memory} in {}", counted(t.nodes.len(), "node", "nodes")),
        false => format!("{memory}; the kernel has no NUMA"),
    };
    out += &folded(0, "memory", &[in_nodes]);
    let caches = caches(&t.caches.iter().collect::<Vec<_>>());
    if !caches.is_empty() {
        out += &folded(0, "caches", &caches);
    }
    let offline = offline.iter().map(|(n, _)| **n).collect::<NumberSet>();
    for (label, set) in [("offline", &offline), ("isolated", &t.isolated), ("tickless", &t.tickless)] {
        if !set.is_empty() {
            out += &folded(0, label, &[format!("CPU {set}")]);
        }
    }
    out + &limits(t)
}

/// What the cgroup allows, if that is less than all.
fn limits(t: &Topology) -> String {
    let Some(allowed) = &t.allowed else { return String::new() };
    let mut out = String::new();
    if let Some(container) = &allowed.container {
        let text = format!("{}: CPUs, nodes and devices of the host may be hidden", printable(container));
        out += &folded(0, "container", &[text]);
    }
    let online: NumberSet = t.cpus.iter().filter(|(_, c)| c.online).map(|(n, _)| *n).collect();
    let with_memory = t.nodes.iter().filter(|(_, n)| n.memory > 0).map(|(n, _)| *n).collect::<NumberSet>();
    let mut missing = Vec::new();
    if !online.is_subset(&allowed.cpus) {
        missing.push(format!("CPU {} of {online}", none_or(&allowed.cpus)));
    }
    if !with_memory.is_subset(&allowed.nodes) {
        missing.push(format!("memory of node {} of {with_memory}", none_or(&allowed.nodes)));
    }
    if !missing.is_empty() {
        out += &folded(
            0,
            "allowed",
            &[format!("{} in cgroup {}", missing.join("; "), printable(&allowed.group))],
        );
    }
    out
}

fn none_or(set: &NumberSet) -> String {
    if set.is_empty() { "none".into() } else { set.to_string() }
}

/// How many caches of which size each level has.
fn caches(of: &[&Cache]) -> Vec<String> {
    let kinds: BTreeSet<(u32, u64)> = of.iter().map(|c| (c.level, c.bytes)).collect();
    let word = |&(level, bytes): &(u32, u64)| {
        let n = of.iter().filter(|c| (c.level, c.bytes) == (level, bytes)).count();
        let bytes = if bytes == 0 { "size not known".into() } else { size(bytes) };
        format!("{n} L{level} of {bytes}")
    };
    kinds.iter().map(word).collect()
}

/// A row per node.
fn nodes(t: &Topology) -> String {
    let pools: BTreeSet<u64> = t.nodes.values().flat_map(|n| n.huge.keys().copied()).collect();
    let mut head: Vec<String> =
        ["\nnode", "\nCPUs", "\nmemory", "\nfree", "VMs'\ntables"].map(String::from).into();
    head.extend(pools.iter().map(|kib| format!("{} pages\nfree of all", size(kib.saturating_mul(1024)))));
    let row =
        |(number, node): (&u32, &Node)| {
            let none = |bytes| if node.memory == 0 { UNKNOWN.into() } else { size(bytes) };
            let mut row = vec![
                number.to_string(),
                node.cpus.len().to_string(),
                none(node.memory),
                none(node.free),
                node.kvm_tables.map_or(UNKNOWN.into(), size),
            ];
            row.extend(pools.iter().map(|kib| {
                node.huge.get(kib).map_or(UNKNOWN.into(), |p| format!("{} of {}", p.free, p.total))
            }));
            row
        };
    text_table(head, t.nodes.iter().map(row).collect())
}

/// The matrix of distances, if there are several nodes.
fn distances(t: &Topology) -> Option<String> {
    if t.nodes.len() < 2 || t.nodes.values().all(|n| n.distances.is_empty()) {
        return None;
    }
    let head = [String::from("distance")].into_iter().chain(t.nodes.keys().map(u32::to_string));
    let row = |(number, node): (&u32, &Node)| {
        let to = |other: &u32| node.distances.get(other).map_or(UNKNOWN.into(), u32::to_string);
        [format!("node {number}")].into_iter().chain(t.nodes.keys().map(to)).collect()
    };
    Some(text_table(head.collect(), t.nodes.iter().map(row).collect()))
}

/// What the firmware says of the memory's speed, and caches in front of it.
fn accesses(t: &Topology) -> Option<String> {
    let known = |n: &Node| n.access.is_some() || n.cpu_access.is_some() || !n.side_caches.is_empty();
    if !t.nodes.values().any(known) {
        return None;
    }
    let head = [
        "\nfirmware",
        "read\nns",
        "write\nns",
        "read\nMB/s",
        "write\nMB/s",
        "from CPUs\nof node",
        "cache\nin front",
    ];
    let row = |(number, node): (&u32, &Node)| {
        let best = node.cpu_access.as_ref().or(node.access.as_ref());
        let figure =
            |of: fn(&Access) -> Option<u64>| best.and_then(of).map_or(UNKNOWN.into(), |n| n.to_string());
        let caches: Vec<String> = node.side_caches.iter().map(|c| size(c.bytes)).collect();
        vec![
            format!("node {number}"),
            figure(|a| a.read_latency),
            figure(|a| a.write_latency),
            figure(|a| a.read_bandwidth),
            figure(|a| a.write_bandwidth),
            best.map_or(UNKNOWN.into(), |a| none_or(&a.initiators)),
            if caches.is_empty() { UNKNOWN.into() } else { caches.join("+") },
        ]
    };
    Some(text_table(head.map(String::from).into(), t.nodes.iter().map(row).collect()))
}

/// A node's CPUs, caches, cores and devices, if it has any.
fn one_node(t: &Topology, number: u32, node: &Node) -> Option<String> {
    let devices = devices(t.devices.iter().filter(|d| d.node == Some(number)));
    if node.cpus.is_empty() && devices.is_empty() {
        return None;
    }
    let mut out = format!("node {number}\n");
    out += &folded(INDENT, "CPUs", &[none_or(&node.cpus)]);
    let last = t.caches.iter().map(|c| c.level).max().unwrap_or(0);
    let shared = t.caches.iter().filter(|c| c.level == last && !c.cpus.intersection(&node.cpus).is_empty());
    let groups: Vec<String> = shared.map(|c| c.cpus.to_string()).collect();
    if !groups.is_empty() {
        out += &folded(INDENT, &format!("L{last}"), &[groups.join(" | ")]);
    }
    let cores = siblings(t, &node.cpus);
    if !cores.is_empty() {
        out += &folded(INDENT, "SMT", &cores);
    }
    Some(out + &devices)
}

const INDENT: usize = 2;

/// Devices of no node.
fn elsewhere(t: &Topology) -> Option<String> {
    let lines = devices(t.devices.iter().filter(|d| d.node.is_none_or(|n| !t.nodes.contains_key(&n))));
    (!lines.is_empty()).then(|| format!("no node\n{lines}"))
}

/// A line for each device that a guest may want.
fn devices<'a>(of: impl Iterator<Item = &'a Device>) -> String {
    let mut out = String::new();
    for device in of {
        let Some(kind) = kind(device) else { continue };
        let names = device.names.iter().map(|n| printable(n)).collect::<Vec<_>>().join(" ");
        let mut parts = vec![format!("{} {kind} {names}", device.address).trim_end().to_owned()];
        if !device.interrupts.is_empty() {
            parts.push(format!("interrupt {}", device.interrupts));
        }
        out += &folded(INDENT, "device", &parts);
    }
    out
}
