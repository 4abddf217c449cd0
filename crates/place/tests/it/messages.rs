// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What notes, reasons and errors say to the user.

use crate::machine::{Spec, device, machine};
use bifold_host::topology::Topology;
use bifold_place::plan::Plan;
use bifold_place::wishes::Wishes;
use bifold_place::{PlanError, Processor, plan};

/// Nodes of four cores and 1 GiB each, without pools of huge pages.
fn host(nodes: u32) -> Topology {
    let node = |number| Spec { number, cores: vec![4], memory: 1 << 30, pools: (0, 0) };
    machine(&(0..nodes).map(node).collect::<Vec<_>>(), 1, 20)
}

fn planned(host: &Topology, text: &str) -> Result<Plan, PlanError> {
    plan(host, &Wishes::parse(text, "w.toml".as_ref()).unwrap(), Processor::Other)
}

fn refused(host: &Topology, text: &str) -> String {
    planned(host, text).unwrap_err().to_string()
}

const GUEST: &str = "[[guest]]\nname = 'a'\nvcpus = 2\nmemory = '8M'\n";

#[test]
fn cpus_to_reserve_that_are_not_there_are_told() {
    let plan = planned(&host(2), &format!("[host]\nreserve_cpus = '0,100'\n{GUEST}")).unwrap();
    assert!(
        plan.notes.iter().any(|n| n.starts_with("host.reserve_cpus: CPUs 100 are not")),
        "{:?}",
        plan.notes
    );
    let plan = planned(&host(2), &format!("[host]\nreserve_cpus = '0'\n{GUEST}")).unwrap();
    assert_eq!(plan.notes, [""; 0]);
}

#[test]
fn missing_distances_matter_only_to_guests_of_several_nodes() {
    let mut host = host(3);
    host.nodes.values_mut().for_each(|n| n.distances.clear());
    let plan = planned(&host, GUEST).unwrap();
    assert!(plan.proven && plan.guests[0].nodes[0].distances == [10]);
    assert_eq!(
        planned(&host, &format!("{GUEST}host_nodes = '1'\n")).unwrap().guests[0].nodes[0].host_node,
        1
    );
    let two = format!("{GUEST}nodes = 2\n");
    let error = planned(&host, &two).unwrap_err().below("tree/sys".as_ref()).to_string();
    let start = "tree/sys/devices/system/node/node0/distance: node 0 tells no distance to node 1: ";
    assert!(error.starts_with(start), "{error}");
    // Two nodes that know each other suffice.
    host.nodes.get_mut(&1).unwrap().distances.insert(2, 17);
    host.nodes.get_mut(&2).unwrap().distances.insert(1, 17);
    let plan = planned(&host, &two).unwrap();
    assert_eq!(plan.guests[0].nodes.iter().map(|n| n.host_node).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn reasons_name_what_decided() {
    let mut host = host(2);
    host.devices.push(device("0000:01:00.0", "ib0", Some(1)));
    let odd = planned(&host, "[[guest]]\nname = 'a'\nvcpus = 2\nmemory = '101M'\n").unwrap();
    assert_eq!(odd.guests[0].reasons[0], "pages of 4 KB: the memory is no whole number of pages of 2 MB");
    let keep = planned(&host, &format!("[host]\nhuge_pages = 'keep'\n{GUEST}")).unwrap();
    assert!(keep.guests[0].reasons[0].contains("no pool has room"), "{:?}", keep.guests[0].reasons);
    let away = planned(&host, &format!("{GUEST}host_nodes = '0'\nnear = ['ib0']\n")).unwrap();
    assert_eq!(away.guests[0].reasons.last().unwrap(), "ib0 is on node 1, which host_nodes leaves out");
    let mut full = host.clone();
    full.nodes.get_mut(&1).unwrap().free = 0;
    let away = planned(&full, &format!("{GUEST}near = ['ib0']\n")).unwrap();
    assert!(away.guests[0].reasons.last().unwrap().contains("too little room"));
}

#[test]
fn errors_count_what_they_name() {
    let none = refused(&host(1), &format!("[host]\ncpus = ''\n{GUEST}"));
    assert!(none.contains("memory: no CPU may be used: look at host.cpus"), "{none}");
    let all = refused(&host(1), &format!("[host]\nreserve_cpus = '0-3'\n{GUEST}"));
    assert!(all.ends_with("CPUs 0-3 may be used, of which CPUs 0-3 are reserved for the host"), "{all}");
    let odd = "[[guest]]\nname = 'a'\nvcpus = 1\nmemory = '1000K'\npage_size = '2M'\n";
    assert!(refused(&host(1), odd).ends_with("no whole number of 2 MB pages on one node"));
    let uneven = refused(&host(3), &format!("{GUEST}nodes = 'host'\n"));
    assert!(
        uneven
            .ends_with("2 vCPUs cannot be spread evenly over the 3 nodes that it may use (nodes = \"host\")"),
        "{uneven}"
    );
}

#[test]
fn limits_of_qemu_are_told() {
    let big = machine(&[Spec { number: 0, cores: vec![300], memory: 1 << 30, pools: (0, 0) }], 1, 20);
    let guest = |n| format!("[[guest]]\nname = 'a'\nvcpus = {n}\nmemory = '8M'\n");
    assert_eq!(planned(&big, &guest(288)).unwrap().notes, [""; 0]);
    let notes = planned(&big, &guest(289)).unwrap().notes;
    assert!(
        notes.len() == 1 && notes[0].starts_with("guest a: 289 vCPUs: the machine q35 takes 288"),
        "{notes:?}"
    );
    let power = Processor::of_cpuinfo("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n");
    let s390 = Processor::of_cpuinfo("vendor_id       : IBM/S390\n");
    assert_eq!(
        (power, s390, Processor::of_cpuinfo("")),
        (Processor::NotX86, Processor::NotX86, Processor::Unknown)
    );
    assert_eq!(Processor::of_cpuinfo("processor\t: 0\nvendor_id\t: GenuineIntel\n"), Processor::Other);
    let wishes = Wishes::parse(GUEST, "w.toml".as_ref()).unwrap();
    assert!(plan(&host(1), &wishes, power).unwrap().notes[0].starts_with("the processor is no x86"));
}
