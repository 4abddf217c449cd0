// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What to set on the host for a plan, and what can only be recommended.
//!
//! Sources: `admin-guide/mm/hugetlbpage.rst`, `admin-guide/mm/ksm.rst`, `admin-guide/sysctl/kernel.rst`
//! (`numa_balancing`), `virt/kvm/halt-polling.rst`, `core-api/irq/irq-affinity.rst` and
//! `admin-guide/kernel-parameters.txt` (`nohz_full=`, `isolcpus=`) of Linux.

use crate::plan::{GuestPlan, Step};
use crate::room::Room;
use crate::shape::page_name;
use crate::wishes::Wishes;
use bifold_host::topology::{Device, NumberSet, Topology};

/// Page sizes of the pools that a plan may enlarge, in KiB: what needs the most memory in one piece comes
/// first.
const GROWING: [u64; 2] = [GIANT, 2 << 10];
/// Pages of 1 GB.
const GIANT: u64 = 1 << 20;

/// The steps in order, and the notes.
pub fn steps(host: &Topology, room: &Room, wishes: &Wishes, plans: &[GuestPlan]) -> (Vec<Step>, Vec<String>) {
    let mut steps = pools(room, plans);
    steps.extend(kernel(host, wishes, plans));
    steps.extend(interrupts(host, wishes, plans));
    let mut notes = room.notes.clone();
    notes.extend(giants(&steps));
    notes.extend(tickless(host, wishes, plans));
    if !host.numa {
        notes.push("this kernel has no NUMA: memory cannot be bound, and CPUs alone are planned".into());
    }
    (steps, notes)
}

/// Pools that are short of pages.
fn pools(room: &Room, plans: &[GuestPlan]) -> Vec<Step> {
    let mut steps = Vec::new();
    for (kib, (node, memory)) in GROWING.iter().flat_map(|kib| room.memory.iter().map(move |m| (*kib, m))) {
        let on_node = |g: &&GuestPlan| g.page_kib == kib && g.nodes.iter().any(|n| n.host_node == *node);
        let here = || plans.iter().filter(on_node);
        let of =
            |g: &GuestPlan| g.nodes.iter().filter(|n| n.host_node == *node).map(|n| n.memory).sum::<u64>();
        let wished = here().map(of).sum::<u64>() / (kib * 1024);
        let pool = memory.pools.get(&kib).copied().unwrap_or_default();
        if wished <= pool.free {
            continue;
        }
        let names: Vec<String> = here().map(|g| bifold_host::printable(&g.name)).collect();
        let size = page_name(kib);
        steps.push(Step {
            path: format!("/sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB/nr_hugepages"),
            // A copied tree may have any numbers: no host has a pool that large.
            value: pool.total.saturating_add(wished - pool.free).to_string(),
            needed: true,
            why: format!(
                "for {}: {wished} pages of {size} on node {node}, of which {} are free",
                names.join(", "),
                pool.free
            ),
        });
    }
    steps
}

/// What to do if the kernel cannot enlarge pools of 1 GB pages.
fn giants(steps: &[Step]) -> Option<String> {
    let pool = |step: &Step| {
        let node = step.path.strip_prefix("/sys/devices/system/node/node")?;
        let node = node.strip_suffix(&format!("/hugepages/hugepages-{GIANT}kB/nr_hugepages"))?;
        Some(format!("{node}:{}", step.value))
    };
    let pools: Vec<String> = steps.iter().filter_map(pool).collect();
    (!pools.is_empty()).then(|| {
        format!(
            "a host that has run for a while rarely has 1 GB in one piece: if the kernel gives fewer such pages than the plan \
             needs, boot the host with hugepagesz=1G hugepages={}",
            pools.join(",")
        )
    })
}

