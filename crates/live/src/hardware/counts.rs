// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What hardware counters say of an interval.
//!
//! The kernel keeps two times for each group of events: how long the group was enabled, and how long the
//! group ran on the PMU. The PMU has few counters, so groups may take turns. A count of an interval is then
//! an estimate: events counted, times enabled time, divided by running time.
//!
//! The times of a thread's events advance only while a CPU runs that thread: `ctx->time` in
//! kernel/events/core.c advances from `ctx_sched_in` to `ctx_sched_out`. So there are three cases:
//!
//! - The enabled time stood still. The thread did not run, and its counts are truly 0.
//! - The enabled time advanced, the running time did not. Other groups had the PMU, and the counts are
//!   unknown.
//! - Both advanced. The counts are estimates, and exact if both advanced equally.

use std::io;

/// Most events of a group.
pub(super) const MOST_EVENTS: usize = 4;

/// A field of [`HardwareCounts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    GuestCycles,
    HostCycles,
    Instructions,
    WalkCycles,
    TlbMisses4k,
    TlbMisses2m,
    TlbMisses1g,
    TlbFlushes,
}

impl Field {
    pub(super) const ALL: [Field; 8] = [
        Field::GuestCycles,
        Field::HostCycles,
        Field::Instructions,
        Field::WalkCycles,
        Field::TlbMisses4k,
        Field::TlbMisses2m,
        Field::TlbMisses1g,
        Field::TlbFlushes,
    ];

    /// The field's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Field::GuestCycles => "guest_cycles",
            Field::HostCycles => "host_cycles",
            Field::Instructions => "instructions",
            Field::WalkCycles => "walk_cycles",
            Field::TlbMisses4k => "tlb_misses_4k",
            Field::TlbMisses2m => "tlb_misses_2m",
            Field::TlbMisses1g => "tlb_misses_1g",
            Field::TlbFlushes => "tlb_flushes",
        }
    }
}

/// What a thread's hardware counters counted in an interval, or the sum over several threads. `None` is
/// unknown: the processor has no such event, or the event did not get the PMU, or its counter was set back.
///
/// There is no `Default`: a sum starts at [`HardwareCounts::ZERO`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HardwareCounts {
    /// Cycles in the guest. Unit: cycles, without those in which the CPU is halted.
    pub guest_cycles: Option<u64>,
    /// Cycles of the same thread outside the guest: in the hypervisor, when it polls instead of halting the
    /// CPU, too; in the rest of the host's kernel; in the VMM. Unit: cycles.
    pub host_cycles: Option<u64>,
    /// Instructions that the guest retired.
    pub instructions: Option<u64>,
    /// Cycles in page walks of the guest, as `events.toml` describes them. Unit: cycles.
    pub walk_cycles: Option<u64>,
    /// The guest's misses of all TLB levels, on entries of 4 KB.
    pub tlb_misses_4k: Option<u64>,
    /// The same for 2 MB.
    pub tlb_misses_2m: Option<u64>,
    /// The same for 1 GB.
    pub tlb_misses_1g: Option<u64>,
    /// Flushes of the TLB while the guest ran.
    pub tlb_flushes: Option<u64>,
    /// The smallest share of its enabled time that a group of events had the PMU: 1 if every count is exact.
    /// `None` if the thread did not run.
    pub scheduled: Option<f64>,
}

impl HardwareCounts {
    /// Nothing was counted: where a sum over threads starts.
    pub const ZERO: HardwareCounts = HardwareCounts::all(Some(0));
    /// Nothing is known.
    pub const UNKNOWN: HardwareCounts = HardwareCounts::all(None);

    const fn all(count: Option<u64>) -> HardwareCounts {
        HardwareCounts {
            guest_cycles: count,
            host_cycles: count,
            instructions: count,
            walk_cycles: count,
            tlb_misses_4k: count,
            tlb_misses_2m: count,
            tlb_misses_1g: count,
            tlb_flushes: count,
            scheduled: None,
        }
    }

    /// Adds another thread's counts. The sum of a known and an unknown count is unknown; `scheduled` becomes
    /// the smaller of both.
    pub fn add(&mut self, other: &HardwareCounts) {
        let mut other = *other;
        for field in Field::ALL {
            let more = *other.field(field);
            let sum = self.field(field);
            *sum = sum.zip(more).map(|(a, b)| a.saturating_add(b));
        }
        self.show_share(other.scheduled);
    }

