// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One run: events from a source go through the model and become a comparison. `compare`, `record` and
//! `diff` make runs.
//!
//! A run that is stopped or fails half-way has its figures until then, marked as partial. A damaged recording
//! has no figures, because a reader would take them for the whole recording's.

mod args;
mod carry;
pub mod machine;
mod pace;
pub mod policies;
pub mod source;

pub use args::{ModelArgs, PROFILE_VARIABLE, ProfileArg, configs};
pub use carry::carry_out;

use crate::status::Status;
use bifold_attribute::View;
use bifold_guest::Written;
use bifold_mmu::Format;
use bifold_model::{
    CacheMode, Config, Frames, Looked, MOST_REGIONS, Outcome, PlacementOptions, Profile, Swaps, UseOptions,
    VmState,
};
use bifold_policy::Timeline;
use bifold_policy::replay_check::OnLine;
use bifold_reclaim::{MemoryUse, Setting};
use bifold_report::{Comparison, MemoryNeeds, Meta, Partial, Places, grouped};
use bifold_trace::{CommandExit, Granularity, Windows};
use source::EventSource;
use std::fs::File;
use std::io::IsTerminal as _;
use std::num::NonZeroU64;
use std::path::PathBuf;

/// The plan of a run.
pub struct Plan {
    /// The source of events.
    pub source: Box<dyn EventSource>,
    /// The hardware profile.
    pub profile: Profile,
    /// Configurations to model, in the order of [`Config::ALL`].
    pub configs: Vec<Config>,
    /// Seed of the host frames' placement.
    pub seed: u64,
    /// How long the host has run.
    pub host_frames: Frames,
    /// What the host holds of the guest's memory at the start.
    pub vm: VmState,
    /// The format of nested tables.
    pub nested_format: &'static Format,
    /// Length of an interval in seconds; none for the default.
    pub interval_seconds: Option<f64>,
    /// Which lines go through data caches.
    pub caches: CacheMode,
    /// Seconds of a policy per second of the run.
    pub time_scale: f64,
    /// VMs that policies switch during the run.
    pub on_line: Vec<OnLine>,
    /// File for a recording of the events.
    pub record: Option<PathBuf>,
    /// Whether that recording is compact.
    pub granularity: Granularity,
    /// What is shown of costs by place (`--where`); none without them.
    pub places: Option<Shown>,
    /// Windows of a sampled run.
    pub sample: Option<Windows>,
    /// Windows to which a whole run's events are thinned.
    pub thin: Option<Windows>,
    /// Half-width of every configuration's interval, in percent of its overhead, at which a sampled run ends.
    pub until: Option<f64>,
    /// The placements for which local and remote references are counted; none without them.
    pub placed: Option<PlacementOptions>,
    /// What is shown of the use of memory; none without it.
    pub memory: Option<Memory>,
    /// Hosts that take memory back, in models of their own.
    pub hosts: Vec<Host>,
    /// The notes to print on stderr.
    pub notes: Notes,
}

/// How a host takes memory back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// Pages out above so many frames.
    Limited(u64),
    /// Drops what the guest reports as free.
    Reported,
}

/// What is shown of the use of memory.
#[derive(Debug, Clone)]
pub struct Memory {
    /// Sizes of memory, in frames; none for those that suit the run.
    pub sizes: Vec<u64>,
    /// Length of an interval in seconds of the ideal run.
    pub interval_seconds: f64,
    /// Seconds that the guest waits for a refault.
    pub refault_s: f64,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { sizes: Vec::new(), interval_seconds: 0.1, refault_s: Setting::NVME_S }
    }
}

impl Memory {
    /// The most references of which the fewest refaults are made: 1 GiB.
    const MOST_KEPT: u64 = 1 << 28;

    fn options(&self, profile: &Profile) -> UseOptions {
        let per_second = profile.cpu.frequency_hz as f64 / profile.cpu.base_cpi;
        let interval = NonZeroU64::new((self.interval_seconds * per_second) as u64);
        UseOptions { interval: interval.unwrap_or(NonZeroU64::MIN), optimum: Self::MOST_KEPT }
    }
}

/// What is shown of costs by place.
#[derive(Debug, Clone, Copy)]
pub struct Shown {
    /// By the code that ran, or by the code that caused the cost.
    pub view: View,
    /// Whether graphs have the functions that called.
    pub stacks: bool,
    /// The configuration; none for the one that the verdict keeps.
    pub config: Option<Config>,
}

