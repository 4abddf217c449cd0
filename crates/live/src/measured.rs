// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An interval as policies see one: counts under the model's names, and which of them are known.
//!
//! This is the only place that says which number of KVM or of the processor stands for which of the model's
//! counters. A counter without a line here cannot be counted on a live host.

use crate::hardware::HardwareCounts;
use crate::interval::{Interval, VcpuInterval};
use bifold_host::Statistic;
use bifold_model::Sample;
use bifold_policy::{Counters, Mode};

/// What a policy sees of an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// The counts. A field means something only if its counter is in [`Measured::known`].
    pub sample: Sample,
    /// The counters that are known.
    pub known: Counters,
    /// All cycles of the VM's vCPUs, in guest and host; `None` without hardware counters.
    pub cycles: Option<f64>,
    /// Share of the interval during which vCPUs ran, 0 to 1.
    pub load: Option<f64>,
}

/// A counter of the model, its field in a sample, and its number in an interval.
type Line = (&'static str, fn(&mut Sample) -> &mut u64, fn(&Interval, &HardwareCounts) -> Option<u64>);

/// From the processor's counters, on the threads of vCPUs. Without a PMU all of them are unknown.
const HARDWARE: [Line; 7] = [
    ("instructions", |s| &mut s.instructions, |_, h| h.instructions),
    ("tlb_misses_4k", |s| &mut s.tlb_misses_4k, |_, h| h.tlb_misses_4k),
    ("tlb_misses_2m", |s| &mut s.tlb_misses_2m, |_, h| h.tlb_misses_2m),
    ("tlb_misses_1g", |s| &mut s.tlb_misses_1g, misses_1g),
    ("walk_cycles", |s| &mut s.walk_cycles, |_, h| h.walk_cycles),
    ("tlb_flushes", |s| &mut s.tlb_flushes, |_, h| h.tlb_flushes),
    // What a vCPU's thread executes outside the guest: KVM, its VMM, interrupts of the host.
    ("vmm_cycles", |s| &mut s.vmm_cycles, |_, h| h.host_cycles),
];

/// From KVM's statistics, in shadow paging. Every page fault exits there: `pf_guest` counts those that KVM
/// hands to the guest (`kvm_inject_page_fault` in Linux's `arch/x86/kvm/x86.c`). `mmu_pte_write` counts
/// emulated writes to memory while there are shadow pages: nearly all of them are to tables.
const SHADOW: [Line; 6] = [
    ("guest_page_faults", |s| &mut s.guest_page_faults, |i, _| i.statistics.get(Statistic::PfGuest)),
    ("exits_guest_fault", |s| &mut s.exits_guest_fault, |i, _| i.statistics.get(Statistic::PfGuest)),
    (
        "exits_emulated_write",
        |s| &mut s.exits_emulated_write,
        |i, _| i.statistics.get(Statistic::MmuPteWrite),
    ),
    ("exits_invlpg", |s| &mut s.exits_invlpg, |i, _| i.statistics.get(Statistic::Invlpg)),
    ("shadow_pages_made", |s| &mut s.shadow_pages_made, |i, _| i.statistics.get(Statistic::MmuCacheMiss)),
    (
        "shadow_pages_zapped",
        |s| &mut s.shadow_pages_zapped,
        |i, _| i.statistics.get(Statistic::MmuShadowZapped),
    ),
];

/// From KVM's statistics, in nested paging: `pf_taken` counts violations (`kvm_mmu_page_fault` and what it
/// calls), and what exits in shadow paging alone is 0. Page faults of the guest do not exit: a reporter
/// inside the guest tells them.
const NESTED: [Line; 9] = [
    ("guest_page_faults", |s| &mut s.guest_page_faults, |i, _| i.guest.as_ref()?.page_faults),
    ("exits_violation", |s| &mut s.exits_violation, |i, _| i.statistics.get(Statistic::PfTaken)),
    ("exits_guest_fault", |s| &mut s.exits_guest_fault, |_, _| Some(0)),
    ("exits_hidden_fault", |s| &mut s.exits_hidden_fault, |_, _| Some(0)),
    ("exits_permission", |s| &mut s.exits_permission, |_, _| Some(0)),
    ("exits_unsync", |s| &mut s.exits_unsync, |_, _| Some(0)),
    ("exits_emulated_write", |s| &mut s.exits_emulated_write, |_, _| Some(0)),
    ("exits_cr3_write", |s| &mut s.exits_cr3_write, |_, _| Some(0)),
    ("exits_invlpg", |s| &mut s.exits_invlpg, |_, _| Some(0)),
];

/// In either mode.
const ALWAYS: [Line; 1] = [("mode_switches", |s| &mut s.mode_switches, |i, _| i.switches)];

/// Misses on pages of 1 GB: of processors that do not count them, 0 if KVM maps none of the VM's memory so.
/// No TLB entry is larger than KVM's mapping.
fn misses_1g(interval: &Interval, hardware: &HardwareCounts) -> Option<u64> {
    let none = || hardware.tlb_misses_4k.and(interval.statistics.get(Statistic::Pages1g)).filter(|n| *n == 0);
    hardware.tlb_misses_1g.or_else(none)
}

fn of_mode(mode: Option<Mode>) -> &'static [Line] {
    match mode {
        Some(Mode::Shadow) => &SHADOW,
        Some(Mode::Nested) => &NESTED,
        // What KVM's statistics mean in another mode is unknown.
        _ => &[],
    }
}

