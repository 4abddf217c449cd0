// SPDX-License-Identifier: Apache-2.0 OR MIT
//! 10,000 random small machines and wishes: the plan costs what brute force finds, and fits exactly where
//! that fits.

use crate::brute::Reference;
use crate::machine::{Spec, device, machine};
use bifold_host::topology::Topology;
use bifold_place::wishes::{Guest, HostWishes, Nodes, PageSize, Smt, Wishes};
use bifold_place::{PlanError, Processor, plan};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;

const MIB: u64 = 1 << 20;
const CASES: u64 = 10_000;

fn one_of<T: Copy>(rng: &mut Pcg64, items: &[T]) -> T {
    items[rng.random_range(0..items.len())]
}

/// A machine with up to 3 nodes and 7 cores, irregular in all ways that the kernel knows.
pub fn host(rng: &mut Pcg64) -> Topology {
    let threads = rng.random_range(1..=2);
    let mut left = 7u32;
    let mut specs = Vec::new();
    for number in [0, 1, 4].into_iter().take(one_of(rng, &[1, 2, 2, 3, 3])) {
        let mut cores = Vec::new();
        for _ in 0..rng.random_range(if specs.is_empty() { 1 } else { 0 }..=2) {
            let n = rng.random_range(1..=3.min(left.max(1))).min(left);
            left -= n;
            cores.extend((n > 0).then_some(n));
        }
        let giant = rng.random_bool(0.1);
        let free = if giant { 3072 } else { one_of(rng, &[0, 4, 8, 16, 32, 32, 32, 64]) };
        let memory = if rng.random_bool(0.1) { 0 } else { free * MIB + 1 };
        let pools = if memory == 0 {
            (0, 0)
        } else {
            (rng.random_range(0..=4), if giant { rng.random_range(0..=2) } else { 0 })
        };
        specs.push(Spec { number, cores, memory, pools });
    }
    let mut host = machine(&specs, threads, 20);
    // A kernel that has no pages of 1 GB on this processor.
    if rng.random_bool(0.2) {
        host.nodes.values_mut().for_each(|n| n.huge.retain(|kib, _| *kib == 2048));
    }
    let numbers: Vec<u32> = host.nodes.keys().copied().collect();
    let asymmetric = rng.random_bool(0.1);
    for a in &numbers {
        for b in numbers.iter().filter(|b| *b > a) {
            let there = one_of(rng, &[12, 20, 21, 32]);
            let back = if asymmetric { one_of(rng, &[12, 20]) } else { there };
            host.nodes.get_mut(a).unwrap().distances.insert(*b, there);
            host.nodes.get_mut(b).unwrap().distances.insert(*a, back);
        }
    }
    let cpus: Vec<u32> = host.cpus.keys().copied().collect();
    let isolates = rng.random_bool(0.05);
    for cpu in cpus {
        if cpu != 0 && rng.random_bool(0.05) {
            host.cpus.get_mut(&cpu).unwrap().online = false;
        } else if isolates && rng.random_bool(0.7) {
            host.isolated.insert(cpu);
        }
    }
    if rng.random_bool(0.1) {
        host.caches.clear();
    }
    for (i, name) in ["eth0", "eth1"].into_iter().enumerate() {
        let node = rng.random_bool(0.8).then(|| one_of(rng, &numbers));
        host.devices.push(device(&format!("0000:00:0{i}.0"), name, node));
    }
    host
}

