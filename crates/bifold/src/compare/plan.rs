// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes a plan from the options of `compare` and `record`. Finds every usage error before anything runs.

use super::args::{CommonArgs, CompareArgs, CountArg, OutputArgs, PolicyArgs, RecordArgs, ShowArg};
use super::baseline::{Against, BaselineArgs};
use super::output::Output;
use super::placement::PlacementArgs;
use super::source::{Source, source};
use crate::console::{distinct, named, not_stdout};
use crate::run::source::EventSource;
use crate::run::{self, ModelArgs, Notes, Shown};
use crate::usage::UsageError;
use bifold_attribute::{Metric, View};
use bifold_model::{ChosenBy, Config, Paging, Profile, VmState};
use bifold_policy::replay_check::OnLine;
use bifold_report::{Baseline, Format, Show};
use bifold_trace::{Granularity, Windows};
use std::path::{Path, PathBuf};

/// A run, the number of its repetitions, and its outputs.
pub struct Plan {
    /// The run.
    pub run: run::Plan,
    /// Number of times that the run is made.
    pub runs: usize,
    /// Format of the data.
    pub format: Format,
    /// Further parts of the table.
    pub show: Show,
    /// File for the data instead of stdout.
    pub output: Option<PathBuf>,
    /// Files beside the data.
    pub outputs: Vec<(Output, PathBuf)>,
    /// The count in the stacks.
    pub count: Metric,
    /// Directory for the files that the command writes.
    pub keep: Option<PathBuf>,
    /// What the run's counts are judged by.
    pub against: Option<Against>,
}

impl Plan {
    /// Whether this file is to be written.
    pub fn writes(&self, output: Output) -> bool {
        self.outputs.iter().any(|(one, _)| *one == output)
    }

    /// Whether policies are replayed over the run. Replays over hundreds of intervals take some tenths of a
    /// second, so they are made only if their result is shown.
    pub fn needs_policies(&self) -> bool {
        let shown = match self.format {
            Format::Table => self.show.policies,
            Format::Json | Format::Jsonl => true,
            Format::Csv => false,
        };
        shown || self.writes(Output::Report) || !self.run.on_line.is_empty()
    }

    /// Whether the run's timeline is needed, for its file or for policies.
    pub fn needs_timeline(&self) -> bool {
        self.writes(Output::Timeline) || self.needs_policies()
    }
}

/// The plan of `compare`.
pub fn compare(args: CompareArgs) -> anyhow::Result<Plan> {
    let CompareArgs { file, output, common, runs, baseline } = args;
    distinct_files(file.as_deref(), output.as_deref(), &common, Some(&baseline))?;
    let problem = "needs a command: a recording and a generator give the same figures each time";
    UsageError::conflict_if(runs.is_some() && common.program.command.is_empty(), "--runs", problem)?;
    let runs = runs.unwrap_or(1) as usize;
    let problem = "is shown for one run: leave out --runs";
    UsageError::conflict_if(runs > 1 && !common.placement.placement.is_empty(), "--placement", problem)?;
    UsageError::conflict_if(runs > 1 && common.show.memory_use, "--memory-use", problem)?;
    let outputs = files(&common.show, Some(&baseline));
    if let Some((one, _)) = outputs.iter().find(|(one, _)| runs > 1 && one.holds_one_run()) {
        return Err(UsageError::conflict(one.names().0, "holds one run: leave out --runs").into());
    }
    let sample = common.guest.region.windows(common.model.seed);
    baseline.check(runs, common.guest.fast, sample)?;
    let before = baseline.read()?;
    let plan = plan(common, Source::OfReader("compare", file), None, before.as_ref())?;
    // A recording has its own timing and windows.
    let source = plan.run.source.header().source;
    baseline.check(runs, source.timing.as_deref() == Some("fast"), source.sample)?;
    let against = before.map(|before| baseline.against(before, &plan.run)).transpose()?;
    Ok(Plan { output, outputs, runs, against, ..plan })
}

/// The plan of `record`.
pub fn record(args: RecordArgs) -> anyhow::Result<Plan> {
    if not_stdout(Some(&args.output)).is_none() {
        return Err(UsageError::value("--output -", "a recording needs a file").into());
    }
    distinct_files(None, Some(&args.output), &args.common, None)?;
    let mut plan = plan(args.common, Source::OfRecord, Some(args.output), None)?;
    plan.run.granularity = if args.compact { Granularity::Page } else { Granularity::Byte };
    Ok(plan)
}