/// Most of anything that a vCPU counts in a second: several for each cycle of any processor.
const MOST_PER_SECOND: f64 = (1u64 << 34) as f64;
/// Largest count of an interval: what a JSON number holds exactly.
const MOST_COUNT: f64 = (1u64 << 53) as f64;

/// The largest count of an interval that is believed. Counters may lie, and policies sum what they get.
fn most(interval: &Interval) -> u64 {
    let vcpus = interval.vcpus.len().max(1) as f64;
    (MOST_PER_SECOND * vcpus * interval.seconds.max(1.0)).min(MOST_COUNT) as u64
}

impl Measured {
    /// KVM's statistics that counters, estimates and advice are made of.
    pub const STATISTICS: &'static [Statistic] = &[
        Statistic::Exits,
        Statistic::PfTaken,
        Statistic::PfGuest,
        Statistic::Invlpg,
        Statistic::MmuPteWrite,
        Statistic::MmuShadowZapped,
        Statistic::MmuCacheMiss,
        Statistic::Pages1g,
    ];

    /// The counters that some live host knows.
    pub fn possible() -> Counters {
        let names = HARDWARE.iter().chain(&SHADOW).chain(&NESTED).chain(&ALWAYS).map(|(name, ..)| name);
        names.fold(Counters::NONE, |set, name| set.and(Counters::of(&[name])))
    }

    /// What is known of a vCPU in an interval: hardware counters alone, because KVM's statistics are the
    /// VM's.
    pub fn of_vcpu(interval: &Interval, vcpu: &VcpuInterval) -> Measured {
        let alone = Interval { seconds: interval.seconds, vcpus: vec![vcpu.clone()], ..Interval::default() };
        Measured::of(&alone)
    }

    /// What is known of an interval.
    pub fn of(interval: &Interval) -> Measured {
        let mut sample = Sample::default();
        let mut known = Counters::NONE;
        let hardware = interval.hardware();
        let most = most(interval);
        for (name, field, value) in HARDWARE.iter().chain(of_mode(interval.mode)).chain(&ALWAYS) {
            if let Some(value) = value(interval, &hardware).filter(|n| *n <= most) {
                *field(&mut sample) = value;
                known = known.and(Counters::of(&[name]));
            }
        }
        let cycles = hardware.guest_cycles.zip(hardware.host_cycles).map(|(g, h)| g as f64 + h as f64);
        Measured { sample, known, cycles, load: interval.load() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reporter::GuestInterval;
    use bifold_host::Statistics;

    fn interval(mode: Option<Mode>, numbers: &[(Statistic, u64)], hardware: HardwareCounts) -> Interval {
        let mut statistics = Statistics::default();
        numbers.iter().for_each(|(s, n)| statistics.set(*s, *n));
        let vcpu =
            VcpuInterval { number: 0, thread: 7, ran_ns: None, waited_ns: None, hardware, exits: None };
        let vcpus = vec![vcpu];
        Interval { seconds: 1.0, mode, switches: Some(0), statistics, vcpus, ..Interval::default() }
    }

    fn names(known: Counters) -> Vec<&'static str> {
        known.iter().map(|c| c.name).collect()
    }

    #[test]
    fn every_line_fills_the_field_of_its_name() {
        for (name, field, _) in HARDWARE.iter().chain(&SHADOW).chain(&NESTED).chain(&ALWAYS) {
            let mut sample = Sample::default();
            *field(&mut sample) = 7;
            let place = Sample::COUNTERS.iter().position(|c| c.name == *name).unwrap();
            assert_eq!(sample.values()[place], 7, "{name}");
        }
    }

    #[test]
    fn without_a_pmu_exits_alone_are_known_and_they_depend_on_the_mode() {
        let numbers = [(Statistic::PfTaken, 50), (Statistic::PfGuest, 20), (Statistic::Invlpg, 3)];
        let of = |mode| Measured::of(&interval(mode, &numbers, HardwareCounts::UNKNOWN));
        let shadow = of(Some(Mode::Shadow));
        assert_eq!(
            names(shadow.known),
            ["guest_page_faults", "exits_guest_fault", "exits_invlpg", "mode_switches"]
        );
        assert_eq!(
            (shadow.sample.guest_page_faults, shadow.sample.exits_invlpg, shadow.cycles),
            (20, 3, None)
        );
        let nested = of(Some(Mode::Nested));
        assert_eq!((nested.sample.exits_violation, nested.sample.all_exits()), (50, 50));
        assert!(!names(nested.known).contains(&"guest_page_faults"), "nested paging does not show them");
        assert_eq!(names(of(None).known), ["mode_switches"]);
    }

    #[test]
    fn a_reporter_tells_page_faults_in_nested_paging_only() {
        let guest = GuestInterval { page_faults: Some(9), ..GuestInterval::default() };
        let of = |mode, page_faults| {
            let numbers = [(Statistic::PfTaken, 50), (Statistic::PfGuest, 20)];
            let guest = Some(GuestInterval { page_faults, ..guest.clone() });
            let m = Measured::of(&Interval { guest, ..interval(mode, &numbers, HardwareCounts::UNKNOWN) });
            names(m.known).contains(&"guest_page_faults").then_some(m.sample.guest_page_faults)
        };
        assert_eq!(of(Some(Mode::Nested), Some(9)), Some(9));
        assert_eq!(of(Some(Mode::Shadow), Some(9)), Some(20), "KVM sees them itself");
        assert_eq!((of(Some(Mode::Nested), None), of(None, Some(9))), (None, None));
    }

    #[test]
    fn a_count_that_no_processor_reaches_is_unknown() {
        let counted = |n| {
            let hardware = HardwareCounts { tlb_misses_4k: Some(n), ..HardwareCounts::UNKNOWN };
            names(Measured::of(&interval(Some(Mode::Nested), &[(Statistic::PfTaken, 7)], hardware)).known)
        };
        assert!(counted(1 << 34).contains(&"tlb_misses_4k"));
        for lie in [(1 << 34) + 1, 1 << 63, u64::MAX] {
            assert!(!counted(lie).contains(&"tlb_misses_4k") && counted(lie).contains(&"exits_violation"));
        }
    }

    #[test]
    fn the_statistics_that_are_listed_are_those_that_count() {
        let all = |but: Option<Statistic>| {
            let numbers: Vec<_> =
                Statistic::ALL.iter().filter(|s| Some(**s) != but).map(|s| (*s, 0)).collect();
            let hardware = HardwareCounts { tlb_misses_1g: None, ..HardwareCounts::ZERO };
            [Mode::Shadow, Mode::Nested].map(|mode| Measured::of(&interval(Some(mode), &numbers, hardware)))
        };
        for statistic in Statistic::ALL {
            let listed = Measured::STATISTICS.contains(statistic);
            // Advice weighs page faults by all exits.
            let counts = all(None) != all(Some(*statistic)) || *statistic == Statistic::Exits;
            assert_eq!(listed, counts, "{}", statistic.name());
        }
    }

    #[test]
    fn misses_on_giant_pages_are_0_where_kvm_maps_none() {
        let counted = HardwareCounts {
            guest_cycles: Some(900),
            host_cycles: Some(100),
            tlb_misses_4k: Some(5),
            ..HardwareCounts::UNKNOWN
        };
        let of = |pages| {
            let m = Measured::of(&interval(None, &[(Statistic::Pages1g, pages)], counted));
            (names(m.known).contains(&"tlb_misses_1g"), m.cycles)
        };
        assert_eq!((of(0), of(2)), ((true, Some(1000.0)), (false, Some(1000.0))));
    }
}
