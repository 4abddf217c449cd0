// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The outcome of a run: samples over time, and the end of each case and guest.

use super::spec::CaseSpec;
use crate::paging::PagingCounts;
use crate::run::Ending;
use schemars::JsonSchema;
use serde::Serialize;

/// The outcome of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Release of the host's kernel.
    pub host_kernel: String,
    /// Version of the emulator.
    pub qemu: String,
    /// Whether guests ran under KVM.
    pub kvm: bool,
    /// The cases that ran, in order.
    pub cases: Vec<CaseOutcome>,
    /// Number of cases in the plan, with repetitions.
    pub planned: usize,
}

impl Outcome {
    /// What is missing, as text; `None` if the run is whole.
    pub fn partial(&self) -> Option<String> {
        let mut why: Vec<String> = Vec::new();
        for case in &self.cases {
            let name = case.title();
            match &case.ending {
                Ending::Whole => {}
                Ending::Interrupted => why.push(format!("{name}: interrupted at {:.0} s", case.length())),
                Ending::Failed(what) => why.push(format!("{name}: {what}")),
            }
            for g in case.guests.iter().filter(|g| g.ended.is_some()) {
                let (at, what) = g.ended.as_ref().expect("it has just been looked at");
                why.push(format!("{name}: {} ended at {at:.0} s: {what}", g.name));
            }
        }
        let left = self.planned - self.cases.len();
        if left > 0 {
            why.push(format!("{left} of {} cases did not run", self.planned));
        }
        (!why.is_empty()).then(|| format!("Partial: {}", why.join("; ")))
    }

    /// Whether the user ended the run: within a case, or between two.
    pub fn interrupted(&self) -> bool {
        let last = self.cases.last();
        let failed = self.cases.iter().any(|c| matches!(c.ending, Ending::Failed(_)));
        last.is_some_and(|c| c.ending == Ending::Interrupted) || (self.cases.len() < self.planned && !failed)
    }
}

/// One run of the guests.
#[derive(Debug, Clone)]
pub struct CaseOutcome {
    /// The case.
    pub spec: CaseSpec,
    /// Which repetition, from 1.
    pub repetition: u32,
    /// Whether there are several.
    pub repeated: bool,
    /// The guests.
    pub guests: Vec<GuestOutcome>,
    /// Samples in order of time.
    pub samples: Vec<Sample>,
    /// How the case ended.
    pub ending: Ending,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

impl CaseOutcome {
    /// The case's name, with the repetition if there are several.
    pub fn title(&self) -> String {
        let name = &self.spec.name;
        if self.repeated { format!("{name} ({})", self.repetition) } else { name.clone() }
    }

    /// Whether it ran for its full length with all guests.
    pub fn is_whole(&self) -> bool {
        self.ending == Ending::Whole && self.guests.iter().all(|g| g.ended.is_none())
    }

    /// Seconds from the begin of the loads to the last sample.
    pub fn length(&self) -> f64 {
        self.samples.last().map_or(0.0, |s| s.at_s)
    }
}

/// A guest and how it ended.
#[derive(Debug, Clone, Default)]
pub struct GuestOutcome {
    /// The guest's name.
    pub name: String,
    /// Guest memory, MiB.
    pub memory_mib: u64,
    /// Release of its kernel.
    pub kernel: String,
    /// When and why it ended early, or its load gave up.
    pub ended: Option<(f64, String)>,
    /// What became of orders about its size.
    pub orders: Orders,
}

/// Counts of orders about a guest's size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Orders {
    /// Steps that were ordered, down and up.
    pub steps: u64,
    /// Times that a size was reached and held.
    pub held: u64,
    /// Times that a size was held above the policy's, at the least size.
    #[serde(rename = "at_least_size")]
    pub short: u64,
    /// Orders that were refused.
    pub refused: u64,
    /// Times that everything was given back at once.
    pub given_back: u64,
}

/// Figures of one moment.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Seconds since the loads began.
    pub at_s: f64,
    /// Each guest, in the plan's order; `None` once it is gone.
    pub guests: Vec<Option<GuestSample>>,
}

impl Sample {
    /// Bytes that the guests have in the host's memory; a page with n mappings counts 1/n for each.
    pub fn used(&self) -> u64 {
        self.guests.iter().flatten().map(|g| g.used).sum()
    }
}

/// A guest's figures of one moment. Counters begin with the load.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GuestSample {
    /// Resident bytes of guest memory.
    pub resident: u64,
    /// The same, where a page with n mappings counts 1/n.
    pub used: u64,
    /// Bytes of guest memory that were used since the sample before, where a policy asks for that; otherwise
    /// since the start.
    pub touched: u64,
    /// Bytes of guest memory in the host's swap.
    pub swapped: u64,
    /// What the host counts for the guest, where it pages.
    pub paging: Option<PagingCounts>,
    /// Bytes outside of the balloon.
    pub size: Option<u64>,
    /// The size that the policy wants, bytes.
    pub target: Option<u64>,
    /// Free bytes, by the guest's statistics.
    pub free: Option<u64>,
    /// Bytes that programs can take without swapping, by the guest's statistics.
    pub available: Option<u64>,
    /// CPU time of the emulator since the load began, seconds.
    pub cpu_s: f64,
    /// What the load and the guest's kernel count.
    pub load: LoadCounts,
}

/// Counts of a load and of its kernel, since the load began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadCounts {
    /// Operations.
    pub operations: u64,
    /// Time in them, microseconds.
    pub busy_us: u64,
    /// The phase, from 0.
    pub phase: u64,
    /// Times that the kernel killed the load for lack of memory.
    pub kills: u64,
    /// Faults that read from a disk.
    pub major_faults: u64,
    /// Pages read from swap.
    pub swapped_in: u64,
    /// Pages that came back after reclaim.
    pub refaults: u64,
    /// Time in which tasks waited for memory, microseconds; 0 if the kernel does not count.
    pub waited_us: u64,
}

impl LoadCounts {
    /// Parses the numbers of a line `count ...` of the load's program.
    pub fn parse(text: &str) -> Option<LoadCounts> {
        let numbers: Vec<u64> = text.split_ascii_whitespace().map_while(|n| n.parse().ok()).collect();
        let &[operations, busy_us, phase, kills, major_faults, swapped_in, refaults, waited_us, ..] =
            &numbers[..]
        else {
            return None;
        };
        Some(LoadCounts { operations, busy_us, phase, kills, major_faults, swapped_in, refaults, waited_us })
    }

    /// The counts since an earlier moment. The phase is that of now.
    pub fn since(&self, then: &LoadCounts) -> LoadCounts {
        LoadCounts {
            operations: self.operations.saturating_sub(then.operations),
            busy_us: self.busy_us.saturating_sub(then.busy_us),
            phase: self.phase,
            kills: self.kills.saturating_sub(then.kills),
            major_faults: self.major_faults.saturating_sub(then.major_faults),
            swapped_in: self.swapped_in.saturating_sub(then.swapped_in),
            refaults: self.refaults.saturating_sub(then.refaults),
            waited_us: self.waited_us.saturating_sub(then.waited_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_all_numbers_or_none() {
        let counts = LoadCounts::parse("10 2000 1 0 5 6 7 8").unwrap();
        assert_eq!((counts.operations, counts.waited_us), (10, 8));
        assert_eq!(counts.since(&LoadCounts { operations: 4, ..counts }).operations, 6);
        assert_eq!(LoadCounts::parse("10 2000 1 0 5 6 7"), None);
        assert_eq!(LoadCounts::parse("a 2000 1 0 5 6 7 8"), None);
    }
}
