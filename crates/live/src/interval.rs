// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is read of a VM at one moment, and the difference of two such readings.

use crate::hardware::{HardwareCounts, Raw};
use crate::reporter::{GuestInterval, GuestReading};
use bifold_host::exit_counts::{ExitCounts, ExitTable};
use bifold_host::{PagingStats, State, Statistics, ThreadTime};
use bifold_policy::Mode;
use std::time::Duration;

/// A VM at one moment. Counts are since the VM's start.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// The moment, by a clock that never jumps.
    pub at: Duration,
    /// The mode of paging, or the switch that is under way; `None` if unknown.
    pub state: Option<State>,
    /// KVM's figures of switches.
    pub paging: PagingStats,
    /// KVM's statistics.
    pub statistics: Statistics,
    /// The vCPUs whose threads are known, by number.
    pub vcpus: Vec<VcpuReading>,
    /// What the guest reported last; `None` without a report that is new.
    pub guest: Option<GuestReading>,
}

/// A vCPU at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VcpuReading {
    /// KVM's number of the vCPU.
    pub number: u32,
    /// The thread that runs the vCPU.
    pub thread: u32,
    /// The thread's time.
    pub time: Option<ThreadTime>,
    /// The thread's hardware counters.
    pub hardware: Option<Raw>,
}

/// What a VM did between two readings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Interval {
    /// Length in seconds.
    pub seconds: f64,
    /// The mode in which the VM was all the time; `None` if the VM was switched, or the mode is unknown.
    pub mode: Option<Mode>,
    /// Number of switches of the mode.
    pub switches: Option<u64>,
    /// KVM's statistics: counts of the interval, levels at its end.
    pub statistics: Statistics,
    /// Exits by the hardware's reason; `None` if they are not counted.
    pub exits: Option<ExitCounts>,
    /// The vCPUs, by number.
    pub vcpus: Vec<VcpuInterval>,
    /// What the guest reported; `None` without a reporter, and without reports at both ends of the interval.
    pub guest: Option<GuestInterval>,
    /// Name and hardware counts of a source that counts the VM as a whole; `None` if each vCPU has its own
    /// counts, or none.
    pub counted: Option<(&'static str, HardwareCounts)>,
}

/// What a vCPU did between two readings.
#[derive(Debug, Clone, PartialEq)]
pub struct VcpuInterval {
    /// KVM's number of the vCPU.
    pub number: u32,
    /// The thread that runs the vCPU.
    pub thread: u32,
    /// Time on a CPU, guest and host together.
    pub ran_ns: Option<u64>,
    /// Time ready to run while others had the CPU: the run delay, which a Linux guest sees as steal.
    pub waited_ns: Option<u64>,
    /// Hardware counters; all unknown if there is no source of them.
    pub hardware: HardwareCounts,
    /// Exits by the hardware's reason; `None` if they are not counted.
    pub exits: Option<ExitCounts>,
}

impl Interval {
    /// The difference of two readings. A vCPU whose thread changed, or that is new, is unknown in the
    /// interval.
    pub fn between(earlier: &Reading, now: &Reading) -> Interval {
        let switches = now.paging.switches().zip(earlier.paging.switches());
        let switches = switches.and_then(|(now, then)| now.checked_sub(then));
        let settled = |r: &Reading| match r.state {
            Some(State::In(mode)) => Some(Mode::from(mode)),
            _ => None,
        };
        // Without counts of switches (one mode for all VMs), both ends in one mode are all that can be known.
        let mode = settled(now).filter(|m| settled(earlier) == Some(*m) && switches.unwrap_or(0) == 0);
        let mut interval = Interval {
            seconds: now.at.saturating_sub(earlier.at).as_secs_f64(),
            mode,
            switches,
            statistics: now.statistics.since(&earlier.statistics),
            exits: None,
            vcpus: now.vcpus.iter().map(|v| VcpuInterval::of(v, &earlier.vcpus)).collect(),
            guest: None,
            counted: None,
        };
        let reports = earlier.guest.as_ref().zip(now.guest.as_ref());
        interval.guest = reports.and_then(|(then, now)| {
            GuestInterval::between(then, now, interval.ran_ns(), interval.vcpus.len())
        });
        interval
    }

    /// Adds the exits of the same time, of all threads.
    pub fn add_exits(&mut self, all: &ExitTable) {
        let threads: Vec<u32> = self.vcpus.iter().map(|v| v.thread).collect();
        self.exits = Some(all.threads(&threads));
        self.vcpus.iter_mut().for_each(|v| v.exits = Some(all.threads(&[v.thread])));
    }

    /// Time that all vCPUs were on a CPU; `None` if one's is unknown, or the VM has no vCPU that is known.
    pub fn ran_ns(&self) -> Option<u64> {
        self.sum(|v| v.ran_ns)
    }

    /// Time that all vCPUs were ready to run while others had the CPU.
    pub fn waited_ns(&self) -> Option<u64> {
        self.sum(|v| v.waited_ns)
    }

