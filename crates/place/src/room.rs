// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What guests may use of a host: free cores by node and L3, and memory by node.
//!
//! A core's CPUs count as far as they are online, allowed and not reserved. A node with CPUs and without
//! memory uses the memory of the nearest node that has some; a node with memory alone is used in no other
//! way. Distances are taken as the host tells them, also if they differ by direction. A distance that is
//! missing, or that QEMU cannot pass on, is an error only where no placement does without it.

use crate::PlanError;
use crate::wishes::HostWishes;
use bifold_host::topology::{HugePool, NumberSet, Topology};
use std::collections::BTreeMap;

/// SLIT distance of a node to itself (ACPI 6.5, 5.2.17).
pub const LOCAL: u32 = 10;
/// Largest distance; 255 stands for unreachable.
const MOST_DISTANCE: u32 = 254;

/// What guests may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// Nodes with free cores and memory, in order of number.
    pub nodes: Vec<RoomNode>,
    /// Memory that a node of `nodes` uses, by host node.
    pub memory: BTreeMap<u32, Memory>,
    /// Threads of a core all of whose threads are free.
    pub threads: u32,
    /// CPUs for the host and the VMMs' own threads.
    pub reserved: NumberSet,
    /// Whether pools may grow.
    pub reserve_pages: bool,
    /// Whether memory can be bound.
    pub numa: bool,
    /// What is not used, and why.
    pub notes: Vec<String>,
}

/// A node whose CPUs guests may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoomNode {
    /// Number of the host node.
    pub number: u32,
    /// Host node of the memory.
    pub home: u32,
    /// Distance to that memory.
    pub home_distance: u32,
    /// Distances to the nodes of the room, in their order, as far as the host tells ones that can be used.
    pub distances: Vec<Option<u32>>,
    /// Its package.
    pub package: i32,
    /// Free cores by L3.
    pub caches: Vec<L3>,
}

/// Free cores that share an L3, in order of their first CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct L3 {
    /// The cores.
    pub cores: Vec<Core>,
    /// CPUs of the cache, free or not, on all nodes; 0 if the host tells of no L3.
    pub cpus: usize,
}

/// A core with free CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Core {
    /// Its free CPUs in ascending order.
    pub cpus: Vec<u32>,
    /// Number of its online CPUs.
    pub online: u32,
}

/// A node's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// Bytes for pages of 4 KB and for larger pools.
    pub free: u64,
    /// Pools by page size in KiB.
    pub pools: BTreeMap<u64, HugePool>,
}

impl Memory {
    /// Free pages of a pool.
    pub fn free_pages(&self, kib: u64) -> u64 {
        self.pools.get(&kib).map_or(0, |pool| pool.free)
    }
}

/// Distance between two nodes as the host tells it. That of a node to itself is known without the host's
/// word.
pub fn distance(host: &Topology, from: u32, to: u32) -> Result<u32, PlanError> {
    let told = host.nodes.get(&from).and_then(|n| n.distances.get(&to)).copied();
    let bad = |why| Err(PlanError::Distance { sys: "/sys".into(), node: from, why });
    match told {
        None if from == to => Ok(LOCAL),
        // Nothing is compared with it: some firmware of machines with one node tells 0.
        Some(_) if from == to && host.nodes.len() == 1 => Ok(LOCAL),
        None => bad(format!("node {from} tells no distance to node {to}")),
        Some(d) if from == to && d != LOCAL => {
            bad(format!("the distance of node {from} to itself is {d}, not {LOCAL}"))
        }
        Some(d) if !(LOCAL..=MOST_DISTANCE).contains(&d) => {
            bad(format!("the distance of node {from} to node {to} is {d}, not {LOCAL} to {MOST_DISTANCE}"))
        }
        Some(d) => Ok(d),
    }
}

