// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a plan sets on the host, and what stays as it is.

use crate::machine::{Spec, device, machine};
use bifold_host::topology::Topology;
use bifold_place::plan::Plan;
use bifold_place::wishes::Wishes;
use bifold_place::{PlanError, Processor, plan};

const GIB: u64 = 1 << 30;

/// A node of four cores, 16 GiB, and this many free pages of 1 GB.
fn host(giant: u64) -> Topology {
    machine(&[Spec { number: 0, cores: vec![4], memory: 16 * GIB, pools: (0, giant) }], 1, 10)
}

fn planned(host: &Topology, text: &str) -> Result<Plan, PlanError> {
    plan(host, &Wishes::parse(text, "w.toml".as_ref()).unwrap(), Processor::Other)
}

const GUEST: &str = "[[guest]]\nname = 'a'\nvcpus = 2\nmemory = '4G'\n";

#[test]
fn interrupts_of_a_device_that_a_guest_has_stay_where_they_are() {
    let mut host = host(0);
    for (i, driver) in [None, Some("nvme"), Some("vfio-pci"), Some("mlx5_vfio_pci")].into_iter().enumerate() {
        let mut device = device(&format!("0000:00:0{i}.0"), &format!("dev{i}"), Some(0));
        device.interrupts.insert(40 + i as u32);
        device.driver = driver.map(String::from);
        host.devices.push(device);
    }
    let plan = planned(&host, GUEST).unwrap();
    let moved: Vec<&str> =
        plan.steps.iter().map(|s| s.path.as_str()).filter(|p| p.starts_with("/proc/irq/")).collect();
    assert_eq!(moved, ["/proc/irq/40/smp_affinity_list", "/proc/irq/41/smp_affinity_list"]);
}

#[test]
fn an_interrupt_that_devices_share_is_one_step() {
    let mut host = host(0);
    for i in 0..3 {
        let mut device = device(&format!("0000:00:0{i}.0"), &format!("dev{i}"), Some(0));
        device.interrupts.insert(21);
        host.devices.push(device);
    }
    host.devices[1].interrupts.insert(22);
    let plan = planned(&host, GUEST).unwrap();
    let moved: Vec<_> = plan.steps.iter().filter(|s| s.path.starts_with("/proc/irq/")).collect();
    assert_eq!(moved.len(), 2, "{moved:?}");
    assert_eq!(moved[0].path, "/proc/irq/21/smp_affinity_list");
    assert_eq!(moved[0].why, "the interrupt of dev0, dev1, dev2 leaves the vCPUs' CPUs");
    assert_eq!(moved[1].why, "the interrupt of dev1 leaves the vCPUs' CPUs");
}

/// The path and value of the pools' steps.
fn pools(plan: &Plan) -> Vec<(&str, &str)> {
    let steps = plan.steps.iter().filter(|s| s.path.ends_with("/nr_hugepages"));
    steps.map(|s| (s.path.split('/').nth_back(1).unwrap(), s.value.as_str())).collect()
}

#[test]
fn a_pool_of_1_gb_pages_grows_for_a_guest_that_asks_for_them() {
    let asks = format!("{GUEST}page_size = '1G'\n");
    let plan = planned(&host(1), &asks).unwrap();
    assert_eq!(pools(&plan), [("hugepages-1048576kB", "4")]);
    assert_eq!((plan.guests[0].page_kib, plan.cost.reserved_kib), (1 << 20, 3 << 20));
    assert!(plan.steps[0].needed);
    let boot = plan.notes.iter().find(|n| n.contains("hugepagesz=1G hugepages=0:4"));
    assert!(boot.is_some(), "{:?}", plan.notes);
    // The pool has enough.
    let plan = planned(&host(4), &asks).unwrap();
    assert_eq!((pools(&plan), plan.notes.len()), (vec![], 0));
    // A guest that leaves the size to the plan gets what is there, or smaller pages.
    assert_eq!(planned(&host(4), GUEST).unwrap().guests[0].page_kib, 1 << 20);
    assert_eq!(pools(&planned(&host(3), GUEST).unwrap()), [("hugepages-2048kB", "2048")]);
}

#[test]
fn pages_of_1_gb_that_cannot_be_had_are_told_with_the_boot_parameter() {
    let asks = format!("{GUEST}page_size = '1G'\n");
    let mut without = host(0);
    without.nodes.get_mut(&0).unwrap().huge.remove(&(1 << 20));
    for (host, text) in [(&without, asks.clone()), (&host(0), format!("[host]\nhuge_pages = 'keep'\n{asks}"))]
    {
        let error = planned(host, &text).unwrap_err().to_string();
        assert!(error.contains("4 huge pages of 1 GB wished on node 0, 0 free"), "{error}");
        assert!(error.ends_with("boot the host with hugepagesz=1G hugepages=0:4"), "{error}");
    }
    let error = planned(&host(0), &asks.replace("4G", "20G")).unwrap_err().to_string();
    assert!(
        error.ends_with("20 huge pages of 1 GB wished on node 0, 0 free, and free memory for 16 more"),
        "{error}"
    );
}

#[test]
fn a_pool_of_absurd_size_in_a_copied_tree_does_not_wrap() {
    let mut host = host(0);
    let node = host.nodes.get_mut(&0).unwrap();
    node.huge.get_mut(&2048).unwrap().total = u64::MAX;
    let plan = planned(&host, GUEST).unwrap();
    assert_eq!(pools(&plan), [("hugepages-2048kB", u64::MAX.to_string().as_str())]);
    host.nodes.get_mut(&0).unwrap().huge.get_mut(&2048).unwrap().free = u64::MAX;
    assert_eq!(pools(&planned(&host, GUEST).unwrap()), []);
}
