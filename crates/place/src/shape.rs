// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns a placement into guests' plans: numbers of vCPUs and nodes, sockets, dies, cores and threads, and
//! why.
//!
//! vCPUs are numbered as QEMU numbers them: by socket, die, core and thread. A die of the guest is an L3 of
//! the host as far as all dies can have the same number of cores; QEMU shares an L3 within a die
//! (`docs/system/i386/cpu.rst`, `hw/i386/x86-common.c`). A socket is a package of the host as far as all have
//! the same number of nodes.

use crate::PlanError;
use crate::Processor;
use crate::plan::{Caches, GuestNode, GuestPlan, Smp, VcpuPlan};
use crate::room::Room;
use crate::search::{Found, Placed, options};
use crate::wishes::{Guest, PageSize, Smt, Wishes};
use bifold_host::topology::{NumberSet, Topology};

/// The plans of all guests, in the order of the wishes.
pub fn guests(
    host: &Topology,
    room: &Room,
    wishes: &Wishes,
    found: &mut Found,
    processor: Processor,
) -> Result<Vec<GuestPlan>, PlanError> {
    let unused = unused(room, found);
    let mut plans = Vec::new();
    for (guest, (choice, nodes)) in wishes.guests.iter().zip(&mut found.guests) {
        nodes.sort_by_key(|p| (room.nodes[p.node].package, room.nodes[p.node].number));
        let smp = smp(room, nodes, threads(room, guest));
        let memory = choice.pages * choice.page_kib * 1024;
        let emulator = emulator(host, room, guest, nodes, &unused)?;
        let mut plan = GuestPlan {
            name: guest.name.clone(),
            vcpus: vcpus(nodes, smp.threads),
            nodes: nodes.iter().enumerate().map(|(i, p)| node(host, room, nodes, i, p, memory)).collect(),
            page_kib: choice.page_kib,
            smp,
            io_threads: io_threads(guest, &emulator),
            emulator,
            bound: room.numa,
            caches: caches(room, nodes, smp),
            topoext: processor == Processor::Amd,
            ksm: guest.ksm,
            reasons: Vec::new(),
        };
        plan.reasons = reasons(host, room, guest, nodes, &plan);
        plans.push(plan);
    }
    Ok(plans)
}

/// Free CPUs of cores that no guest has.
fn unused(room: &Room, found: &Found) -> NumberSet {
    let all = room.nodes.iter().flat_map(|n| &n.caches).flat_map(|c| &c.cores).flat_map(|c| &c.cpus).copied();
    let taken = found.guests.iter().flat_map(|(_, nodes)| nodes).flat_map(Placed::cpus);
    all.collect::<NumberSet>().difference(&taken.collect())
}

/// vCPUs per core.
fn threads(room: &Room, guest: &Guest) -> u32 {
    match guest.smt {
        Smt::Threads => room.threads,
        Smt::Cores => 1,
    }
}

/// The number that all items have, if all have the same.
fn common<T: PartialEq>(mut items: impl Iterator<Item = T>) -> Option<T> {
    let first = items.next()?;
    items.all(|i| i == first).then_some(first)
}

/// Sockets, dies, cores and threads.
fn smp(room: &Room, nodes: &[Placed], threads: u32) -> Smp {
    let packages: Vec<i32> = nodes.iter().map(|p| room.nodes[p.node].package).collect();
    let of_package = |package| packages.iter().filter(|p| **p == package).count();
    let per_socket = common(packages.iter().map(|p| of_package(*p))).unwrap_or(1);
    let cores = |p: &Placed| p.caches.iter().map(|(_, cores)| cores.len()).sum::<usize>();
    let even = common(nodes.iter().flat_map(|p| &p.caches).map(|(_, cores)| cores.len()));
    let dies_per_node = even.and(common(nodes.iter().map(|p| p.caches.len()))).unwrap_or(1);
    Smp {
        sockets: (nodes.len() / per_socket) as u32,
        dies: (per_socket * dies_per_node) as u32,
        cores: (cores(&nodes[0]) / dies_per_node) as u32,
        threads,
    }
}

fn vcpus(nodes: &[Placed], threads: u32) -> Vec<VcpuPlan> {
    let mut vcpus = Vec::new();
    for (node, placed) in nodes.iter().enumerate() {
        let cores = placed.caches.iter().flat_map(|(_, cores)| cores);
        for cpu in cores.flat_map(|core| core.iter().take(threads as usize)) {
            vcpus.push(VcpuPlan { vcpu: vcpus.len() as u32, cpu: *cpu, node: node as u32 });
        }
    }
    vcpus
}

fn node(host: &Topology, room: &Room, nodes: &[Placed], i: usize, placed: &Placed, memory: u64) -> GuestNode {
    let own = &room.nodes[placed.node];
    let told = host.nodes.get(&own.home).into_iter().flat_map(|n| [&n.access, &n.cpu_access]).flatten();
    let access = told.into_iter().find(|a| a.initiators.contains(own.number));
    GuestNode {
        node: i as u32,
        host_node: own.home,
        memory,
        distances: nodes.iter().map(|to| own.distances[to.node].expect("choices have distances")).collect(),
        latency_ns: access.and_then(|a| a.read_latency).filter(|n| *n > 0),
        bandwidth_mb: access.and_then(|a| a.read_bandwidth).filter(|n| *n > 0),
    }
}