/// CPUs of the host that may be used at all.
fn usable(host: &Topology, wishes: &HostWishes, notes: &mut Vec<String>) -> NumberSet {
    let online: NumberSet = host.cpus.iter().filter(|(_, c)| c.online).map(|(n, _)| *n).collect();
    let mut cpus = online.clone();
    if let Some(wished) = &wishes.cpus {
        let missing = wished.difference(&online);
        if !missing.is_empty() {
            notes.push(format!("host.cpus: CPUs {missing} are not online here"));
        }
        cpus = cpus.intersection(wished);
    }
    if let Some(allowed) = host.allowed.as_ref().filter(|a| !cpus.is_subset(&a.cpus)) {
        notes.push(format!(
            "cgroup {} allows CPUs {}: the plan keeps to them",
            bifold_host::printable(&allowed.group),
            allowed.cpus
        ));
        cpus = cpus.intersection(&allowed.cpus);
    }
    cpus
}

/// CPUs for the host: those wished; or those not isolated, if only some are isolated; or the first core.
fn reserved(host: &Topology, wishes: &HostWishes, usable: &NumberSet, notes: &mut Vec<String>) -> NumberSet {
    if let Some(wished) = &wishes.reserve_cpus {
        let missing = wished.difference(usable);
        if !missing.is_empty() {
            notes.push(format!(
                "host.reserve_cpus: CPUs {missing} are not among the CPUs that the plan may use, {usable}: they are not reserved"
            ));
        }
        return wished.intersection(usable);
    }
    let shared = usable.difference(&host.isolated);
    if !shared.is_empty() && shared.len() < usable.len() {
        return shared;
    }
    let Some(first) = usable.iter().next() else { return NumberSet::default() };
    core_of(host, first).intersection(usable)
}

/// All CPUs of a CPU's core.
fn core_of(host: &Topology, cpu: u32) -> NumberSet {
    let mut threads = host.cpus.get(&cpu).map(|c| c.threads.clone()).unwrap_or_default();
    threads.insert(cpu);
    threads
}

impl Room {
    /// What the wishes leave of a host.
    ///
    /// # Errors
    /// If nothing is left.
    pub fn new(host: &Topology, wishes: &HostWishes) -> Result<Room, PlanError> {
        let mut notes = Vec::new();
        let usable = usable(host, wishes, &mut notes);
        let reserved = reserved(host, wishes, &usable, &mut notes);
        let free = usable.difference(&reserved);
        let memory: BTreeMap<u32, Memory> = host
            .nodes
            .iter()
            .filter(|(n, node)| {
                node.memory > 0 && host.allowed.as_ref().is_none_or(|a| a.nodes.contains(**n))
            })
            .map(|(n, node)| {
                let free = node.free.saturating_sub(wishes.reserve_memory);
                (*n, Memory { free, pools: node.huge.clone() })
            })
            .collect();
        let mut room = Room {
            nodes: Vec::new(),
            memory,
            threads: 1,
            reserved,
            reserve_pages: wishes.reserve_pages,
            numa: host.numa,
            notes,
        };
        for number in host.nodes.keys() {
            room.add(host, *number, &free);
        }
        room.measure(host);
        if room.nodes.is_empty() {
            return Err(PlanError::Refused(format!(
                "no node has both a free CPU and memory: {}",
                match (usable.is_empty(), room.reserved.is_empty()) {
                    (true, _) =>
                        "no CPU may be used: look at host.cpus and at the cgroup of this process".into(),
                    (_, true) => format!("CPUs {usable} may be used, and their nodes have no memory"),
                    _ => format!(
                        "CPUs {usable} may be used, of which CPUs {} are reserved for the host",
                        room.reserved
                    ),
                }
            )));
        }
        Ok(room)
    }

