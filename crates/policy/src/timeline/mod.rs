// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Timelines: what one program would have cost in each mode, interval by interval, and the ages of the table
//! entries that it used. A replay of a policy needs nothing else of a capture.

mod file;

pub use file::{Document, SCHEMA, TimelineError};

use crate::PerMode;
use bifold_mmu::PageSize;
use bifold_model::ages::Reuse;
use bifold_model::{ConfigOutcome, Outcome, Profile, Sample, SwitchedOutcome, VmState};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Default number of seconds of a policy per second of the run. Published policies decide every 1 to 5 s, so
/// that a run of 2 s has up to 200 decisions.
pub const TIME_SCALE: f64 = 100.0;

/// What one run cost in each mode over time.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// The program and the machine.
    pub about: About,
    /// Costs of switches and of cold entries.
    pub costs: SwitchCosts,
    /// The runs in the modes, per host page size.
    pub pages: Vec<Runs>,
    /// VMs that really switched during the run.
    pub switched: Vec<SwitchedOutcome>,
}

/// The program of a timeline, and the machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// The command, or the generator's name.
    pub program: String,
    /// The guest, in words; empty for a generator.
    pub guest: String,
    /// Version of Bifold that made the timeline.
    pub bifold: String,
    /// Name of the hardware profile.
    pub profile: String,
    /// XXH3-64 of the profile as resolved, hexadecimal.
    pub config_hash: String,
    /// XXH3-64 of the events, hexadecimal.
    pub input_hash: String,
    /// Core frequency. Unit: Hz.
    pub frequency_hz: u64,
    /// Cycles per instruction assumed for the ideal run.
    pub base_cpi: f64,
    /// Number of vCPUs.
    pub vcpus: u64,
    /// The guest's memory. Unit: frames of 4 KB.
    pub guest_frames: u64,
    /// State of the VM at the start: what the host held of its memory. Older files have no state: their VMs
    /// had just started.
    #[serde(default = "VmState::of_older")]
    pub vm: VmState,
    /// Nominal length of an interval. Unit: cycles of the ideal run.
    pub interval_cycles: u64,
    /// Seconds of a policy per second of the run, for the VMs that switched during the capture; absent
    /// without such VMs, and from older files, which were captured with 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_scale: Option<f64>,
}

/// The profile's costs of a switch and of what follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchCosts {
    /// Stopping and starting all vCPUs. Unit: cycles.
    pub switch: u64,
    /// Filling one block of shadow entries. Unit: cycles.
    pub hidden_fault: u64,
    /// Filling one nested entry. Unit: cycles.
    pub violation: u64,
    /// Making one shadow page. Unit: cycles.
    pub make_page: u64,
    /// Dropping one table. Unit: cycles.
    pub zap_page: u64,
}

/// The runs in the modes over host pages of one size.
#[derive(Debug, Clone, PartialEq)]
pub struct Runs {
    /// Size of the host's pages.
    pub host_page: PageSize,
    /// The runs in shadow and nested mode, and in the other modes that were recorded.
    pub modes: PerMode<StaticRun>,
}

impl Runs {
    /// Whether there are the modes that KVM switches between, which most policies decide between.
    fn has_both(&self) -> bool {
        bifold_mmu::Mode::BOTH.into_iter().all(|mode| self.modes.get(mode.into()).is_some())
    }
}

/// A run of a VM that stays in one mode.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StaticRun {
    /// One sample per interval.
    pub samples: Vec<Sample>,
    /// The entries that each interval used and that existed before, by age.
    pub reuse: Vec<Vec<Reuse>>,
}

impl Timeline {
    /// The timeline of a run of the model: of the modes that a hypervisor can switch to. Page sizes of which
    /// shadow or nested mode was not modelled are left out.
    pub fn of(outcome: &Outcome, profile: &Profile, program: String, guest: String) -> Timeline {
        let run = |c: &ConfigOutcome| {
            // A timeline has ages instead of cold starts.
            let plain = |s: &Sample| Sample { cold_exits: 0, cold_cycles: 0, ..*s };
            let reuse = c.reuse.iter().cloned().chain(std::iter::repeat(Vec::new()));
            StaticRun {
                samples: c.intervals.iter().map(plain).collect(),
                reuse: reuse.take(c.intervals.len()).collect(),
            }
        };
        let runs = |host_page| {
            let here = |c: &&ConfigOutcome| c.config.host_page == host_page && c.config.mode.is_entered();
            let modes = outcome.configs.iter().filter(here).map(|c| (c.config.mode, run(c))).collect();
            let runs = Runs { host_page, modes };
            runs.has_both().then_some(runs)
        };
        Timeline {
            about: About {
                program,
                guest,
                bifold: bifold_base::version().into(),
                profile: outcome.profile.clone(),
                config_hash: outcome.config_hash.clone(),
                input_hash: outcome.input_hash.clone(),
                frequency_hz: outcome.frequency_hz,
                base_cpi: outcome.base_cpi,
                vcpus: outcome.vcpus,
                guest_frames: outcome.guest_frames,
                vm: outcome.vm,
                interval_cycles: outcome.interval_cycles,
                time_scale: None,
            },
            costs: SwitchCosts {
                switch: profile.exit.switch.cycles,
                hidden_fault: profile.exit.hidden_fault.cycles,
                violation: profile.exit.violation.cycles,
                make_page: profile.exit.make_page.cycles,
                zap_page: profile.exit.zap_page.cycles,
            },
            pages: [PageSize::Size4K, PageSize::Size2M].into_iter().filter_map(runs).collect(),
            switched: outcome.switched.clone(),
        }
    }

    /// Number of intervals.
    pub fn intervals(&self) -> usize {
        self.pages.first().and_then(|p| p.modes.values().next()).map_or(0, |run| run.samples.len())
    }

    /// Nominal length of an interval in seconds of the profile's clock.
    pub fn interval_s(&self) -> f64 {
        self.about.interval_cycles as f64 / self.about.frequency_hz as f64
    }

    /// The runs over host pages of this size.
    pub fn runs(&self, host_page: PageSize) -> Option<&PerMode<StaticRun>> {
        self.pages.iter().find(|p| p.host_page == host_page).map(|p| &p.modes)
    }
}
