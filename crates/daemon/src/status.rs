// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the daemon knows of its VMs at a moment: the answer of `bifold ctl status`, and the source of the
//! metrics.

use serde::{Deserialize, Serialize};

/// Name and version of the schema.
pub const SCHEMA: &str = "bifold.daemon-status/1";

/// The daemon and its VMs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`SCHEMA`].
    pub schema: String,
    /// The daemon's process.
    pub pid: u32,
    /// The daemon's version of Bifold.
    pub version: String,
    /// Seconds since the daemon's start.
    pub up_s: f64,
    /// Number of intervals read.
    pub intervals: u64,
    /// Seconds that the last reading of all VMs took.
    pub reading_s: f64,
    /// Why no VM can be switched on this host; `None` if VMs can be.
    pub only_observes: Option<String>,
    /// The last error of the recording or of the metrics' file.
    pub trouble: Option<String>,
    /// The VMs, by identifier.
    pub vms: Vec<VmStatus>,
    /// The memory of VMs with a rule about it; `None` without a configuration of memory.
    pub memory: Option<MemoryStatus>,
}

/// How a host's memory is divided.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// The policy.
    pub policy: String,
    /// What the VMs may have together; `None` before the first decision.
    pub limit_bytes: Option<u64>,
    /// What they have together, outside of their balloons.
    pub size_bytes: u64,
    /// The VMs, by process.
    pub guests: Vec<GuestStatus>,
}

/// The memory of a VM. A guest that is emulated, without KVM, has an entry here only.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GuestStatus {
    /// The VM's process.
    pub pid: u32,
    /// The VM's name.
    pub name: String,
    /// KVM's identifier.
    pub vm: Option<String>,
    /// The pattern of the VM's rule.
    pub rule: String,
    /// `acts`, `observes`, `held`, `blocked` (no order can begin now), `cannot` (none will), or `not seen`.
    pub state: String,
    /// Why, if the state needs a reason, and what an order does.
    pub note: Option<String>,
    /// What it has, outside of its balloon.
    pub size_bytes: Option<u64>,
    /// What it had when the daemon found it.
    pub found_bytes: Option<u64>,
    /// What its process has in the host's memory.
    pub resident_bytes: Option<u64>,
    /// What is free in it.
    pub free_bytes: Option<u64>,
    /// What is available in it.
    pub available_bytes: Option<u64>,
    /// Whether `balloon` or `reporter` said so.
    pub known_by: Option<String>,
    /// Pages that came back soon after it took them, since its boot, by its reporter.
    pub refaults: Option<u64>,
    /// Faults that read from a disk, since its boot, by its reporter.
    pub major_faults: Option<u64>,
    /// Microseconds in which some task of it waited for memory, since its boot, by its reporter.
    pub waited_us: Option<u64>,
    /// What the policy wanted last for it.
    pub wants_bytes: Option<u64>,
    /// Why.
    pub why: Option<String>,
    /// What the daemon did: `stayed`, `takes`, `gives`, `would-take`, `held`, `too-early`, `too-many`,
    /// `not-taken`.
    pub done: Option<String>,
    /// The size that the daemon's order has; `None` without an order.
    pub ordered_bytes: Option<u64>,
    /// Orders that took memory in the last hour.
    pub orders_in_hour: u64,
    /// What `bifold reclaim advise` says of it.
    pub findings: Vec<String>,
    /// Counts since the daemon saw it first.
    pub totals: GuestTotals,
}

/// Counts of a VM's orders since the daemon saw it first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestTotals {
    /// Orders that took memory.
    pub takes: u64,
    /// Orders that gave a part back.
    pub gives: u64,
    /// Sizes that were reached and held.
    pub held: u64,
    /// Orders that could not begin.
    pub refused: u64,
    /// Orders that ended early, with everything given back.
    pub ended: u64,
}

/// What the daemon knows of one VM.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The VM, if KVM runs it.
    pub vm: Option<VmStatus>,
    /// Its memory, if it has a rule about that.
    pub memory: Option<GuestStatus>,
    /// The last events, oldest first.
    pub lately: Vec<crate::Event>,
}

/// A VM.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VmStatus {
    /// KVM's identifier.
    pub vm: String,
    /// The VM's name.
    pub name: Option<String>,
    /// The VM's process.
    pub pid: u32,
    /// The VM's mode, or the switch under way.
    pub mode: Option<String>,
    /// The mode in which the daemon found the VM, if the daemon has switched the VM.
    pub own_mode: Option<String>,
    /// The pattern of the VM's rule.
    pub rule: Option<String>,
    /// The rule's policy.
    pub policy: Option<String>,
    /// `acts`, `observes`, `held`, `never`, `no rule`, `cannot` (KVM will not switch this VM), or `blocked`
    /// (KVM would refuse now the switch that the policy wants).
    pub state: String,
    /// Why, if the state needs a reason: what KVM said, or how long the VM is held.
    pub note: Option<String>,
    /// KVM's word for the reason why it would refuse the switch that the policy wants.
    pub refusal: Option<String>,
    /// The mode that the policy wanted last.
    pub wants: Option<String>,
    /// The policy's last reason.
    pub why: Option<String>,
    /// What the limits said: `stay`, `switch`, `too-early`, `too-many`.
    pub verdict: Option<String>,
    /// The counter that the policy needs and that is not counted.
    pub missing: Option<String>,
    /// Share of the last interval during which vCPUs ran.
    pub load: Option<f64>,
    /// Switches in the last hour, by the daemon and by others, as far as the daemon saw them.
    pub switches_in_hour: u64,
    /// Counts since the daemon saw the VM first.
    pub totals: Totals,
}

/// Counts of a VM since the daemon saw the VM first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Decisions of the policy.
    pub decisions: u64,
    /// Switches by the daemon, giving back included.
    pub switched: u64,
    /// Requests that KVM refused.
    pub refused: u64,
    /// Exits, as far as they are known.
    pub exits: u64,
    /// Time of the vCPUs on CPUs, in nanoseconds, as far as known.
    pub ran_ns: u64,
    /// Time that vCPUs waited for a CPU, in nanoseconds, as far as known.
    pub waited_ns: u64,
}
