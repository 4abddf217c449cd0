// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The outcome of a run of the model: totals and timeline per configuration. Reports and policies
//! read it.

use crate::ages::Reuse;
use crate::cache::{CacheError, CacheFacts};
use crate::host::Frames;
use crate::placement::{Placed, PlacedFacts};
use crate::{Config, Mean, Sample, SwitchedOutcome, VmState};
use serde::{Deserialize, Serialize};

/// Totals and timeline of every configuration over one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Name of the hardware profile.
    pub profile: String,
    /// Core frequency, Hz.
    pub frequency_hz: u64,
    /// Cycles per instruction assumed for the ideal run, waits for data left out.
    pub base_cpi: f64,
    /// How the data caches were simulated. None without data caches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caches: Option<CacheFacts>,
    /// Host and nodes of the placements. None unless local and remote references were counted separately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed: Option<PlacedFacts>,
    /// Seed of the host frames' placement.
    pub seed: u64,
    /// How long the host has run.
    #[serde(default)]
    pub host_frames: Frames,
    /// What the host held of the guest's memory at the start. Older documents have `backed` in its place.
    #[serde(default = "VmState::of_older", alias = "backed")]
    pub vm: VmState,
    /// Levels of nested tables; 4 in older documents.
    #[serde(default = "four_levels", skip_serializing_if = "is_four_levels")]
    pub nested_levels: u8,
    /// XXH3-64 of the profile as resolved (overrides included), hexadecimal.
    pub config_hash: String,
    /// XXH3-64 of the events consumed, hexadecimal.
    pub input_hash: String,
    /// Guest frames known to the model, in 4 KB pages.
    pub guest_frames: u64,
    /// Number of vCPUs seen.
    pub vcpus: u64,
    /// Nominal length of an interval in ideal cycles.
    pub interval_cycles: u64,
    /// Results, in the order of [`Config::ALL`] less those not asked for.
    pub configs: Vec<ConfigOutcome>,
    /// VMs that switched while they ran, in the order in which they were asked for.
    #[serde(skip)]
    pub switched: Vec<SwitchedOutcome>,
    /// Start of every interval, in ideal cycles since the start.
    pub interval_starts: Vec<u64>,
    /// Comparisons of a walk over the replayed guest tables with the captured GPA.
    pub walk_checks: u64,
    /// Comparisons that disagreed.
    pub walk_mismatches: u64,
    /// Accesses that the replayed guest tables did not translate (0 unless the capture has a hole).
    pub untranslated: u64,
    /// What the guest's init and exec(2) cost before the command's own program began, in the order of
    /// [`Outcome::configs`]. In no other figure. None where the stream does not say where the program begins:
    /// of a generator, of an imported trace, of the boot, and of a recording made before 0.3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Vec<RegionTotal>>,
    /// Instructions of the program before the (first) region whose counts these are. None for a whole
    /// program, and for a region whose stream begins with it, and so with a cold VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before_region: Option<u64>,
    /// The regions one by one, if there was more than one. The other figures are those of all together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regions: Option<Regions>,
    /// What vCPUs at work at the same time cost each other. None for a guest of one vCPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub several: Option<Several>,
    /// The parts of a sampled stream; totals are then estimates. None if the stream is whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
}

/// What vCPUs at work at the same time cost each other, by the model of [`contention`](crate::contention). In
/// no other figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Several {
    /// How many vCPUs were at work on average, if all that worked did so at the same time: instructions of
    /// all over those of the busiest.
    pub at_work: f64,
    /// Of each configuration, in the order of [`Outcome::configs`].
    pub waits: Vec<LockWait>,
}

/// The lock of shadow work in one configuration; 0 in all modes but shadow paging.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockWait {
    /// Cycles for which a vCPU holds the lock, of all vCPUs together. They are part of `vmm_cycles`.
    pub locked_cycles: u64,
    /// Cycles for which vCPUs wait for the lock. They are part of no counter.
    pub wait_cycles: u64,
}

