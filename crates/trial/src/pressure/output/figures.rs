// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures of a run of the guests, each computed here once.

use crate::pressure::outcome::{CaseOutcome, GuestSample, LoadCounts, Outcome, Sample};
use schemars::JsonSchema;
use serde::Serialize;

const MIB: u64 = 1 << 20;

/// Figures of a guest in one run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct GuestFigures {
    /// The guest's name.
    pub name: String,
    /// Mean size outside of the balloon; null if unknown. Unit: bytes.
    pub mean_size_bytes: Option<f64>,
    /// Mean memory of the guest in the host's, where a page with n mappings counts 1/n; null without samples.
    /// Unit: bytes.
    pub mean_used_bytes: Option<f64>,
    /// Most memory of the guest in the host's; null without samples. Unit: bytes.
    pub peak_used_bytes: Option<f64>,
    /// Operations of the guest's load.
    pub operations: u64,
    /// Operations over those of the same guest when nothing is taken back; null without such a run, and if
    /// either run is not whole.
    pub progress: Option<f64>,
    /// Mean time of an operation; null without operations. Unit: s.
    pub operation_s: Option<f64>,
    /// Time in which tasks of the guest waited for memory. Unit: s.
    pub waited_s: f64,
    /// Faults that read from a disk.
    pub major_faults: u64,
    /// Pages read from the guest's swap.
    pub swapped_in_pages: u64,
    /// Pages that came back after the guest reclaimed them.
    pub refaulted_pages: u64,
    /// Times that the guest's kernel killed the load for lack of memory.
    pub kills: u64,
    /// CPU time of the emulator; null without samples. Unit: s.
    pub cpu_s: Option<f64>,
    /// Mean memory of the guest in the host's swap; null where the host does not page. Unit: bytes.
    pub mean_swapped_bytes: Option<f64>,
    /// Pages that came back after the host took them; null where the host does not page.
    pub host_refaulted_pages: Option<u64>,
    /// Time in which QEMU's threads waited for memory of the host; null where the host does not page.
    /// Unit: s.
    pub host_waited_s: Option<f64>,
}

/// Figures of all guests in one run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct HostFigures {
    /// Mean memory of the guests in the host's; null without samples. Unit: bytes.
    pub mean_used_bytes: Option<f64>,
    /// Most memory of the guests in the host's; null without samples. Unit: bytes.
    pub peak_used_bytes: Option<f64>,
    /// Mean memory beyond the host's size, which a host of that size would have to page out; null without
    /// samples. Unit: bytes.
    pub mean_beyond_bytes: Option<f64>,
    /// The part of the samples in which guests had more than the host's size, 0 to 1; null without samples.
    pub beyond: Option<f64>,
    /// Operations of all guests over those when nothing is taken back; null without such a run, and if either
    /// run is not whole.
    pub progress: Option<f64>,
    /// The least progress of a guest; null where no guest has progress.
    pub worst_progress: Option<f64>,
    /// CPU time of all emulators; null if one is unknown. Unit: s.
    pub cpu_s: Option<f64>,
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), v| (sum + v, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

fn most(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.reduce(f64::max)
}

/// The samples of guest `n`, while it ran.
fn samples_of(case: &CaseOutcome, n: usize) -> impl Iterator<Item = &GuestSample> {
    case.samples.iter().filter_map(move |s| s.guests.get(n)?.as_ref())
}

/// The last counts of guest `n`.
fn counts(case: &CaseOutcome, n: usize) -> LoadCounts {
    samples_of(case, n).last().map_or(LoadCounts::default(), |s| s.load)
}

/// The run of the same repetition in which nothing is taken back, if it is whole.
fn reference<'a>(outcome: &'a Outcome, case: &CaseOutcome) -> Option<&'a CaseOutcome> {
    outcome.cases.iter().find(|c| c.spec.takes_nothing() && c.repetition == case.repetition && c.is_whole())
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// The figures of each guest in a run. Progress is known of whole runs.
pub fn of_guests(outcome: &Outcome, case: &CaseOutcome) -> Vec<GuestFigures> {
    let reference = reference(outcome, case).filter(|_| case.is_whole());
    let guest = |n: usize| {
        let load = counts(case, n);
        let bytes = |of: fn(&GuestSample) -> u64| samples_of(case, n).map(move |s| of(s) as f64);
        let paging = samples_of(case, n).last().and_then(|s| s.paging);
        GuestFigures {
            name: case.guests[n].name.clone(),
            mean_size_bytes: mean(samples_of(case, n).filter_map(|s| s.size).map(|b| b as f64)),
            mean_used_bytes: mean(bytes(|s| s.used)),
            peak_used_bytes: most(bytes(|s| s.used)),
            operations: load.operations,
            progress: reference.and_then(|r| ratio(load.operations, counts(r, n).operations)),
            operation_s: ratio(load.busy_us, load.operations).map(|us| us / 1e6),
            waited_s: load.waited_us as f64 / 1e6,
            major_faults: load.major_faults,
            swapped_in_pages: load.swapped_in,
            refaulted_pages: load.refaults,
            kills: load.kills,
            cpu_s: samples_of(case, n).last().map(|s| s.cpu_s),
            mean_swapped_bytes: paging.and_then(|_| mean(bytes(|s| s.swapped))),
            host_refaulted_pages: paging.map(|p| p.refaults),
            host_waited_s: paging.map(|p| p.waited_us as f64 / 1e6),
        }
    };
    (0..case.guests.len()).map(guest).collect()
}

/// The figures of all guests in a run, on a host of this size.
pub fn of_host(outcome: &Outcome, case: &CaseOutcome, host_mib: u64) -> HostFigures {
    let guests = of_guests(outcome, case);
    let beyond = |s: &Sample| s.used().saturating_sub(host_mib * MIB);
    let operations = |c: &CaseOutcome| (0..c.guests.len()).map(|n| counts(c, n).operations).sum::<u64>();
    let reference = reference(outcome, case).filter(|_| case.is_whole());
    HostFigures {
        mean_used_bytes: mean(case.samples.iter().map(|s| s.used() as f64)),
        peak_used_bytes: most(case.samples.iter().map(|s| s.used() as f64)),
        mean_beyond_bytes: mean(case.samples.iter().map(|s| beyond(s) as f64)),
        beyond: mean(case.samples.iter().map(|s| f64::from(u8::from(beyond(s) > 0)))),
        progress: reference.and_then(|r| ratio(operations(case), operations(r))),
        worst_progress: guests.iter().filter_map(|g| g.progress).reduce(f64::min),
        cpu_s: guests.iter().map(|g| g.cpu_s).sum(),
    }
}
