// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One run: events from a source go through the model and become a comparison. `compare`, `record` and
//! `diff` make runs.
//!
//! A run that is stopped or fails half-way has its figures until then, marked as partial. A damaged recording
//! has no figures, because a reader would take them for the whole recording's.

mod args;
pub mod machine;
mod pace;
pub mod policies;
pub mod source;

pub use args::{ModelArgs, PROFILE_VARIABLE, ProfileArg, configs};

use crate::console::{Progress, note, note_file};
use crate::status::Status;
use crate::usage::UsageError;
use bifold_attribute::{Attribution, View};
use bifold_guest::{GuestError, Written};
use bifold_mmu::Format;
use bifold_model::{
    CacheMode, Config, Frames, Looked, MOST_REGIONS, Model, Options, Outcome, PlacementOptions, Profile,
    Swaps, UseOptions, VmState, format_of,
};
use bifold_policy::Timeline;
use bifold_policy::replay_check::OnLine;
use bifold_reclaim::{MemoryUse, Setting};
use bifold_report::{Comparison, MemoryNeeds, Meta, Partial, Places, grouped};
use bifold_trace::file::{Header, Writer};
use bifold_trace::{CommandExit, Granularity, Thin, Windows};
use source::{EventSource, Feed, Length, Until};
use std::fs::File;
use std::io::IsTerminal as _;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

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

