// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One guest beside its plan on its host, and the findings about it.

use super::kinds::Kind;
use super::seen::{GuestFacts, PlacementFacts};
use crate::plan::{GuestPlan, Plan};
use bifold_host::placement::Thread;
use bifold_host::topology::{NumberSet, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub kind: Kind,
    /// The VM's name; `None` for the host.
    pub vm: Option<String>,
    /// The VM's process.
    pub pid: Option<u32>,
    /// Figures.
    pub evidence: String,
    /// The command that mends it, or what to do first.
    pub mend: String,
}

/// A guest that is checked.
pub(super) struct CheckedGuest<'a> {
    pub topology: &'a Topology,
    pub seen: &'a PlacementFacts,
    pub guest: &'a GuestFacts,
    /// The whole plan, if it is for this host.
    pub whole: Option<&'a Plan>,
    /// This guest's part of the plan.
    pub plan: Option<&'a GuestPlan>,
    /// The findings so far.
    pub findings: Vec<Finding>,
}

impl CheckedGuest<'_> {
    pub fn find(&mut self, kind: Kind, evidence: String, mend: String) {
        let (vm, pid) = (Some(self.guest.name.clone()), Some(self.guest.pid));
        self.findings.push(Finding { kind, vm, pid, evidence, mend });
    }

    pub fn has(&self, kind: Kind) -> bool {
        self.findings.iter().any(|f| f.kind == kind)
    }

    pub fn host_node(&self, cpu: u32) -> Option<u32> {
        self.topology.cpus.get(&cpu)?.node
    }

    /// The host nodes of CPUs.
    pub fn host_nodes(&self, cpus: &NumberSet) -> BTreeSet<u32> {
        let online = cpus.iter().filter(|c| self.topology.cpus.get(c).is_some_and(|c| c.online));
        online.filter_map(|cpu| self.host_node(cpu)).collect()
    }

    /// The one host node on which a thread may run.
    pub fn home(&self, thread: &Thread) -> Option<u32> {
        one(&self.host_nodes(&thread.cpus))
    }

    /// The one host node that all vCPUs of a guest node are confined to.
    pub fn home_of_node(&self, node: u32) -> Option<u32> {
        let vcpus = self.guest.vcpus();
        let of = vcpus.iter().filter(|(n, _)| self.guest.node_of(**n) == node);
        let homes: Option<BTreeSet<u32>> = of.map(|(_, t)| self.home(t)).collect();
        one(&homes?)
    }

    /// The nodes with memory that are nearest to a host node: the node itself, if it has any.
    pub fn memory_near(&self, home: u32) -> BTreeSet<u32> {
        let nodes = &self.topology.nodes;
        let with_memory = || nodes.iter().filter(|(_, n)| n.memory > 0).map(|(number, _)| *number);
        let Some(own) = nodes.get(&home).filter(|n| n.memory == 0 && with_memory().next().is_some()) else {
            return BTreeSet::from([home]);
        };
        let distance = |to: &u32| own.distances.get(to).copied().unwrap_or(u32::MAX);
        let least = with_memory().map(|to| distance(&to)).min();
        with_memory().filter(|to| Some(distance(to)) == least).collect()
    }

    /// The one host node that the plan has for all vCPUs of a guest node.
    pub fn planned_home(&self, node: u32) -> Option<u32> {
        let vcpus = self.plan?.vcpus.iter().filter(|v| v.node == node);
        one(&vcpus.filter_map(|v| self.host_node(v.cpu)).collect())
    }

    /// The host's L3 of a CPU, by position in the list of caches.
    pub fn l3(&self, cpu: u32) -> Option<usize> {
        self.topology.caches.iter().position(|c| c.level == 3 && c.cpus.contains(cpu))
    }

    /// Online CPUs that no guest's vCPU is pinned to.
    pub fn free_cpus(&self) -> NumberSet {
        let online: NumberSet =
            self.topology.cpus.iter().filter(|(_, c)| c.online).map(|(n, _)| *n).collect();
        let taken = self.seen.guests.iter().fold(NumberSet::default(), |all, g| all.union(&g.pinned_cpus()));
        online.difference(&taken).difference(&self.topology.isolated)
    }

    /// The free CPUs that the cgroups of any of these threads allow; those on the guest's nodes, if there are
    /// any.
    pub fn free_for(&self, threads: impl IntoIterator<Item = u32>) -> NumberSet {
        let allowed: Option<Vec<&NumberSet>> =
            threads.into_iter().map(|t| Some(&self.guest.cpuset_of(t)?.cpus)).collect();
        let free = self.free_cpus();
        match allowed {
            Some(sets) => {
                let all = sets.into_iter().fold(NumberSet::default(), |all, set| all.union(set));
                self.near(free.intersection(&all))
            }
            None => self.near(free),
        }
    }

    /// Those of the CPUs that are on the guest's nodes, if there are any.
    pub fn near(&self, free: NumberSet) -> NumberSet {
        let homes = self.host_nodes(&self.guest.pinned_cpus());
        let near = free.iter().filter(|c| self.host_node(*c).is_some_and(|n| homes.contains(&n)));
        Some(near.collect::<NumberSet>()).filter(|n| !n.is_empty()).unwrap_or(free)
    }

    /// Whether memory and CPUs can be remote here.
    pub fn has_several_nodes(&self) -> bool {
        self.topology.nodes.len() > 1
    }

    /// What the plan, if any, has for a guest node's memory, or else what the memory is bound to.
    pub fn wanted_node(&self, node: u32) -> Option<u32> {
        if let Some(plan) = self.plan {
            return plan.nodes.iter().find(|n| n.node == node && plan.bound).map(|n| n.host_node);
        }
        let view = self.guest.view.as_ref()?;
        let backend = match view.nodes.get(&node).and_then(|n| n.backend.as_ref()) {
            Some(id) => id,
            None => view.whole.as_ref()?,
        };
        let backend = view.backend(backend).filter(|b| b.policy == "bind" && b.host_nodes.len() == 1)?;
        backend.host_nodes.iter().next()
    }
}

/// The only member of a set.
pub fn one(set: &BTreeSet<u32>) -> Option<u32> {
    set.first().copied().filter(|_| set.len() == 1)
}

/// Names of a few things: "a, b and 3 more".
pub fn few(items: impl IntoIterator<Item = String>) -> String {
    const MOST: usize = 8;
    let all: Vec<String> = items.into_iter().collect();
    let shown = all[..all.len().min(MOST)].join(", ");
    if all.len() > MOST { format!("{shown} and {} more", all.len() - MOST) } else { shown }
}

/// Commands that pin threads.
pub fn pin(threads: impl IntoIterator<Item = (u32, String)>) -> String {
    let commands = threads.into_iter().map(|(id, cpus)| format!("taskset -pc {cpus} {id}"));
    commands.collect::<Vec<_>>().join("; ")
}

/// Shares of pages by node: "node 0: 60 of 64 pages, node 1: 4".
pub fn by_node(nodes: &BTreeMap<u32, u64>) -> String {
    few(nodes.iter().map(|(node, pages)| format!("node {node}: {pages}")))
}