/// A guest; its figures mostly come out even.
fn guest(rng: &mut Pcg64, host: &Topology, number: usize, emulator: bool) -> Guest {
    let nodes = one_of(
        rng,
        &[Nodes::Auto, Nodes::Auto, Nodes::Auto, Nodes::Host, Nodes::Number(1), Nodes::Number(2)],
    );
    let smt = one_of(rng, &[Smt::Threads, Smt::Cores]);
    let even = rng.random_bool(0.9);
    let each = match nodes {
        Nodes::Number(n) if even => n,
        Nodes::Host if even => host.nodes.values().filter(|n| !n.cpus.is_empty()).count() as u32,
        _ => 1,
    };
    let threads = if even && smt == Smt::Threads { host.cpus[&0].threads.len() as u32 } else { 1 };
    let large = host.nodes.values().any(|n| n.free > 1024 * MIB);
    let memory = match rng.random_range(if large { -2 } else { 0 }..10) {
        ..=0 => 1024 * MIB * rng.random_range(1..=2),
        1 => 8192 * rng.random_range(1..=3),
        _ => 2 * MIB * one_of(rng, &[1, 2, 2, 3, 4]),
    };
    let near = ["eth0", "eth1"].into_iter().filter(|_| rng.random_bool(0.15)).map(String::from).collect();
    Guest {
        name: format!("guest{number}"),
        vcpus: each * threads * one_of(rng, &[1, 1, 1, 2, 2, 3]),
        memory: u64::from(each) * memory,
        page: match memory >= 1024 * MIB && rng.random_bool(0.5) {
            true => PageSize::Kib(1 << 20),
            false => one_of(rng, &[PageSize::Auto, PageSize::Auto, PageSize::Kib(4), PageSize::Kib(2048)]),
        },
        nodes,
        host_nodes: rng.random_bool(0.05).then(|| host.nodes.keys().copied().take(2).collect()),
        smt,
        emulator_cores: if emulator || rng.random_bool(0.1) { 1 } else { 0 },
        io_threads: rng.random_range(0..=2),
        near,
        tickless: false,
        interrupts_away: true,
        ksm: false,
    }
}

pub fn wishes(rng: &mut Pcg64, host: &Topology) -> Wishes {
    let reserve_cpus = match rng.random_range(0..10) {
        0..=3 => Some("0".parse().unwrap()),
        4..=5 => Some("".parse().unwrap()),
        _ => None,
    };
    // Without a reserved CPU, the VMM needs one of its own.
    let emulator = reserve_cpus.as_ref().is_some_and(|set: &bifold_host::topology::NumberSet| set.is_empty());
    let guests = one_of(rng, &[1, 2, 2, 3]);
    Wishes {
        host: HostWishes {
            reserve_cpus,
            reserve_memory: one_of(rng, &[0, 0, 2 * MIB]),
            reserve_pages: rng.random_bool(0.7),
            ..HostWishes::default()
        },
        guests: (0..guests).map(|i| guest(rng, host, i, emulator)).collect(),
    }
}

#[test]
fn plans_equal_brute_force() {
    let (mut fitted, mut several, mut giants) = (0, 0, 0);
    for seed in 0..CASES {
        let mut rng = Pcg64::seed_from_u64(seed);
        let host = host(&mut rng);
        let wishes = wishes(&mut rng, &host);
        let reference = Reference::new(&host, &wishes);
        let best = reference.best();
        match plan(&host, &wishes, Processor::default()) {
            Ok(plan) => {
                assert!(plan.proven, "seed {seed}");
                assert_eq!(Some(plan.cost), best, "seed {seed}: {host:#?} {wishes:#?}");
                assert_eq!(reference.cost_of(&plan), plan.cost, "seed {seed}: {plan:#?}");
                fitted += 1;
                giants += u64::from(plan.steps.iter().any(|s| s.path.contains("hugepages-1048576kB")));
                several += u64::from(plan.guests.len() > 1 && plan.guests.iter().any(|g| g.nodes.len() > 1));
            }
            Err(e) => {
                assert_eq!(best, None, "seed {seed}: {e} {host:#?} {wishes:#?}");
                let PlanError::Short(lines) = e else { continue };
                assert!(lines.iter().all(|l| l.contains("guest")), "seed {seed}: {lines:?}");
            }
        }
    }
    // Neither side of the comparison is empty.
    assert!(fitted > CASES / 5 && fitted < CASES * 4 / 5, "{fitted}");
    assert!(several > CASES / 50, "{several}");
    println!("{fitted} fit, {giants} with larger pools of 1 GB pages");
    assert!(giants > 10, "{giants}");
}
