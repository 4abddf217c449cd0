// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the VMM's other threads run.

use super::super::case::{CheckedGuest, few, pin};
use super::super::kinds::Kind;
use crate::apply::io_cpus;
use bifold_host::placement::{Role, Thread};
use bifold_host::topology::NumberSet;

/// A thread and the CPUs that it should have; without a plan, those are free ones.
struct MisplacedThread {
    id: u32,
    name: String,
    cpus: NumberSet,
    wanted: NumberSet,
}

/// Main loop, helpers. KVM's thread that recovers huge pages is left out: it begins on the CPU of a vCPU in
/// every guest, and hardly runs.
pub fn emulator(case: &mut CheckedGuest) {
    let threads: Vec<&Thread> = case.guest.threads.iter().filter(|t| t.role == Role::Emulator).collect();
    let planned = case.plan.map(|p| p.emulator.clone());
    let pairs = threads.into_iter().map(|t| (t.clone(), planned.clone())).collect();
    strays(case, pairs, Kind::EmulatorOnVcpuCpu, Kind::EmulatorOffPlan);
}

/// I/O threads and workers of vhost.
pub fn io(case: &mut CheckedGuest) {
    let ids = case.guest.view.as_ref().map(|v| v.io_threads.clone()).unwrap_or_default();
    let mut pairs = Vec::new();
    for thread in &case.guest.threads {
        let Role::Io(name) = &thread.role else { continue };
        let planned = case.plan.map(|plan| io_cpus(plan, &ids, name));
        pairs.push((thread.clone(), planned));
    }
    strays(case, pairs, Kind::IoThreadOnVcpuCpu, Kind::IoThreadOffPlan);
}

fn strays(case: &mut CheckedGuest, threads: Vec<(Thread, Option<NumberSet>)>, on_vcpu: Kind, off_plan: Kind) {
    let taken = case.guest.pinned_cpus();
    let taken = case.plan.map_or(taken.clone(), |p| taken.union(&p.vcpus.iter().map(|v| v.cpu).collect()));
    let (mut on, mut off) = (Vec::new(), Vec::new());
    for (thread, planned) in threads {
        let free = case.free_for([thread.id]);
        let collides = !thread.cpus.intersection(&taken).is_empty();
        let stray = |wanted: &NumberSet| MisplacedThread {
            id: thread.id,
            name: thread.name.clone(),
            cpus: thread.cpus.clone(),
            wanted: wanted.clone(),
        };
        match planned.as_ref().filter(|p| !p.is_empty()) {
            Some(planned) if thread.cpus.is_subset(planned) => {}
            Some(planned) if collides => on.push(stray(planned)),
            Some(planned) => off.push(stray(planned)),
            // Without a free CPU there is no better place.
            None if collides && !free.is_empty() => on.push(stray(&free)),
            None => {}
        }
    }
    for (kind, found) in [(on_vcpu, on), (off_plan, off)] {
        if found.is_empty() {
            continue;
        }
        let one = |s: &MisplacedThread| format!("{} ({}) may run on CPU {}", s.id, s.name, s.cpus);
        let evidence = format!("{}; vCPUs have CPU {taken}", few(found.iter().map(one)));
        let mend = pin(found.iter().map(|s| (s.id, s.wanted.to_string())));
        case.find(kind, evidence, mend);
    }
}
