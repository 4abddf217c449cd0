// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guests that a user's word means.

use crate::usage::UsageError;
use bifold_host::LiveGuest;
use bifold_host::{Host, named, printable, word_rank};
use bifold_live::memory::{GuestMemory, HostMemory};

/// How exactly a word means a guest, if it does.
pub fn rank(guest: &LiveGuest, word: &str) -> Option<u8> {
    word_rank(word, guest.vm, guest.pid, Some(&guest.name))
}

/// The one guest that the word means.
pub fn one(host: &Host, word: &str) -> Result<LiveGuest, UsageError> {
    let all = host.live_guests();
    let count = all.len();
    let mut found = named(all, |guest| rank(guest, word));
    if found.len() > 1 {
        let ids: Vec<String> = found.iter().map(|g| g.pid.to_string()).collect();
        return Err(UsageError::value(
            "VM",
            format!(
                "`{}` means several guests: give one of the process ids {}",
                word.escape_debug(),
                ids.join(", ")
            ),
        )
        .failing());
    }
    found.pop().ok_or_else(|| {
        let problem = format!(
            "no guest `{}` among the {count} here; give a process id, a PID-FD or a name",
            word.escape_debug()
        );
        UsageError::value("VM", problem).failing()
    })
}

/// A guest's name, without what a terminal would obey.
pub fn name(guest: &LiveGuest) -> String {
    printable(&guest.name)
}

/// Notes on guests of QEMU whose monitor says nothing.
pub fn silent(seen: &HostMemory) -> Vec<String> {
    let note = |g: &GuestMemory| Some(format!("VM {}: {}", name(&g.guest), g.facts.machine.as_ref().err()?));
    seen.guests.iter().filter_map(note).collect()
}

/// A host with two guests: one swapped out although it has free memory, and one whose monitor says nothing.
#[cfg(test)]
pub fn example() -> HostMemory {
    use bifold_host::guest_memory::{Balloon, GuestStatistics, Machine, NoMemoryGroup, ProcessMemory, Swap};
    use bifold_live::memory::StayFacts;
    use bifold_live::order::{Facts, NoMonitor};
    const GIB: u64 = 1 << 30;
    let statistics = GuestStatistics {
        updated_s: Some(1_000_000),
        free: Some(47 * GIB / 10),
        available: Some(5 * GIB),
        major_faults: Some(7),
        ..GuestStatistics::default()
    };
    let balloon =
        Balloon { path: "/b".into(), actual: Some(8 * GIB), polling_s: 1, statistics, ..Balloon::default() };
    let machine = Machine {
        state: "running".into(),
        running: true,
        base: Some(8 * GIB),
        balloon: Some(balloon),
        ..Machine::default()
    };
    let memory = ProcessMemory {
        resident: Some(2 * GIB),
        swapped: Some(49 * GIB / 10),
        major_faults: Some(10),
        ..ProcessMemory::default()
    };
    let swap = Some(Swap { total: 16 * GIB, free: 10 * GIB });
    let guest = |pid, name: &str, machine, memory| GuestMemory {
        guest: LiveGuest { pid, name: name.into(), started: 1, vm: None, kvm: false, vcpus: Vec::new() },
        facts: Facts {
            machine,
            memory,
            vfio: Some(0),
            group: Err(NoMemoryGroup::V1),
            pid,
            swap,
            hugetlb: false,
        },
        stays: StayFacts::default(),
    };
    HostMemory {
        time_s: 1_000_005,
        memory: bifold_host::MemInfo { total: Some(16 * GIB), available: Some(4 * GIB) },
        swap,
        stalls_us: Some(1_000_000),
        waiting_60: Some(0.2),
        guests: vec![
            guest(4242, "vm1", Ok(machine), memory),
            guest(4343, "the db\u{1b}[2J", Err(NoMonitor::NotAsked), ProcessMemory::default()),
        ],
    }
}