fn four_levels() -> u8 {
    4
}

fn is_four_levels(levels: &u8) -> bool {
    *levels == 4
}

/// The regions of a run that had several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Regions {
    /// How many there were.
    pub count: u64,
    /// Instructions between them, which are in no count.
    pub between_instructions: u64,
    /// The first [`MOST_REGIONS`](crate::MOST_REGIONS), in the order of time.
    pub rows: Vec<RegionOutcome>,
}

impl Regions {
    /// Regions that are part of the totals alone. Then the outcome has no timeline either: its one interval
    /// is the total.
    pub fn left_out(&self) -> u64 {
        self.count - self.rows.len() as u64
    }
}

/// One region.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RegionOutcome {
    /// Its number, counted from 1.
    pub number: u64,
    /// Instructions of the program since the end of the region before, or for the first since the start.
    pub before_instructions: u64,
    /// The region's counts, in the order of [`Outcome::configs`].
    pub configs: Vec<RegionTotal>,
}

/// The counts of a region, or of the guest's own start, in one configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RegionTotal {
    /// The configuration.
    #[serde(flatten)]
    pub config: Config,
    /// The counts.
    pub total: Sample,
}

/// One configuration's results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConfigOutcome {
    /// The configuration.
    #[serde(flatten)]
    pub config: Config,
    /// The whole run.
    pub total: Sample,
    /// Per interval; sums to `total`.
    pub intervals: Vec<Sample>,
    /// Per interval: entries used that existed before the interval, by age. Only timelines keep these.
    #[serde(skip)]
    pub reuse: Vec<Vec<Reuse>>,
    /// References by walk step: row = guest level (0 = the data's own nested walk),
    /// column = host level (0 = the guest table itself).
    pub refs: [[u64; 6]; 6],
    /// The accuracy of `total`, if the stream was sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    /// The accuracy of the cycles of walks and data, if only a sample of cache sets was simulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_error: Option<CacheError>,
    /// Local and remote references per placement, if they were counted separately.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placed: Vec<Placed>,
}

/// The parts of a sampled stream, in guest instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampling {
    /// Windows measured.
    pub windows: u64,
    /// Instructions in them.
    pub measured_instructions: u64,
    /// Instructions of the run's head, which is measured and represents nothing else.
    pub head_instructions: u64,
    /// Instructions before windows whose accesses were seen, but not measured.
    pub warm_up_instructions: u64,
    /// Instructions whose accesses were not seen.
    pub other_instructions: u64,
}

/// The two parts of a sampled run's extra cycles: those counted everywhere, and those estimated
/// from windows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Cycles of exits that are counted in windows and between them alike.
    pub exact_cycles: u64,
    /// Half the width of the 95 % interval around the configuration's extra cycles, in cycles;
    /// `None` with fewer than 3 windows.
    pub half_width_cycles: Option<f64>,
    /// The estimated cycles per instruction.
    pub per_instruction: Mean,
}

impl Outcome {
    /// Whether the intervals are a timeline: those of a sampled run, and of one of too many regions, are not.
    pub fn has_timeline(&self) -> bool {
        self.sampling.is_none() && self.regions.as_ref().is_none_or(|r| r.left_out() == 0)
    }

    /// Cycles of the ideal run: instructions times the base CPI, and the waits for data that the core
    /// does not hide.
    pub fn ideal_cycles(&self) -> f64 {
        self.configs.first().map_or(0.0, |c| c.total.ideal_cycles(self.base_cpi))
    }

    /// `cycles` as a percentage of the ideal run at `cpi_factor` times the assumed CPI.
    pub fn percent(&self, cycles: u64, cpi_factor: f64) -> f64 {
        let ideal = self.ideal_cycles() * cpi_factor;
        if ideal == 0.0 { 0.0 } else { 100.0 * cycles as f64 / ideal }
    }
}
