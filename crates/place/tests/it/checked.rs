// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests that run exactly as their plans say have no findings: the plans of random machines and wishes, with
//! QEMU's arguments read back from its command line.

use crate::random::{host, wishes};
use bifold_host::CommandLine;
use bifold_host::placement::{Interrupt, Memory, Role, Thread};
use bifold_host::topology::{NumberSet, Topology};
use bifold_place::check::{Block, GuestFacts, HostFacts, Pages, PlacementFacts, check};
use bifold_place::plan::{GuestPlan, Plan};
use bifold_place::view::View;
use bifold_place::{Processor, plan, qemu};
use rand::SeedableRng;
use rand_pcg::Pcg64;
use std::collections::BTreeMap;

const CASES: u64 = 10_000;

fn threads(pid: u32, guest: &GuestPlan, mems: &NumberSet) -> Vec<Thread> {
    let thread = |id, name: String, role, cpus: &NumberSet| Thread {
        id,
        name,
        role,
        cpus: cpus.clone(),
        mems: mems.clone(),
        last_cpu: None,
        scheduling: None,
    };
    let mut all = vec![thread(pid, "qemu-system-x86".into(), Role::Emulator, &guest.emulator)];
    for v in &guest.vcpus {
        let cpu = [v.cpu].into_iter().collect();
        all.push(thread(pid + 100 + v.vcpu, format!("CPU {}/KVM", v.vcpu), Role::Vcpu(v.vcpu), &cpu));
    }
    for (i, cpus) in guest.io_threads.iter().enumerate() {
        all.push(thread(pid + 50 + i as u32, format!("IO io{i}"), Role::Io(format!("io{i}")), cpus));
    }
    all
}

/// The guest, running as planned.
fn running(pid: u32, guest: &GuestPlan, topology: &Topology) -> GuestFacts {
    let mut line = vec!["qemu-system-x86_64".to_string()];
    line.extend(qemu::arguments(guest));
    let block = |node: &bifold_place::plan::GuestNode| {
        let page = guest.page_kib << 10;
        let pages = node.memory / page;
        let huge = if page > 4096 { node.memory } else { 0 };
        let memory = Memory { bytes: node.memory, resident: node.memory, page, huge, ..Memory::default() };
        let nodes = BTreeMap::from([(node.host_node, pages)]);
        Block { node: Some(node.node), memory, pages: Pages { looked: pages, all: pages, nodes } }
    };
    GuestFacts {
        pid,
        name: guest.name.clone(),
        kvm: true,
        threads: threads(pid, guest, &topology.nodes.keys().copied().collect()),
        view: View::parse(&CommandLine::parse(line.join("\0").as_bytes())),
        blocks: guest.nodes.iter().map(block).collect(),
        ..GuestFacts::default()
    }
}

/// The host's interrupts: where the plan has them, and one that the plan leaves on a vCPU's CPU.
fn interrupts(plan: &Plan) -> Vec<Interrupt> {
    let number =
        |path: &str| path.strip_prefix("/proc/irq/")?.strip_suffix("/smp_affinity_list")?.parse().ok();
    let one = |number: u32, cpus: NumberSet| {
        let counts = cpus.iter().map(|cpu| (cpu, 1 << 20)).collect();
        Interrupt { number, handlers: "eth0-rx".into(), cpus, counts }
    };
    let planned = plan.steps.iter().filter_map(|s| Some(one(number(&s.path)?, s.value.parse().ok()?)));
    let left = plan.guests[0].vcpus.iter().map(|v| v.cpu).collect();
    planned.chain([one(900, left)]).collect()
}

/// What is seen where all is as planned; what the plan leaves as found, NUMA balancing for one, is on.
fn seen(topology: &Topology, plan: &Plan) -> PlacementFacts {
    let balancing = plan.steps.iter().any(|s| s.path == "/proc/sys/kernel/numa_balancing");
    let settings = plan.steps.iter().map(|s| (s.path.clone(), Some(s.value.clone()))).collect();
    let guests = (1..).zip(&plan.guests).map(|(n, guest)| running(n * 1000, guest, topology));
    let host = HostFacts {
        numa_balancing: Some(u64::from(!balancing)),
        interrupts: interrupts(plan),
        uptime_s: Some(1000.0),
        settings,
        ..HostFacts::default()
    };
    PlacementFacts { host, guests: guests.collect() }
}

