// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The outcome of a run: samples over time, potentials at marked times, and how each case and guest ended.

use bifold_host::ksm::{Counter, Counters, Merged, Others};
use bifold_share::potential::{Counts, Potential};

/// Bytes of a page.
const PAGE: u64 = 4096;

/// The outcome of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Kernel of the host.
    pub host_kernel: String,
    /// Version of the emulator.
    pub qemu: String,
    /// KSM's settings as they were found; a case has those that it does not name.
    pub found: String,
    /// Cases in the order in which they ran; those that did not run are missing.
    pub cases: Vec<CaseOutcome>,
    /// Cases of the plan.
    pub planned: usize,
}

impl Outcome {
    /// Whether something is missing of what the plan says.
    pub fn partial(&self) -> bool {
        self.cases.len() < self.planned || self.cases.iter().any(|c| c.ending != Ending::Whole || c.damaged())
    }
}

/// How a case ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// At its length.
    Whole,
    /// Someone asked to stop.
    Interrupted,
    /// It could not go on.
    Failed(String),
}

/// One case.
#[derive(Debug, Clone)]
pub struct CaseOutcome {
    /// Its name.
    pub name: String,
    /// KSM's settings that it names, in words.
    pub ksm: String,
    /// The guests.
    pub guests: Vec<GuestOutcome>,
    /// In order of time.
    pub samples: Vec<Sample>,
    /// Potentials.
    pub marks: Vec<Mark>,
    /// What KSM had merged of the guests' memory in the end, by their page tables, if any guest lived then.
    pub merged: Option<Merged>,
    /// Other programs with mergeable memory in the end.
    pub others: Others,
    /// How it ended.
    pub ending: Ending,
    /// What a reader should know.
    pub notes: Vec<String>,
}

impl CaseOutcome {
    /// Whether a guest died, failed or was never ready, in a case that went on.
    pub fn damaged(&self) -> bool {
        self.guests.iter().any(|g| g.died.is_some() || g.failed.is_some() || g.ready_s.is_none())
    }

    /// Guest memory in all, bytes.
    pub fn memory(&self) -> u64 {
        self.guests.iter().map(|g| g.memory_mib << 20).sum()
    }

    /// ksmd's CPU time per second between two neighbouring samples, by the later one's time; percent of
    /// one CPU.
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

/// One guest and its fate.
#[derive(Debug, Clone)]
pub struct GuestOutcome {
    /// Its name.
    pub name: String,
    /// Its kernel's release.
    pub kernel: String,
    /// What it did.
    pub workload: String,
    /// Its memory.
    pub memory_mib: u64,
    /// When its workload was ready, seconds since the start.
    pub ready_s: Option<f64>,
    /// Cycles of its workload.
    pub cycles: u64,
    /// When it died, and of what.
    pub died: Option<(f64, String)>,
    /// Why its workload gave up.
    pub failed: Option<String>,
}

/// What was seen at one time.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Seconds since the start of the guests.
    pub at_s: f64,
    /// Bytes that the guests' memory would take if each had its pages to itself: resident pages, and
    /// those that KSM made mappings of the zero page.
    pub unshared: u64,
    /// Bytes that the guests' memory takes: a page with n mappings counts 1/n for each.
    pub used: u64,
    /// Bytes of the emulators in all, the guests' memory included.
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
    /// The whole host's merged pages that were written to since the start, and copied for that (`cow_ksm`).
    pub copies: Option<u64>,
    /// The whole host's pages swapped in that KSM had to copy since the start (`ksm_swpin_copy`).
    pub swapped_in: Option<u64>,
    /// Each guest, in the plan's order; `None` once it is gone.
    pub guests: Vec<Option<GuestSample>>,
}

impl Sample {
    /// Bytes that sharing saves.
    pub fn saved(&self) -> u64 {
        self.unshared.saturating_sub(self.used)
    }

    /// A figure of all guests together, if every guest that is there has it.
    pub fn of_guests(&self, figure: impl Fn(&GuestSample) -> Option<u64>) -> Option<u64> {
        let there: Option<Vec<u64>> = self.guests.iter().flatten().map(figure).collect();
        there.filter(|all| !all.is_empty()).map(|all| all.iter().sum())
    }

    /// Bytes of pages that a counter counts.
    pub fn bytes(&self, counter: Counter) -> Option<u64> {
        u64::try_from(self.ksm.get(counter)?).ok().map(|n| n * PAGE)
    }
}

/// One guest at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GuestSample {
    /// Resident bytes of its memory.
    pub rss: u64,
    /// Its share of them.
    pub pss: u64,
    /// Pages that are merged.
    pub merging_pages: Option<u64>,
    /// Pages that became mappings of the zero page.
    pub zero_pages: Option<u64>,
    /// Pages that ksmd knows of.
    pub rmap_items: Option<u64>,
    /// Bytes saved less bytes of KSM's records.
    pub profit: Option<i64>,
    /// Cycles of its workload so far.
    pub cycles: u64,
}

/// The potential at a marked time.
#[derive(Debug, Clone)]
pub struct Mark {
    /// Seconds since the start.
    pub at_s: f64,
    /// How long the guests stood still for it, seconds.
    pub paused_s: f64,
    /// All guests.
    pub small: Counts,
    /// By 2 MB pages.
    pub huge: Counts,
    /// 4 KB pages that sharing whole 2 MB pages would not save.
    pub lost_to_huge: u64,
    /// Each guest by name.
    pub guests: Vec<(String, Counts)>,
}

impl Mark {
    /// Of a count.
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
