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
    assert!(plan.notes.iter().any(|n| n.starts_with("host.reserve_cpus: CPUs 100 are not")), "{:?}", plan.notes);
    let plan = planned(&host(2), &format!("[host]\nreserve_cpus = '0'\n{GUEST}")).unwrap();
    assert_eq!(plan.notes, [""; 0]);
}
