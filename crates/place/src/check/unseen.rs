// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of a guest was not seen, so that no rule is silent without a word.

use super::seen::{GuestFacts, Unknown};
use bifold_host::Host;
use bifold_host::LiveGuest;

/// Of threads and of what the guest sees: what the facts lack.
pub(super) fn of_threads(host: &Host, live: &LiveGuest, seen: &GuestFacts) -> Vec<Unknown> {
    let mut unknown = Vec::new();
    let mut note = |what: String, privilege| unknown.push(Unknown { what, privilege });
    let vcpus = seen.vcpus();
    if vcpus.is_empty() {
        let what = "its vCPUs' threads have no names: start QEMU with -name debug-threads=on, or give its monitor by --qmp SOCKET";
        note(what.into(), live.kvm && live.vm.is_none());
    }
    let planned = seen.view.as_ref().map_or(0, |v| v.vcpus as usize);
    if !vcpus.is_empty() && vcpus.len() < planned {
        note(
            format!("{} of its {planned} vCPUs: their threads are not recognised", planned - vcpus.len()),
            false,
        );
    }
    let unread = host.unread_threads(seen.pid, &seen.threads);
    if !unread.is_empty() {
        note(format!("the CPUs of its threads {}: no list of allowed CPUs", listed(&unread)), false);
    }
    let unranked = vcpus.iter().filter(|(_, t)| t.scheduling.is_none()).map(|(vcpu, _)| *vcpu);
    let unranked: Vec<u32> = unranked.collect();
    if !unranked.is_empty() {
        note(format!("nice value and policy of its vCPUs {}", listed(&unranked)), false);
    }
    if seen.view.is_none() {
        let what = "what it sees of nodes, distances, caches and devices: its command line is not QEMU's, or cannot be read";
        note(what.into(), false);
    }
    unknown
}

/// Of memory.
pub(super) fn of_memory(host: &Host, seen: &GuestFacts) -> Vec<Unknown> {
    let mut unknown = Vec::new();
    let mut note = |what: &str| unknown.push(Unknown { what: what.into(), privilege: false });
    if seen.blocks.is_empty() {
        if seen.view.is_none() {
            note("its memory: no mapping of its process is large enough");
        }
    } else if host.sys.join("devices/system/node").is_dir()
        && seen.blocks.iter().all(|b| b.memory.policies.is_empty())
    {
        note("the NUMA policies of its memory: numa_maps of its process cannot be read");
    }
    unknown
}

/// Of the CPU time that cgroups leave to the vCPUs; fills in what was read.
pub(super) fn of_cgroups(host: &Host, seen: &mut GuestFacts) -> Vec<Unknown> {
    let vcpus: Vec<u32> = seen.vcpus().values().map(|t| t.id).collect();
    let threads = if vcpus.is_empty() { vec![seen.pid] } else { vcpus };
    let found = host.cpu_groups(seen.pid, threads);
    seen.cpu_groups = found.groups;
    let what = |why| format!("limits of its cgroups: {why}");
    found.unread.into_iter().map(|why| Unknown { what: what(why), privilege: false }).collect()
}

/// Of interrupts, which matter to pinned vCPUs only.
pub(super) fn of_interrupts(host: &Host, seen: &GuestFacts) -> Option<Unknown> {
    let blind = !seen.pins().is_empty() && std::fs::read_dir(host.proc.join("irq")).is_err();
    let what = "interrupts on its vCPUs' CPUs: /proc/irq cannot be read";
    blind.then(|| Unknown { what: what.into(), privilege: false })
}

fn listed(numbers: &[u32]) -> String {
    super::case::few(numbers.iter().map(u32::to_string))
}
