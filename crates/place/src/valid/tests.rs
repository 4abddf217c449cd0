// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plans whose parts do not agree, and any plan at all before a check.

use super::*;
use crate::check::{HostFacts, PlacementFacts, check_absent};
use crate::plan::{Caches, Cost, GuestNode, Smp, VcpuPlan};
use bifold_host::topology::{Cpu, Node, Topology};
use proptest::prelude::*;

fn plan() -> Plan {
    let vcpu = |vcpu: u32| VcpuPlan { vcpu, cpu: vcpu, node: vcpu };
    let node = |node: u32| GuestNode {
        node,
        host_node: node,
        memory: 64 << 20,
        distances: vec![10, 10],
        latency_ns: None,
        bandwidth_mb: None,
    };
    let guest = GuestPlan {
        name: "web".into(),
        vcpus: (0..2).map(vcpu).collect(),
        nodes: (0..2).map(node).collect(),
        page_kib: 2048,
        smp: Smp { sockets: 2, dies: 1, cores: 1, threads: 1 },
        emulator: NumberSet::default(),
        io_threads: Vec::new(),
        bound: true,
        caches: Caches::Emulated,
        topoext: false,
        ksm: false,
        reasons: Vec::new(),
    };
    let (steps, notes) = (Vec::new(), Vec::new());
    Plan { schema: SCHEMA.into(), guests: vec![guest], steps, notes, cost: Cost::default(), proven: true }
}

#[test]
fn each_contradiction_is_told() {
    assert_eq!(plan().validate(), Ok(()));
    type Change = fn(&mut Plan);
    let cases: [(Change, &str); 11] = [
        (|p| p.schema = "x/9".into(), "make a new plan"),
        (|p| p.guests.extend_from_within(..), "two guests of the name web"),
        (|p| p.guests[0].page_kib = 1 << 54, "page_kib is 18014398509481984"),
        (|p| p.guests[0].nodes[1].memory = u64::MAX, "more than 2^52 bytes"),
        (|p| p.guests[0].nodes[1].node = 0, "the nodes' numbers"),
        (|p| p.guests[0].nodes[1].distances.truncate(1), "node 1 has 1 distances"),
        (|p| p.guests[0].nodes[1].host_node = u32::MAX, "host node 4294967295"),
        (|p| p.guests[0].vcpus[0].vcpu = 7, "the vCPUs' numbers"),
        (|p| p.guests[0].vcpus[1].node = 2, "vCPU 1 has node 2"),
        (|p| p.guests[0].vcpus[1].cpu = u32::MAX, "CPU 4294967295"),
        (|p| p.guests[0].smp.threads = u32::MAX, "2 times 1 times 1 times 4294967295, for 2 vCPUs"),
    ];
    for (change, told) in cases {
        let mut plan = plan();
        change(&mut plan);
        let error = plan.validate().unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}

fn host() -> Topology {
    let cpu = |n: u32| (n, Cpu { online: true, node: Some(n), ..Cpu::default() });
    let nodes = (0..2).map(|n| (n, Node::default()));
    Topology { cpus: (0..2).map(cpu).collect(), nodes: nodes.collect(), ..Topology::default() }
}

/// Numbers at which shifts, products and sums go wrong.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..3_u64,
        (0..64_u32).prop_map(|n| 1 << n),
        Just(2048),
        Just(1 << 20),
        Just(u64::MAX),
        any::<u64>()
    ]
}

proptest! {
    #[test]
    fn a_valid_plan_is_checked_without_a_panic(page in number(), memory in number(), numbers in proptest::array::uniform5(number())) {
        let mut plan = plan();
        let guest = &mut plan.guests[0];
        guest.page_kib = page;
        guest.nodes[1].memory = memory;
        let [node, host_node, vcpu, cpu, cores] = numbers.map(|n| n as u32);
        (guest.nodes[1].node, guest.nodes[1].host_node) = (node, host_node);
        (guest.vcpus[1].vcpu, guest.vcpus[1].cpu, guest.smp.cores) = (vcpu, cpu, cores);
        if plan.validate().is_ok() {
            let seen = PlacementFacts { host: HostFacts::default(), guests: Vec::new() };
            let fits = cpu < 2 && host_node < 2;
            prop_assert_eq!(!check_absent(&host(), &plan, &seen).is_empty(), fits);
        }
    }

    #[test]
    fn page_sizes_alone_never_break_a_check(page in number(), memory in number()) {
        let mut plan = plan();
        (plan.guests[0].page_kib, plan.guests[0].nodes[1].memory) = (page, memory);
        let valid = [4, 2048, 1 << 20].contains(&page) && memory <= (1 << 52) - (64 << 20);
        prop_assert_eq!(plan.validate().is_ok(), valid);
        if valid {
            let seen = PlacementFacts { host: HostFacts::default(), guests: Vec::new() };
            prop_assert!(!check_absent(&host(), &plan, &seen).is_empty());
        }
    }
}
