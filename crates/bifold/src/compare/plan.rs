// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the words a user wrote to a plan: which source of events, which profile,
//! which configurations, which files. Everything that can be wrong with the words
//! alone is found here, before anything runs.

use crate::cli::{Cli, CompareArgs, CountArg, FormatArg, GuestArgs, ModelArgs, OnOff, OutputArgs};
use crate::cli::{PolicyArgs, ProgramArgs, RecordArgs, RootArg, ShowArg, ThpArg};
use crate::console::files::{Named, distinct, named};
use anyhow::{Context as _, anyhow};
use bifold_attribute::Metric;
use bifold_guest::{GuestSpec, Record, Root, Thp, Timing};
use bifold_model::{Config, Model, Paging, Profile};
use bifold_policy::check::OnLine;
use bifold_policy::timeline::TIME_SCALE;
use bifold_report::{Format, Show, shell_words};
use bifold_trace::Windows;
use bifold_trace::file::{self, FileError};
use bifold_trace::generate::Generator;
use clap::CommandFactory as _;
use clap::error::ErrorKind;
use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Memory of a guest unless told otherwise, MiB.
const MEMORY_MIB: u64 = 2048;
/// A self-check every so many words of the stream unless told otherwise.
const CHECK_EVERY: u64 = 10_000;

/// What is to be done.
pub struct Plan {
    /// Where events come from.
    pub input: Input,
    /// The hardware.
    pub profile: Profile,
    /// Configurations to model, in the order of [`Config::ALL`].
    pub configs: Vec<Config>,
    /// Seed of the host frames' placement.
    pub seed: u64,
    /// Length of an interval, if not the profile's.
    pub interval_seconds: Option<f64>,
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
    /// Seconds of a policy per second of the run.
    pub time_scale: f64,
    /// VMs to switch on line.
    pub on_line: Vec<OnLine>,
    /// File for the events.
    pub record: Option<PathBuf>,
    /// Directory for what the command writes.
    pub keep: Option<PathBuf>,
    /// How often to run the command.
    pub runs: usize,
    /// Where the cost is, if that is asked for.
    pub places: Option<Places>,
    /// Windows of a sampled run.
    pub sample: Option<Windows>,
    /// Windows to which a whole run's events are thinned.
    pub thin: Option<Windows>,
    /// What to say on stderr.
    pub notes: Notes,
}

/// How costs by place are shown.
pub struct Places {
    /// In this configuration, or the dearest.
    pub config: Option<Config>,
    /// File for the stacks.
    pub folded: Option<PathBuf>,
    /// What they count.
    pub count: Metric,
}

/// Where events come from.
pub enum Input {
    /// A command in a guest.
    Guest(Box<GuestSpec>),
    /// A recording, opened, and its path.
    Recording(Box<file::Reader>, PathBuf),
    /// A built-in generator.
    Generator(Generator),
}

/// What to say on stderr beside errors.
#[derive(Debug, Clone, Copy)]
pub struct Notes {
    /// A moving progress line.
    pub progress: bool,
    /// Notes of what was done.
    pub notes: bool,
    /// Notes of how.
    pub verbose: bool,
}

/// The plan of `compare`.
pub fn compare(args: CompareArgs) -> anyhow::Result<Plan> {
    let keep = args.guest.keep.clone();
    let inputs = [
        ("the recording", args.file.as_deref()),
        ("the profile", profile_file(&args.model)),
        ("the kernel", args.guest.kernel.as_deref()),
    ];
    distinct("compare", &named(inputs), &outputs(args.output.as_deref(), &args.show));
    if args.runs.is_some() && args.program.command.is_empty() {
        let message = "--runs is for a command: a recording and a generator give the same figures each time";
        usage("compare", ErrorKind::ArgumentConflict, message);
    }
    let runs = args.runs.unwrap_or(1) as usize;
    if runs > 1 && args.show.timeline.is_some() {
        let message = "--timeline holds one run: give it without --runs";
        usage("compare", ErrorKind::ArgumentConflict, message);
    }
    let profile = Profile::load(&args.model.profile, &args.model.set)?;
    let sample = args.guest.region.windows(args.model.seed);
    let input = match args.file {
        Some(path) => {
            if args.program.generate.is_some() || !args.program.command.is_empty() {
                usage("compare", ErrorKind::ArgumentConflict, ONE_INPUT);
            }
            no_guest("compare", &args.guest, "a recording");
            open_recording(path)?
        }
        None => program("compare", args.program, args.guest, &profile, args.model.seed)?,
    };
    let plan = plan(
        "compare",
        Events { input, profile, sample },
        args.model,
        args.policies,
        args.show,
        args.output,
        None,
    )?;
    Ok(Plan { keep, runs, ..plan })
}

