// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the options of `compare` and `record` to a plan. Every usage error is found here, before
//! anything runs.

use super::args::{CompareArgs, CountArg, OutputArgs, PolicyArgs, ProgramArgs, RecordArgs, ShowArg};
use super::guest::GuestArgs;
use crate::console::{Named, distinct, named};
use crate::run::source::{EventSource, Guest, Recording};
use crate::run::{self, InConfig, ModelArgs, Notes, profile_file};
use crate::usage::UsageError;
use anyhow::anyhow;
use bifold_attribute::Metric;
use bifold_model::{Config, Paging, Profile};
use bifold_policy::replay_check::OnLine;
use bifold_report::{Format, Show, shell_words};
use bifold_trace::Windows;
use bifold_trace::file::{FileError, Reader};
use bifold_trace::generate::Generator;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A run, how often it is made, and what is written of it.
pub struct Plan {
    /// The run.
    pub run: run::Plan,
    /// How often it is made.
    pub runs: usize,
    /// Form of the data.
    pub format: Format,
    /// Further parts of the table.
    pub show: Show,
    /// File for the data instead of stdout.
    pub output: Option<PathBuf>,
    /// File for the HTML report.
    pub report: Option<PathBuf>,
    /// File for the timeline.
    pub timeline: Option<PathBuf>,
    /// File for the stacks.
    pub folded: Option<PathBuf>,
    /// What stacks count.
    pub count: Metric,
    /// Directory for the files that the command writes.
    pub keep: Option<PathBuf>,
}

impl Plan {
    /// Whether policies are replayed over the run. Over hundreds of intervals that takes some tenths of
    /// a second, so it is done only if the result is shown.
    pub fn needs_policies(&self) -> bool {
        let shown = match self.format {
            Format::Table => self.show.policies,
            Format::Json | Format::Jsonl => true,
            Format::Csv => false,
        };
        shown || self.report.is_some() || !self.run.on_line.is_empty()
    }

    /// Whether the run's timeline is needed, for its file or for policies.
    pub fn needs_timeline(&self) -> bool {
        self.timeline.is_some() || self.needs_policies()
    }
}

/// The plan of `compare`.
pub fn compare(args: CompareArgs) -> anyhow::Result<Plan> {
    let inputs = [
        ("the recording", args.file.as_deref()),
        ("the profile", profile_file(&args.model)),
        ("the kernel", args.guest.kernel.as_deref()),
    ];
    distinct(&named(inputs), &outputs(args.output.as_deref(), &args.show))?;
    if args.runs.is_some() && args.program.command.is_empty() {
        let problem = "needs a command: a recording and a generator give the same figures each time";
        return Err(UsageError::conflict("--runs", problem).into());
    }
    let runs = args.runs.unwrap_or(1) as usize;
    if runs > 1 && args.show.timeline.is_some() {
        return Err(UsageError::conflict("--timeline", "holds one run: leave out --runs").into());
    }
    let profile = Profile::load(&args.model.profile, &args.model.set)?;
    let sample = args.guest.region.windows(args.model.seed);
    let keep = args.guest.keep.clone();
    let source = match args.file {
        Some(path) => {
            if args.program.generate.is_some() || !args.program.command.is_empty() {
                return Err(UsageError::conflict("FILE", ONE_SOURCE).into());
            }
            no_guest(&args.guest, "a recording")?;
            open_recording(path)?
        }
        None => program(args.program, args.guest, &profile, args.model.seed, Verb::Compare)?,
    };
    let run = events(source, profile, sample, &args.model, args.policies, &args.show)?;
    Ok(Plan { output: args.output, keep, runs, ..plan(run, args.show)? })
}

/// The plan of `record`.
pub fn record(args: RecordArgs) -> anyhow::Result<Plan> {
    let inputs = [("the profile", profile_file(&args.model)), ("the kernel", args.guest.kernel.as_deref())];
    distinct(&named(inputs), &outputs(Some(&args.output), &args.show))?;
    let profile = Profile::load(&args.model.profile, &args.model.set)?;
    let sample = args.guest.region.windows(args.model.seed);
    let keep = args.guest.keep.clone();
    let source = program(args.program, args.guest, &profile, args.model.seed, Verb::Record)?;
    let run = events(source, profile, sample, &args.model, args.policies, &args.show)?;
    let run = run::Plan { record: Some(args.output), ..run };
    Ok(Plan { keep, ..plan(run, args.show)? })
}

/// How a verb is asked for what it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Compare,
    Record,
}

const ONE_SOURCE: &str =
    "is one source of events too many: give a command after `--`, or a recording, or --generate";

fn program(
    program: ProgramArgs,
    args: GuestArgs,
    profile: &Profile,
    seed: u64,
    verb: Verb,
) -> anyhow::Result<Box<dyn EventSource>> {
    match (program.generate, program.command.is_empty()) {
        (Some(_), false) => Err(UsageError::conflict("--generate", ONE_SOURCE).into()),
        (None, true) => {
            let what = match verb {
                Verb::Compare => "give a command after `--`, a recording, or --generate",
                Verb::Record => "give a command after `--`, or --generate",
            };
            Err(UsageError::missing("CMD", what).into())
        }
        (None, false) => Ok(Box::new(Guest(Box::new(args.spec(program.command, profile, seed)?)))),
        (Some(spec), true) => {
            no_guest(&args, "a generator")?;
            match Generator::parse(&spec) {
                Ok(generator) => Ok(Box::new(generator)),
                Err(e) => Err(UsageError::value("--generate", e.to_string()).into()),
            }
        }
    }
}

