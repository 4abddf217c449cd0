// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold sweep`: programs under every combination of settings. The folder and its rules are in
//! `bifold_sweep`.

mod args;
mod merge;
mod work;

pub use args::SweepArgs;

use crate::cli;
use crate::compare::CompareArgs;
use crate::console::{Delivery, create, note, print};
use crate::doctor::needs::Needs;
use crate::run::{ModelArgs, ProfileArg};
use crate::status::Status;
use crate::usage::UsageError;
use anyhow::Context as _;
use args::{NewArgs, ReportArgs, StatusArgs, SweepVerb, TasksArgs};
use bifold_model::Profile;
use bifold_report::{Format, grouped};
use bifold_sweep::effects::{self, Measured};
use bifold_sweep::{Failure, Folder, Plan, Spec, SpecError, State, Task, Verb};
use clap::FromArgMatches as _;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Name and version of the JSON document of `status`.
const SCHEMA: &str = "bifold.sweep-status/1";
/// Most failures that the table of `status` shows.
const SHOWN: usize = 10;

/// What each verb needs of the machine.
pub const NEEDS: &[Needs] = &[
    Needs::of("new", &[]),
    Needs::of("tasks", &[]),
    Needs::of_guest("run", Some("it runs recordings and generators, and no command")),
    Needs::of("status", &[]),
    Needs::of("merge", &[]),
    Needs::of("report", &[]),
];

/// Carries out a verb.
pub fn run(args: SweepArgs) -> anyhow::Result<Status> {
    match args.verb {
        SweepVerb::New(args) => new(&args),
        SweepVerb::Tasks(args) => tasks(&args),
        SweepVerb::Run(args) => work::run(&args),
        SweepVerb::Status(args) => status(&args),
        SweepVerb::Merge(args) => merge::run(&args),
        SweepVerb::Report(args) => report(&args),
    }
}

fn new(args: &NewArgs) -> anyhow::Result<Status> {
    let mut plan = Spec::plan(&args.spec).map_err(|e| match e {
        // The file can be read, and says what no sweep can be.
        SpecError::Value { .. } => UsageError::value("SPEC", e).into(),
        e => anyhow::Error::from(e),
    })?;
    let shown = args.spec.display();
    let mut profiles = Profiles { folder: plan.folder.clone(), known: BTreeMap::new() };
    for number in 0..plan.tasks.len() {
        let task = &plan.tasks[number];
        if let Some(model) = understood(task, &args.spec)? {
            let of_task = || format!("{shown}: task {}", task.words());
            let named = profiles.named(&model.named);
            let changed = |named| ModelArgs::of_profile(named, model.set.clone()).profile();
            let changed = (!model.set.is_empty()).then(|| changed(named.clone()));
            let profile = profiles.get(named).with_context(of_task)?;
            // A value that `--set` cannot have fails its own task, and no other.
            if let Ok(of_run) = changed.as_ref().map_or(Ok(profile), Result::as_ref) {
                model.configs(of_run).map_err(|e| UsageError::value(of_task(), e))?;
            }
            plan.give_profile(number, profile);
        }
    }
    let unnamed = profiles.known.get(&None).map(|p| (p.name.clone(), p.kvm.name()));
    let folder = Folder::create(&args.folder, plan)?;
    let n = folder.plan().tasks.len();
    print(&format!("{n}\n"))?;
    let words = if n == 1 { "task" } else { "tasks" };
    let at = args.folder.display();
    note(
        !args.quiet,
        format_args!("{} {words} in {at}: `bifold sweep run {at}` runs them", grouped(n as u64)),
    );
    if let Some((name, kvm)) = unnamed {
        let text =
            format!("tasks that name no --profile have this machine's on every machine: {name}, kvm {kvm}");
        note(!args.quiet, &text);
    }
    Ok(Status::Done)
}

/// The profiles of a plan's tasks, by their names; none for this machine's.
struct Profiles {
    /// Folder to which names of files relate.
    folder: PathBuf,
    known: BTreeMap<Option<String>, Profile>,
}

impl Profiles {
    fn get(&mut self, named: ProfileArg) -> anyhow::Result<&Profile> {
        Ok(match self.known.entry(named.name().map(String::from)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(ModelArgs::of_profile(named, Vec::new()).profile()?),
        })
    }

    /// The profile as named, where a file's name relates to the folder in which tasks run.
    fn named(&self, named: &ProfileArg) -> ProfileArg {
        let name = match named.file() {
            Some(file) => Some(self.folder.join(file).to_string_lossy().into_owned()),
            None => named.name().map(String::from),
        };
        name.map_or_else(ProfileArg::default, ProfileArg::of)
    }
}

