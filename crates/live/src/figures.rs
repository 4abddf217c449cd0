// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of a VM or vCPU that people compare at a glance: rates and shares, made of the counts of an
//! interval. Every table for eyes takes them from here.

use crate::row::IntervalRow;
use bifold_host::Statistic;

/// What a figure's number is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A part of a whole, 0 to 1.
    Share,
    /// A number per second.
    Rate,
    /// A quotient of two counts.
    Ratio,
}

/// A figure: all that a table needs to show it.
#[derive(Debug)]
pub struct Figure {
    /// The name.
    pub name: &'static str,
    /// Two lines of heading.
    pub head: [&'static str; 2],
    /// Two lines of heading for a narrow column.
    pub short: [&'static str; 2],
    /// What the number is.
    pub unit: Unit,
    /// The meaning.
    pub doc: &'static str,
    /// The number.
    pub number: fn(&Figures) -> Option<f64>,
}

macro_rules! figures {
    ($( $field:ident $figure:ident $unit:ident: $name:literal, $head:expr, $short:expr, $doc:literal; )*) => {
        /// Rates and shares of an interval. `None` is unknown.
        #[derive(Debug, Clone, Copy, Default, PartialEq)]
        pub struct Figures {
            $( #[doc = concat!("The ", $doc, ".")] pub $field: Option<f64>, )*
        }

        impl Figure {
            $(
                #[doc = concat!("The ", $doc, ".")]
                pub const $figure: Figure = Figure {
                    name: $name,
                    head: $head,
                    short: $short,
                    unit: Unit::$unit,
                    doc: $doc,
                    number: |f| f.$field,
                };
            )*
        }
    };
}

figures! {
    ran RAN Share: "ran", ["ran", "%"], ["ran", "%"],
        "share of time that a vCPU had a CPU, on average";
    waited WAITED Share: "waited", ["waited", "%"], ["wait", "%"],
        "share of time ready to run without a CPU: the guest's steal";
    exits EXITS Rate: "exits", ["exits", "/s"], ["exits", "/s"],
        "exits per second from the guest";
    page_faults PAGE_FAULTS Rate: "page-fault exits", ["page-fault", "exits /s"], ["page", "faults"],
        "exits per second for page faults and violations";
    cycles CYCLES Rate: "cycles", ["cycles", "/s"], ["cycles", "/s"],
        "cycles per second of the vCPUs' threads, guest and host together";
    hypervisor HYPERVISOR Share: "hypervisor", ["hypervisor", "% cycles"], ["hyper", "%cyc"],
        "share of the vCPUs' cycles outside the guest";
    walks WALKS Share: "walks", ["walks", "% cycles"], ["walks", "%cyc"],
        "share of the vCPUs' cycles in page walks of the guest";
    ipc IPC Ratio: "IPC", ["IPC", ""], ["IPC", ""],
        "instructions per cycle in the guest";
    misses MISSES Rate: "TLB misses", ["TLB misses", "/s"], ["TLB mis-", "ses /s"],
        "TLB misses per second, on entries of the sizes that this processor counts";
}

impl Figure {
    /// The figures of a list of VMs, from left to right.
    pub const OF_A_VM: [&'static Figure; 7] = [
        &Figure::RAN,
        &Figure::WAITED,
        &Figure::EXITS,
        &Figure::PAGE_FAULTS,
        &Figure::HYPERVISOR,
        &Figure::WALKS,
        &Figure::IPC,
    ];
}

impl Figures {
    /// The figures of a row. KVM counts exits of whole VMs, so those of a vCPU are unknown.
    pub fn of(row: &IntervalRow) -> Figures {
        let seconds = row.interval.seconds;
        let (ran, waited, vcpus) = match row.vcpu {
            Some(v) => (v.ran_ns, v.waited_ns, 1),
            None => (row.interval.ran_ns(), row.interval.waited_ns(), row.interval.vcpus.len()),
        };
        let share_of_time = |ns: Option<u64>| ratio(ns, Some(seconds * 1e9 * vcpus as f64));
        let rate = |n: Option<u64>| ratio(n, Some(seconds));
        let statistic = |s| rate(row.interval.statistics.get(s).filter(|_| row.vcpu.is_none()));
        let hardware = row.hardware();
        let cycles = row.measured.cycles;
        // Not every processor counts those of 1 GB, which are few. All count the others.
        let misses = hardware.tlb_misses_4k.zip(hardware.tlb_misses_2m);
        let misses =
            misses.map(|(a, b)| a.saturating_add(b).saturating_add(hardware.tlb_misses_1g.unwrap_or(0)));
        Figures {
            ran: share_of_time(ran),
            waited: share_of_time(waited),
            exits: statistic(Statistic::Exits),
            page_faults: statistic(Statistic::PfTaken),
            cycles: cycles.map(|c| c / seconds).filter(|c| c.is_finite()),
            hypervisor: ratio(hardware.host_cycles, cycles),
            walks: ratio(hardware.walk_cycles, cycles),
            ipc: ratio(hardware.instructions, hardware.guest_cycles.map(|c| c as f64)),
            misses: rate(misses),
        }
    }
}

fn ratio(part: Option<u64>, whole: Option<f64>) -> Option<f64> {
    part.zip(whole).map(|(p, w)| p as f64 / w).filter(|r| r.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_host::FakeHost;
    use crate::hardware::HardwareCounts;
    use crate::{HardwareSource, Interval, VcpuInterval, Watch};
    use bifold_host::{Statistics, VmId};
    use std::time::Duration;

    /// The figures of the VM and of its first vCPU.
    fn of(interval: &Interval) -> (Figures, Option<Figures>) {
        let fake = FakeHost::new();
        fake.vm(VmId { thread: 100, fd: 7 }, "web");
        let mut watch = Watch::new(fake.host(), HardwareSource::None).unwrap();
        watch.tick(&|| Duration::ZERO);
        let vm = watch.vms().next().unwrap();
        let vcpu = IntervalRow::of_vcpus(0.0, vm, interval).next().map(|row| Figures::of(&row));
        (Figures::of(&IntervalRow::of_vm(0.0, vm, interval)), vcpu)
    }

    fn interval(seconds: f64) -> Interval {
        let mut statistics = Statistics::default();
        statistics.set(Statistic::Exits, 3000);
        let hardware = HardwareCounts {
            guest_cycles: Some(800),
            host_cycles: Some(200),
            instructions: Some(400),
            walk_cycles: Some(100),
            tlb_misses_4k: Some(4),
            tlb_misses_2m: Some(2),
            ..HardwareCounts::UNKNOWN
        };
        let vcpu = |number, ran_ns| VcpuInterval {
            number,
            thread: 101 + number,
            ran_ns: Some(ran_ns),
            waited_ns: None,
            hardware,
            exits: None,
        };
        let vcpus = vec![vcpu(0, 2_000_000_000), vcpu(1, 0)];
        Interval { seconds, statistics, vcpus, ..Interval::default() }
    }

    #[test]
    fn rates_are_per_second_and_shares_of_time_are_means_of_the_vcpus() {
        let (vm, vcpu) = of(&interval(2.0));
        let expected = Figures {
            ran: Some(0.5),
            exits: Some(1500.0),
            cycles: Some(1000.0),
            hypervisor: Some(0.2),
            walks: Some(0.1),
            ipc: Some(0.5),
            misses: Some(6.0),
            ..Figures::default()
        };
        assert_eq!(vm, expected);
        let alone =
            Figures { ran: Some(1.0), exits: None, cycles: Some(500.0), misses: Some(3.0), ..expected };
        assert_eq!(vcpu, Some(alone));
    }

    #[test]
    fn an_interval_without_length_or_vcpus_has_no_figures() {
        let (vm, _) = of(&Interval { vcpus: Vec::new(), ..interval(0.0) });
        assert_eq!(vm, Figures::default());
        // The ratio of two counts needs no time.
        let (vm, _) = of(&interval(0.0));
        assert_eq!(
            vm,
            Figures { hypervisor: Some(0.2), walks: Some(0.1), ipc: Some(0.5), ..Figures::default() }
        );
    }
}