/// The plan of `record`.
pub fn record(args: RecordArgs) -> anyhow::Result<Plan> {
    let keep = args.guest.keep.clone();
    let inputs = [("the profile", profile_file(&args.model)), ("the kernel", args.guest.kernel.as_deref())];
    distinct("record", &named(inputs), &outputs(Some(&args.output), &args.show));
    let profile = Profile::load(&args.model.profile, &args.model.set)?;
    let sample = args.guest.region.windows(args.model.seed);
    let input = program("record", args.program, args.guest, &profile, args.model.seed)?;
    let plan = plan(
        "record",
        Events { input, profile, sample },
        args.model,
        args.policies,
        args.show,
        None,
        Some(args.output),
    )?;
    Ok(Plan { keep, ..plan })
}

/// The plan for a recording that `diff` models: its figures, and nothing that is written.
pub fn of_recording(
    verb: &str,
    reader: file::Reader,
    path: PathBuf,
    model: ModelArgs,
    quiet: bool,
) -> anyhow::Result<Plan> {
    let show = OutputArgs { quiet, ..OutputArgs::nothing() };
    let policies = PolicyArgs { time_scale: None, check: Vec::new() };
    let profile = Profile::load(&model.profile, &model.set)?;
    let input = Input::Recording(Box::new(reader), path);
    plan(verb, Events { input, profile, sample: None }, model, policies, show, None, None)
}

const ONE_INPUT: &str = "give one of a command after `--`, a recording and --generate, not several";

fn program(
    verb: &str,
    program: ProgramArgs,
    args: GuestArgs,
    profile: &Profile,
    seed: u64,
) -> anyhow::Result<Input> {
    let or_file = if verb == "compare" { "a recording, " } else { "" };
    match (program.generate, program.command.is_empty()) {
        (Some(_), false) => usage(verb, ErrorKind::ArgumentConflict, ONE_INPUT),
        (None, true) => usage(
            verb,
            ErrorKind::MissingRequiredArgument,
            &format!("nothing to {verb}: give a command after `--`, {or_file}or --generate"),
        ),
        (None, false) => Ok(Input::Guest(Box::new(guest(verb, program.command, args, profile, seed)?))),
        (Some(spec), true) => {
            no_guest(verb, &args, "a generator");
            match Generator::parse(&spec) {
                Ok(generator) => Ok(Input::Generator(generator)),
                Err(e) => usage(verb, ErrorKind::InvalidValue, &e.to_string()),
            }
        }
    }
}

/// Refuses options about a guest where there is none: ignored, they would mislead.
fn no_guest(verb: &str, args: &GuestArgs, input: &str) {
    if let Some(option) = first_guest_option(args) {
        let message = format!("{option} is about a guest, and {input} has none to start");
        usage(verb, ErrorKind::ArgumentConflict, &message);
    }
}

