// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a plan's parts agree. A plan is a file from outside, and what reads plans relies on this.
//!
//! Limits: the kernel's for numbers of CPUs and nodes (`NumberSet`), 2^52 bytes of memory, which x86 can
//! address (Intel's manual, volume 3A, 4.1.4), and the page sizes of the wishes.

use crate::plan::{GuestPlan, Plan, SCHEMA};
use bifold_host::printable;
use bifold_host::topology::NumberSet;
use std::collections::BTreeSet;

/// Page sizes in KiB.
const PAGES: [u64; 3] = [4, 2 << 10, 1 << 20];
/// Most bytes of all guests together.
const MOST_MEMORY: u64 = 1 << 52;
/// Most vCPUs of a guest: QEMU's own limit is 4,096.
const MOST_VCPUS: usize = 1 << 16;
/// Most nodes of a guest: QEMU's own limit is 128.
const MOST_NODES: usize = 1 << 10;

/// A plan whose parts do not agree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPlan {
    /// The text is no plan.
    #[error("the text is no plan, give the JSON that `bifold place plan` writes: {}", printable(.0))]
    Json(String),
    /// The plan is of another version.
    #[error("the plan has the schema `{}`, this version reads {SCHEMA}: make a new plan", .0.escape_debug())]
    Schema(String),
    /// Two guests have one name.
    #[error("the plan has two guests of the name {}: remove one", printable(.0))]
    Twice(String),
    /// A guest's parts do not agree.
    #[error("guest {} of the plan: {why}: make a new plan with `bifold place plan`", printable(.guest))]
    Guest {
        /// The VM's name.
        guest: String,
        /// What is wrong.
        why: String,
    },
}

impl Plan {
    /// The plan in a JSON text from outside, if its parts agree.
    ///
    /// # Errors
    /// If the text is no plan, or the parts do not agree.
    pub fn parse(text: &[u8]) -> Result<Plan, BadPlan> {
        let plan: Plan = serde_json::from_slice(text).map_err(|e| BadPlan::Json(e.to_string()))?;
        plan.validate()?;
        Ok(plan)
    }

    /// Whether the plan's parts agree with each other and with what a host can have.
    ///
    /// # Errors
    /// If they do not.
    pub fn validate(&self) -> Result<(), BadPlan> {
        if self.schema != SCHEMA {
            return Err(BadPlan::Schema(self.schema.clone()));
        }
        let mut names = BTreeSet::new();
        let mut left = MOST_MEMORY;
        for guest in &self.guests {
            if !names.insert(&guest.name) {
                return Err(BadPlan::Twice(guest.name.clone()));
            }
            wrong(guest, &mut left)
                .map_or(Ok(()), |why| Err(BadPlan::Guest { guest: guest.name.clone(), why }))?;
        }
        Ok(())
    }
}

/// What is wrong with a guest's plan.
fn wrong(guest: &GuestPlan, left: &mut u64) -> Option<String> {
    if !PAGES.contains(&guest.page_kib) {
        return Some(format!("page_kib is {}, not 4, 2048 or 1048576", guest.page_kib));
    }
    for node in &guest.nodes {
        let Some(rest) = left.checked_sub(node.memory) else {
            return Some(format!("node {} and those before have more than 2^52 bytes", node.node));
        };
        *left = rest;
    }
    numbers(guest).or_else(|| levels(guest))
}

/// Numbers of vCPUs, nodes and CPUs.
fn numbers(guest: &GuestPlan) -> Option<String> {
    let (vcpus, nodes) = (guest.vcpus.len(), guest.nodes.len());
    if !(1..=MOST_VCPUS).contains(&vcpus) || !(1..=MOST_NODES).contains(&nodes) {
        return Some(format!("{vcpus} vCPUs and {nodes} nodes, not 1 to {MOST_VCPUS} and 1 to {MOST_NODES}"));
    }
    if !are_all(guest.vcpus.iter().map(|v| v.vcpu)) {
        return Some("the vCPUs' numbers are not 0, 1, 2 and so on".into());
    }
    if !are_all(guest.nodes.iter().map(|n| n.node)) {
        return Some("the nodes' numbers are not 0, 1, 2 and so on".into());
    }
    let known = |number: u32| number.to_string().parse::<NumberSet>().is_ok();
    if let Some(vcpu) = guest.vcpus.iter().find(|v| v.node as usize >= nodes || !known(v.cpu)) {
        return Some(format!("vCPU {} has node {} and CPU {}", vcpu.vcpu, vcpu.node, vcpu.cpu));
    }
    let odd = guest.nodes.iter().find(|n| n.distances.len() != nodes || !known(n.host_node))?;
    Some(format!("node {} has {} distances and host node {}", odd.node, odd.distances.len(), odd.host_node))
}

/// Whether the numbers are 0, 1, 2 and so on in any order.
fn are_all(numbers: impl ExactSizeIterator<Item = u32>) -> bool {
    let count = numbers.len();
    numbers.filter(|n| (*n as usize) < count).collect::<BTreeSet<_>>().len() == count
}

/// Levels of the CPU topology.
fn levels(guest: &GuestPlan) -> Option<String> {
    let smp = guest.smp;
    let all = [smp.sockets, smp.dies, smp.cores, smp.threads];
    let product = all.iter().try_fold(1_u64, |a, n| a.checked_mul(u64::from(*n)));
    (product != Some(guest.vcpus.len() as u64)).then(|| {
        let all = all.map(|n| n.to_string()).join(" times ");
        format!("sockets, dies, cores and threads are {all}, for {} vCPUs", guest.vcpus.len())
    })
}

#[cfg(test)]
mod tests;
