// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where vCPUs run.

use super::super::case::{CheckedGuest, few, pin};
use super::super::kinds::Kind;
use crate::plan::GuestPlan;
use crate::settings::quoted;
use bifold_host::placement::Thread;
use bifold_host::topology::NumberSet;
use std::collections::BTreeMap;
use std::path::Path;

/// Pins that were made before the vCPU threads existed: all of them have what the main thread has.
pub fn too_early(case: &mut CheckedGuest) {
    let vcpus = case.guest.vcpus();
    let Some(main) = case.guest.main().map(|m| m.cpus.clone()) else { return };
    let restricted = !usual(case).is_subset(&main);
    if vcpus.is_empty() || !restricted || vcpus.values().any(|t| t.cpus != main) {
        return;
    }
    let wrong = match case.plan {
        Some(plan) => plan.vcpus.iter().any(|v| main.len() != 1 || !main.contains(v.cpu)),
        None => main.len() < vcpus.len(),
    };
    if !wrong {
        return;
    }
    let evidence = format!("all {} vCPUs and the main thread may run on CPU {main}", vcpus.len());
    let mend = match case.plan {
        Some(_) => planned_pins(case, &vcpus),
        None => "pin each vCPU once the guest runs: taskset -pc CPU THREAD (bifold place plan chooses CPUs)"
            .into(),
    };
    case.find(Kind::PinnedTooEarly, evidence, mend);
}

/// The CPUs that a thread has if it was not pinned: those of its cgroup that are online and not isolated. A
/// thread may have others, too: offline ones, or isolated ones by its cgroup.
fn usual(case: &CheckedGuest) -> NumberSet {
    let online: NumberSet = case.topology.cpus.iter().filter(|(_, c)| c.online).map(|(n, _)| *n).collect();
    let all = case.guest.cpuset.as_ref().map_or(online.clone(), |c| c.cpus.intersection(&online));
    Some(all.difference(&case.topology.isolated)).filter(|set| !set.is_empty()).unwrap_or(all)
}

/// Commands that pin all vCPUs as planned.
fn planned_pins(case: &CheckedGuest, vcpus: &BTreeMap<u32, &Thread>) -> String {
    let planned = case.plan.map(|p| p.vcpus.iter()).into_iter().flatten();
    pin(planned.filter_map(|v| Some((vcpus.get(&v.vcpu)?.id, v.cpu.to_string()))))
}

/// A vCPU that may run where it should not: its number, thread, and what is wanted.
struct MisplacedVcpu<'a> {
    vcpu: u32,
    thread: &'a Thread,
    wanted: Option<u32>,
}

/// Each vCPU's CPUs beside the plan's CPU, or beside those of the guest's other vCPUs.
pub fn places(case: &mut CheckedGuest) {
    let vcpus = case.guest.vcpus();
    let some_pinned = !case.guest.pins().is_empty();
    let mut strays: BTreeMap<Kind, Vec<MisplacedVcpu>> = BTreeMap::new();
    for (&vcpu, &thread) in &vcpus {
        let planned = case.plan.map(|p| p.vcpus.iter().find(|v| v.vcpu == vcpu).map(|v| v.cpu));
        let wanted = planned.flatten();
        let kind = match wanted {
            Some(cpu) => off_plan(case, thread, cpu),
            None if planned.is_some() => None,
            None => afloat(case, thread, some_pinned),
        };
        if let Some(kind) = kind.filter(|_| !case.has(Kind::PinnedTooEarly)) {
            strays.entry(kind).or_default().push(MisplacedVcpu { vcpu, thread, wanted });
        }
    }
    for (kind, strays) in strays {
        let one = |s: &MisplacedVcpu| match s.wanted {
            Some(cpu) => format!("vCPU {} may run on CPU {}, planned: {cpu}", s.vcpu, s.thread.cpus),
            None => format!("vCPU {} may run on CPU {}", s.vcpu, s.thread.cpus),
        };
        let evidence = few(strays.iter().map(one));
        let wanted = |s: &MisplacedVcpu| s.wanted.map_or_else(|| "CPU".to_string(), |cpu| cpu.to_string());
        let mend = pin(strays.iter().map(|s| (s.thread.id, wanted(s))));
        case.find(kind, evidence, mend);
    }
    limits(case);
}

fn off_plan(case: &CheckedGuest, thread: &Thread, cpu: u32) -> Option<Kind> {
    let right = thread.cpus.len() == 1 && thread.cpus.contains(cpu);
    (!right).then(|| match thread.cpus.len() {
        1 => Kind::VcpuOnWrongCpu,
        _ if case.host_nodes(&thread.cpus).len() > 1 => Kind::VcpuFloatsOverNodes,
        _ => Kind::VcpuUnpinned,
    })
}

fn afloat(case: &CheckedGuest, thread: &Thread, some_pinned: bool) -> Option<Kind> {
    if thread.cpus.len() < 2 {
        None
    } else if thread.cpus.is_subset(&case.topology.isolated) {
        Some(Kind::VcpuFloatsOnIsolatedCpus)
    } else if case.host_nodes(&thread.cpus).len() > 1 {
        Some(Kind::VcpuFloatsOverNodes)
    } else {
        some_pinned.then_some(Kind::VcpuUnpinned)
    }
}