/// The kinds of notes that stderr gets.
#[derive(Debug, Clone, Copy)]
pub struct Notes {
    /// A progress line.
    pub progress: bool,
    /// Notes on results and files.
    pub notes: bool,
    /// Notes on the run's speed.
    pub verbose: bool,
}

impl Notes {
    /// The notes under `--quiet` and `--verbose`.
    pub fn new(quiet: bool, verbose: bool) -> Notes {
        Notes { progress: !quiet && std::io::stderr().is_terminal(), notes: !quiet, verbose }
    }
}

impl Plan {
    /// A plan that only models a source under a profile.
    pub fn new(
        source: Box<dyn EventSource>,
        profile: Profile,
        model: &ModelArgs,
        notes: Notes,
    ) -> anyhow::Result<Plan> {
        let sample = source.header().source.sample;
        Ok(Plan {
            configs: model.configs(&profile)?,
            source,
            profile,
            seed: model.seed,
            host_frames: model.host_frames.into(),
            vm: model.vm,
            nested_format: model.nested_format(),
            interval_seconds: model.interval,
            caches: model.caches.into(),
            time_scale: bifold_policy::timeline::TIME_SCALE,
            on_line: Vec::new(),
            record: None,
            granularity: Granularity::Byte,
            places: None,
            sample,
            thin: None,
            until: None,
            placed: None,
            memory: None,
            hosts: Vec::new(),
            notes,
        })
    }
}

/// A run whose hosts took memory back.
pub struct Limited {
    /// By configuration: swap operations, and large pages that were split.
    pub swaps: Vec<(Swaps, u64)>,
    /// By configuration, frames dropped.
    pub dropped: Vec<u64>,
    /// What the looks at the guest's memory saw.
    pub looked: Vec<Looked>,
    /// The model's results.
    pub outcome: Outcome,
}

/// The results of one run.
pub struct Carried {
    /// The source of the run, and its end.
    meta: Meta,
    /// The model's results.
    outcome: Outcome,
    /// Costs by place, with `--where`.
    places: Option<Places>,
    /// How much memory the guest needs, if that was watched.
    memory: Option<MemoryNeeds>,
    /// What the guest used of its memory, if that was watched.
    pub uses: Option<MemoryUse>,
    /// What the looks at the guest's memory saw, where no host takes any back.
    pub looked: Vec<Looked>,
    /// The runs whose hosts took memory back, in the order of [`Plan::hosts`].
    pub limited: Vec<Limited>,
    /// Number and size of the files that the command wrote.
    pub written: Option<Written>,
    /// An archive of the files that the command wrote, with `--keep`.
    pub kept: Option<File>,
    /// What the command said of a lack of memory.
    pub short_of_memory: Option<String>,
    /// An error after the run had figures to show.
    pub failure: Option<anyhow::Error>,
}

impl Carried {
    /// The run without policies.
    pub fn plain(self) -> Comparison {
        Comparison {
            meta: self.meta,
            outcome: self.outcome,
            policies: None,
            places: self.places,
            memory: self.memory,
            baseline: None,
        }
    }

    /// Why the run has no timeline; none if it has one.
    pub fn no_timeline(&self) -> Option<String> {
        if self.outcome.sampling.is_some() {
            return Some("a sampled run has none".into());
        }
        let none = !self.outcome.has_timeline();
        none.then(|| format!("a run of more than {} regions has none", grouped(MOST_REGIONS as u64)))
    }

    /// The run's own timeline.
    pub fn timeline(&self, plan: &Plan) -> Timeline {
        let guest = self.meta.guest.as_ref().map(|g| g.describe()).unwrap_or_default();
        let mut own = Timeline::of(&self.outcome, &plan.profile, self.meta.what(), guest);
        // A later check of the file repeats the decisions and needs their time scale.
        own.about.time_scale = (!plan.on_line.is_empty()).then_some(plan.time_scale);
        own
    }
}

/// The exit status of a run: that of a command that ran now, or else that of the checks.
pub fn status(live: bool, comparison: &Comparison) -> Status {
    match comparison.meta.exit {
        Some(exit) if live && !exit.is_success() => Status::OfCommand(exit),
        _ if comparison.meta.partial == Some(Partial::Interrupted) => {
            Status::OfCommand(CommandExit::Interrupted)
        }
        _ if comparison.checks().1 > 0 => Status::CheckFailed,
        _ if comparison.policies.iter().flat_map(|p| &p.checks).any(|c| !c.passed()) => Status::CheckFailed,
        _ if comparison.baseline.as_ref().is_some_and(|judged| judged.is_worse()) => Status::Worse,
        _ => Status::Done,
    }
}