    /// Adds a node, if it has free cores and memory.
    fn add(&mut self, host: &Topology, number: u32, free: &NumberSet) {
        let caches = caches(host, number, free);
        let online = host.cpus.values().filter(|c| c.online && c.node == Some(number)).count();
        if caches.is_empty() {
            if online == 0 && host.nodes[&number].memory > 0 {
                self.notes.push(format!("node {number} has memory and no CPU: no guest node is made of it"));
            }
            return;
        }
        // A node's own memory comes first, then the nearest of the lowest number.
        let own = self.memory.contains_key(&number).then_some((false, LOCAL, number));
        let nearest = || {
            let told = |to: &u32| distance(host, number, *to).ok().map(|d| (true, d, *to));
            self.memory.keys().filter_map(told).min()
        };
        let Some((away, home_distance, home)) = own.or_else(nearest) else {
            if !self.memory.is_empty() {
                self.notes.push(format!(
                    "node {number} has CPUs and no memory that can be used, and tells no distance to a node that has some: no guest \
                     node is made of it"
                ));
            }
            return;
        };
        if away {
            self.notes.push(format!(
                "node {number} has CPUs and no memory that can be used: node {home} stands in"
            ));
        }
        let first = caches[0].cores[0].cpus[0];
        let package = host.cpus[&first].package.unwrap_or(0);
        let distances = Vec::new();
        self.nodes.push(RoomNode { number, home, home_distance, distances, package, caches });
    }

    /// Fills in what needs all nodes: distances, and the threads of a full core.
    fn measure(&mut self, host: &Topology) {
        let numbers: Vec<u32> = self.nodes.iter().map(|n| n.number).collect();
        let mut asymmetric = false;
        for node in &mut self.nodes {
            for to in &numbers {
                let there = distance(host, node.number, *to).ok();
                let back = distance(host, *to, node.number).ok();
                asymmetric |= there.zip(back).is_some_and(|(there, back)| there != back);
                node.distances.push(there);
            }
        }
        if asymmetric {
            self.notes
                .push("distances between nodes differ by direction: guests see them as the host does".into());
        }
        let homes: Vec<u32> = self.nodes.iter().map(|n| n.home).collect();
        self.memory.retain(|n, _| homes.contains(n));
        let cores = self.nodes.iter().flat_map(|n| &n.caches).flat_map(|c| &c.cores);
        self.threads = cores.map(|c| c.cpus.len() as u32).max().unwrap_or(1);
    }
}

/// Free cores of a node by L3. CPUs without an L3 form a group of their own.
fn caches(host: &Topology, node: u32, free: &NumberSet) -> Vec<L3> {
    let mut groups: BTreeMap<Option<usize>, L3> = BTreeMap::new();
    let on_node = host.cpus.iter().filter(|(_, c)| c.online && c.node == Some(node)).map(|(n, _)| *n);
    let cache_of = |cpu| host.caches.iter().position(|c| c.level == 3 && c.cpus.contains(cpu));
    let mut seen = NumberSet::default();
    for cpu in on_node.filter(|c| free.contains(*c)) {
        if seen.contains(cpu) {
            continue;
        }
        let threads = core_of(host, cpu);
        let cpus: Vec<u32> = threads.intersection(free).iter().collect();
        let online = threads.iter().filter(|t| host.cpus.get(t).is_some_and(|c| c.online)).count();
        seen = seen.union(&threads);
        let cache = cache_of(cpu);
        let group = groups.entry(cache).or_default();
        group.cpus = cache.map_or(0, |i| host.caches[i].cpus.len());
        group.cores.push(Core { cpus, online: online as u32 });
    }
    groups.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifold_host::topology::Node;

    #[test]
    fn a_node_alone_may_tell_any_distance_to_itself_and_of_several_none() {
        let host = |numbers: &[u32]| {
            let node = |n: &u32| (*n, Node { distances: [(*n, 0)].into(), ..Node::default() });
            Topology { nodes: numbers.iter().map(node).collect(), ..Topology::default() }
        };
        assert_eq!(distance(&host(&[0]), 0, 0).unwrap(), LOCAL);
        assert!(distance(&host(&[0, 1]), 0, 0).is_err());
    }
}