    fn field(&mut self, field: Field) -> &mut Option<u64> {
        match field {
            Field::GuestCycles => &mut self.guest_cycles,
            Field::HostCycles => &mut self.host_cycles,
            Field::Instructions => &mut self.instructions,
            Field::WalkCycles => &mut self.walk_cycles,
            Field::TlbMisses4k => &mut self.tlb_misses_4k,
            Field::TlbMisses2m => &mut self.tlb_misses_2m,
            Field::TlbMisses1g => &mut self.tlb_misses_1g,
            Field::TlbFlushes => &mut self.tlb_flushes,
        }
    }

    fn show_share(&mut self, share: Option<f64>) {
        self.scheduled = match (self.scheduled, share) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
}

/// The state of a thread's counters at one moment: what they counted since they were opened. Two states make
/// an interval's counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raw(pub(super) Vec<Reading>);

impl Raw {
    /// What was counted since `earlier`, a state of the same counters. Unknown is what the counters cannot
    /// tell; see [`HardwareCounts`].
    pub fn since(&self, earlier: &Raw) -> HardwareCounts {
        let mut counts = HardwareCounts::UNKNOWN;
        for (now, then) in self.0.iter().zip(&earlier.0) {
            now.since(then, &mut counts);
        }
        counts
    }
}

/// What one read of a group of events gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    /// Time for which the group was enabled and the thread ran, in nanoseconds.
    enabled: u64,
    /// Time for which the group had the PMU, in nanoseconds.
    running: u64,
    /// The events, in the group's order: the field that each is a summand of, and how many there were.
    events: [Option<(Field, u64)>; MOST_EVENTS],
}

impl Reading {
    /// Size of what a read of a group of so many events gives.
    pub(super) const fn bytes(events: usize) -> usize {
        (3 + events) * size_of::<u64>()
    }

    /// Parses what the kernel's `perf_read_group` writes for PERF_FORMAT_GROUP, TOTAL_TIME_ENABLED and
    /// TOTAL_TIME_RUNNING: the number of events, both times, and each event's count.
    pub(super) fn parse(bytes: &[u8], fields: &[Field]) -> io::Result<Reading> {
        // `__perf_read` gives no byte if the group is in PERF_EVENT_STATE_ERROR.
        if bytes.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the kernel took a group of counters off the PMU",
            ));
        }
        let mut words = bytes
            .chunks_exact(size_of::<u64>())
            .map(|w| u64::from_ne_bytes(w.try_into().expect("eight bytes")));
        let head = (words.next(), words.next(), words.next());
        match head {
            (Some(events), Some(enabled), Some(running))
                if bytes.len() == Reading::bytes(fields.len()) && events == fields.len() as u64 =>
            {
                let mut counts = fields.iter().copied().zip(words);
                Ok(Reading { enabled, running, events: std::array::from_fn(|_| counts.next()) })
            }
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} bytes from the kernel are no counts of {} events", bytes.len(), fields.len()),
            )),
        }
    }

    /// Writes what the group counted since `then` to its fields, unless the two readings contradict each
    /// other.
    fn since(&self, then: &Reading, counts: &mut HardwareCounts) {
        let fields = |r: &Reading| r.events.map(|event| event.map(|(field, _)| field));
        let times = self.enabled.checked_sub(then.enabled).zip(self.running.checked_sub(then.running));
        // The running time is a part of the enabled time: `__perf_update_times`.
        let times = times.filter(|(enabled, running)| running <= enabled && fields(self) == fields(then));
        let Some((enabled, running)) = times else { return };
        if enabled > 0 {
            counts.show_share(Some(running as f64 / enabled as f64));
        }
        for field in Field::ALL {
            if let Some(events) = self.events_since(then, field) {
                *counts.field(field) = estimate(events, enabled, running);
            }
        }
    }

    /// The growth of a field's events together; `None` if the group has none of this field, or one fell.
    fn events_since(&self, then: &Reading, field: Field) -> Option<u128> {
        let events = self.events.iter().flatten().zip(then.events.iter().flatten());
        let pairs = events.filter(|(now, _)| now.0 == field);
        let growth = pairs.map(|(now, then)| now.1.checked_sub(then.1).map(u128::from));
        growth.reduce(|a, b| Some(a? + b?)).flatten()
    }
}

