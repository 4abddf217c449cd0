// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The topology that the guest sees, beside the one that it runs on.

use super::super::case::{CheckedGuest, few};
use super::super::kinds::Kind;
use crate::view::{LOCAL, Level, Levels, REMOTE};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

/// Guest nodes beside the host nodes of their vCPUs.
pub fn nodes(case: &mut CheckedGuest) {
    if !case.has_several_nodes() {
        return;
    }
    let homes: BTreeMap<u32, u32> =
        case.guest.vcpus().into_iter().filter_map(|(n, t)| Some((n, case.home(t)?))).collect();
    let mut by_node: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (vcpu, home) in &homes {
        by_node.entry(case.guest.node_of(*vcpu)).or_default().insert(*home);
    }
    let planned = planned_homes(case);
    let apart: Vec<(u32, BTreeSet<u32>)> = by_node
        .into_iter()
        .filter(|(node, homes)| homes.len() > 1 && planned.get(node) != Some(homes))
        .collect();
    if apart.is_empty() {
        return;
    }
    let list = |homes: &BTreeSet<u32>| few(homes.iter().map(u32::to_string));
    let one = |(node, homes): &(u32, BTreeSet<u32>)| {
        format!("vCPUs of guest node {node} run on nodes {}", list(homes))
    };
    if case.guest.nodes().len() > 1 {
        let evidence = few(apart.iter().map(one));
        case.find(
            Kind::VcpusOfNodeApart,
            evidence,
            "pin them to CPUs of one node: taskset -pc CPU THREAD".into(),
        );
    } else {
        let evidence = format!("the guest has one node, its vCPUs run on nodes {}", list(&apart[0].1));
        let mend =
            "start the guest with a -numa node for each host node; `bifold place plan` writes the options";
        case.find(Kind::GuestSeesOneNode, evidence, mend.into());
    }
}

/// The host nodes of each guest node's vCPUs, by the plan.
fn planned_homes(case: &CheckedGuest) -> BTreeMap<u32, BTreeSet<u32>> {
    let mut homes: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for vcpu in case.plan.map(|p| p.vcpus.iter()).into_iter().flatten() {
        homes.entry(vcpu.node).or_default().extend(case.host_node(vcpu.cpu));
    }
    homes
}

/// vCPUs that share a level in the guest, in groups, by the levels and pins given.
fn groups(levels: &Levels, level: Level, pins: &BTreeMap<u32, u32>) -> BTreeMap<Vec<u32>, Vec<u32>> {
    let mut groups: BTreeMap<Vec<u32>, Vec<u32>> = BTreeMap::new();
    for vcpu in pins.keys() {
        let key = levels.of(*vcpu)[..=level as usize].to_vec();
        groups.entry(key).or_default().push(*vcpu);
    }
    groups
}

/// The plan's levels and pins.
fn planned(case: &CheckedGuest) -> Option<(Levels, BTreeMap<u32, u32>)> {
    let plan = case.plan?;
    let smp = plan.smp;
    let levels =
        Levels { sockets: smp.sockets, dies: smp.dies, modules: 1, cores: smp.cores, threads: smp.threads };
    Some((levels, plan.vcpus.iter().map(|v| (v.vcpu, v.cpu)).collect()))
}

/// Groups of vCPUs with one L3 in the guest whose CPUs have several, and whether these are on several nodes.
fn split(
    case: &CheckedGuest,
    levels: &Levels,
    level: Level,
    pins: &BTreeMap<u32, u32>,
) -> Vec<(Vec<u32>, bool)> {
    let several = |vcpus: &Vec<u32>| {
        let cpus: Vec<u32> = vcpus.iter().filter_map(|v| pins.get(v).copied()).collect();
        let nodes: BTreeSet<u32> = cpus.iter().filter_map(|c| case.host_node(*c)).collect();
        let caches: BTreeSet<usize> = cpus.iter().filter_map(|c| case.l3(*c)).collect();
        (caches.len() > 1 || (nodes.len() > 1 && caches.is_empty())).then_some(nodes.len() > 1)
    };
    let groups = groups(levels, level, pins).into_values();
    groups.filter_map(|vcpus| several(&vcpus).map(|nodes| (vcpus, nodes))).collect()
}

