// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Facts of a topology, as far as hwloc could see them in a run.

use super::facts::{Facts, cache, group, memory};
use super::output::Output;
use super::rules::Run;
use bifold_host::topology::{Access, NumberSet, Topology};
use std::collections::{BTreeMap, BTreeSet};

impl Facts {
    /// What the topology says.
    pub fn of_sysfs(t: &Topology, hwloc: &Output, run: &Run) -> Facts {
        let mut facts = Facts::default();
        let online: NumberSet = t.cpus.iter().filter(|(_, c)| c.online).map(|(n, _)| *n).collect();
        let allowed = t.allowed.as_ref().filter(|_| run.restricted());
        let visible = allowed.map_or(online.clone(), |a| a.cpus.intersection(&online));
        let nodes: NumberSet = t.nodes.keys().copied().collect();
        let nodes = allowed.map_or(nodes.clone(), |a| a.nodes.intersection(&nodes));
        machine(&mut facts, t, hwloc, &visible);
        groups(&mut facts, t, hwloc, &visible);
        memories(&mut facts, t, hwloc, [&visible, &nodes]);
        for d in &t.devices {
            let bridge = d.class >> 8 == PCI_BRIDGE;
            facts.add(
                if bridge { "bridges" } else { "devices" },
                format!("{}: class {:04x}", d.address, d.class >> 8),
            );
            let near = d.cpus.intersection(&visible);
            // hwloc takes a device without neighbours for a neighbour of all.
            facts.add(
                "localities",
                format!("{}: CPUs {}", d.address, if near.is_empty() { &visible } else { &near }),
            );
            d.names.iter().for_each(|name| facts.add("names", format!("{}: {name}", d.address)));
        }
        facts
    }
}

const PCI_BRIDGE: u32 = 0x0604;

fn machine(facts: &mut Facts, t: &Topology, hwloc: &Output, visible: &NumberSet) {
    facts.add("CPUs", format!("visible: {visible}"));
    if hwloc.hidden.is_some() {
        let all: NumberSet = t.cpus.keys().copied().collect();
        facts.add("CPUs", format!("hidden: {}", all.difference(visible)));
    }
    if hwloc.group.is_some() {
        // The root group allows everything, and some trees lack its files.
        let group = t.allowed.as_ref().map_or("/", |a| &a.group);
        facts.add("CPUs", format!("cgroup: {group}"));
    }
}

/// Packages, dies, cores and caches.
fn groups(facts: &mut Facts, t: &Topology, hwloc: &Output, visible: &NumberSet) {
    let mut packages: BTreeMap<_, NumberSet> = BTreeMap::new();
    let mut dies: BTreeMap<_, NumberSet> = BTreeMap::new();
    let mut cores: BTreeMap<_, NumberSet> = BTreeMap::new();
    for (&n, c) in t.cpus.iter().filter(|(n, _)| visible.contains(**n)) {
        packages.entry(c.package).or_default().insert(n);
        dies.entry((c.package, c.die)).or_default().insert(n);
        // Of AMD's compute units, which are cores of two threads for the kernel, hwloc makes two cores.
        cores.entry((&c.threads, c.core)).or_default().insert(n);
    }
    let number = |n: Option<i32>| n.and_then(|n| u32::try_from(n).ok());
    for (package, cpus) in packages.iter().filter(|(package, _)| package.is_some()) {
        facts.add("packages", group(number(*package).filter(|_| hwloc.packages_have_numbers()), cpus));
    }
    // hwloc leaves out a die that is a whole package, and one of a single CPU.
    let whole: BTreeSet<&NumberSet> = packages.values().collect();
    for ((_, die), cpus) in dies.iter().filter(|(_, cpus)| cpus.len() > 1 && !whole.contains(cpus)) {
        facts.add("dies", group(number(*die), cpus));
    }
    // With neither a number nor siblings, sysfs has no cores.
    for ((_, core), cpus) in cores.iter().filter(|((threads, core), _)| core.is_some() || threads.len() > 1) {
        facts.add("cores", group(number(*core), cpus));
    }
    for c in &t.caches {
        let cpus = c.cpus.intersection(visible);
        if !cpus.is_empty() {
            facts.add("caches", cache(c.level, c.id, c.bytes, [c.line, c.ways], &cpus));
        }
    }
}

fn memories(facts: &mut Facts, t: &Topology, hwloc: &Output, [visible, nodes]: [&NumberSet; 2]) {
    let pages = hwloc.all("NUMANode").any(|o| !o.pages.is_empty());
    for (&number, node) in t.nodes.iter().filter(|(n, _)| nodes.contains(**n)) {
        facts.add("memory", memory(number, node.memory, hwloc.in_mib()));
        if !node.cpus.is_empty() {
            facts.add("nodes", format!("{number}: CPUs {}", node.cpus.intersection(visible)));
        }
        for (kib, pool) in node.huge.iter().filter(|_| pages) {
            facts.add("huge pages", format!("{number}: {} of {} bytes", pool.total, kib << 10));
        }
        for c in &node.side_caches {
            facts.add("side caches", format!("{number}: {} bytes, lines of {}", c.bytes, c.line));
        }
        // hwloc shows distances between several nodes only.
        for (to, d) in node.distances.iter().filter(|(to, _)| nodes.contains(**to) && t.nodes.len() > 1) {
            facts.add("distances", format!("{number} to {to}: {d}"));
        }
        let Some(access) = node.cpu_access.as_ref().or(node.access.as_ref()) else { continue };
        for (name, value) in speeds(access) {
            facts.add("speeds", format!("{number}: {name} {value}"));
        }
    }
}

fn speeds(access: &Access) -> impl Iterator<Item = (&'static str, u64)> {
    let figures = [
        ("ReadLatency", access.read_latency),
        ("WriteLatency", access.write_latency),
        ("ReadBandwidth", access.read_bandwidth),
        ("WriteBandwidth", access.write_bandwidth),
    ];
    figures.into_iter().filter_map(|(name, value)| Some((name, value?)))
}