/// Refuses an output that is also an input, or another output.
fn distinct_files(
    recording: Option<&Path>,
    output: Option<&Path>,
    common: &CommonArgs,
    baseline: Option<&BaselineArgs>,
) -> Result<(), UsageError> {
    let inputs = [
        ("the recording", recording),
        ("the baseline", baseline.and_then(|b| b.baseline.as_deref())),
        ("the profile", common.model.named.file()),
        ("the kernel", common.guest.kernel.as_deref()),
    ];
    let files = files(&common.show, baseline);
    let mut outputs = named([("--output", output)]);
    outputs.extend(files.iter().map(|(one, path)| (one.names().0, path.as_path())));
    distinct(&named(inputs), &outputs)
}

/// The files beside the data.
fn files(show: &OutputArgs, baseline: Option<&BaselineArgs>) -> Vec<(Output, PathBuf)> {
    let named = |one: Output| Some((one, one.path(show, baseline)?.to_owned()));
    Output::ALL.into_iter().filter_map(named).collect()
}

/// The plan of a source's run: what is modelled, sampled and checked.
fn events(
    source: Box<dyn EventSource>,
    profile: Profile,
    sample: Option<Windows>,
    model: &ModelArgs,
    policies: PolicyArgs,
    show: &OutputArgs,
) -> anyhow::Result<run::Plan> {
    let mut plan = run::Plan::new(source, profile, model, Notes::new(show.quiet, show.verbose))?;
    plan.on_line = on_line(&policies.check)?;
    plan.time_scale = policies.time_scale.unwrap_or(plan.time_scale);
    // A guest records only its windows itself. Other sources are thinned to theirs.
    let problem = "cannot thin this recording: it is of a sampled run already";
    let given = plan.sample.is_some() && sample.is_some() && !plan.source.live();
    UsageError::conflict_if(given, "--sample", problem)?;
    let region = plan.source.header().source.region;
    let problem = "is for one region, and this recording may have several: record with --regions 1";
    let given = sample.is_some() && !plan.source.live() && bifold_trace::several_regions(region.as_deref());
    UsageError::conflict_if(given, "--sample", problem)?;
    plan.thin = sample.filter(|_| !plan.source.live());
    plan.sample = sample.or(plan.sample);
    if let (true, Some(config)) =
        (plan.sample.is_some(), plan.configs.iter().find(|c| c.mode == Paging::Agile))
    {
        let problem =
            format!("{} decides at the ends of intervals, and a sampled run has none", config.name());
        return Err(UsageError::conflict("--configs", problem).into());
    }
    if let (true, Some(config)) = (plan.sample.is_some(), plan.configs.iter().find(|c| c.mode.has_outer())) {
        let problem = format!(
            "{} has exits to two hypervisors, which windows do not tell apart: leave out --sample",
            config.name()
        );
        return Err(UsageError::conflict("--configs", problem).into());
    }
    let problem = "has a row for each interval, and a sampled run has none: leave out --sample";
    UsageError::conflict_if(show.trace.is_some() && plan.sample.is_some(), "--trace", problem)?;
    let needs_timeline = [(!plan.on_line.is_empty(), "--check"), (show.timeline.is_some(), "--timeline")];
    if let Some((_, option)) = needs_timeline.into_iter().find(|(given, _)| *given) {
        let problem = "needs a timeline, and a sampled run has none";
        UsageError::conflict_if(plan.sample.is_some(), option, problem)?;
        both_modes(option, &plan.configs)?;
    }
    plan.places = places(show, &plan.configs, &mut *plan.source)?;
    plan.memory = memory(show, &plan)?;
    let problem = "follows every call, and a sampled run has only some: leave out --sample";
    let given = plan.sample.is_some() && plan.places.is_some_and(|p| p.stacks);
    UsageError::conflict_if(given, "--where=stacks", problem)?;
    Ok(plan)
}

/// The VMs that the policies of `--check` switch.
fn on_line(check: &[String]) -> Result<Vec<OnLine>, UsageError> {
    let parse = |text: &String| {
        OnLine::parse(text).map_err(|e| UsageError::value(format!("--check {text}"), e.to_string()))
    };
    check.iter().map(parse).collect()
}

/// Refuses an option that needs a timeline if the configurations give none.
fn both_modes(option: &str, configs: &[Config]) -> Result<(), UsageError> {
    let nested = |c: &Config| configs.contains(&Config { mode: Paging::Nested, ..*c });
    if configs.iter().any(|c| c.mode == Paging::Shadow && nested(c)) {
        return Ok(());
    }
    let problem = "needs a timeline, and a timeline needs shadow and nested of one page size among --configs";
    Err(UsageError::conflict(option, problem))
}