/// L3s of the guest beside the host's.
pub fn caches(case: &mut CheckedGuest) {
    let Some((levels, level)) = case.guest.view.as_ref().and_then(|v| Some((v.levels, v.l3?))) else {
        return;
    };
    let mut found = split(case, &levels, level, &case.guest.pins());
    if let Some((levels, pins)) = planned(case) {
        let wanted = split(case, &levels, level, &pins);
        found.retain(|f| !wanted.contains(f));
    }
    let list = |vcpus: &[u32]| few(vcpus.iter().map(u32::to_string));
    for (kind, of) in [(Kind::L3OverTwoNodes, true), (Kind::GuestL3Wrong, false)] {
        let groups: Vec<&Vec<u32>> = found.iter().filter(|(_, nodes)| *nodes == of).map(|(v, _)| v).collect();
        if groups.is_empty() {
            continue;
        }
        let several = if of { "nodes" } else { "L3s" };
        let one = |v: &&Vec<u32>| {
            format!("vCPUs {} share an L3 in the guest and run on several {several}", list(v))
        };
        let evidence = few(groups.iter().map(one));
        let mend = "start the guest with -smp dies= (or sockets=) so that each host L3 has a die of its own; `bifold place plan` writes the option";
        case.find(kind, evidence, mend.into());
    }
}

/// Pairs of vCPUs that are threads of one core either in the guest or on the host, and which.
fn pairs(case: &CheckedGuest, levels: &Levels, pins: &BTreeMap<u32, u32>) -> Vec<(u32, u32, bool)> {
    let mut found = Vec::new();
    let siblings = |a: u32, b: u32| case.topology.cpus.get(&a).is_some_and(|c| c.threads.contains(b));
    for (a, cpu_a) in pins {
        for (b, cpu_b) in pins.range((Excluded(*a), Unbounded)) {
            if cpu_a == cpu_b {
                continue; // has a name of its own
            }
            let (guest, host) = (levels.together(Level::Core, *a, *b), siblings(*cpu_a, *cpu_b));
            if guest != host {
                found.push((*a, *b, host));
            }
        }
    }
    found
}

/// Threads of a core in the guest beside the host's.
pub fn cores(case: &mut CheckedGuest) {
    let Some(levels) = case.guest.view.as_ref().map(|v| v.levels) else { return };
    let mut found = pairs(case, &levels, &case.guest.pins());
    if let Some((levels, pins)) = planned(case) {
        let wanted = pairs(case, &levels, &pins);
        found.retain(|f| !wanted.contains(f));
    }
    for (kind, on_host) in [(Kind::SmtAsCores, true), (Kind::CoresAsSmt, false)] {
        let of: Vec<String> =
            found.iter().filter(|f| f.2 == on_host).map(|(a, b, _)| format!("vCPUs {a} and {b}")).collect();
        if of.is_empty() {
            continue;
        }
        let (evidence, mend) = if on_host {
            (
                format!("cores in the guest, threads of one core here: {}", few(of)),
                "start the guest with -smp threads=2, or pin them to different cores",
            )
        } else {
            (
                format!("threads of one core in the guest, different cores here: {}", few(of)),
                "start the guest with -smp threads=1, or pin them to threads of one core",
            )
        };
        case.find(kind, evidence, mend.into());
    }
}

/// Distances between guest nodes.
pub fn distances(case: &mut CheckedGuest) {
    let Some(view) = case.guest.view.clone().filter(|v| v.nodes.len() > 1) else { return };
    let numbers: Vec<u32> = view.nodes.keys().copied().collect();
    let mut wrong = Vec::new();
    let mut options = Vec::new();
    for from in &numbers {
        for to in &numbers {
            let Some(wanted) = wanted_distance(case, *from, *to) else { continue };
            let is = view.distance(*from, *to);
            if is != wanted {
                wrong.push(format!("{from} to {to}: {is} instead of {wanted}"));
            }
            if from != to {
                options.push(format!("-numa dist,src={from},dst={to},val={wanted}"));
            }
        }
    }
    if wrong.is_empty() {
        return;
    }
    let mend = format!("start the guest with {}", options.join(" "));
    let kind = if view.distances.is_empty() { Kind::DistancesMissing } else { Kind::DistancesWrong };
    let words = if view.distances.is_empty() {
        format!(" (no -numa dist: {LOCAL} and {REMOTE})")
    } else {
        String::new()
    };
    case.find(kind, format!("distances of guest nodes{words}: {}", few(wrong)), mend);
}

/// The plan's distance, else that of the host nodes which have the guest nodes' memory.
fn wanted_distance(case: &CheckedGuest, from: u32, to: u32) -> Option<u32> {
    if let Some(plan) = case.plan {
        let mut nodes: Vec<_> = plan.nodes.iter().collect();
        nodes.sort_by_key(|n| n.node);
        let to = nodes.iter().position(|n| n.node == to)?;
        return nodes.iter().find(|n| n.node == from)?.distances.get(to).copied();
    }
    let host = |node| case.wanted_node(node).or_else(|| case.home_of_node(node));
    let (from, to) = (host(from)?, host(to)?);
    // Two guest nodes on one host node have no distance of the host's.
    if from == to {
        return None;
    }
    case.topology.nodes.get(&from)?.distances.get(&to).copied()
}
