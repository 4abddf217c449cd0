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