/// Refuses placements where their counts would be of a part of the run, or of a VM that changes its mode.
fn only_whole_runs(args: &PlacementArgs, run: &run::Plan) -> Result<(), UsageError> {
    let problem = match () {
        () if args.placement.is_empty() => return Ok(()),
        () if run.sample.is_some() => {
            "counts every reference, and a sampled run has only some: leave out --sample"
        }
        () if !run.on_line.is_empty() => "is for modes that stay: leave out --check",
        () if run.configs.iter().any(|c| c.mode.has_outer()) => {
            "knows the nodes of one hypervisor's memory: leave guests within guests out of --configs"
        }
        () if run.configs.iter().any(|c| c.mode == Paging::Agile) => {
            "counts references to the guest's tables and to the hypervisor's apart, which one step of an agile walk may be: \
             leave agile paging out of --configs"
        }
        () if run.vm == VmState::LongLived && run.source.header().vcpus > 1 => {
            "follows the vCPU that touched a page first, and in a long-lived VM that was before the run: add --vm started"
        }
        () => return Ok(()),
    };
    Err(UsageError::conflict("--placement", problem))
}

/// What `--memory-use` shows.
fn memory(show: &OutputArgs, plan: &run::Plan) -> Result<Option<run::Memory>, UsageError> {
    let region = plan.source.header().source.region;
    let problem = match () {
        () if !show.memory_use => return Ok(None),
        () if plan.sample.is_some() => {
            "counts every use of a page, and a sampled run has only some: leave out --sample"
        }
        () if bifold_trace::several_regions(region.as_deref()) => {
            "is for one region, and there may be several: add --regions 1"
        }
        () if !plan.configs.contains(&Config::ALL[0]) => {
            "needs the configuration native: add it to --configs"
        }
        () => return Ok(Some(run::Memory::default())),
    };
    Err(UsageError::conflict("--memory-use", problem))
}

/// The view and the configuration of `--where`. Asks the source for events that say who runs.
fn places(
    show: &OutputArgs,
    configs: &[Config],
    source: &mut dyn EventSource,
) -> anyhow::Result<Option<Shown>> {
    if show.place.is_empty() {
        return Ok(None);
    }
    let mut shown = Shown { view: View::Cause, stacks: false, config: None };
    for name in show.place.iter().filter(|n| !n.is_empty()) {
        if let Some(view) = View::ALL.into_iter().find(|v| v.name() == name) {
            shown.view = view;
        } else if name == "stacks" {
            shown.stacks = true;
        } else if let Some(config) = Config::from_name(name).filter(|c| configs.contains(c)) {
            shown.config = Some(config);
        } else {
            let names: Vec<String> = configs.iter().map(|c| c.name()).collect();
            let problem = format!("use cause, code, stacks or a configuration: {}", names.join(", "));
            return Err(UsageError::value(format!("--where={name}"), problem).into());
        }
    }
    source.attribute(shown.stacks)?;
    Ok(Some(shown))
}

/// The plan of either verb: a run that is made once, and what is written of it.
fn plan(
    common: CommonArgs,
    verb: Source,
    record: Option<PathBuf>,
    before: Option<&Baseline>,
) -> anyhow::Result<Plan> {
    let CommonArgs { program, show, model, placement, policies, guest } = common;
    let profile = match before.and_then(Baseline::profile) {
        Some(own) => model.profile_or(|set| own.chosen_by(ChosenBy::Baseline, "of the baseline", set))?,
        None => model.profile()?,
    };
    let sample = guest.region.windows(model.seed);
    let (keep, until) = (guest.keep.clone(), guest.region.until);
    let source = source(verb, program, guest, &profile, model.seed)?;
    let placed = placement.options(&source.header())?;
    let mut run =
        run::Plan { record, placed, until, ..events(source, profile, sample, &model, policies, &show)? };
    only_whole_runs(&placement, &run)?;
    if run.record.is_some() && run.memory.is_some() {
        run.source.look();
    }
    let problem = "is for `--format table`: the other formats have all parts";
    UsageError::conflict_if(!show.show.is_empty() && show.format != Format::Table, "--show", problem)?;
    let has = |part| show.show.contains(&part) || show.show.contains(&ShowArg::All);
    Ok(Plan {
        run,
        runs: 1,
        format: show.format,
        show: Show {
            exits: has(ShowArg::Exits),
            policies: has(ShowArg::Policies),
            checks: has(ShowArg::Checks),
        },
        output: None,
        outputs: files(&show, None),
        count: match show.folded_count.unwrap_or(CountArg::ExtraCycles) {
            CountArg::ExtraCycles => Metric::ExtraCycles,
            CountArg::TlbMisses => Metric::TlbMisses,
            CountArg::WalkCycles => Metric::WalkCycles,
            CountArg::DataWaits => Metric::DataWaits,
            CountArg::Exits => Metric::Exits,
        },
        keep,
        against: None,
    })
}