/// Refuses options about a guest beside a source that starts none: ignored, they would mislead.
fn no_guest(args: &GuestArgs, source: &str) -> Result<(), UsageError> {
    match args.first_given() {
        Some(option) => {
            Err(UsageError::conflict(option, format!("is about a guest, and {source} starts no guest")))
        }
        None => Ok(()),
    }
}

fn open_recording(path: PathBuf) -> anyhow::Result<Box<dyn EventSource>> {
    match Reader::open(&path) {
        Ok(reader) => Ok(Box::new(Recording { reader: Box::new(reader), path })),
        // Most often not a damaged recording but a command without its `--`.
        Err(e @ (FileError::Io { .. } | FileError::NotARecording { .. })) => {
            let e = anyhow::Error::from(e);
            Err(anyhow!("{e:#}\n{}", command_tip("compare", &[path.into()])))
        }
        Err(e) => Err(e.into()),
    }
}

/// How to write a command that was taken for something else.
pub fn command_tip(verb: &str, words: &[OsString]) -> String {
    let words: Vec<_> = words.iter().map(|w| w.to_string_lossy()).collect();
    format!("to run a command, put it after `--`: bifold {verb} -- {}", shell_words(&words))
}

/// The files that a run writes.
fn outputs<'a>(output: Option<&'a Path>, show: &'a OutputArgs) -> Vec<Named<'a>> {
    named([
        ("--output", output),
        ("--report", show.report.as_deref()),
        ("--timeline", show.timeline.as_deref()),
        ("--folded", show.folded.as_deref()),
    ])
}

/// The run of a source: what is modelled, sampled and checked beside it.
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
    // A guest's plan already has the windows that the guest was asked for.
    if plan.sample.is_some() && sample.is_some() && !plan.source.live() {
        let problem = "cannot thin this recording: it is of a sampled run already";
        return Err(UsageError::conflict("--sample", problem).into());
    }
    plan.thin = sample.filter(|_| !plan.source.live());
    plan.sample = sample.or(plan.sample);
    let needs_timeline = [(!plan.on_line.is_empty(), "--check"), (show.timeline.is_some(), "--timeline")];
    if let Some((_, option)) = needs_timeline.into_iter().find(|(given, _)| *given) {
        if plan.sample.is_some() {
            return Err(UsageError::conflict(option, "needs a timeline, and a sampled run has none").into());
        }
        both_modes(option, &plan.configs)?;
    }
    if plan.sample.is_some() && show.place.is_some() {
        let problem = "charges every access, and a sampled run has only some: leave out --sample";
        return Err(UsageError::conflict("--where", problem).into());
    }
    plan.places = places(show, &plan.configs, &mut *plan.source)?;
    Ok(plan)
}

/// The VMs that `--check` switches on line.
fn on_line(check: &[String]) -> Result<Vec<OnLine>, UsageError> {
    let parse = |text: &String| {
        OnLine::parse(text).map_err(|e| UsageError::value(format!("--check {text}"), e.to_string()))
    };
    check.iter().map(parse).collect()
}

/// Refuses an option that needs a timeline where the configurations make none.
fn both_modes(option: &str, configs: &[Config]) -> Result<(), UsageError> {
    let nested = |c: &Config| configs.contains(&Config { mode: Paging::Nested, ..*c });
    if configs.iter().any(|c| c.mode == Paging::Shadow && nested(c)) {
        return Ok(());
    }
    let problem = "needs a timeline, and a timeline needs shadow and nested of one page size among --configs";
    Err(UsageError::conflict(option, problem))
}

/// What `--where` asks for; the source is told to say who runs.
fn places(
    show: &OutputArgs,
    configs: &[Config],
    source: &mut dyn EventSource,
) -> anyhow::Result<Option<InConfig>> {
    let Some(name) = &show.place else { return Ok(None) };
    let config = Config::from_name(name).filter(|c| configs.contains(c));
    if config.is_none() && !name.is_empty() {
        let names: Vec<String> = configs.iter().map(|c| c.name()).collect();
        let problem = format!("there is no such configuration: use {}", names.join(", "));
        return Err(UsageError::value(format!("--where={name}"), problem).into());
    }
    source.attribute()?;
    Ok(Some(InConfig(config)))
}

/// What is written of a run.
fn plan(run: run::Plan, show: OutputArgs) -> Result<Plan, UsageError> {
    if !show.show.is_empty() && show.format != Format::Table {
        let problem = "is for `--format table`: the other formats have all parts";
        return Err(UsageError::conflict("--show", problem));
    }
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
        report: show.report,
        timeline: show.timeline,
        folded: show.folded,
        count: match show.folded_count.unwrap_or(CountArg::ExtraCycles) {
            CountArg::ExtraCycles => Metric::ExtraCycles,
            CountArg::TlbMisses => Metric::TlbMisses,
            CountArg::WalkCycles => Metric::WalkCycles,
            CountArg::Exits => Metric::Exits,
        },
        keep: None,
    })
}
