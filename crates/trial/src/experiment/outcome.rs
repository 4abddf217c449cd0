// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The outcome of a run: samples over time, potentials at marked times, and the end of each case and guest.

use crate::run::Ending;
use bifold_host::ksm::{Counter, Counters, Merged, Others};
use bifold_share::potential::{Counts, Potential};

/// Bytes of a page.
const PAGE: u64 = 4096;

/// The outcome of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Release of the host's kernel.
    pub host_kernel: String,
    /// Version of the emulator.
    pub qemu: String,
    /// KSM's settings before the run. A case keeps the settings that it does not name.
    pub found: String,
    /// The cases that ran, in order.
    pub cases: Vec<CaseOutcome>,
    /// Number of cases in the plan.
    pub planned: usize,
}

impl Outcome {
    /// Whether a part of the plan is missing.
    pub fn partial(&self) -> bool {
        self.cases.len() < self.planned || self.cases.iter().any(|c| c.ending != Ending::Whole || c.damaged())
    }
}

/// One case.
#[derive(Debug, Clone)]
pub struct CaseOutcome {
    /// The case's name.
    pub name: String,
    /// The KSM settings that the case names, as text.
    pub ksm: String,
    /// The guests.
    pub guests: Vec<GuestOutcome>,
    /// Samples in order of time.
    pub samples: Vec<Sample>,
    /// Potentials at the marked times.
    pub marks: Vec<Mark>,
    /// What KSM had merged of the guests' memory at the end, by their page tables; `None` if no guest was
    /// left.
    pub merged: Option<Merged>,
    /// Other programs with mergeable memory at the end.
    pub others: Others,
    /// How the case ended.
    pub ending: Ending,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

impl CaseOutcome {
    /// Whether a guest died, failed or was never ready while the case continued.
    pub fn damaged(&self) -> bool {
        self.guests.iter().any(|g| g.died.is_some() || g.failed.is_some() || g.ready_s.is_none())
    }

    /// Memory of all guests, bytes.
    pub fn memory(&self) -> u64 {
        self.guests.iter().map(|g| g.memory_mib << 20).sum()
    }

    /// ksmd's CPU time between neighbouring samples, as (time of the later sample, percent of one processor).
    pub fn ksmd_percent(&self) -> Vec<(f64, f64)> {
        let pairs = self.samples.windows(2);
        let rate = |w: &[Sample]| {
            let seconds = w[1].at_s - w[0].at_s;
            let cpu = w[1].ksmd_cpu_s? - w[0].ksmd_cpu_s?;
            (seconds > 0.0).then(|| (w[1].at_s, 100.0 * cpu / seconds))
        };
        pairs.filter_map(rate).collect()
    }
}

/// A guest and how it ended.
#[derive(Debug, Clone)]
pub struct GuestOutcome {
    /// The guest's name.
    pub name: String,
    /// Release of the guest's kernel.
    pub kernel: String,
    /// The workload, as text.
    pub workload: String,
    /// Guest memory.
    pub memory_mib: u64,
    /// When the workload was ready, in seconds since the start.
    pub ready_s: Option<f64>,
    /// Cycles of the workload.
    pub cycles: u64,
    /// When and why the guest died, if it did.
    pub died: Option<(f64, String)>,
    /// Why the workload gave up, if it did.
    pub failed: Option<String>,
}

/// Figures of one moment.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Seconds since the start of the guests.
    pub at_s: f64,
    /// Bytes of guest memory without sharing: resident pages, and pages that KSM made mappings of the zero
    /// page.
    pub unshared: u64,
    /// Bytes of guest memory with sharing: a page with n mappings counts 1/n for each.
    pub used: u64,
    /// Bytes of all emulators, guest memory included.
    pub emulators: u64,
    /// Bytes that the host has available.
    pub available: Option<u64>,
    /// Whether KSM ran.
    pub running: bool,
    /// Pages per wake-up of ksmd.
    pub pages_to_scan: Option<u64>,
    /// KSM's counters, of the whole host.
    pub ksm: Counters,
    /// CPU time of ksmd since the start, for the whole host.
    pub ksmd_cpu_s: Option<f64>,
    /// The whole host's merged pages that were copied at a write since the start (`cow_ksm`).
    pub copies: Option<u64>,
    /// The whole host's merged pages that were copied at a swap-in since the start (`ksm_swpin_copy`).
    pub swapped_in: Option<u64>,
    /// Each guest, in the plan's order; `None` once it is gone.
    pub guests: Vec<Option<GuestSample>>,
}

impl Sample {
    /// Bytes that sharing saves.
    pub fn saved(&self) -> u64 {
        self.unshared.saturating_sub(self.used)
    }

    /// The sum of a figure over all running guests, if every one has it.
    pub fn of_guests(&self, figure: impl Fn(&GuestSample) -> Option<u64>) -> Option<u64> {
        let there: Option<Vec<u64>> = self.guests.iter().flatten().map(figure).collect();
        there.filter(|all| !all.is_empty()).map(|all| all.iter().sum())
    }

    /// A counter of pages, in bytes.
    pub fn bytes(&self, counter: Counter) -> Option<u64> {
        u64::try_from(self.ksm.get(counter)?).ok().map(|n| n * PAGE)
    }
}

/// A guest's figures of one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GuestSample {
    /// Resident bytes of guest memory.
    pub rss: u64,
    /// Proportional bytes of guest memory: a page with n mappings counts 1/n.
    pub pss: u64,
    /// Merged pages.
    pub merging_pages: Option<u64>,
    /// Pages that became mappings of the zero page.
    pub zero_pages: Option<u64>,
    /// Pages that ksmd has on record.
    pub rmap_items: Option<u64>,
    /// Bytes saved minus bytes of KSM's records.
    pub profit: Option<i64>,
    /// Cycles of the workload so far.
    pub cycles: u64,
}

/// The potential at a marked time.
#[derive(Debug, Clone)]
pub struct Mark {
    /// Seconds since the start.
    pub at_s: f64,
    /// How long the guests were paused for the count, seconds.
    pub paused_s: f64,
    /// All guests.
    pub small: Counts,
    /// Counts of all guests by 2 MB pages.
    pub huge: Counts,
    /// 4 KB pages that sharing whole 2 MB pages would not save.
    pub lost_to_huge: u64,
    /// Name and counts of each guest.
    pub guests: Vec<(String, Counts)>,
}

impl Mark {
    /// The potential from a count.
    pub fn of(at_s: f64, paused_s: f64, p: &Potential) -> Mark {
        Mark {
            at_s,
            paused_s,
            small: p.small,
            huge: p.huge,
            lost_to_huge: p.lost_to_huge(),
            guests: p.guests.iter().map(|g| (g.name.clone(), g.small)).collect(),
        }
    }
}