/// Planned CPUs that are offline, or that the cgroup lacks.
fn limits(case: &mut CheckedGuest) {
    let Some(plan) = case.plan else { return };
    let cpus: Vec<u32> = plan.vcpus.iter().map(|v| v.cpu).collect();
    let offline = |cpu: &&u32| case.topology.cpus.get(cpu).is_some_and(|c| !c.online);
    let offline: Vec<u32> = cpus.iter().filter(offline).copied().collect();
    if !offline.is_empty() {
        let mend = offline.iter().map(|cpu| format!("echo 1 > /sys/devices/system/cpu/cpu{cpu}/online"));
        let mend = mend.collect::<Vec<_>>().join("; ");
        let evidence = format!("CPU {} is offline", few(offline.iter().map(u32::to_string)));
        case.find(Kind::CpuOffline, evidence, mend);
    }
    cgroups(case, plan);
}

/// Planned CPUs that the cgroups of the vCPUs' threads lack. libvirt has a cgroup for each vCPU.
fn cgroups(case: &mut CheckedGuest, plan: &GuestPlan) {
    let vcpus = case.guest.vcpus();
    let mut lacking: BTreeMap<&Path, (&NumberSet, NumberSet)> = BTreeMap::new();
    for planned in &plan.vcpus {
        let Some(cpuset) = vcpus.get(&planned.vcpu).and_then(|t| case.guest.cpuset_of(t.id)) else {
            continue;
        };
        if !cpuset.cpus.contains(planned.cpu) {
            let lacks = lacking.entry(&cpuset.folder).or_insert((&cpuset.cpus, NumberSet::default()));
            lacks.1.insert(planned.cpu);
        }
    }
    if lacking.is_empty() {
        return;
    }
    let evidence = few(lacking
        .iter()
        .map(|(folder, (has, lacks))| format!("{} has CPU {has}, the plan uses {lacks}", folder.display())));
    let mend = lacking.iter().map(|(folder, (has, lacks))| {
        format!("echo {} > {}", has.union(lacks), quoted(&format!("{}/cpuset.cpus", folder.display())))
    });
    let mend = mend.collect::<Vec<_>>().join("; ");
    case.find(Kind::CpusetWithoutCpu, evidence, mend);
}

/// What to do about a CPU that several vCPUs are pinned to.
fn elsewhere(case: &CheckedGuest) -> String {
    let allowed = case.free_for(case.guest.vcpus().values().map(|t| t.id));
    let free = case.near(case.free_cpus());
    if !allowed.is_empty() {
        format!("pin one of them elsewhere: taskset -pc CPU THREAD; free CPUs: {allowed}")
    } else if !free.is_empty() {
        // A cgroup for each vCPU has its CPUs only.
        format!(
            "pin one of them elsewhere: virsh vcpupin, or taskset -pc CPU THREAD once the thread's cgroup has the CPU; free CPUs: {free}"
        )
    } else {
        "the host has no free CPU: give the guests fewer vCPUs, or do not pin them".to_string()
    }
}

/// CPUs that several vCPUs are pinned to.
pub fn shared(case: &mut CheckedGuest) {
    let pins = case.guest.pins();
    let planned = |vcpu: u32, cpu: u32| {
        case.plan.is_some_and(|p| p.vcpus.iter().any(|v| (v.vcpu, v.cpu) == (vcpu, cpu)))
    };
    let mut by_cpu: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    pins.iter().for_each(|(vcpu, cpu)| by_cpu.entry(*cpu).or_default().push(*vcpu));
    let crowded = by_cpu.iter().filter(|(cpu, v)| v.len() > 1 && !v.iter().all(|v| planned(*v, **cpu)));
    let crowded: Vec<String> = crowded
        .map(|(cpu, v)| format!("CPU {cpu} has vCPUs {}", few(v.iter().map(u32::to_string))))
        .collect();
    let mut others = Vec::new();
    for other in case.seen.guests.iter().filter(|g| g.pid != case.guest.pid) {
        let plan = case.whole.and_then(|p| p.guests.iter().find(|g| g.name == other.name));
        for (theirs, cpu) in other.pins() {
            let theirs_planned =
                plan.is_some_and(|p| p.vcpus.iter().any(|v| (v.vcpu, v.cpu) == (theirs, cpu)));
            let Some(ours) = by_cpu.get(&cpu) else { continue };
            if !(theirs_planned && ours.iter().all(|v| planned(*v, cpu))) {
                others.push(format!("CPU {cpu} has vCPU {} and vCPU {theirs} of {}", ours[0], other.name));
            }
        }
    }
    let mend = elsewhere(case);
    if !crowded.is_empty() && !case.has(Kind::PinnedTooEarly) {
        case.find(Kind::TwoVcpusOnOneCpu, few(crowded), mend.clone());
    }
    if !others.is_empty() {
        case.find(Kind::CpuSharedWithGuest, few(others), mend);
    }
}
