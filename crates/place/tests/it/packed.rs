// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Wishes that fit by construction: whole nodes are split at random into guests, which take all cores and
//! most of the memory.

use crate::machine::{Spec, machine};
use bifold_host::topology::{NumberSet, Topology};
use bifold_place::wishes::Wishes;
use bifold_place::{Processor, plan};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use std::collections::BTreeMap;
use std::fmt::Write as _;

const MIB: u64 = 1 << 20;
const CASES: u64 = 200;

/// A machine of `nodes` nodes with 4 to 16 cores and 16 to 64 GiB each, where `threads` are those of a core.
fn host(rng: &mut Pcg64, nodes: u32, threads: u32) -> Topology {
    let mut specs = Vec::new();
    for number in 0..nodes {
        let caches = rng.random_range(1..=2);
        let cores = vec![rng.random_range(4..=8); caches];
        specs.push(Spec { number, cores, memory: rng.random_range(16..=64) << 30, pools: (0, 0) });
    }
    machine(&specs, threads, 20)
}

/// A node's cores and memory in parts: vCPUs and MiB of each guest.
fn split(rng: &mut Pcg64, mut cores: u32, threads: u32, memory: u64, most: u32) -> Vec<(u32, u64)> {
    let mut sizes = Vec::new();
    while cores > 0 {
        let size = rng.random_range(1..=most.min(cores));
        sizes.push(size);
        cores -= size;
    }
    let weights: Vec<u64> = sizes.iter().map(|_| rng.random_range(1..=20)).collect();
    let all: u64 = weights.iter().sum();
    let share = |w: u64| (memory / MIB * w / all / 2 * 2).max(2);
    sizes.iter().zip(weights).map(|(cores, w)| (cores * threads, share(w))).collect()
}

/// Wishes that fill the host: each guest fits on one node, beside the others of that node.
fn wishes(rng: &mut Pcg64, host: &Topology, threads: u32) -> Wishes {
    let percent = rng.random_range(50..=95);
    let most = rng.random_range(1..=8 / threads);
    wishes_of(rng, host, threads, most, percent)
}

/// The same, with `most` cores per guest at most, and `percent` of the memory.
fn wishes_of(rng: &mut Pcg64, host: &Topology, threads: u32, most: u32, percent: u64) -> Wishes {
    let mut guests = Vec::new();
    for (number, node) in &host.nodes {
        let cores = node.cpus.len() as u32 / threads - u32::from(*number == 0);
        guests.extend(split(rng, cores, threads, node.free / 100 * percent, most));
    }
    let mut text = String::new();
    for i in 0..guests.len() {
        let (vcpus, mib) = guests.swap_remove(rng.random_range(0..guests.len()));
        let page = if rng.random_bool(0.5) { "2M" } else { "4K" };
        let _ = write!(
            text,
            "[[guest]]\nname = 'g{i}'\nvcpus = {vcpus}\nmemory = '{mib}M'\npage_size = '{page}'\nnodes = 1\n"
        );
    }
    Wishes::parse(&text, "w.toml".as_ref()).unwrap()
}

/// Every CPU is given once, and no node gives more memory than is free.
fn check(host: &Topology, plan: &bifold_place::plan::Plan) {
    let cpus = plan.guests.iter().flat_map(|g| &g.vcpus).map(|v| v.cpu);
    assert_eq!(cpus.clone().collect::<NumberSet>().len(), cpus.count());
    let mut memory = BTreeMap::<u32, u64>::new();
    for node in plan.guests.iter().flat_map(|g| &g.nodes) {
        *memory.entry(node.host_node).or_default() += node.memory;
    }
    assert!(memory.iter().all(|(node, bytes)| *bytes <= host.nodes[node].free));
    for (guest, vcpu) in plan.guests.iter().flat_map(|g| g.vcpus.iter().map(move |v| (g, v))) {
        assert_eq!(host.cpus[&vcpu.cpu].node, Some(guest.nodes[0].host_node));
    }
}

#[test]
fn wishes_that_fit_by_construction_are_placed() {
    let (mut placed, mut proven, mut refused) = (0, 0, Vec::new());
    for seed in 0..CASES {
        let mut rng = Pcg64::seed_from_u64(seed);
        let nodes = rng.random_range(2..=4);
        let threads = rng.random_range(1..=2);
        let host = host(&mut rng, nodes, threads);
        let wishes = wishes(&mut rng, &host, threads);
        match plan(&host, &wishes, Processor::default()) {
            Ok(plan) => {
                check(&host, &plan);
                placed += 1;
                proven += u64::from(plan.proven);
            }
            Err(e) => refused.push(format!("seed {seed}: {} guests: {e}", wishes.guests.len())),
        }
    }
    println!("{placed} of {CASES} placed, {proven} of them proven; refused: {refused:#?}");
    assert!(refused.is_empty(), "{refused:#?}");
}

/// Four nodes of 10 cores, of which the host keeps one: all others are given, and `percent` of the memory.
fn full(seed: u64, most: u32, percent: u64) -> (Topology, Wishes) {
    let mut rng = Pcg64::seed_from_u64(seed);
    let node = |number| Spec { number, cores: vec![10], memory: 64 << 30, pools: (0, 0) };
    let host = machine(&(0..4).map(node).collect::<Vec<_>>(), 1, 20);
    let wishes = wishes_of(&mut rng, &host, 1, most, percent);
    (host, wishes)
}

#[test]
fn many_guests_that_fill_a_host_are_placed() {
    for (most, percent) in [(4, 85), (2, 95), (1, 50), (1, 80), (1, 85)] {
        for seed in 0..8 {
            let (host, wishes) = full(seed, most, percent);
            match plan(&host, &wishes, Processor::default()) {
                Ok(plan) => check(&host, &plan),
                Err(e) => panic!("seed {seed}: {most} vCPUs at most, {percent} %: {e}"),
            }
        }
    }
}

/// The largest machine that is planned for, with guests that take all of its cores and nearly all of its
/// memory.
#[test]
fn guests_that_fill_eight_nodes_of_64_cpus_are_placed() {
    let mut rng = Pcg64::seed_from_u64(8);
    let node = |number| Spec { number, cores: vec![8; 4], memory: 256 << 30, pools: (0, 0) };
    let host = machine(&(0..8).map(node).collect::<Vec<_>>(), 2, 32);
    let wishes = wishes_of(&mut rng, &host, 2, 25, 90);
    println!("{} guests", wishes.guests.len());
    check(&host, &plan(&host, &wishes, Processor::default()).unwrap());
}
