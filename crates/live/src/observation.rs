// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What decides over a VM: the part of an interval that policies, probes and replays see. Rows and recordings
//! are made from the same value, so that a replay sees what the daemon saw.

use crate::interval::Interval;
use crate::measured::Measured;
use crate::reporter::GuestInterval;
use bifold_policy::Mode;

/// An interval of a VM as policies and probes see it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    /// Length in seconds.
    pub seconds: f64,
    /// The mode during the whole interval; `None` if the VM was switched, or the mode was unknown.
    pub mode: Option<Mode>,
    /// What policies see.
    pub measured: Measured,
    /// Steps of the guest's own work, of all names together; `None` without a report.
    pub progress: Option<u64>,
}

impl Observation {
    /// What an interval tells.
    pub fn of(interval: &Interval) -> Observation {
        Observation {
            seconds: interval.seconds,
            mode: interval.mode,
            measured: Measured::of(interval),
            progress: interval.guest.as_ref().and_then(GuestInterval::all_progress),
        }
    }
}