/// The random machines' pools lie beside the nodes' memory; a real node's memory includes them.
fn with_pools(mut host: Topology) -> Topology {
    for node in host.nodes.values_mut() {
        node.memory += node.huge.iter().map(|(kib, pool)| (kib << 10) * pool.total).sum::<u64>();
    }
    host
}

#[test]
fn guests_that_run_as_planned_have_no_findings() {
    let (mut checked, mut large, mut kept, mut away) = (0, 0, 0, 0);
    for seed in 0..CASES {
        let mut rng = Pcg64::seed_from_u64(seed);
        let host = host(&mut rng);
        let mut host = host;
        for (device, number) in host.devices.iter_mut().zip(24..) {
            device.interrupts.insert(number);
        }
        let mut wishes = wishes(&mut rng, &host);
        wishes.host.balancing_off = seed % 2 == 0;
        wishes.guests.iter_mut().zip(seed..).for_each(|(guest, n)| guest.interrupts_away = n % 3 > 0);
        let Ok(plan) = plan(&host, &wishes, Processor::default()) else { continue };
        assert_eq!(plan.validate(), Ok(()), "seed {seed}");
        let (seen, host) = (seen(&host, &plan), with_pools(host));
        let pids: Vec<u32> = seen.guests.iter().map(|g| g.pid).collect();
        assert_eq!(check(&host, Some(&plan), &seen, &pids), [], "seed {seed}: {plan:#?}");
        checked += plan.guests.len();
        kept += u64::from(host.nodes.len() > 1 && seen.host.numa_balancing == Some(1));
        away += u64::from(seen.host.interrupts.len() > 1);
        large += plan.guests.iter().filter(|g| g.nodes.len() > 1).count();
    }
    assert!(checked > 1000 && large > 100, "{checked} guests, {large} with several nodes");
    assert!(kept > 100 && away > 100, "{kept} hosts keep balancing, {away} move interrupts");
}

#[test]
fn a_guest_whose_vcpus_are_exchanged_over_nodes_has_findings() {
    let mut made = 0;
    for seed in 0..CASES {
        let mut rng = Pcg64::seed_from_u64(seed);
        let host = host(&mut rng);
        let wishes = wishes(&mut rng, &host);
        let Ok(plan) = plan(&host, &wishes, Processor::default()) else { continue };
        let mut seen = seen(&host, &plan);
        let guest = &mut seen.guests[0];
        let last = guest.vcpus().len() as u32 - 1;
        let at = |n: u32| guest.threads.iter().position(|t| t.role == Role::Vcpu(n)).unwrap();
        let (a, b) = (at(0), at(last));
        let node = |t: &Thread| host.cpus[&t.cpus.iter().next().unwrap()].node;
        let homes = (node(&guest.threads[a]), node(&guest.threads[b]));
        if homes.0 == homes.1 {
            continue;
        }
        let moved = guest.threads[a].cpus.clone();
        guest.threads[a].cpus = std::mem::replace(&mut guest.threads[b].cpus, moved);
        let findings = check(&host, Some(&plan), &seen, &[1000]);
        let names: Vec<&str> = findings.iter().map(|f| f.kind.name()).collect();
        assert!(names.contains(&"vcpu-on-wrong-cpu"), "seed {seed}: {names:?}");
        // With two vCPUs, each node is wholly crossed; with more, it is torn apart. Without a plan, too.
        // vCPUs on a node without memory have the nearest as theirs, which may be the right one.
        let bare = [homes.0, homes.1].into_iter().flatten().any(|n| host.nodes[&n].memory == 0);
        let alone = check(&host, None, &seen, &[1000]);
        let torn = |k: &&str| ["crossed-nodes", "vcpus-of-node-apart"].contains(k);
        assert!(bare || alone.iter().any(|f| torn(&f.kind.name())), "seed {seed}: {alone:?}");
        made += 1;
    }
    assert!(made > 50, "{made}");
}
