// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Machines of the size that is sold: the plan is proven, or says that the search ended early.

use crate::machine::{Spec, machine};
use bifold_host::topology::{NumberSet, Topology};
use bifold_place::plan::{Caches, Plan};
use bifold_place::wishes::Wishes;
use bifold_place::{PlanError, Processor, plan};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use std::fmt::Write as _;

const GIB: u64 = 1 << 30;

/// 8 nodes with 64 CPUs each: 4 L3 of 8 cores with 2 threads. No two nodes have the same free memory.
fn eight_nodes() -> Topology {
    let node = |number| Spec { number, cores: vec![8; 4], memory: 256 * GIB, pools: (0, 0) };
    let mut host = machine(&(0..8).map(node).collect::<Vec<_>>(), 2, 32);
    let nearer = |a: u32, b: u32| {
        if a == b {
            10
        } else if a / 4 == b / 4 {
            12
        } else {
            32
        }
    };
    for (number, node) in &mut host.nodes {
        node.distances = (0..8).map(|to| (to, nearer(*number, to))).collect();
        node.free -= GIB * u64::from(*number) + 4096 * u64::from(*number);
    }
    host
}

fn planned(host: &Topology, text: &str) -> Plan {
    let wishes = Wishes::parse(text, "w.toml".as_ref()).unwrap();
    plan(host, &wishes, Processor::default()).unwrap()
}

fn check(plan: &Plan) {
    let cpus = plan.guests.iter().flat_map(|g| &g.vcpus).map(|v| v.cpu);
    assert_eq!(cpus.clone().collect::<NumberSet>().len(), cpus.count(), "no CPU twice");
    assert_eq!(plan.proven, !plan.notes.iter().any(|n| n.contains("a better one may exist")));
}

#[test]
fn twenty_equal_guests_each_get_one_node() {
    let mut text = String::new();
    for i in 0..20 {
        let _ = write!(text, "[[guest]]\nname = 'g{i}'\nvcpus = 16\nmemory = '32G'\n");
    }
    let plan = planned(&eight_nodes(), &text);
    check(&plan);
    assert!(plan.proven);
    assert_eq!((plan.cost.nodes, plan.cost.caches, plan.cost.shared), (20, 20, 0));
    assert!(plan.guests.iter().all(|g| g.smp.cores == 8 && g.page_kib == 2048 && g.caches == Caches::Host));
}

#[test]
fn twenty_unequal_guests_fill_most_of_the_machine() {
    let mut text = String::new();
    for (i, vcpus) in [40, 32, 24, 16, 4].into_iter().cycle().take(20).enumerate() {
        let _ = write!(text, "[[guest]]\nname = 'g{i}'\nvcpus = {vcpus}\nmemory = '{}G'\n", 2 * vcpus);
        if i % 3 == 0 {
            text += "emulator_cores = 1\n";
        }
    }
    let plan = planned(&eight_nodes(), &text);
    check(&plan);
    println!("{:?} {}", plan.cost, plan.proven);
    assert_eq!(plan.cost.nodes, 20);
}

#[test]
fn a_guest_over_four_nodes_gets_those_that_are_near_each_other() {
    let text = "[host]\nreserve_cpus = '0,256'\n[[guest]]\nname = 'a'\nvcpus = 224\nmemory = '400G'\nnodes = 4\n\
                [[guest]]\nname = 'b'\nvcpus = 4\nmemory = '8G'\n";
    let plan = planned(&eight_nodes(), text);
    check(&plan);
    assert!(plan.proven);
    assert_eq!(plan.cost.distances, 4 * 3 * 12);
    assert_eq!(plan.guests[0].smp.sockets, 4);
}

/// Guests whose memory fills each of eight nodes to the last page, three guests a node: they fit by
/// construction, and the search ends at its limit before it comes upon such a packing.
#[test]
fn wishes_that_fit_and_are_not_found_are_not_said_to_be_short() {
    let mut rng = Pcg64::seed_from_u64(17);
    let node = |number| Spec { number, cores: vec![4], memory: 1000 * 8192, pools: (0, 0) };
    let host = machine(&(0..8).map(node).collect::<Vec<_>>(), 1, 20);
    let mut sizes = Vec::new();
    for _ in 0..8 {
        let (a, b) = (rng.random_range(200..400), rng.random_range(200..400));
        sizes.extend([a, b, 1000 - a - b]);
    }
    let mut text = "[host]\nreserve_cpus = '0'\n".to_string();
    for (i, units) in sizes.iter().enumerate() {
        let _ = write!(
            text,
            "[[guest]]\nname = 'g{i}'\nvcpus = 1\nmemory = '{}K'\npage_size = '4K'\n",
            units * 8
        );
    }
    let wishes = Wishes::parse(&text, "w.toml".as_ref()).unwrap();
    let error = plan(&host, &wishes, Processor::default()).unwrap_err();
    let PlanError::GaveUp { guests, placements } = &error else { panic!("{error}") };
    assert_eq!(guests.last().map(|g| &g[..]), Some("g23"));
    assert!(*placements > 100_000, "{placements}");
    let start = format!("the search gave up after {placements} placements");
    assert!(error.to_string().starts_with(&start), "{error}");
}