/// Makes the plan's run once. `part` says which of several runs it is, for the progress line.
///
/// # Errors
/// If there are no figures to show. Later errors are in [`Carried::failure`].
pub fn carry_out(plan: &mut Plan, part: &str, stop: &AtomicBool) -> anyhow::Result<Carried> {
    let mut header = plan.source.header();
    if header.granularity == Granularity::Page && plan.caches != CacheMode::Off {
        let problem = "needs lines, and this recording is compact: its loads have pages. Add --caches off, or record without --compact";
        return Err(UsageError::conflict("--caches", problem).into());
    }
    header.source.sample = plan.sample.or(header.source.sample);
    let options = Options {
        seed: plan.seed,
        host_frames: plan.host_frames,
        vm: plan.vm,
        interval_seconds: plan.interval_seconds.unwrap_or(Options::default().interval_seconds),
        configs: plan.configs.clone(),
        guest_frames: header.guest_frames,
        vcpus: header.vcpus as usize,
        guest_format: format_of(header.guest_tables),
        nested_format: plan.nested_format,
        caches: plan.caches,
        placed: plan.placed.clone(),
        windows: header.source.sample,
    };
    if let Some(config) = options.configs.iter().find(|c| !c.mode.serves(options.guest_format)) {
        let name = config.name();
        anyhow::bail!(
            "{name} is for guests in 64-bit mode, and this one is in 32-bit mode: leave {name} out of --configs"
        );
    }
    let recorded = Header { granularity: plan.granularity, ..header.clone() };
    let writer = plan.record.as_deref().map(|p| Writer::create(p, &recorded)).transpose()?;
    let interval_s = options.interval_seconds;
    let places = plan.places.as_ref().map(|_| Attribution::new(&options.configs));
    let limited = |host: &Host| {
        let mut model = Model::new(&plan.profile, options.clone());
        match *host {
            Host::Limited(frames) => model.limit_hosts(frames),
            Host::Reported => model.report_free(),
        }
        model
    };
    let limited: Vec<Model> = plan.hosts.iter().map(limited).collect();
    let mut model = Model::new(&plan.profile, options);
    if places.is_some() {
        model.charge(plan.places.is_some_and(|p| p.stacks));
    }
    if let Some(memory) = &plan.memory {
        model.watch_uses(memory.options(&plan.profile))?;
    }
    for on_line in &plan.on_line {
        on_line.attach(&mut model, &plan.profile, interval_s, plan.time_scale);
    }
    let phase = plan.source.phase();
    let progress = Progress::start(plan.notes.progress, phase).prefix(part);
    let started = Instant::now();
    let thin = plan.thin.map(|windows| Thin::new(windows).of(header.guest_tables));
    let (phase, length) = ((phase, started), Length::Unknown);
    let mut feed = Feed {
        model,
        limited,
        places,
        thin,
        writer,
        unwritten: None,
        progress,
        phase,
        length,
        notes: plan.notes.notes,
        until: plan.until.zip(plan.source.enough()).map(|(percent, enough)| Until::new(percent, enough)),
    };
    let mut ending = plan.source.run(&mut feed, stop);
    feed.progress.end();
    let (instructions, accesses) =
        (feed.model.instructions() as f64 / 1e6, feed.model.accesses() as f64 / 1e6);
    let seconds = started.elapsed().as_secs_f64();
    note(
        plan.notes.verbose,
        format_args!(
            "{instructions:.1} million instructions and {accesses:.1} million accesses in {seconds:.1} s"
        ),
    );

    let unbegun = plan.source.live() && !feed.model.program_begun();
    let nothing =
        unbegun || feed.model.instructions() == 0 || ending.failure.as_ref().is_some_and(not_started);
    let hidden = !plan.source.shows_what_it_has();
    if let Some(e) = ending.failure.take_if(|_| nothing || hidden) {
        return Err(e);
    }
    let later = bifold_trace::region_begins_later(header.source.region.as_deref());
    if unbegun && ending.exit == Some(CommandExit::Interrupted) {
        return Err(GuestError::InterruptedEarly.into());
    }
    if unbegun {
        anyhow::bail!("nothing was recorded: the command was stopped before its program began");
    }
    if plan.source.live() && later && feed.model.before_region().is_none() {
        anyhow::bail!("nothing was recorded: the command was stopped before its region began");
    }
    if let (Some(writer), Some(path)) = (feed.writer, &plan.record) {
        match writer.finish(&source::trailer(&ending)) {
            Ok(()) => note_file(plan.notes.notes, "events", path),
            Err(e) => feed.unwritten = Some(e),
        }
    }
    ending.failure = ending.failure.or(feed.unwritten.map(anyhow::Error::from));
    let meta = Meta {
        bifold: bifold_base::version().into(),
        input: plan.source.input(),
        guest: source::describe(&header, &ending),
        exit: ending.exit,
        partial: ending.partial,
        capture_checks: ending.stats,
        clock: ending.clock,
        hardware: plan.profile.clone(),
    };
    let (written, kept, short_of_memory) = (ending.written, ending.kept, ending.short_of_memory);
    let progress = Progress::start(plan.notes.progress, pace::REPORT).prefix(part);
    let window_scale = feed.model.window_scale();
    let uses = feed.model.take_uses();
    let looked = feed.model.looked().to_vec();
    let outcome = feed.model.finish();
    let paged = |model: Model| {
        let hosts = 0..plan.configs.len();
        let swaps = hosts.clone().map(|host| (model.swaps(host), model.split_pages(host))).collect();
        let dropped = hosts.map(|host| model.dropped(host)).collect();
        Limited { swaps, dropped, looked: model.looked().to_vec(), outcome: model.finish() }
    };
    let limited = feed.limited.into_iter().map(paged).collect();
    let memory = uses
        .as_ref()
        .zip(plan.memory.as_ref())
        .map(|(uses, m)| MemoryNeeds::of(&outcome, uses, &m.sizes, m.refault_s).with_looks(&looked));
    let cut = uses.as_ref().is_some_and(MemoryUse::is_optimum_cut);
    let places = feed
        .places
        .zip(plan.places)
        .map(|(p, shown)| Places::new(p.finish(window_scale), shown.view, shown.config));
    progress.end();
    if cut {
        let text = "the fewest refaults are unknown: the run has more references than are kept for them";
        note(plan.notes.notes, text);
    }
    Ok(Carried {
        meta,
        outcome,
        places,
        memory,
        uses,
        looked,
        limited,
        written,
        kept,
        short_of_memory,
        failure: ending.failure,
    })
}

/// Whether the guest did not start the command, so that all events are the guest's own, or the command did
/// not come to its region.
fn not_started(e: &anyhow::Error) -> bool {
    use GuestError::{NotStarted, RegionMissed, WorkingDirectory};
    matches!(e.downcast_ref(), Some(NotStarted(_) | WorkingDirectory(_) | RegionMissed { .. }))
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
        Some(exit)
            if live
                && !matches!(
                    exit,
                    CommandExit::Code(0) | CommandExit::AfterRegion | CommandExit::AccurateEnough
                ) =>
        {
            Status::OfCommand(exit)
        }
        _ if comparison.meta.partial == Some(Partial::Interrupted) => {
            Status::OfCommand(CommandExit::Interrupted)
        }
        _ if comparison.checks().1 > 0 => Status::CheckFailed,
        _ if comparison.policies.iter().flat_map(|p| &p.checks).any(|c| !c.passed()) => Status::CheckFailed,
        _ if comparison.baseline.as_ref().is_some_and(|judged| judged.is_worse()) => Status::Worse,
        _ => Status::Done,
    }
}
