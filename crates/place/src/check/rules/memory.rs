// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a guest's memory lies, and in which pages.

use super::super::case::{CheckedGuest, by_node, few};
use super::super::kinds::Kind;
use super::super::seen::{Block, Pages};
use crate::settings::quoted;
use bifold_host::topology::NumberSet;
use std::collections::BTreeMap;

/// Without a plan or a binding, so many percent of a guest node's pages may be elsewhere: kernel pages that
/// QEMU touched before it was pinned, for example.
const STRAY_PERCENT: u64 = 5;
/// Bytes of a page without hugetlbfs, and of a huge one that is not giant.
const SMALL: u64 = 4096;
const LARGE: u64 = 2 << 20;

/// Each guest node's pages beside the planned, bound or vCPUs' host node.
pub fn nodes(case: &mut CheckedGuest) {
    if !case.has_several_nodes() {
        return;
    }
    for node in case.guest.nodes() {
        let (pages, blocks) = case.guest.pages_of(node);
        let interleaved: Vec<String> = blocks
            .iter()
            .flat_map(|b| b.memory.policies.iter())
            .filter(|p| p.contains("interleave"))
            .cloned()
            .collect();
        let present = pages.present();
        if present == 0 {
            continue;
        }
        let hard = case.wanted_node(node);
        let cpus_home = case.home_of_node(node);
        let on = |n: u32| pages.nodes.get(&n).copied().unwrap_or(0);
        let home = cpus_home.and_then(|home| case.memory_near(home).into_iter().rev().max_by_key(|n| on(*n)));
        if !interleaved.is_empty() {
            let evidence =
                format!("memory of guest node {node} has the policy {}; {}", interleaved[0], told(&pages));
            let mend = rebind(case, node, hard.or(home));
            case.find(Kind::MemoryInterleaved, evidence, mend);
            continue;
        }
        // A plan takes the nearest memory for vCPUs on a node without memory.
        let planned = hard.is_some_and(|h| on(h) * 2 >= present) && case.planned_home(node) == cpus_home;
        if let (Some(home), Some(cpus)) = (home.filter(|h| on(*h) * 2 < present && !planned), cpus_home) {
            let evidence =
                format!("vCPUs of guest node {node} run on node {cpus}, its pages: {}", told(&pages));
            let mend = rebind(case, node, hard.or(Some(home)));
            case.find(Kind::CrossedNodes, evidence, mend);
        }
        let (wanted, tolerated) = match (hard, home) {
            (Some(node), _) => (node, 0),
            // More than half elsewhere has a name already.
            (None, Some(home)) if !case.has(Kind::CrossedNodes) => (home, present * STRAY_PERCENT / 100),
            _ => continue,
        };
        let strays = present - on(wanted);
        if strays > tolerated {
            let evidence = format!(
                "{strays} of {present} pages of guest node {node} are not on node {wanted}; {}",
                told(&pages)
            );
            let mend = rebind(case, node, Some(wanted));
            case.find(Kind::MemoryOnWrongNode, evidence, mend);
        }
    }
}

fn told(pages: &Pages) -> String {
    let sample = if pages.is_sample() {
        format!(" ({} of {} pages looked at)", pages.looked, pages.all)
    } else {
        String::new()
    };
    format!("{}{sample}", by_node(&pages.nodes))
}

/// How to bring a guest node's memory to a host node. Migrating moves all of a process's pages of a node, so
/// it is right only if no other guest node belongs there.
fn rebind(case: &CheckedGuest, node: u32, to: Option<u32>) -> String {
    let Some(to) = to else {
        return "start the guest with host-nodes=NODE,policy=bind for this memory".into();
    };
    let (pages, _) = case.guest.pages_of(node);
    let from: NumberSet = pages.nodes.keys().copied().filter(|n| *n != to).collect();
    let others: Vec<u32> = case.guest.nodes().into_iter().filter(|n| *n != node).collect();
    let at_home = |n: &u32| {
        let there = case.guest.pages_of(*n).0.nodes;
        there.keys().any(|n| from.contains(*n))
    };
    if from.is_empty() || others.iter().any(at_home) {
        return format!(
            "end the guest, then start it with host-nodes={to},policy=bind,prealloc=on for guest node {node}"
        );
    }
    format!("migratepages {} {from} {to}", case.guest.pid)
}