/// The estimate for the whole enabled time, rounded down; `None` if the group did not run in it.
fn estimate(events: u128, enabled: u64, running: u64) -> Option<u64> {
    if enabled == 0 {
        // The thread did not run. A count other than 0 would contradict that.
        return (events == 0).then_some(0);
    }
    let estimate = events.saturating_mul(enabled.into()).checked_div(running.into())?;
    Some(u64::try_from(estimate).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WALKS: [Field; 2] = [Field::WalkCycles; 2];

    fn raw(enabled: u64, running: u64, events: &[(Field, u64)]) -> Raw {
        let mut all = events.iter().copied();
        Raw(vec![Reading { enabled, running, events: std::array::from_fn(|_| all.next()) }])
    }

    /// Two events of one field.
    fn walks(enabled: u64, running: u64, loads: u64, stores: u64) -> Raw {
        raw(enabled, running, &[(Field::WalkCycles, loads), (Field::WalkCycles, stores)])
    }

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_ne_bytes()).collect()
    }

    #[test]
    fn a_group_that_always_ran_is_exact() {
        let counts = walks(1500, 1400, 13, 27).since(&walks(1000, 900, 10, 20));
        assert_eq!(counts.walk_cycles, Some(10));
        assert_eq!(counts.scheduled, Some(1.0));
        assert_eq!(counts.guest_cycles, None, "no event counts this");
    }

    #[test]
    fn a_group_that_ran_for_a_quarter_counted_a_quarter() {
        let counts = walks(1400, 1000, 13, 27).since(&walks(1000, 900, 10, 20));
        assert_eq!(counts.walk_cycles, Some(40));
        assert_eq!(counts.scheduled, Some(0.25));
    }

    #[test]
    fn a_thread_that_did_not_run_counted_0_and_a_group_without_the_pmu_is_unknown() {
        let earlier = walks(1000, 900, 10, 20);
        let still = earlier.since(&earlier);
        assert_eq!((still.walk_cycles, still.scheduled), (Some(0), None));
        let waited = walks(1001, 900, 10, 20).since(&earlier);
        assert_eq!((waited.walk_cycles, waited.scheduled), (None, Some(0.0)));
    }

    #[test]
    fn contradictions_are_unknown() {
        let earlier = walks(1000, 900, 10, 20);
        for (why, now) in [
            ("a count fell, although the sum rose", walks(2000, 1900, 9, 40)),
            ("the enabled time fell", walks(999, 950, 11, 21)),
            ("the running time fell", walks(2000, 899, 11, 21)),
            ("it ran for longer than it was enabled", walks(1001, 950, 11, 21)),
            ("it counted although the thread did not run", walks(1000, 900, 11, 20)),
            ("another group", raw(2000, 1900, &[(Field::WalkCycles, 11)])),
            ("other events", raw(2000, 1900, &[(Field::WalkCycles, 11), (Field::TlbMisses4k, 21)])),
        ] {
            assert_eq!(now.since(&earlier).walk_cycles, None, "{why}");
        }
        assert_eq!(walks(2000, 1900, 11, 21).since(&Raw(vec![])), HardwareCounts::UNKNOWN);
    }

    #[test]
    fn each_event_counts_for_its_field_and_the_smallest_share_shows() {
        let both = |n: u64| {
            let cycles =
                [(Field::GuestCycles, 3 * n), (Field::Instructions, 5 * n), (Field::HostCycles, 7 * n)];
            let cycles = raw(100 * n, 100 * n, &cycles);
            let tlb = raw(100 * n, 50 * n, &[(Field::TlbMisses2m, n)]);
            Raw([cycles.0, tlb.0].concat())
        };
        let counts = both(2).since(&both(1));
        let expected = HardwareCounts {
            guest_cycles: Some(3),
            instructions: Some(5),
            host_cycles: Some(7),
            tlb_misses_2m: Some(2),
            scheduled: Some(0.5),
            ..HardwareCounts::UNKNOWN
        };
        assert_eq!(counts, expected);
    }

    #[test]
    fn an_estimate_beyond_64_bits_is_the_largest_number() {
        let counts = walks(u64::MAX, 1, u64::MAX, u64::MAX).since(&walks(0, 0, 0, 0));
        assert_eq!(counts.walk_cycles, Some(u64::MAX));
    }

    #[test]
    fn what_is_unknown_of_one_thread_is_unknown_of_all() {
        let one = HardwareCounts { walk_cycles: None, scheduled: Some(0.5), ..HardwareCounts::all(Some(2)) };
        let two = HardwareCounts { scheduled: Some(0.75), ..HardwareCounts::all(Some(u64::MAX - 1)) };
        let mut sum = HardwareCounts::ZERO;
        for thread in [one, HardwareCounts::ZERO, two] {
            sum.add(&thread);
        }
        let expected =
            HardwareCounts { walk_cycles: None, scheduled: Some(0.5), ..HardwareCounts::all(Some(u64::MAX)) };
        assert_eq!(sum, expected);
    }

    #[test]
    fn bytes_of_another_group_are_refused() {
        let good = bytes(&[2, 1000, 900, 10, 20]);
        assert_eq!(Reading::parse(&good, &WALKS).unwrap(), walks(1000, 900, 10, 20).0[0]);
        let error = |bytes: &[u8]| Reading::parse(bytes, &WALKS).unwrap_err();
        assert_eq!(error(&[]).kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(error(&good[..39]).to_string(), "39 bytes from the kernel are no counts of 2 events");
        for wrong in [&[1, 1000, 900, 10, 20][..], &[2, 1000, 900, 10], &[2, 1000, 900, 10, 20, 30], &[2]] {
            assert_eq!(error(&bytes(wrong)).kind(), io::ErrorKind::InvalidData, "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn bytes_parse_only_if_they_are_of_the_group(
            bytes in prop::collection::vec(prop_oneof![Just(0_u8), Just(2), any::<u8>()], 0..64),
        ) {
            let right = bytes.len() == 40 && bytes[..8] == 2_u64.to_ne_bytes();
            prop_assert_eq!(Reading::parse(&bytes, &WALKS).is_ok(), right);
        }

        #[test]
        fn a_group_parses_to_its_numbers(times in any::<(u64, u64)>(), events in any::<[u64; 2]>()) {
            let words = [2, times.0, times.1, events[0], events[1]];
            let reading = Reading::parse(&bytes(&words), &WALKS).unwrap();
            prop_assert_eq!(Raw(vec![reading]), walks(times.0, times.1, events[0], events[1]));
        }

        /// The estimate is the largest whole number that, for the running time alone, explains the events.
        #[test]
        fn the_estimate_is_in_proportion(
            start in (0..1_u64 << 40, 0..1_u64 << 40, 0..1_u64 << 40),
            running in 0..1_u64 << 30,
            waited in 0..1_u64 << 30,
            loads in 0..1_u64 << 40,
            stores in 0..1_u64 << 40,
        ) {
            let (enabled, ran, count) = start;
            let counts = walks(enabled + running + waited, ran + running, count + loads, 5 + stores)
                .since(&walks(enabled, ran, count, 5));
            match counts.walk_cycles {
                Some(estimate) if running > 0 => {
                    let (events, running) = (u128::from(loads + stores), u128::from(running));
                    let of_all = events * (running + u128::from(waited));
                    prop_assert!(u128::from(estimate) * running <= of_all);
                    prop_assert!((u128::from(estimate) + 1) * running > of_all);
                    prop_assert!(waited > 0 || u128::from(estimate) == events);
                }
                Some(0) => prop_assert!(waited == 0 && loads + stores == 0),
                other => prop_assert!(other.is_none() && running == 0),
            }
        }

        /// Whatever two states hold, the result is a number or unknown, never a panic.
        #[test]
        fn any_two_states_have_a_difference(now in any::<(u64, u64, u64, u64)>(), then in any::<(u64, u64, u64, u64)>()) {
            let state = |s: (u64, u64, u64, u64)| walks(s.0, s.1, s.2, s.3);
            let counts = state(now).since(&state(then));
            let grew = now.0 >= then.0 && now.1 >= then.1 && now.2 >= then.2 && now.3 >= then.3;
            prop_assert!(grew || counts.walk_cycles.is_none());
        }

        #[test]
        fn a_sum_does_not_depend_on_the_order(
            all in prop::collection::vec((any::<Option<u64>>(), prop::option::of(0.0..=1.0)), 0..6),
        ) {
            let sum = |threads: &mut dyn Iterator<Item = &(Option<u64>, Option<f64>)>| {
                let mut sum = HardwareCounts::ZERO;
                threads.for_each(|(n, share)| {
                    sum.add(&HardwareCounts { instructions: *n, scheduled: *share, ..HardwareCounts::ZERO })
                });
                sum
            };
            let forth = sum(&mut all.iter());
            prop_assert_eq!(forth, sum(&mut all.iter().rev()));
            let expected = all.iter().try_fold(0_u64, |sum, (n, _)| n.map(|n| sum.saturating_add(n)));
            prop_assert_eq!(forth.instructions, expected);
        }
    }
}
