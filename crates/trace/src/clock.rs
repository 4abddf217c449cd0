// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How time passed for a command in its guest: what shows whether the guest ran as on hardware.

use serde::{Deserialize, Serialize};

/// How time passed for a command, from its start to its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Clock {
    /// Guest time in nanoseconds, by CLOCK_MONOTONIC; none if the guest had to be killed.
    pub guest_ns: Option<u64>,
    /// The part of it in which the guest's CPUs had nothing to do, of all of them together, to 10 ms.
    pub idle_ns: Option<u64>,
    /// Host time in seconds.
    pub wall_seconds: f64,
    /// CPU time of the emulator's vCPU thread, in seconds.
    pub vcpu_seconds: f64,
    /// The part of `wall_seconds` in which that thread could have run and the host ran something else.
    pub starved_seconds: f64,
    /// Whether the guest waited for the host's files, so that they took none of its time. True where
    /// the guest has no files of the host's.
    pub in_step: bool,
    /// Interrupts of the guest kernel's timer; none if the guest had to be killed.
    pub timer_ticks: Option<u64>,
    /// All other interrupts, likewise.
    pub other_interrupts: Option<u64>,
}