/// The size of pages beside the plan's, or the one asked for.
pub fn huge(case: &mut CheckedGuest) {
    let planned = case.plan.map(|p| p.page_kib << 10);
    let wanted = |b: &&Block| match planned {
        Some(page) => page > SMALL,
        None => b.node.is_some_and(|node| asks_for_huge(case, node)),
    };
    let (mut total, mut smaller) = (0, 0);
    for memory in case.guest.blocks.iter().filter(wanted).map(|b| &b.memory) {
        // Transparent pages have 2 MB.
        let giant = planned.is_some_and(|page| page > LARGE && memory.page < page);
        total += memory.resident;
        smaller += if giant { memory.resident } else { memory.resident.saturating_sub(memory.huge) };
    }
    if smaller > 0 {
        let size = if planned.is_some_and(|page| page > LARGE) { "1G" } else { "2M" };
        let evidence =
            format!("{} MiB of {} MiB are in pages of less than {size}", smaller >> 20, total >> 20);
        let mend = format!(
            "end the guest, then start it with memory-backend-memfd,hugetlb=on,hugetlbsize={size},prealloc=on for its memory"
        );
        case.find(Kind::MemoryNotHuge, evidence, mend);
    }
    short(case);
}

/// Whether the command line asks for huge pages of a guest node.
fn asks_for_huge(case: &CheckedGuest, node: u32) -> bool {
    let Some(view) = &case.guest.view else { return false };
    let own = view.nodes.get(&node).and_then(|n| n.backend.as_ref());
    own.or(view.whole.as_ref()).and_then(|id| view.backend(id)).is_some_and(|b| b.huge)
}

/// Huge pages that a running guest has not touched yet and will not get.
fn short(case: &mut CheckedGuest) {
    let mut missing: BTreeMap<(u32, u64), u64> = BTreeMap::new();
    for block in case.guest.blocks.iter().filter(|b| b.memory.page > 4096) {
        let Some(node) = block.node.and_then(|n| case.wanted_node(n)) else { continue };
        let lacks = block.memory.bytes.saturating_sub(block.memory.resident) / block.memory.page;
        *missing.entry((node, block.memory.page >> 10)).or_default() += lacks;
    }
    let mut short = Vec::new();
    let mut mend = Vec::new();
    for ((node, kib), pages) in missing {
        let Some(pool) = case.topology.nodes.get(&node).and_then(|n| n.huge.get(&kib)) else { continue };
        if pool.free < pages {
            short.push(format!(
                "node {node} has {} free pages of {kib} KiB, the guest still needs {pages}",
                pool.free
            ));
            mend.push(raise(node, kib, pool.total + pages - pool.free));
        }
    }
    if !short.is_empty() {
        case.find(Kind::PoolShort, few(short), mend.join("; "));
    }
}

/// The command that sets a node's pool of huge pages.
pub fn raise(node: u32, kib: u64, pages: u64) -> String {
    format!("echo {pages} > /sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB/nr_hugepages")
}

/// Nodes that the cgroup lacks.
pub fn cpuset(case: &mut CheckedGuest) {
    let wanted: NumberSet = case.guest.nodes().into_iter().filter_map(|n| case.wanted_node(n)).collect();
    let cgroup = case.guest.cpuset.as_ref().map(|c| (c.mems.clone(), c.folder.display().to_string()));
    let thread = case.guest.main().map(|t| (t.mems.clone(), "the process".to_string()));
    let lacks = |(mems, _): &(NumberSet, String)| !mems.is_empty() && !wanted.is_subset(mems);
    let Some((mems, who)) = cgroup.into_iter().chain(thread).find(lacks) else { return };
    let evidence = format!("{who} has nodes {mems}, the guest's memory belongs on {wanted}");
    let folder = case.guest.cpuset.as_ref().map_or("CGROUP".into(), |c| c.folder.display().to_string());
    let mend = format!("echo {} > {}", mems.union(&wanted), quoted(&format!("{folder}/cpuset.mems")));
    case.find(Kind::CpusetWithoutNode, evidence, mend);
}

/// Memory that all guests together are bound to, beside the node's own.
pub fn overcommitted(case: &mut CheckedGuest) {
    let mut bound: BTreeMap<u32, u64> = BTreeMap::new();
    for guest in &case.seen.guests {
        let Some(view) = &guest.view else { continue };
        for backend in view.backends.iter().filter(|b| b.policy == "bind" && b.host_nodes.len() == 1) {
            let node = backend.host_nodes.iter().next().unwrap_or(0);
            let sum = bound.entry(node).or_default();
            *sum = sum.saturating_add(backend.bytes);
        }
    }
    let ours: Vec<u32> = case.guest.nodes().into_iter().filter_map(|n| case.wanted_node(n)).collect();
    let over = bound.iter().filter(|(node, bytes)| {
        ours.contains(node)
            && case.topology.nodes.get(node).is_some_and(|n| n.memory > 0 && n.memory < **bytes)
    });
    let over: Vec<String> = over
        .map(|(node, bytes)| {
            let has = case.topology.nodes.get(node).map_or(0, |n| n.memory) >> 20;
            format!("guests are bound to {} MiB on node {node}, which has {has} MiB", bytes >> 20)
        })
        .collect();
    if !over.is_empty() {
        case.find(
            Kind::NodeOvercommitted,
            few(over),
            "end a guest, or start one with less memory there".into(),
        );
    }
}