/// Settings of the kernel.
fn kernel(host: &Topology, wishes: &Wishes, plans: &[GuestPlan]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut wish = |path: &str, value: String, why: &str| {
        steps.push(Step { path: path.into(), value, needed: false, why: why.into() });
    };
    if host.numa && wishes.host.balancing_off {
        let why =
            "NUMA balancing unmaps pages to see who uses them, and has nothing to move where all is bound";
        wish("/proc/sys/kernel/numa_balancing", "0".into(), why);
    }
    if host.numa && plans.iter().any(|g| g.ksm && g.page_kib == 4) {
        let why = "KSM keeps merged pages on their node (the kernel takes this only while nothing is merged)";
        wish("/sys/kernel/mm/ksm/merge_across_nodes", "0".into(), why);
    }
    if let Some(ns) = wishes.host.halt_poll_ns {
        let why = "time that KVM polls before a halted vCPU sleeps, for VMs that start later";
        wish("/sys/module/kvm/parameters/halt_poll_ns", ns.to_string(), why);
    }
    steps
}

/// CPUs of the vCPUs of the guests that a condition chooses.
fn cpus(wishes: &Wishes, plans: &[GuestPlan], of: impl Fn(&crate::wishes::Guest) -> bool) -> NumberSet {
    let chosen = wishes.guests.iter().zip(plans).filter(|(wish, _)| of(wish));
    chosen.flat_map(|(_, plan)| &plan.vcpus).map(|v| v.cpu).collect()
}

/// Interrupts of the host's devices that leave the vCPUs' CPUs. Those of a guest's own device stay where they
/// are: they exist only while that guest runs, and are best near its vCPUs.
fn interrupts(host: &Topology, wishes: &Wishes, plans: &[GuestPlan]) -> Vec<Step> {
    let quiet = cpus(wishes, plans, |g| g.interrupts_away);
    let online: NumberSet = host.cpus.iter().filter(|(_, c)| c.online).map(|(n, _)| *n).collect();
    // An interrupt on another thread of the core slows the vCPU, too.
    let cores = quiet
        .iter()
        .filter_map(|cpu| host.cpus.get(&cpu))
        .fold(quiet.clone(), |all, c| all.union(&c.threads));
    let others =
        [online.difference(&cores), online.difference(&quiet)].into_iter().find(|set| !set.is_empty());
    let Some(others) = others.filter(|_| !quiet.is_empty()) else { return Vec::new() };
    let mut steps = Vec::new();
    for (irq, devices) in by_interrupt(host) {
        let near =
            devices.iter().fold(NumberSet::default(), |all, d| all.union(&d.cpus)).intersection(&others);
        let to = if near.is_empty() { &others } else { &near };
        let name = |d: &&Device| bifold_host::printable(d.names.first().unwrap_or(&d.address));
        let names: Vec<String> = devices.iter().map(name).collect();
        steps.push(Step {
            path: format!("/proc/irq/{irq}/smp_affinity_list"),
            value: to.to_string(),
            needed: false,
            why: format!("the interrupt of {} leaves the vCPUs' CPUs", names.join(", ")),
        });
    }
    steps
}

/// Interrupts with the devices that share each, in the order of the first device.
fn by_interrupt(host: &Topology) -> Vec<(u32, Vec<&Device>)> {
    let mut found: Vec<(u32, Vec<&Device>)> = Vec::new();
    for device in host.devices.iter().filter(|d| !d.is_passed_through()) {
        for irq in device.interrupts.iter() {
            match found.iter_mut().find(|(n, _)| *n == irq) {
                Some((_, devices)) => devices.push(device),
                None => found.push((irq, vec![device])),
            }
        }
    }
    found
}

/// Boot parameters for CPUs without a tick.
fn tickless(host: &Topology, wishes: &Wishes, plans: &[GuestPlan]) -> Option<String> {
    let wished = cpus(wishes, plans, |g| g.tickless);
    let missing = wished.difference(&host.tickless.intersection(&host.isolated));
    (!missing.is_empty()).then(|| {
        format!(
            "tickless: CPUs {missing} have a tick or share the scheduler with others; boot the host with nohz_full={wished} \
             rcu_nocbs={wished} isolcpus=domain,managed_irq,{wished}"
        )
    })
}
