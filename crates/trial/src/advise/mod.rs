// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Advises on a host's KSM: what it saves and costs, and what to change.
//!
//! [`observe`] reads the host: KSM's settings and counters, ksmd's CPU time, memory and its pressure (PSI),
//! NUMA nodes, huge pages, and the processes that run guests with KSM's figures of each. [`advise`] turns
//! these facts into [`Advice`]. Every rule gives its reason.
//!
//! The advice uses only facts that are visible from outside. `bifold share potential` counts equal pages that
//! KSM has not found, and only the operator knows which guests trust each other.

mod rules;

pub use rules::{Advice, Kind, Recommendation, advise};

use bifold_host::guest_memory::ProcessMemory;
use bifold_host::ksm::{Activity, Counters, Ksm, KsmError, ProcessKsm, Settings};
use bifold_host::{Host, LiveGuest, MemInfo, Pressure};

/// A process that runs a guest, and KSM's figures of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GuestKsm {
    /// The guest.
    pub guest: LiveGuest,
    /// User of the guest's process.
    pub uid: Option<u32>,
    /// Memory of the guest's process.
    pub memory: ProcessMemory,
    /// Whether the command line asks for memory in hugetlbfs.
    pub hugetlb: bool,
    /// Whether a thread of the process is scheduled as real-time.
    pub real_time: bool,
    /// KSM's figures; empty if this user may not read them.
    pub ksm: ProcessKsm,
    /// Whether this user may read KSM's figures. Root may, and the process's own user.
    pub readable: bool,
}

/// Facts of a host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    /// KSM's settings.
    pub settings: Settings,
    /// KSM's counters.
    pub counters: Counters,
    /// KSM's work since boot. Its clock is the time since boot.
    pub activity: Activity,
    /// Amounts of memory.
    pub memory: MemInfo,
    /// Memory pressure.
    pub pressure: Option<Pressure>,
    /// Number of NUMA nodes.
    pub nodes: usize,
    /// Processors reserved for single tasks (`isolcpus`, `nohz_full`), as the kernel lists them.
    pub isolated: Option<String>,
    /// Processes that run guests, by process id.
    pub vms: Vec<GuestKsm>,
}

impl Observed {
    /// A note if figures of some guests are missing because this user may not read them.
    pub fn unreadable(&self) -> Option<String> {
        let hidden: Vec<&GuestKsm> = self.vms.iter().filter(|vm| !vm.readable).collect();
        let first = hidden.first()?;
        Some(format!(
            "only root may read the figures of {} of {} guests, which belong to other users (such as /proc/{}/ksm_stat \
             of user {}): `-` stands for these figures",
            hidden.len(),
            self.vms.len(),
            first.guest.pid,
            first.uid.map_or("unknown".into(), |u| u.to_string())
        ))
    }
}

/// Reads a host.
///
/// # Errors
/// If the host has no KSM, or its files cannot be read. A fact that the kernel lacks is absent.
pub fn observe(host: &Host) -> Result<Observed, KsmError> {
    let ksm = Ksm::of(host)?;
    let counters = ksm.counters()?;
    let activity = Activity::of(host.uptime_s().unwrap_or(0.0), &counters, &host.vmstat(), ksm.ksmd());
    Ok(Observed {
        settings: ksm.settings()?,
        counters,
        activity,
        memory: host.memory().unwrap_or_default(),
        pressure: host.pressure(),
        nodes: host.numa_nodes(),
        isolated: host.isolated_cpus(),
        vms: guests(host, &ksm)?,
    })
}

fn guests(host: &Host, ksm: &Ksm) -> Result<Vec<GuestKsm>, KsmError> {
    let mut found = Vec::new();
    for guest in host.known_guests() {
        let pid = guest.pid;
        let (ksm, readable) = match ksm.process(pid) {
            Ok(Some(figures)) => (figures, true),
            // The process has just ended.
            Ok(None) => continue,
            // The process belongs to another user.
            Err(KsmError::NotRoot { .. }) => (ProcessKsm::default(), false),
            Err(e) => return Err(e),
        };
        found.push(GuestKsm {
            uid: host.user(pid),
            memory: host.process_memory(pid),
            hugetlb: host.command_line(pid).is_some_and(|line| line.asks_for_hugetlb()),
            real_time: host
                .threads(pid, &guest.vcpus)
                .is_ok_and(|all| all.iter().any(|t| t.scheduling.is_some_and(|s| s.is_real_time()))),
            guest,
            ksm,
            readable,
        });
    }
    Ok(found)
}
