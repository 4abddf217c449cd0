// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What takes CPU time from vCPUs: other processes' threads, quotas and low priorities.

use super::super::case::{CheckedGuest, few};
use super::super::kinds::Kind;
use crate::settings::quoted;
use bifold_host::placement::{CpuGroup, ForeignThread, Role};
use bifold_host::topology::NumberSet;

/// Policies of sched(7) that wait for all others.
const LOW_POLICIES: [(u32, &str); 2] = [(3, "SCHED_BATCH"), (5, "SCHED_IDLE")];

/// Threads of other processes, and of other guests' VMMs, on the CPUs of vCPUs.
pub fn foreign(case: &mut CheckedGuest) {
    let taken = case.guest.pinned_cpus();
    let free = case.near(case.free_cpus());
    // Where vCPUs have all CPUs, a thread that may run anywhere is confined to them, too.
    let confined = |cpus: &NumberSet| {
        !cpus.is_empty() && cpus.is_subset(&taken) && (cpus.len() == 1 || !free.is_empty())
    };
    // On a CPU that is not isolated, any thread may run for a moment.
    let runs = |t: &ForeignThread| {
        t.runs && taken.contains(t.last_cpu) && case.topology.isolated.contains(t.last_cpu)
    };
    let mut found: Vec<(u32, String)> = Vec::new();
    for t in &case.seen.host.foreign {
        let who = format!("thread {} ({}) of process {}", t.id, t.name, t.pid);
        if confined(&t.cpus) {
            found.push((t.id, format!("{who} may run on CPU {} only", t.cpus)));
        } else if runs(t) {
            found.push((t.id, format!("{who} runs on the isolated CPU {}", t.last_cpu)));
        }
    }
    for other in case.seen.guests.iter().filter(|g| g.pid != case.guest.pid) {
        // What the plan has for the other guest is no mistake. Two vCPUs on one CPU have a finding of their
        // own.
        if case.whole.is_some_and(|p| p.guests.iter().any(|g| g.name == other.name)) {
            continue;
        }
        let others = other.threads.iter().filter(|t| matches!(t.role, Role::Emulator | Role::Io(_)));
        for t in others.filter(|t| confined(&t.cpus)) {
            let who = format!("thread {} ({}) of guest {}", t.id, t.name, other.name);
            found.push((t.id, format!("{who} may run on CPU {} only", t.cpus)));
        }
    }
    if found.is_empty() {
        return;
    }
    let mend = if free.is_empty() {
        "the host has no free CPU: give the guests fewer vCPUs, or end these processes".to_string()
    } else {
        let pins = found.iter().map(|(id, _)| format!("taskset -pc {free} {id}"));
        pins.collect::<Vec<_>>().join("; ")
    };
    let evidence = format!("{}; vCPUs have CPU {taken}", few(found.into_iter().map(|f| f.1)));
    case.find(Kind::ForeignThreadOnVcpuCpu, evidence, mend);
}

/// Quotas of the vCPUs' cgroups.
pub fn quota(case: &mut CheckedGuest) {
    let vcpus = case.guest.vcpus().len();
    let (mut found, mut mend) = (Vec::new(), Vec::new());
    for group in &case.guest.cpu_groups {
        let Some(quota) = group.quota else { continue };
        let (file, none) = if quota.v2 { ("cpu.max", "max") } else { ("cpu.cfs_quota_us", "-1") };
        let file = group.folder.join(file);
        let cpus = quota.quota_us as f64 / quota.period_us as f64;
        let throttled = match quota.throttled {
            Some(periods) => format!("; the time was used up in {periods} periods so far"),
            None => String::new(),
        };
        found.push(format!(
            "{}: {} of each {} us, the time of {cpus:.2} CPUs for {vcpus} vCPUs{throttled}",
            file.display(),
            quota.quota_us,
            quota.period_us
        ));
        mend.push(format!("echo {none} > {}", quoted(&file.display().to_string())));
    }
    if !found.is_empty() {
        case.find(Kind::CpuQuota, few(found), mend.join("; "));
    }
}

/// Nice values and policies of vCPUs' threads, and weights of their cgroups.
pub fn priority(case: &mut CheckedGuest) {
    let (mut found, mut mend) = (Vec::new(), Vec::new());
    for (vcpu, thread) in case.guest.vcpus() {
        let Some(scheduling) = thread.scheduling else { continue };
        if let Some((_, policy)) = LOW_POLICIES.iter().find(|(n, _)| *n == scheduling.policy) {
            found.push(format!("vCPU {vcpu} has {policy}"));
            mend.push(format!("chrt -o -p 0 {}", thread.id));
        }
        if scheduling.nice > 0 {
            found.push(format!("vCPU {vcpu} has nice {}", scheduling.nice));
            mend.push(format!("renice -n 0 -p {}", thread.id));
        }
    }
    for group in &case.guest.cpu_groups {
        if let Some((evidence, command)) = low_weight(group) {
            found.push(evidence);
            mend.push(command);
        }
    }
    if !found.is_empty() {
        case.find(Kind::VcpuLowPriority, few(found), mend.join("; "));
    }
}

fn low_weight(group: &CpuGroup) -> Option<(String, String)> {
    let file = |name: &str| group.folder.join(name).display().to_string();
    // The weight of an idle cgroup is 0.
    if group.idle {
        let file = file("cpu.idle");
        return Some((format!("{file} is 1"), format!("echo 0 > {}", quoted(&file))));
    }
    let weight = group.weight.filter(|w| w.is < w.default)?;
    let file = file(weight.file);
    let evidence = format!("{file} is {}, the default is {}", weight.is, weight.default);
    Some((evidence, format!("echo {} > {}", weight.default, quoted(&file))))
}
