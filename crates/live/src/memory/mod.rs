// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory of a host's guests at one time, and what to change about it.
//!
//! [`see`] reads the facts and changes nothing. [`rules`] turn them into findings.

pub mod rules;

use crate::order::{Facts, facts, used};
use bifold_host::guest_memory::{GuestStatistics, Shortage, Swap};
use bifold_host::{Host, LiveGuest, MemInfo, RefusalReason};
use std::time::{SystemTime, UNIX_EPOCH};

/// Statistics older than this are not of now.
const OLD_S: u64 = 60;

/// A guest and its memory.
#[derive(Debug, Clone)]
pub struct GuestMemory {
    /// The guest.
    pub guest: LiveGuest,
    /// What is known of its memory.
    pub facts: Facts,
    /// What is known of its stays in shadow paging.
    pub stays: StayFacts,
}

/// What a KVM with a paging mode per VM tells of a guest's stays in shadow paging, which take memory of the
/// guest's cgroup. Empty on other hosts, and where only the guest's memory was looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StayFacts {
    /// The cgroup that leaves too little for a stay, if the guest is in nested paging.
    pub shortage: Option<Shortage>,
    /// Stays that KVM has ended.
    pub ended: u64,
}

impl StayFacts {
    fn of(host: &Host, guest: &LiveGuest) -> StayFacts {
        let Some(vm) = guest.vm else { return StayFacts::default() };
        let paging = host.paging(vm);
        let shortage = match paging.obstacle().map(|(_, obstacle)| &obstacle.reason) {
            Some(RefusalReason::Room(shortage)) => Some(shortage.clone()),
            _ => None,
        };
        StayFacts { shortage, ended: paging.stats().returns().unwrap_or(0) }
    }
}

/// A host's memory, and that of its guests.
#[derive(Debug, Clone)]
pub struct HostMemory {
    /// Seconds since 1970.
    pub time_s: u64,
    /// Amounts.
    pub memory: MemInfo,
    /// Swap; `None` if the kernel has none.
    pub swap: Option<Swap>,
    /// Microseconds since boot in which some task waited for memory, if the kernel has PSI.
    pub stalls_us: Option<u64>,
    /// Percent of the last minute in which some task waited.
    pub waiting_60: Option<f64>,
    /// The guests, by process.
    pub guests: Vec<GuestMemory>,
}

/// Reads the memory of a host and its guests.
pub fn see(host: &Host) -> HostMemory {
    let guests = host.live_guests().into_iter().filter_map(|guest| of_guest(host, guest)).collect();
    with(host, guests)
}

/// Reads the memory of a host and of one of its guests alone, unless an order has just seen the guest; `None`
/// if that has ended.
pub fn see_one(host: &Host, guest: LiveGuest, seen: Option<Facts>) -> Option<HostMemory> {
    let guest = match seen {
        Some(facts) => GuestMemory { guest, facts, stays: StayFacts::default() },
        None => of_guest(host, guest)?,
    };
    Some(with(host, vec![guest]))
}

fn of_guest(host: &Host, guest: LiveGuest) -> Option<GuestMemory> {
    let place = host.monitor_place(guest.pid);
    let facts = facts(host, guest.pid, place.as_ref());
    let stays = StayFacts::of(host, &guest);
    // The process may have ended meanwhile.
    (host.started(guest.pid) == Some(guest.started)).then_some(GuestMemory { guest, facts, stays })
}

fn with(host: &Host, guests: Vec<GuestMemory>) -> HostMemory {
    HostMemory {
        time_s: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        memory: host.memory().unwrap_or_default(),
        swap: host.swap(),
        stalls_us: host.stalls_us(),
        waiting_60: host.pressure().map(|p| p.some_60),
        guests,
    }
}

impl GuestMemory {
    /// Bytes at the machine's start.
    pub fn size(&self) -> Option<u64> {
        self.facts.machine.as_ref().ok()?.base
    }

    /// Bytes outside of the balloon.
    pub fn actual(&self) -> Option<u64> {
        self.facts.machine.as_ref().ok()?.balloon.as_ref()?.actual
    }

    /// The guest's statistics, unless they are old at this time; empty without a balloon.
    pub fn statistics(&self, now_s: u64) -> GuestStatistics {
        let of = || Some(self.facts.machine.as_ref().ok()?.balloon.as_ref()?.statistics);
        let fresh = |s: &GuestStatistics| s.updated_s.is_some_and(|at| now_s.saturating_sub(at) <= OLD_S);
        of().filter(fresh).unwrap_or_default()
    }

    /// Bytes that the guest cannot do without, by statistics that are not old at this time.
    pub fn used(&self, now_s: u64) -> Option<u64> {
        used(self.facts.machine.as_ref().ok()?, self.statistics(now_s).available?)
    }
}