/// CPUs for the VMM's other threads.
fn emulator(
    host: &Topology,
    room: &Room,
    guest: &Guest,
    nodes: &[Placed],
    unused: &NumberSet,
) -> Result<NumberSet, PlanError> {
    let own = nodes.iter().find(|p| !p.emulator.is_empty());
    if let Some(placed) = own {
        return Ok(placed.emulator.clone());
    }
    let from = if room.reserved.is_empty() { unused } else { &room.reserved };
    let numbers = nodes.iter().map(|p| room.nodes[p.node].number);
    let near = numbers.filter_map(|n| host.nodes.get(&n)).fold(NumberSet::default(), |a, n| a.union(&n.cpus));
    let near = from.intersection(&near);
    if from.is_empty() {
        return Err(PlanError::Short(vec![format!(
            "guest {}: no CPU is left for the VMM's own threads: set emulator_cores = 1, or name CPUs in host.reserve_cpus",
            bifold_host::printable(&guest.name)
        )]));
    }
    Ok(if near.is_empty() { from.clone() } else { near })
}

/// The CPUs of each I/O thread: one of the guest's own cores' in turn, or those of the emulator.
fn io_threads(guest: &Guest, emulator: &NumberSet) -> Vec<NumberSet> {
    let turn = |i: usize| -> NumberSet {
        let cpus: Vec<u32> = emulator.iter().collect();
        [cpus[i % cpus.len()]].into_iter().collect()
    };
    let of = |i| if guest.emulator_cores > 0 { turn(i) } else { emulator.clone() };
    (0..guest.io_threads as usize).map(of).collect()
}

/// Whether the host's own cache sizes hold for the guest: each die has all CPUs of one L3.
fn caches(room: &Room, nodes: &[Placed], smp: Smp) -> Caches {
    let whole = nodes.iter().all(|p| {
        p.caches.iter().all(|(cache, cores)| {
            let l3 = &room.nodes[p.node].caches[*cache];
            cores.len() * smp.threads as usize == l3.cpus && cores.len() == smp.cores as usize
        })
    });
    if whole { Caches::Host } else { Caches::Emulated }
}

/// Why the plan is so.
fn reasons(host: &Topology, room: &Room, guest: &Guest, nodes: &[Placed], plan: &GuestPlan) -> Vec<String> {
    let mut reasons = vec![pages_reason(room, guest, plan)];
    let numbers: NumberSet = nodes.iter().map(|p| room.nodes[p.node].number).collect();
    reasons.push(match nodes.len() {
        1 => format!("one node: node {numbers} has the CPUs and the memory"),
        n => {
            format!("{n} nodes: nodes {numbers}, the nearest to each other that have the CPUs and the memory")
        }
    });
    reasons.push(match (plan.smp.threads, room.threads) {
        (1, 1) => "each vCPU is a core: the host's cores have one free thread".into(),
        (1, _) => "each vCPU has a core alone: the core's other threads stay idle".into(),
        (t, _) => format!("the guest's cores are the host's, with {t} threads each"),
    });
    let used: usize = nodes.iter().map(|p| p.caches.len()).sum();
    let told = (plan.smp.sockets * plan.smp.dies) as usize;
    reasons.push(match (plan.caches, told == used) {
        (Caches::Host, _) => format!("{used} L3: each die of the guest is a whole L3 of the host"),
        (_, true) => format!("{used} L3: each die of the guest is a part of an L3 of the host"),
        (_, false) => format!("{used} L3 of the host hold unequal numbers of cores: the guest sees {told}"),
    });
    for name in &guest.near {
        let node = options::device(host, name).and_then(|d| d.node);
        let name = bifold_host::printable(name);
        reasons.push(match node {
            Some(n) if numbers.contains(n) => format!("{name} is on node {n}, which the guest has"),
            Some(n) => format!("{name} is on node {n}, {}", elsewhere(room, guest, n)),
            None => format!("the firmware gives no node for {name}; all nodes count as equally near"),
        });
    }
    reasons
}

/// Why a guest does not have a node that a device is on.
fn elsewhere(room: &Room, guest: &Guest, node: u32) -> &'static str {
    let excluded = guest.host_nodes.as_ref().is_some_and(|set| !set.contains(node));
    match room.nodes.iter().any(|n| n.number == node) {
        _ if excluded => "which host_nodes leaves out",
        false => "which has no free CPU or no memory",
        true => "where the guest would have too little room, or cost more in all",
    }
}

/// Pages of 2 MB, in KiB.
const LARGE: u64 = 2 << 10;

fn pages_reason(room: &Room, guest: &Guest, plan: &GuestPlan) -> String {
    let size = page_name(plan.page_kib);
    let uneven = plan.nodes.iter().any(|n| n.memory % (LARGE << 10) != 0);
    match (guest.page, plan.page_kib) {
        (PageSize::Auto, 4) if uneven => {
            let each = if plan.nodes.len() > 1 { " of each node" } else { "" };
            format!("pages of {size}: the memory{each} is no whole number of pages of {}", page_name(LARGE))
        }
        (PageSize::Auto, 4) if !room.reserve_pages => {
            format!("pages of {size}: no pool has room for the memory, and none may grow")
        }
        (PageSize::Auto, 4) => format!("pages of {size}: no pool has room for the memory"),
        (PageSize::Auto, _) => format!("pages of {size}: the largest that fit"),
        _ => format!("pages of {size}, as wished"),
    }
}

/// `2 MB` for 2048 KiB.
pub fn page_name(kib: u64) -> String {
    match kib {
        0..1024 => format!("{kib} KB"),
        1024..1_048_576 => format!("{} MB", kib >> 10),
        _ => format!("{} GB", kib >> 20),
    }
}
