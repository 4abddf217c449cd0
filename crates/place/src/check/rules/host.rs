// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the host does around a guest: KVM's tables, interrupts, devices, NUMA balancing, KSM.

use super::super::case::{CheckedGuest, few};
use super::super::kinds::Kind;
use crate::plan::Plan;
use crate::settings::same;
use std::collections::BTreeSet;

/// Fewer bytes of KVM's tables say nothing.
const LEAST_TABLES: u64 = 1 << 20;
/// Interrupts a second that a vCPU's CPU may have.
const MOST_INTERRUPTS: f64 = 10.0;

/// KVM's page tables by node. The kernel counts them for all guests together.
pub fn tables(case: &mut CheckedGuest) {
    if !case.has_several_nodes() || !case.guest.kvm {
        return;
    }
    let tables: Option<Vec<(u32, u64)>> =
        case.topology.nodes.iter().map(|(number, n)| Some((*number, n.kvm_tables?))).collect();
    let guests = case.seen.guests.iter().filter(|g| g.kvm);
    let homes: Option<BTreeSet<u32>> =
        guests.flat_map(|g| g.vcpus().into_values()).map(|t| case.home(t)).collect();
    let (Some(tables), Some(homes)) = (tables, homes) else { return };
    let total: u64 = tables.iter().map(|t| t.1).sum();
    let homes: BTreeSet<u32> = homes.into_iter().flat_map(|home| case.memory_near(home)).collect();
    let near: u64 = tables.iter().filter(|t| homes.contains(&t.0)).map(|t| t.1).sum();
    if homes.is_empty() || total < LEAST_TABLES || near * 2 >= total {
        return;
    }
    let by_node = few(tables.iter().map(|(node, bytes)| format!("node {node}: {} KiB", bytes >> 10)));
    let evidence = format!(
        "KVM's tables: {by_node}; memory near the vCPUs is on nodes {}",
        few(homes.iter().map(u32::to_string))
    );
    let mend = "end the guest, then start it with its vCPUs pinned before they touch memory: KVM's tables do not move";
    case.find(Kind::TablesRemote, evidence, mend.into());
}

/// Interrupts that go to the CPUs of vCPUs.
pub fn interrupts(case: &mut CheckedGuest) {
    let (cpus, free) = (case.guest.pinned_cpus(), case.near(case.free_cpus()));
    let mut found = Vec::new();
    let mut mend = Vec::new();
    for irq in &case.seen.host.interrupts {
        let hit = irq.cpus.intersection(&cpus);
        // An interrupt of the guest's own device is best where the vCPU is.
        if hit.is_empty() || irq.handlers.contains("vfio") {
            continue;
        }
        let planned = planned_list(case, irq.number);
        let count: u64 = irq.counts.iter().filter(|(cpu, _)| hit.contains(**cpu)).map(|(_, n)| n).sum();
        let against = count > 0 && planned.as_ref().is_some_and(|p| p.intersection(&cpus).is_empty());
        let rate = case.seen.host.uptime_s.filter(|s| *s > 0.0).map_or(0.0, |s| count as f64 / s);
        // A plan without a step for the interrupt leaves it where it is.
        let often = case.plan.is_none() && planned.is_none() && rate > MOST_INTERRUPTS && !free.is_empty();
        if against || often {
            found.push(format!(
                "interrupt {} ({}) goes to CPU {hit}, {rate:.0} a second",
                irq.number, irq.handlers
            ));
            let to = planned.unwrap_or_else(|| free.clone());
            mend.push(format!("echo {to} > /proc/irq/{}/smp_affinity_list", irq.number));
        }
    }
    if !found.is_empty() {
        case.find(Kind::InterruptsOnVcpuCpu, few(found), mend.join("; "));
    }
}

/// The CPUs that the plan has for an interrupt.
fn planned_list(case: &CheckedGuest, number: u32) -> Option<bifold_host::topology::NumberSet> {
    let path = format!("/proc/irq/{number}/smp_affinity_list");
    case.whole?.steps.iter().rev().find(|s| s.path == path)?.value.parse().ok()
}

/// Devices that the guest has of its host.
pub fn devices(case: &mut CheckedGuest) {
    let Some(view) = &case.guest.view else { return };
    let homes: Option<BTreeSet<u32>> = case.guest.vcpus().into_values().map(|t| case.home(t)).collect();
    let planned: Option<BTreeSet<u32>> =
        case.plan.map(|p| p.vcpus.iter().filter_map(|v| case.host_node(v.cpu)).collect());
    let Some(homes) = homes.filter(|h| !h.is_empty() && planned.as_ref() != Some(h)) else { return };
    let far = case.topology.devices.iter().filter(|d| view.devices.contains(&d.address));
    let far = far.filter_map(|d| Some((d, d.node.filter(|n| !homes.contains(n))?)));
    // Such a device's node has no CPU that a vCPU could run on.
    let bare = |node: &u32| case.topology.nodes.get(node).is_some_and(|n| n.cpus.is_empty());
    let far = far.filter(|(_, node)| !bare(node));
    let far: Vec<String> = far.map(|(d, node)| format!("{} is on node {node}", d.address)).collect();
    if far.is_empty() {
        return;
    }
    let evidence = format!("{}; vCPUs run on nodes {}", few(far), few(homes.iter().map(u32::to_string)));
    let mend = "plan the guest with its device: `bifold place plan` puts vCPUs on the device's node";
    case.find(Kind::DeviceFar, evidence, mend.into());
}

/// NUMA balancing beside pinned vCPUs, unless the plan keeps it.
pub fn balancing(case: &mut CheckedGuest) {
    const FILE: &str = "/proc/sys/kernel/numa_balancing";
    let last = |plan: &Plan| plan.steps.iter().rev().find(|s| s.path == FILE).map(|s| s.value.clone());
    if case.whole.is_some_and(|plan| last(plan).is_none_or(|value| !same(FILE, &value, "0"))) {
        return;
    }
    let on = case.seen.host.numa_balancing.filter(|n| *n > 0);
    if let Some(on) = on.filter(|_| case.has_several_nodes() && !case.guest.pins().is_empty()) {
        let evidence = format!("{FILE} is {on}");
        case.find(Kind::NumaBalancingOn, evidence, "sysctl kernel.numa_balancing=0".into());
    }
}

/// KSM over nodes.
pub fn ksm(case: &mut CheckedGuest) {
    let host = &case.seen.host;
    let merges = host.ksm_run == Some(1) && host.ksm_across.is_some_and(|n| n > 0);
    let mergeable: u64 =
        case.guest.blocks.iter().filter(|b| b.memory.mergeable).map(|b| b.memory.bytes).sum();
    if merges && mergeable > 0 && case.has_several_nodes() {
        let evidence =
            format!("KSM merges across nodes, and may merge {} MiB of this guest", mergeable >> 20);
        let mend = "echo 2 > /sys/kernel/mm/ksm/run; echo 0 > /sys/kernel/mm/ksm/merge_across_nodes; echo 1 > /sys/kernel/mm/ksm/run";
        case.find(Kind::KsmMergesAcrossNodes, evidence, mend.into());
    }
}
