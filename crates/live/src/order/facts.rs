// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one look at a guest finds: for findings, for policies, and before and during an order.

use super::{SizeObservation, Way};
use bifold_host::guest_memory::{Machine, MemoryGroup, MonitorPlace, NoMemoryGroup, ProcessMemory, Swap};
use bifold_host::{Host, printable};
use std::time::Duration;

/// The pages of a balloon.
const PAGE: u64 = 4096;
/// Time limit of what the monitor is asked for, together: an order's guardian waits for 15 s.
pub(super) const LIMIT: Duration = Duration::from_secs(10);
/// Seconds between two requests for statistics during an order.
pub(super) const POLLING: u64 = 1;
/// A longer interval is another program's for its charts: an order would judge the guest too late.
const SELDOM: u64 = 3;

/// Whether an order shortens the interval of a guest's statistics. With 0, QEMU asks for none.
pub(super) fn is_seldom(polling_s: u64) -> bool {
    !(1..=SELDOM).contains(&polling_s)
}

/// Why the monitor tells nothing of a guest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoMonitor {
    /// The command line of QEMU has none.
    #[error(
        "its command line has no monitor at an absolute path: start QEMU with -qmp unix:/PATH,server=on,wait=off"
    )]
    NotAsked,
    /// Its place, and the system's or QEMU's error.
    #[error("its monitor ({0}) does not answer: {1}")]
    Silent(String, String),
    /// The answers lack the size.
    #[error("its monitor does not tell its size")]
    NoSize,
}

/// What is known of a guest's memory at one time.
#[derive(Debug, Clone)]
pub struct Facts {
    /// What the monitor says, or why it says nothing.
    pub machine: Result<Machine, NoMonitor>,
    /// The process's memory.
    pub memory: ProcessMemory,
    /// Files of VFIO; `None` if this user may not look.
    pub vfio: Option<usize>,
    /// The process's cgroup.
    pub group: Result<MemoryGroup, NoMemoryGroup>,
    /// The process's id, and those of other processes in the cgroup.
    pub pid: u32,
    /// The host's swap.
    pub swap: Option<Swap>,
    /// Whether the command line asks for hugetlbfs.
    pub hugetlb: bool,
}

/// Reads the facts, over one connection to the monitor. Changes nothing.
pub fn facts(host: &Host, pid: u32, place: Option<&MonitorPlace>) -> Facts {
    Facts {
        vfio: host.vfio_files(pid),
        group: host.memory_group(pid),
        swap: host.swap(),
        hugetlb: host.command_line(pid).is_some_and(|line| line.asks_for_hugetlb()),
        ..size_facts(host, pid, place)
    }
}

/// Reads what the monitor and the process's memory tell; the other facts stay empty, so the result is for a
/// size by the monitor alone. An order looks every second, and the time for the other facts grows with the
/// processes in the guest's cgroup.
pub(super) fn size_facts(host: &Host, pid: u32, place: Option<&MonitorPlace>) -> Facts {
    let ask = |place: &MonitorPlace| {
        let mut monitor = place.open_within(host, pid, LIMIT)?;
        Machine::ask(&mut monitor)
    };
    let machine = match place {
        Some(place) => {
            ask(place).map_err(|e| NoMonitor::Silent(printable(&place.to_string()), e.to_string()))
        }
        None => Err(NoMonitor::NotAsked),
    };
    Facts {
        machine,
        memory: host.process_memory(pid),
        vfio: None,
        group: Err(NoMemoryGroup::NoGroup),
        pid,
        swap: None,
        hugetlb: false,
    }
}

impl SizeObservation {
    /// What facts tell of a guest's size, as a way counts the size; `None` if they lack the size.
    pub fn of(facts: &Facts, way: Way) -> Option<SizeObservation> {
        let machine = facts.machine.as_ref().ok();
        let statistics = machine.and_then(|m| m.balloon.as_ref()).map(|b| b.statistics).unwrap_or_default();
        let of_guest = statistics.major_faults.or(statistics.swapped_in.map(|bytes| bytes / PAGE));
        // The host counts these itself.
        let of_host =
            || facts.group.as_ref().ok().and_then(MemoryGroup::refaults).or(facts.memory.major_faults);
        Some(SizeObservation {
            at: Duration::ZERO,
            running: machine.is_none_or(|m| m.running),
            migrating: machine.is_some_and(|m| m.migration.is_some()),
            size: way.size(facts)?,
            free: statistics.updated_s.and(statistics.free),
            available: statistics.available,
            used: machine.and_then(|m| used(m, statistics.available?)),
            resident: facts.memory.resident,
            oom_kills: statistics.oom_kills,
            updated: statistics.updated_s,
            faults: if way.pages_out() { of_host() } else { of_guest },
        })
    }
}

/// Bytes that a guest cannot do without: all that it has less what is available in it. `None` if more is
/// available than it has.
pub(crate) fn used(machine: &Machine, available: u64) -> Option<u64> {
    // The balloon's figure leaves virtio-mem out, and the guest's does not.
    let plugged = machine.virtio_mem.iter().fold(0, |all: u64, device| all.saturating_add(device.size));
    machine.balloon.as_ref()?.actual?.saturating_add(plugged).checked_sub(available)
}