    /// Share of the interval during which vCPUs ran, 0 to 1: the mean of all vCPUs.
    pub fn load(&self) -> Option<f64> {
        let most = self.seconds * 1e9 * self.vcpus.len() as f64;
        self.ran_ns().filter(|_| most > 0.0).map(|ran| (ran as f64 / most).min(1.0))
    }

    /// Hardware counts of all vCPUs together.
    pub fn hardware(&self) -> HardwareCounts {
        if let Some((_, counts)) = self.counted {
            return counts;
        }
        let Some((first, others)) = self.vcpus.split_first() else { return HardwareCounts::UNKNOWN };
        let mut sum = first.hardware;
        others.iter().for_each(|v| sum.add(&v.hardware));
        sum
    }

    fn sum(&self, of: impl Fn(&VcpuInterval) -> Option<u64>) -> Option<u64> {
        let none = self.vcpus.is_empty();
        let sum = self.vcpus.iter().map(of).try_fold(0u64, |sum, n| Some(sum.saturating_add(n?)));
        sum.filter(|_| !none)
    }
}

impl VcpuInterval {
    fn of(now: &VcpuReading, earlier: &[VcpuReading]) -> VcpuInterval {
        let before = earlier.iter().find(|v| v.number == now.number && v.thread == now.thread);
        let time = before.and_then(|b| b.time.zip(now.time));
        let hardware = before.and_then(|b| b.hardware.as_ref().zip(now.hardware.as_ref()));
        VcpuInterval {
            number: now.number,
            thread: now.thread,
            ran_ns: time.and_then(|(then, now)| now.ran_ns.checked_sub(then.ran_ns)),
            waited_ns: time.and_then(|(then, now)| now.waited_ns.checked_sub(then.waited_ns)),
            hardware: hardware.map_or(HardwareCounts::UNKNOWN, |(then, now)| now.since(then)),
            exits: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifold_host::Mode as KvmMode;
    use bifold_host::Statistic;

    fn reading(seconds: u64, mode: KvmMode, switches: u64, vcpus: &[(u32, u32, u64)]) -> Reading {
        let mut statistics = Statistics::default();
        statistics.set(Statistic::Exits, 1000 * seconds);
        let vcpu = |&(number, thread, ran): &(u32, u32, u64)| VcpuReading {
            number,
            thread,
            time: Some(ThreadTime { ran_ns: ran, waited_ns: ran / 10 }),
            hardware: None,
        };
        Reading {
            at: Duration::from_secs(seconds),
            state: Some(State::In(mode)),
            paging: PagingStats {
                switches_to_shadow: Some(switches),
                switches_to_nested: Some(0),
                ..PagingStats::default()
            },
            statistics,
            vcpus: vcpus.iter().map(vcpu).collect(),
            guest: None,
        }
    }

    #[test]
    fn counts_are_differences_and_load_is_the_mean_of_the_vcpus() {
        let before = reading(10, KvmMode::Nested, 4, &[(0, 70, 1_000_000_000), (1, 71, 0)]);
        let now = reading(12, KvmMode::Nested, 4, &[(0, 70, 3_000_000_000), (1, 71, 1_000_000_000)]);
        let interval = Interval::between(&before, &now);
        assert_eq!((interval.seconds, interval.mode, interval.switches), (2.0, Some(Mode::Nested), Some(0)));
        assert_eq!(interval.statistics.get(Statistic::Exits), Some(2000));
        assert_eq!((interval.ran_ns(), interval.waited_ns()), (Some(3_000_000_000), Some(300_000_000)));
        assert_eq!(interval.load(), Some(0.75));
        assert_eq!(interval.hardware(), HardwareCounts::UNKNOWN, "no source");
    }

    #[test]
    fn a_vcpu_that_is_new_or_moved_to_another_thread_is_unknown() {
        let before = reading(10, KvmMode::Nested, 0, &[(0, 70, 5)]);
        for vcpus in [&[(0, 70, 9), (1, 71, 3)][..], &[(0, 99, 9)], &[(0, 70, 4)], &[]] {
            let interval = Interval::between(&before, &reading(11, KvmMode::Nested, 0, vcpus));
            assert_eq!((interval.ran_ns(), interval.load()), (None, None), "{vcpus:?}");
        }
    }

    #[test]
    fn an_interval_with_a_switch_in_it_has_no_mode() {
        let before = reading(10, KvmMode::Nested, 4, &[]);
        let there = Interval::between(&before, &reading(11, KvmMode::Shadow, 5, &[]));
        assert_eq!((there.mode, there.switches), (None, Some(1)));
        // There and back.
        let back = Interval::between(&before, &reading(11, KvmMode::Nested, 6, &[]));
        assert_eq!((back.mode, back.switches), (None, Some(2)));
        let host_wide =
            |at| Reading { paging: PagingStats::default(), ..reading(at, KvmMode::Shadow, 0, &[]) };
        let stays = Interval::between(&host_wide(1), &host_wide(2));
        assert_eq!((stays.mode, stays.switches), (Some(Mode::Shadow), None));
    }
}