/// The profile, if it is a file and no built-in one.
pub fn profile_file(model: &ModelArgs) -> Option<&Path> {
    let builtin = Profile::builtin_names().any(|name| name == model.profile);
    (!builtin).then(|| Path::new(&model.profile))
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

/// What `--where` asks for; the input is told to say who runs.
fn places(
    verb: &str,
    show: &OutputArgs,
    configs: &[Config],
    input: &mut Input,
) -> anyhow::Result<Option<Places>> {
    let Some(name) = &show.place else { return Ok(None) };
    let config = Config::from_name(name).filter(|c| configs.contains(c));
    if config.is_none() && !name.is_empty() {
        let names: Vec<String> = configs.iter().map(|c| c.name()).collect();
        let message = format!("--where={name}: the configurations are {}", names.join(", "));
        usage(verb, ErrorKind::InvalidValue, &message);
    }
    match input {
        Input::Guest(spec) => spec.attribute = true,
        Input::Recording(reader, _) if reader.header().source.attributed => {}
        Input::Recording(_, path) => {
            let path = path.display();
            return Err(anyhow!(
                "{path}: the recording does not say who ran: record anew with `bifold record --where`"
            ));
        }
        Input::Generator(_) => usage(
            verb,
            ErrorKind::ArgumentConflict,
            "--where is about a guest's programs, and a generator has none",
        ),
    }
    let count = match show.folded_count.unwrap_or(CountArg::ExtraCycles) {
        CountArg::ExtraCycles => Metric::ExtraCycles,
        CountArg::TlbMisses => Metric::TlbMisses,
        CountArg::WalkCycles => Metric::WalkCycles,
        CountArg::Exits => Metric::Exits,
    };
    Ok(Some(Places { config, folded: show.folded.clone(), count }))
}

/// Where events come from, the hardware, and what is asked for of them.
struct Events {
    input: Input,
    profile: Profile,
    sample: Option<Windows>,
}

fn plan(
    verb: &str,
    Events { mut input, profile, sample }: Events,
    model: ModelArgs,
    policies: PolicyArgs,
    show: OutputArgs,
    output: Option<PathBuf>,
    record: Option<PathBuf>,
) -> anyhow::Result<Plan> {
    let configs = match configs(&model.configs) {
        Ok(configs) => configs,
        Err(name) => usage(
            verb,
            ErrorKind::InvalidValue,
            &format!(
                "unknown configuration `{name}` in --configs: use native, nested, shadow, {}",
                Config::ALL[1..].iter().map(|c| c.name()).collect::<Vec<_>>().join(", ")
            ),
        ),
    };
    let on_line = policies.check.iter().map(|text| {
        OnLine::parse(text)
            .unwrap_or_else(|e| usage(verb, ErrorKind::InvalidValue, &format!("--check {text}: {e}")))
    });
    let on_line: Vec<OnLine> = on_line.collect();
    if configs.len() + on_line.len() > Model::MOST_REGIMES {
        let most = Model::MOST_REGIMES - configs.len();
        let message =
            format!("--check has room for {most} beside {} configurations (see --configs)", configs.len());
        usage(verb, ErrorKind::TooManyValues, &message);
    }
    let of_recording = match &input {
        Input::Recording(reader, _) => reader.header().source.sample,
        _ => None,
    };
    if of_recording.is_some() && sample.is_some() {
        usage(verb, ErrorKind::ArgumentConflict, "--sample: the recording is of a sampled run already");
    }
    let thin = sample.filter(|_| !matches!(input, Input::Guest(_)));
    let sample = sample.or(of_recording);
    for (given, option) in [(!on_line.is_empty(), "--check"), (show.timeline.is_some(), "--timeline")] {
        if sample.is_some() && given {
            let message = format!("{option} needs a timeline, and a sampled run has none");
            usage(verb, ErrorKind::ArgumentConflict, &message);
        }
    }
    if sample.is_some() && show.place.is_some() {
        let message = "--where charges every access, and a sampled run has only some: give one of the two";
        usage(verb, ErrorKind::ArgumentConflict, message);
    }
    if !on_line.is_empty() || show.timeline.is_some() {
        let pair = |c: &Config| configs.contains(&Config { mode: Paging::Nested, ..*c });
        if !configs.iter().any(|c| c.mode == Paging::Shadow && pair(c)) {
            let message = "a timeline needs shadow and nested of one page size among --configs";
            usage(verb, ErrorKind::ArgumentConflict, message);
        }
    }
    let places = places(verb, &show, &configs, &mut input)?;
    Ok(Plan {
        places,
        input,
        profile,
        configs,
        seed: model.seed,
        interval_seconds: model.interval,
        format: format_of(show.format),
        show: shown(verb, &show),
        output,
        report: show.report,
        timeline: show.timeline,
        time_scale: policies.time_scale.unwrap_or(TIME_SCALE),
        on_line,
        record,
        keep: None,
        runs: 1,
        sample,
        thin,
        notes: Notes {
            progress: !show.quiet && std::io::stderr().is_terminal(),
            notes: !show.quiet,
            verbose: show.verbose,
        },
    })
}

/// The parts of the table asked for.
fn shown(verb: &str, args: &OutputArgs) -> Show {
    if !args.show.is_empty() && args.format != FormatArg::Table {
        let message = "--show is for the table; the other forms have all parts";
        usage(verb, ErrorKind::ArgumentConflict, message);
    }
    let has = |part| args.show.contains(&part) || args.show.contains(&ShowArg::All);
    Show { exits: has(ShowArg::Exits), policies: has(ShowArg::Policies), checks: has(ShowArg::Checks) }
}

/// The form asked for.
pub fn format_of(format: FormatArg) -> Format {
    match format {
        FormatArg::Table => Format::Table,
        FormatArg::Json => Format::Json,
        FormatArg::Jsonl => Format::Jsonl,
        FormatArg::Csv => Format::Csv,
    }
}

/// Configurations named one by one or by mode; all if none is named.
fn configs(names: &[String]) -> Result<Vec<Config>, &str> {
    let of_mode = |c: &Config, name: &str| {
        let mode = match c.mode {
            Paging::Native => "native",
            Paging::Nested => "nested",
            Paging::Shadow => "shadow",
        };
        mode == name || c.name() == name
    };
    if let Some(unknown) = names.iter().find(|n| !Config::ALL.iter().any(|c| of_mode(c, n))) {
        return Err(unknown);
    }
    let named = |c: &Config| names.is_empty() || names.iter().any(|n| of_mode(c, n));
    Ok(Config::ALL.into_iter().filter(named).collect())
}

fn open_recording(path: PathBuf) -> anyhow::Result<Input> {
    match file::Reader::open(&path) {
        Ok(reader) => Ok(Input::Recording(Box::new(reader), path)),
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

fn guest(
    verb: &str,
    command: Vec<OsString>,
    args: GuestArgs,
    profile: &Profile,
    seed: u64,
) -> anyhow::Result<GuestSpec> {
    let root = match args.root.unwrap_or(RootArg::Host) {
        RootArg::Host if !args.include.is_empty() => usage(
            verb,
            ErrorKind::ArgumentConflict,
            "--include is for `--root initramfs`; with the host's root everything is there",
        ),
        RootArg::Host => Root::Host,
        RootArg::Initramfs => Root::Initramfs { include: args.include },
    };
    Ok(GuestSpec {
        command,
        cwd: std::env::current_dir().context("cannot find the current directory")?,
        env: std::env::vars_os().collect(),
        timing: if args.fast { Timing::Fast } else { Timing::Exact },
        vcpus: args.vcpus.unwrap_or(1),
        kpti: args.kpti == Some(OnOff::On),
        thp: match args.thp.unwrap_or(ThpArg::Madvise) {
            ThpArg::Always => Thp::Always,
            ThpArg::Madvise => Thp::Madvise,
            ThpArg::Never => Thp::Never,
        },
        memory_mib: args.memory.unwrap_or(MEMORY_MIB),
        kernel: args.kernel,
        modules: args.modules,
        root,
        timeout: args.timeout.map(Duration::from_secs_f64),
        check_every: args.check_every.unwrap_or(CHECK_EVERY),
        record: Record::Command,
        // Read last, when nothing else can be wrong.
        stdin: Vec::new(),
        keep: args.keep.is_some(),
        attribute: false,
        region: args.region.region(profile.cpu.frequency_hz as f64 / profile.cpu.base_cpi, seed),
    })
}

/// The first option given that only a guest has a use for.
fn first_guest_option(g: &GuestArgs) -> Option<&'static str> {
    [
        (g.fast, "--fast"),
        (g.vcpus.is_some(), "--vcpus"),
        (g.kpti.is_some(), "--kpti"),
        (g.thp.is_some(), "--thp"),
        (g.memory.is_some(), "--memory"),
        (g.kernel.is_some(), "--kernel"),
        (g.modules.is_some(), "--modules"),
        (g.root.is_some(), "--root"),
        (!g.include.is_empty(), "--include"),
        (g.timeout.is_some(), "--timeout"),
        (g.check_every.is_some(), "--check-every"),
        (g.keep.is_some(), "--keep"),
    ]
    .into_iter()
    .chain(g.region.given())
    .find_map(|(given, name)| given.then_some(name))
}

/// Ends with a usage error of this verb (`compare`, `policy replay`), in clap's form and with its status.
pub fn usage(verb: &str, kind: ErrorKind, message: &str) -> ! {
    let mut cli = Cli::command();
    cli.build();
    let mut command = &mut cli;
    for word in verb.split(' ') {
        command = command.find_subcommand_mut(word).expect("the verb is one of the parser's");
    }
    command.error(kind, message).exit()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Result<String, String> {
        let list: Vec<String> = list.iter().map(|s| s.to_string()).collect();
        match configs(&list) {
            Ok(c) => Ok(c.iter().map(|c| c.name()).collect::<Vec<_>>().join(" ")),
            Err(name) => Err(name.into()),
        }
    }

    #[test]
    fn configurations_are_named_singly_or_by_mode_and_keep_their_order() {
        assert_eq!(names(&[]).unwrap().split(' ').count(), Config::ALL.len());
        assert_eq!(names(&["shadow", "native"]).unwrap(), "native shadow-4k shadow-2m");
        assert_eq!(names(&["nested-2m", "nested"]).unwrap(), "nested-4k nested-2m");
        assert_eq!(names(&["native", "agile"]).unwrap_err(), "agile");
    }
}
