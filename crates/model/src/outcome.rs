// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The outcome of a run of the model: totals and timeline per configuration. Reports and policies
//! read it.

use crate::ages::Reuse;
use crate::cache::{CacheError, CacheFacts};
use crate::host::Frames;
use crate::placement::{Placed, PlacedFacts};
use crate::{Config, Mean, Sample, SwitchedOutcome, VmState};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Totals and timeline of every configuration over one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// Name of the hardware profile.
    pub profile: String,
    /// Core frequency. Unit: Hz.
    pub frequency_hz: u64,
    /// Cycles per instruction assumed for the ideal run, waits for data left out.
    pub base_cpi: f64,
    /// How data caches were simulated; absent without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caches: Option<CacheFacts>,
    /// Host and guest of the placements; absent without `--placement`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed: Option<PlacedFacts>,
    /// Seed of the host frames' placement.
    pub seed: u64,
    /// How long the host has run, which decides how its frames lie.
    #[serde(default)]
    pub host_frames: Frames,
    /// State of the VM when the program begins: the host has backed and mapped all of the guest's memory, or
    /// nothing, or the memory comes from a snapshot.
    #[serde(default = "VmState::of_older", alias = "backed")]
    pub vm: VmState,
    /// Levels of nested tables; absent for 4.
    #[serde(default = "four_levels", skip_serializing_if = "is_four_levels")]
    pub nested_levels: u8,
    /// XXH3-64 of the profile as resolved, overrides included.
    pub config_hash: String,
    /// XXH3-64 of the events consumed.
    pub input_hash: String,
    /// Guest frames of 4 KB known to the model.
    pub guest_frames: u64,
    /// Number of vCPUs seen.
    pub vcpus: u64,
    /// Nominal length of an interval in ideal cycles.
    pub interval_cycles: u64,
    /// The configurations modelled.
    #[schemars(skip)]
    pub configs: Vec<ConfigOutcome>,
    /// VMs that switched while they ran, in the order in which they were asked for.
    #[serde(skip)]
    pub switched: Vec<SwitchedOutcome>,
    /// Start of every interval, in ideal cycles since the start.
    pub interval_starts: Vec<u64>,
    /// Walks over the replayed guest tables compared with the captured address.
    pub walk_checks: u64,
    /// Those of them that disagreed.
    pub walk_mismatches: u64,
    /// Accesses that the replayed guest tables did not translate.
    pub untranslated: u64,
    /// What the guest's init and exec cost before the command's own program began, in the order of
    /// `outcome.configs`. In no other figure. Absent where the events do not say where the program begins: of
    /// a generator, of an imported trace, and of older recordings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub start: Option<Vec<RegionTotal>>,
    /// Instructions of the command before the first region; absent for a whole command, and for a region that
    /// a cold VM began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before_region: Option<u64>,
    /// The regions of a run that had several, one by one; absent otherwise. All other figures are those of
    /// all regions together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub regions: Option<Regions>,
    /// What vCPUs at work at the same time cost each other, by a fitted model; in no other figure, and absent
    /// for a guest of one vCPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub several: Option<Several>,
    /// What a sampled stream consisted of, in guest instructions; absent where all was recorded. Totals are
    /// estimates then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
}

/// What vCPUs at work at the same time cost each other, by the model of [`contention`](crate::contention). In
/// no other figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Several {
    /// How many vCPUs were at work on average, if all that worked did so at the same time.
    pub at_work: f64,
    /// The lock of shadow work, in the order of `outcome.configs`.
    pub waits: Vec<LockWait>,
}

/// The lock of shadow work in one configuration; 0 in all modes but shadow paging.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LockWait {
    /// Cycles for which a vCPU holds the lock, of all vCPUs together; part of `vmm_cycles`.
    pub locked_cycles: u64,
    /// Cycles for which vCPUs wait for the lock; part of no counter.
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
    /// Instructions between regions, which are in no count.
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
    /// The region's number, counted from 1.
    pub number: u64,
    /// Instructions of the command since the end of the region before, or for the first since its start.
    pub before_instructions: u64,
    /// The region in each configuration, in the order of `outcome.configs`.
    pub configs: Vec<RegionTotal>,
}

/// The counts of a region, or of the guest's own start, in one configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RegionTotal {
    /// The configuration.
    #[serde(flatten)]
    pub config: Config,
    /// The counts. Those of all regions sum to the configuration's `total`.
    pub total: Sample,
}

/// One configuration's results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigOutcome {
    /// The configuration.
    #[serde(flatten)]
    pub config: Config,
    /// The whole run.
    pub total: Sample,
    /// Per interval, as outcome.interval_starts; sums to total.
    pub intervals: Vec<Sample>,
    /// Per interval: entries used that existed before the interval, by age. Only timelines keep these.
    #[serde(skip)]
    pub reuse: Vec<Vec<Reuse>>,
    /// References by walk step: row = guest level (0 = the data's own nested walk),
    /// column = host level (0 = the guest table itself).
    pub refs: [[u64; 6]; 6],
    /// How good the total is where the stream was sampled; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    /// How good the cycles of walks and data are with data caches; absent without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_error: Option<CacheError>,
    /// Local and remote references, by placement; absent without `--placement`, and for native paging if the
    /// guest has several vCPUs and knows no nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placed: Vec<Placed>,
}

/// The parts of a sampled stream, in guest instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sampling {
    /// How many windows were measured.
    pub windows: u64,
    /// Instructions of the windows.
    pub measured_instructions: u64,
    /// Instructions of the head, which stands for itself.
    pub head_instructions: u64,
    /// Instructions of the warm-ups before the windows, which are not measured.
    pub warm_up_instructions: u64,
    /// Instructions of the gaps, whose accesses were not recorded.
    pub other_instructions: u64,
}

/// The two parts of a sampled run's extra cycles: those counted everywhere, and those estimated
/// from windows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Estimate {
    /// Cycles that were counted, not estimated.
    pub exact_cycles: u64,
    /// Half the width of the 95 % interval around walk_cycles + vmm_cycles; null with fewer than 3 windows.
    pub half_width_cycles: Option<f64>,
    /// Estimated cycles per instruction over windows.
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
