// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A VM or vCPU over an interval, of which figures, advice and columns are made.

use crate::hardware::HardwareCounts;
use crate::interval::{Interval, VcpuInterval};
use crate::measured::Measured;
use crate::observation::Observation;
use crate::vm::Watched;
use std::time::{SystemTime, UNIX_EPOCH};

/// The time since 1970 in seconds. Milliseconds are what a reader can use.
pub fn now() -> f64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    (time * 1e3).round() / 1e3
}

/// A VM, or one of its vCPUs, over an interval.
pub struct IntervalRow<'a> {
    /// End of the interval, in seconds since 1970.
    pub time: f64,
    /// The VM.
    pub vm: &'a Watched,
    /// The interval.
    pub interval: &'a Interval,
    /// The vCPU; `None` for the VM as a whole.
    pub vcpu: Option<&'a VcpuInterval>,
    /// The counts of VM or vCPU, as policies see them.
    pub measured: Measured,
}

impl<'a> IntervalRow<'a> {
    /// The VM as a whole.
    pub fn of_vm(time: f64, vm: &'a Watched, interval: &'a Interval) -> IntervalRow<'a> {
        IntervalRow::observed(time, vm, interval, &Observation::of(interval))
    }

    /// The VM as a whole, whose interval was observed.
    pub fn observed(
        time: f64,
        vm: &'a Watched,
        interval: &'a Interval,
        seen: &Observation,
    ) -> IntervalRow<'a> {
        IntervalRow { time, vm, interval, vcpu: None, measured: seen.measured }
    }

    /// A row for each vCPU.
    pub fn of_vcpus(
        time: f64,
        vm: &'a Watched,
        interval: &'a Interval,
    ) -> impl Iterator<Item = IntervalRow<'a>> {
        let row = move |vcpu| {
            let measured = Measured::of_vcpu(interval, vcpu);
            IntervalRow { time, vm, interval, vcpu: Some(vcpu), measured }
        };
        interval.vcpus.iter().map(row)
    }

    /// The hardware counters of VM or vCPU.
    pub fn hardware(&self) -> HardwareCounts {
        self.vcpu.map_or_else(|| self.interval.hardware(), |v| v.hardware)
    }
}
