// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies for `bifold-place`.

use bifold_host::topology::{Cpu, Node, NumberSet, Topology};
use bifold_place::check::{HostFacts, PlacementFacts, check_absent, misfit};
use bifold_place::plan::Plan;
use bifold_place::wishes::Wishes;
use bifold_place::{Processor, plan};

/// Two nodes of two cores with two threads.
fn host() -> Topology {
    let mut host = Topology { numa: true, ..Topology::default() };
    for node in 0..2u32 {
        let cpus: NumberSet = (node * 4..node * 4 + 4).collect();
        for cpu in cpus.iter() {
            let threads = [cpu & !1, cpu | 1].into_iter().collect();
            host.cpus.insert(cpu, Cpu { online: true, node: Some(node), threads, ..Cpu::default() });
        }
        let distances = [(node, 10), (1 - node, 21)].into_iter().collect();
        host.nodes.insert(node, Node { cpus, memory: 1 << 30, free: 1 << 30, distances, ..Node::default() });
    }
    host
}

/// Wishes: an error that names the file, or a plan in which no CPU is given twice, or what is short.
pub fn wishes(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let wishes = match Wishes::parse(text, "/none/wishes.toml".as_ref()) {
        Ok(wishes) => wishes,
        Err(e) => return assert!(e.to_string().contains("wishes.toml")),
    };
    let Ok(plan) = plan(&host(), &wishes, Processor::Other) else { return };
    let mut given = NumberSet::default();
    for (guest, wish) in plan.guests.iter().zip(&wishes.guests) {
        assert!(guest.vcpus.iter().all(|v| given.insert(v.cpu)));
        assert_eq!(guest.vcpus.len(), wish.vcpus as usize);
        assert_eq!(guest.nodes.iter().map(|n| n.memory).sum::<u64>(), wish.memory);
        assert!(bifold_place::libvirt::domain(guest).starts_with("<domain "));
        assert!(!bifold_place::qemu::arguments(guest).iter().any(|a| a.contains('\n')));
    }
}

/// A plan in JSON: an error of one line, or a plan that all who read plans can use.
pub fn place_plan(data: &[u8]) {
    let plan = match Plan::parse(data) {
        Ok(plan) => plan,
        // An error quotes what the text has.
        Err(e) => return assert!(!e.to_string().contains(char::is_control), "{e}"),
    };
    for guest in &plan.guests {
        assert!(bifold_place::libvirt::domain(guest).starts_with("<domain "));
        let pins = bifold_place::qemu::pins(guest).len();
        assert_eq!(pins, guest.vcpus.len() + guest.io_threads.len());
        assert!(bifold_place::qemu::arguments(guest).len() > 6);
    }
    let seen = PlacementFacts { host: HostFacts::default(), guests: Vec::new() };
    let findings = check_absent(&host(), &plan, &seen);
    let fits = misfit(&host(), &plan).is_none();
    assert!(if fits { findings.len() >= plan.guests.len() } else { findings.is_empty() });
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{bytes, leaves, number};
    use super::*;
    use proptest::prelude::*;

    const KEYS: [&str; 19] = [
        "[[guest]]\nname = 'a'\nvcpus = 2\nmemory = '4M'\nnodes",
        "[[guest]]\nname = 'b'\nvcpus = 1\nmemory = '1G'\nsmt = 'cores'\nnodes",
        "page_size",
        "nodes",
        "host_nodes",
        "smt",
        "emulator_cores",
        "io_threads",
        "near",
        "tickless",
        "interrupts_away",
        "ksm",
        "[host]\ncpus",
        "[host]\nreserve_cpus",
        "reserve_memory",
        "huge_pages",
        "numa_balancing",
        "halt_poll_ns",
        "name",
    ];
    const VALUES: [&str; 14] = [
        "1",
        "2",
        "'auto'",
        "'host'",
        "'4K'",
        "'2M'",
        "'0-1'",
        "''",
        "true",
        "[]",
        "'threads'",
        "-1",
        "'keep'",
        "'99999T'",
    ];

    /// A plan of two guests, one of them with two nodes.
    fn planned() -> serde_json::Value {
        let text = "[[guest]]\nname = 'a'\nvcpus = 2\nmemory = '8M'\nnodes = 'host'\nsmt = 'cores'\nio_threads = 2\n\
                    [[guest]]\nname = 'b'\nvcpus = 1\nmemory = '4M'\nsmt = 'cores'\n";
        let wishes = Wishes::parse(text, "w.toml".as_ref()).unwrap();
        serde_json::to_value(plan(&host(), &wishes, Processor::Amd).unwrap()).unwrap()
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let text = prop_oneof!["[0-9,:/-]{0,12}", "[ -~\n]{0,12}", Just("0-4294967295".into())];
        prop_oneof![3 => number(), 1 => text.prop_map(serde_json::Value::String)]
    }

    #[test]
    fn what_is_planned_reads_back() {
        let document = planned();
        let plan = Plan::parse(&serde_json::to_vec(&document).unwrap()).unwrap();
        assert_eq!(serde_json::to_value(plan).unwrap(), document);
    }

    proptest! {
        #[test]
        fn any_text_is_wishes_or_an_error(data in bytes(), keys in proptest::collection::vec((0..19usize, 0..14usize), 0..6)) {
            wishes(&data);
            let text: String = keys.iter().map(|(key, value)| format!("{} = {}\n", KEYS[*key], VALUES[*value])).collect();
            wishes(text.as_bytes());
        }

        #[test]
        fn any_plan_is_refused_or_can_be_used(
            data in bytes(),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), value()), 0..4),
        ) {
            place_plan(&data);
            let mut document = planned();
            for (at, value) in changes {
                **at.get_mut(&mut leaves(&mut document)[..]) = value;
            }
            place_plan(&serde_json::to_vec(&document).unwrap());
        }
    }
}