/// Checks that a task's verb takes its options, before any of them runs. Returns the options of the model, if
/// the verb has them.
fn understood(task: &Task, spec: &Path) -> Result<Option<ModelArgs>, UsageError> {
    let verb = task.verb.words();
    let given: &[&str] = match task.verb {
        Verb::Compare => &[],
        Verb::Fingerprint => &["--output", "directory"],
        Verb::Count => &["directory"],
    };
    let words =
        ["bifold"].iter().chain(verb).chain(given).copied().chain(task.args.iter().map(String::as_str));
    let command = task.command.iter().map(String::as_str);
    let command = ["--"].into_iter().filter(|_| !task.command.is_empty()).chain(command);
    let parsed = cli::command().try_get_matches_from(words.chain(command));
    let model = parsed.and_then(|matches| match matches.subcommand() {
        Some(("compare", of)) => Ok(Some(CompareArgs::from_arg_matches(of)?.common.model)),
        _ => Ok(None),
    });
    model.map_err(|e| {
        let text = e.to_string();
        let text = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        let problem = format!("`{}` does not take the task's options: {text}", verb.join(" "));
        UsageError::value(format!("{}: task {}", spec.display(), task.words()), problem)
    })
}

fn tasks(args: &TasksArgs) -> anyhow::Result<Status> {
    let folder = Folder::open(&args.folder)?;
    let listed = folder.plan().tasks.iter().filter(|t| !args.left || !folder.is_done(t.number));
    print(&listed.map(|t| t.words() + "\n").collect::<String>())?;
    Ok(Status::Done)
}

/// What `bifold sweep status --format json` writes: how far a sweep is.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Number of tasks.
    tasks: usize,
    /// Tasks that have a result.
    done: usize,
    /// Tasks whose last try failed.
    failed: usize,
    /// Tasks that a worker runs.
    running: usize,
    /// All other tasks.
    left: usize,
    /// Files and directories of results that killed workers left unfinished within the last day.
    unfinished_files: usize,
    /// Why each of the failed tasks has no result, in the order of the tasks.
    failures: Vec<&'a Failure>,
}

/// The schemas of the verbs' documents.
pub fn schemas() -> Vec<serde_json::Value> {
    let mut all = bifold_sweep::schemas();
    all.push(bifold_report::schema::schema::<Document>(SCHEMA));
    all
}

fn status(args: &StatusArgs) -> anyhow::Result<Status> {
    let folder = Folder::open(&args.folder)?;
    let tasks = &folder.plan().tasks;
    let states: Vec<State> = tasks.iter().map(|t| folder.state(t.number)).collect();
    let count = |state| states.iter().filter(|s| **s == state).count();
    let failed = tasks.iter().zip(&states).filter(|(_, s)| **s == State::Failed);
    let failures: Vec<_> = failed.filter_map(|(t, _)| Some((t, folder.failure(t.number)?))).collect();
    let unfinished = folder.tidy();
    let text = match args.format {
        Format::Json => {
            let document = Document {
                schema: SCHEMA,
                tasks: tasks.len(),
                done: count(State::Done),
                failed: count(State::Failed),
                running: count(State::Running),
                left: count(State::Left),
                unfinished_files: unfinished,
                failures: failures.iter().map(|(_, f)| f).collect(),
            };
            serde_json::to_string_pretty(&document)? + "\n"
        }
        _ => {
            let mut out = String::new();
            let all = [
                ("tasks", tasks.len()),
                ("done", count(State::Done)),
                ("failed", count(State::Failed)),
                ("running", count(State::Running)),
                ("left", count(State::Left)),
            ];
            all.into_iter().for_each(|(word, n)| {
                let _ = writeln!(out, "{word:<8} {:>7}", grouped(n as u64));
            });
            for (task, failure) in failures.iter().take(SHOWN) {
                let _ = writeln!(
                    out,
                    "\nFAILED   {}\n         {}",
                    task.words(),
                    failure.why.replace('\n', "\n         ")
                );
            }
            if failures.len() > SHOWN {
                let _ = writeln!(out, "\n{} more failed: --format json has all", failures.len() - SHOWN);
            }
            out
        }
    };
    print(&text)?;
    Ok(Status::Done)
}

/// Opens the folder of a sweep whose results are those of `compare`.
fn of_programs(path: &Path) -> anyhow::Result<Folder> {
    let folder = Folder::open(path)?;
    if folder.plan().is_of_fingerprints() {
        let at = path.display();
        anyhow::bail!("{at} counts fingerprints: `bifold share merge {at}/results/*.json` adds the counts");
    }
    Ok(folder)
}

fn report(args: &ReportArgs) -> anyhow::Result<Status> {
    let folder = of_programs(&args.folder)?;
    let file = create(args.report.as_deref())?;
    let plan = folder.plan();
    let measured = measured(&folder, plan)?;
    if measured.is_empty() {
        let at = args.folder.display();
        anyhow::bail!("no task of {at} has a result: `bifold sweep run {at}` runs them");
    }
    print(&effects::text(plan, &measured))?;
    note(
        measured.len() < plan.tasks.len(),
        format_args!("{} of {} tasks have results: means lack the others", measured.len(), plan.tasks.len()),
    );
    let mut delivery = Delivery::new(!args.quiet);
    let name = args.folder.display().to_string();
    delivery.file("report", file, || Ok(effects::page(plan, &measured, &name).render()?.into_bytes()));
    delivery.done()?;
    Ok(Status::Done)
}

fn measured(folder: &Folder, plan: &Plan) -> anyhow::Result<Vec<Measured>> {
    let mut out = Vec::new();
    for task in &plan.tasks {
        if let Some(finished) = folder.finished(task.number)? {
            out.push(Measured::of(task, &finished.side));
        }
    }
    Ok(out)
}
