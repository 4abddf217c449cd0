// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Models the scan-time advisor (`scan_time_advisor`), which sets `pages_to_scan` after each pass so that a
//! pass takes the target time. The integer arithmetic is the kernel's.

use std::time::Duration;

/// The advisor's parameters, with the kernel's defaults, and its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advisor {
    /// Seconds that a pass should take.
    pub target_scan_time: u64,
    /// Upper limit of ksmd's CPU time, in percent.
    pub max_cpu: u64,
    /// Initial `pages_to_scan`.
    pub min_pages_to_scan: u64,
    /// Upper limit of `pages_to_scan`.
    pub max_pages_to_scan: u64,
    change: u64,
    scan_time: u64,
    cpu: Duration,
}

/// KSM_ADVISOR_MIN_CPU.
const MIN_CPU: u64 = 10;
/// EWMA_WEIGHT.
const WEIGHT: u64 = 30;

impl Default for Advisor {
    fn default() -> Advisor {
        Advisor::new(200, 70, 500, 30_000)
    }
}

impl Advisor {
    /// An advisor that has seen no pass.
    pub fn new(
        target_scan_time: u64,
        max_cpu: u64,
        min_pages_to_scan: u64,
        max_pages_to_scan: u64,
    ) -> Advisor {
        let (change, scan_time, cpu) = (0, 0, Duration::ZERO);
        Advisor { target_scan_time, max_cpu, min_pages_to_scan, max_pages_to_scan, change, scan_time, cpu }
    }

    /// The next `pages_to_scan`. The pass took `took` at the present `pages` per batch, and ksmd has taken
    /// `cpu` since its start.
    pub(super) fn next(&mut self, pages: u64, took: Duration, cpu: Duration) -> u64 {
        let scan_time = took.as_secs().max(1);
        let cpu_ms = (cpu - self.cpu).as_millis() as u64;
        let percent = (cpu_ms * 100 / (scan_time * 1000)).max(1);
        let last = if self.scan_time == 0 { scan_time } else { self.scan_time };
        let factor = (self.target_scan_time * 100 / scan_time).max(1);
        let change = (scan_time * 100 / last).max(1);
        let change = ((100 - WEIGHT) * self.change + WEIGHT * change) / 100;
        let per_percent = (pages / percent).max(1);
        let wanted = pages * 100 / factor * change / 100;
        // In the kernel's order: the lower bound of CPU beats the upper, and the page limit both.
        let wanted = wanted.min(per_percent * self.max_cpu).max(per_percent * MIN_CPU);
        (self.change, self.scan_time, self.cpu) = (change, scan_time, cpu);
        wanted.min(self.max_pages_to_scan)
    }
}
