// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the hardware counts of VMs come from.

use super::{HardwareCounts, Pmu};
use crate::interval::Interval;

/// Counts what a VM's vCPUs did together in an interval.
pub type CountVm = Box<dyn Fn(&Interval) -> HardwareCounts + Send>;

/// Where the hardware counts of a host's VMs come from.
#[expect(clippy::large_enum_variant, reason = "a process has one source")]
pub enum HardwareSource {
    /// There is no source: the counts are unknown.
    None,
    /// The host's PMU counts each vCPU's thread.
    Pmu(Pmu),
    /// A program that uses this crate counts each VM as a whole, such as a laboratory without a PMU.
    Vm {
        /// What the figure `pmu` calls the source.
        name: &'static str,
        /// Counts an interval of a VM.
        count: CountVm,
    },
}

impl HardwareSource {
    /// The host's PMU, if that is the source.
    pub fn pmu(&self) -> Option<&Pmu> {
        match self {
            HardwareSource::Pmu(pmu) => Some(pmu),
            HardwareSource::None | HardwareSource::Vm { .. } => None,
        }
    }

    /// Counts the interval of a VM, if the source counts VMs.
    pub(crate) fn count(&self, interval: &mut Interval) {
        if let HardwareSource::Vm { name, count } = self {
            interval.counted = Some((name, count(interval)));
        }
    }
}

/// The PMU, or no source.
impl From<Option<Pmu>> for HardwareSource {
    fn from(pmu: Option<Pmu>) -> HardwareSource {
        pmu.map_or(HardwareSource::None, HardwareSource::Pmu)
    }
}
