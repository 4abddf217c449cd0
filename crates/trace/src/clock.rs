// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clock of a run: how time passed for a command in its guest, which shows how far the guest ran as on
//! hardware.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How time passed for a command, from its start to its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Clock {
    /// Guest time by CLOCK_MONOTONIC; null if the guest had to be killed. Unit: ns.
    pub guest_ns: Option<u64>,
    /// Idle time of all the guest's CPUs together, in steps of 10 ms; null if the guest had to be killed.
    /// Unit: ns.
    pub idle_ns: Option<u64>,
    /// Host time. Unit: s.
    pub wall_seconds: f64,
    /// CPU time of the emulator's vCPU thread. Unit: s.
    pub vcpu_seconds: f64,
    /// Time in which the vCPU thread could have run and the host ran another thread. Unit: s.
    pub starved_seconds: f64,
    /// Whether the guest's clock stood still while the guest waited for the host's files. Also true for a
    /// guest without files of the host.
    pub in_step: bool,
    /// Interrupts of the guest kernel's timer; null if the guest had to be killed.
    pub timer_ticks: Option<u64>,
    /// All other interrupts; null if the guest had to be killed.
    pub other_interrupts: Option<u64>,
}
