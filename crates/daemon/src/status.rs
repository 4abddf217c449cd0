// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the daemon knows of its VMs at a moment: the answer of `bifold ctl status`, and the source of the
//! metrics.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name and version of the schema.
pub const SCHEMA: &str = "bifold.daemon-status/1";

/// What `bifold ctl status --format json` writes: the daemon and its VMs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Name and version of this schema.
    pub schema: String,
    /// The daemon's process.
    pub pid: u32,
    /// The daemon's version of Bifold.
    pub version: String,
    /// Time since the daemon's start. Unit: s.
    pub up_s: f64,
    /// Number of intervals read.
    pub intervals: u64,
    /// Time that the last reading of all VMs took. Unit: s.
    pub reading_s: f64,
    /// Why no VM can be switched on this host; null if VMs can be.
    pub only_observes: Option<String>,
    /// What the operator should know: keys of the configuration without effect, and public holes of the
    /// loaded KVM modules.
    pub warnings: Vec<String>,
    /// The last error of the recording or of the metrics' file; null if there is none.
    pub trouble: Option<String>,
    /// The VMs, by identifier.
    pub vms: Vec<VmStatus>,
    /// The memory of VMs with a rule about memory; null without a configuration of memory.
    pub memory: Option<MemoryStatus>,
}

/// How a host's memory is divided.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryStatus {
    /// The policy.
    pub policy: String,
    /// What the VMs may have together; null before the first decision. Unit: bytes.
    pub limit_bytes: Option<u64>,
    /// What the VMs have together, outside of their balloons. Unit: bytes.
    pub size_bytes: u64,
    /// The VMs, by process.
    pub guests: Vec<GuestStatus>,
}

/// The memory of a VM. A guest that is emulated, without KVM, has an entry here only.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GuestStatus {
    /// The VM's process.
    pub pid: u32,
    /// The VM's name.
    pub name: String,
    /// KVM's identifier of the VM; null if KVM does not run the guest.
    pub vm: Option<String>,
    /// The pattern of the VM's rule.
    pub rule: String,
    /// `acts`; `observes`; `held`; `blocked`, no order can begin now; `cannot`, no order will begin; or `not
    /// seen`.
    pub state: String,
    /// Why, if the state needs a reason, or what an order does; null otherwise.
    pub note: Option<String>,
    /// What the VM has, outside of its balloon; null if unknown. Unit: bytes.
    pub size_bytes: Option<u64>,
    /// What the VM had when the daemon found the VM; null if unknown. Unit: bytes.
    pub found_bytes: Option<u64>,
    /// What the VM's process has in the host's memory; null if unknown. Unit: bytes.
    pub resident_bytes: Option<u64>,
    /// What is free in the VM; null if unknown. Unit: bytes.
    pub free_bytes: Option<u64>,
    /// What the VM's programs can take without swapping; null if unknown. Unit: bytes.
    pub available_bytes: Option<u64>,
    /// Where free and available memory are from: `balloon` or `reporter`; null if both are unknown.
    pub known_by: Option<String>,
    /// Pages that came back soon after the VM took them, since its boot; null without a reporter.
    pub refaults: Option<u64>,
    /// Faults of the VM that read from a disk, since its boot; null without a reporter.
    pub major_faults: Option<u64>,
    /// Time in which some task of the VM waited for memory, since its boot; null without a reporter.
    /// Unit: us.
    pub waited_us: Option<u64>,
    /// The size that the policy wanted last for the VM; null before the first decision. Unit: bytes.
    pub wants_bytes: Option<u64>,
    /// The policy's reason for that size; null before the first decision.
    pub why: Option<String>,
    /// What the daemon did: `stayed`, `takes`, `gives`, `would-take`, `held`, `too-early`, `too-many` or
    /// `not-taken`; null before the first decision.
    pub done: Option<String>,
    /// The size that the daemon's order has; null without an order. Unit: bytes.
    pub ordered_bytes: Option<u64>,
    /// Orders that took memory in the last hour.
    pub orders_in_hour: u64,
    /// What `bifold reclaim advise` finds about the VM.
    pub findings: Vec<String>,
    /// Counts since the daemon first saw the VM.
    pub totals: GuestTotals,
}

/// Counts of a VM's orders since the daemon first saw the VM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    /// The VM, if KVM runs it.
    pub vm: Option<VmStatus>,
    /// Its memory, if it has a rule about that.
    pub memory: Option<GuestStatus>,
    /// The last events, oldest first.
    pub lately: Vec<crate::Event>,
}

/// A VM.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VmStatus {
    /// KVM's identifier of the VM: thread and file descriptor.
    pub vm: String,
    /// The VM's name; null if unknown.
    pub name: Option<String>,
    /// The VM's process.
    pub pid: u32,
    /// The VM's mode, or the switch under way: `nested`, `shadow`, `nested -> shadow` or `shadow -> nested`;
    /// null if unknown.
    pub mode: Option<String>,
    /// The mode in which the daemon found the VM; null if the daemon has not switched the VM.
    pub own_mode: Option<String>,
    /// The pattern of the VM's rule; null without a rule.
    pub rule: Option<String>,
    /// The rule's policy; null without one.
    pub policy: Option<String>,
    /// `acts`; `observes`; `held`; `never`; `no rule`; `cannot`, KVM will not switch this VM; or `blocked`:
    /// KVM would refuse now the switch that the policy wants, a cgroup leaves no room for it, or a stay in
    /// shadow paging has just ended early.
    pub state: String,
    /// Why, if the state needs a reason: KVM's reason, how long the VM is held, or why a rule with `act` only
    /// observes; null otherwise.
    pub note: Option<String>,
    /// KVM's word for the reason to refuse the switch that the policy wants, as in `paging_refusal`, or
    /// `room` if a cgroup leaves too little memory for the stay; null if nothing would refuse the switch, or
    /// if that is unknown.
    pub refusal: Option<String>,
    /// The mode that the policy wanted last; null before the first decision.
    pub wants: Option<String>,
    /// The policy's last reason; null before the first decision.
    pub why: Option<String>,
    /// What the limits allowed: `stay`, `switch`, `too-early` or `too-many`; null before the first decision.
    pub verdict: Option<String>,
    /// The counter that the policy needs and that is not counted; null if there is none.
    pub missing: Option<String>,
    /// Share of the last interval during which vCPUs ran, 0 to 1; null if unknown.
    pub load: Option<f64>,
    /// Switches in the last hour, by the daemon and by others, as far as the daemon saw them.
    pub switches_in_hour: u64,
    /// Counts since the daemon first saw the VM.
    pub totals: Totals,
}

/// Counts of a VM since the daemon first saw the VM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Totals {
    /// Decisions of the policy.
    pub decisions: u64,
    /// Switches by the daemon, giving back included.
    pub switched: u64,
    /// Requests that KVM refused.
    pub refused: u64,
    /// Stays in shadow paging that ended early: KVM ended them, or the daemon for lack of memory.
    pub ended_early: u64,
    /// Exits, as far as they are known.
    pub exits: u64,
    /// Time of the vCPUs on CPUs, as far as known. Unit: ns.
    pub ran_ns: u64,
    /// Time that vCPUs waited for a CPU, as far as known. Unit: ns.
    pub waited_ns: u64,
}
