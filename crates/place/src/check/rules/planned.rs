// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The plan itself beside the host and its guests.

use super::super::case::{CheckedGuest, Finding, few};
use super::super::kinds::Kind;
use super::super::seen::PlacementFacts;
use super::memory::raise;
use crate::plan::{GuestPlan, Plan, Step};
use crate::settings::{quoted, same};
use bifold_host::topology::{NumberSet, Topology};
use std::collections::BTreeMap;

/// Whether the plan can be for this host; adds a finding if not.
pub fn fits(topology: &Topology, plan: &Plan, findings: &mut Vec<Finding>) -> bool {
    let guests = || plan.guests.iter();
    let cpus: NumberSet = guests().flat_map(|g| g.vcpus.iter().map(|v| v.cpu)).collect();
    let nodes: NumberSet = guests().flat_map(|g| g.nodes.iter().map(|n| n.host_node)).collect();
    let cpus: NumberSet = cpus.iter().filter(|c| !topology.cpus.contains_key(c)).collect();
    let nodes: NumberSet = nodes.iter().filter(|n| !topology.nodes.contains_key(n)).collect();
    if cpus.is_empty() && nodes.is_empty() {
        return true;
    }
    let lacks = [("CPU", cpus), ("node", nodes)];
    let lacks = lacks.iter().filter(|(_, set)| !set.is_empty()).map(|(what, set)| format!("{what} {set}"));
    findings.push(Finding {
        kind: Kind::PlanOfAnotherHost,
        vm: None,
        pid: None,
        evidence: format!("this host has no {}", lacks.collect::<Vec<_>>().join(" and no ")),
        mend: "make a plan here: bifold place plan WISHES.toml".into(),
    });
    false
}

/// The guest beside its plan, and the host's settings.
pub fn guest(case: &mut CheckedGuest) {
    let Some(plan) = case.plan else { return };
    let mut unlike = Vec::new();
    let vcpus = case.guest.vcpus();
    if !vcpus.is_empty() && vcpus.len() != plan.vcpus.len() {
        unlike.push(format!("{} vCPUs, planned: {}", vcpus.len(), plan.vcpus.len()));
    }
    if let Some(view) = &case.guest.view {
        let nodes = case.guest.nodes();
        if nodes.len() != plan.nodes.len().max(1) {
            unlike.push(format!("{} nodes, planned: {}", nodes.len(), plan.nodes.len()));
        }
        for node in &plan.nodes {
            let bytes = view.node_bytes(node.node).or((nodes.len() == 1).then_some(view.memory));
            if let Some(bytes) = bytes.filter(|b| *b != node.memory) {
                let (is, planned) = (bytes >> 20, node.memory >> 20);
                unlike.push(format!("guest node {} has {is} MiB, planned: {planned} MiB", node.node));
            }
        }
        let moved = plan.vcpus.iter().filter(|v| view.nodes.len() > 1 && view.node_of(v.vcpu) != v.node);
        unlike.extend(moved.map(|v| {
            format!("vCPU {} is in guest node {}, planned: {}", v.vcpu, view.node_of(v.vcpu), v.node)
        }));
    }
    if !unlike.is_empty() {
        let mend = "end the guest, then start it with the plan's options: bifold place plan WISHES.toml --format qemu";
        case.find(Kind::GuestNotAsPlanned, few(unlike), mend.into());
    }
    settings(case);
}

/// The plan's settings. An interrupt on a vCPU's CPU has a rule of its own.
fn settings(case: &mut CheckedGuest) {
    let Some(whole) = case.whole else { return };
    // Of several steps for one file, the last is what the plan leaves.
    let last: BTreeMap<&str, _> = whole.steps.iter().map(|s| (s.path.as_str(), s)).collect();
    let (mut unlike, mut mend) = (Vec::new(), Vec::new());
    for step in last.values() {
        let Some(is) =
            case.seen.host.settings.get(&step.path).filter(|_| !step.path.starts_with("/proc/irq/"))
        else {
            continue;
        };
        if is.as_ref().is_some_and(|is| same(&step.path, is, &step.value) || is_larger_pool(step, is))
            || (is.is_none() && !step.needed)
        {
            continue;
        }
        let is = is.as_deref().unwrap_or("not there");
        unlike.push(format!("{} is {is}, planned: {} ({})", step.path, step.value, step.why));
        mend.push(format!("echo {} > {}", quoted(&step.value), quoted(&step.path)));
    }
    if !unlike.is_empty() {
        case.find(Kind::SettingNotAsPlanned, few(unlike), mend.join("; "));
    }
}

/// Whether a pool of huge pages has more pages than planned, which lacks nothing.
fn is_larger_pool(step: &Step, is: &str) -> bool {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let pool = step.path.ends_with("/nr_hugepages");
    pool && number(is).zip(number(&step.value)).is_some_and(|(is, planned)| is >= planned)
}

/// Guests of the plan that do not run, and whether there would be room.
pub fn absent_guests(topology: &Topology, plan: &Plan, seen: &PlacementFacts, findings: &mut Vec<Finding>) {
    let runs = |g: &&GuestPlan| seen.guests.iter().any(|s| s.name == g.name);
    let mut needed: BTreeMap<(u32, u64), u64> = BTreeMap::new();
    for guest in plan.guests.iter().filter(|g| !runs(g)) {
        findings.push(Finding {
            kind: Kind::VmNotRunning,
            vm: Some(guest.name.clone()),
            pid: None,
            evidence: format!("no guest has the name {}", guest.name),
            mend: "start it with the plan's options, and give it this name (-name guest=NAME)".into(),
        });
        for node in guest.nodes.iter().filter(|_| guest.page_kib > 4) {
            let pages = node.memory.div_ceil(guest.page_kib << 10);
            *needed.entry((node.host_node, guest.page_kib)).or_default() += pages;
        }
    }
    let (mut short, mut mend) = (Vec::new(), Vec::new());
    for ((node, kib), pages) in needed {
        let pool = topology.nodes.get(&node).and_then(|n| n.huge.get(&kib)).copied().unwrap_or_default();
        if pool.free < pages {
            short.push(format!(
                "node {node} has {} free pages of {kib} KiB, the plan needs {pages}",
                pool.free
            ));
            mend.push(raise(node, kib, pool.total + pages - pool.free));
        }
    }
    if !short.is_empty() {
        let evidence = few(short);
        findings.push(Finding {
            kind: Kind::PoolShort,
            vm: None,
            pid: None,
            evidence,
            mend: mend.join("; "),
        });
    }
}
