// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold ci`: several programs beside their baselines.
//!
//! Each program is a `bifold compare` [of its own](crate::full::child).

mod args;
mod show;
mod spec;

pub use args::CiArgs;
pub use show::schema;

use crate::console::{Delivery, create, note, print, stop_on_signals};
use crate::doctor::needs::Needs;
use crate::full::child;
use crate::status::Status;
use anyhow::Context as _;
use bifold_model::VmState;
use bifold_report::{Format, Judged, named_profile};
use bifold_trace::CommandExit;
use serde::Deserialize;
use spec::{Program, Spec};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// What became of a program.
#[derive(Debug)]
pub struct Ran {
    pub name: String,
    pub seconds: f64,
    /// What the run is of; none if it failed.
    pub made: Option<Made>,
    pub result: Outcome,
}

/// State of the VM, and the hardware profile.
#[derive(Debug, Clone)]
pub struct Made {
    pub vm: &'static str,
    pub profile: String,
}

/// How a program ended.
#[derive(Debug)]
pub enum Outcome {
    /// Its baseline was written.
    Saved,
    /// It was compared.
    Judged(Judged),
    /// It was not: why.
    Failed(String),
}

/// The fields of `compare`'s JSON that are read.
#[derive(Deserialize)]
struct Document {
    exit: Option<CommandExit>,
    baseline: Option<Judged>,
    kvm: Option<String>,
    #[serde(default)]
    overrides: Vec<String>,
    outcome: Modelled,
}

#[derive(Deserialize)]
struct Modelled {
    vm: VmState,
    profile: String,
}

/// What the verb needs of the machine.
pub const NEEDS: &[Needs] = &[Needs::of_guest("", None)];

/// Carries out the verb.
pub fn run(args: CiArgs) -> anyhow::Result<Status> {
    let mut spec = Spec::read(&args.file)?;
    spec.keep(&args.only)?;
    let folder = args.file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = folder.canonicalize().with_context(|| format!("cannot use {}", folder.display()))?;
    let baselines = folder.join(&spec.baselines);
    if args.save {
        std::fs::create_dir_all(&baselines)
            .with_context(|| format!("cannot create {}", baselines.display()))?;
    }
    let (junit, markdown) = (create(args.junit.as_deref())?, create(args.markdown.as_deref())?);
    let stop = stop_on_signals()?;
    let job = Job { spec: &spec, folder: &folder, baselines: &baselines, save: args.save, stop: &stop };
    let ran = job.all(args.jobs.get(), !args.quiet)?;
    let mut delivery = Delivery::new(!args.quiet);
    print(&match args.format {
        Format::Json => show::json(&ran)?,
        _ => show::table(&ran),
    })?;
    delivery.file("JUnit report", junit, || Ok(show::junit(&ran)?));
    delivery.file("summary", markdown, || Ok(show::markdown(&ran).into_bytes()));
    delivery.done()?;
    Ok(match () {
        () if stop.load(Ordering::Relaxed) => Status::OfCommand(CommandExit::Interrupted),
        () if ran.iter().any(|r| matches!(r.result, Outcome::Failed(_))) => Status::Failed,
        () if ran.iter().any(Ran::is_worse) => Status::Worse,
        () => Status::Done,
    })
}

impl Ran {
    fn is_worse(&self) -> bool {
        matches!(&self.result, Outcome::Judged(judged) if judged.is_worse())
    }
}

/// The programs, where they run and what they are compared with.
struct Job<'a> {
    spec: &'a Spec,
    folder: &'a Path,
    baselines: &'a Path,
    save: bool,
    stop: &'a AtomicBool,
}

impl Job<'_> {
    /// Runs all programs, so many at a time. Their order is that of their names.
    fn all(&self, jobs: usize, notes: bool) -> anyhow::Result<Vec<Ran>> {
        let programs: Vec<_> = self.spec.programs.iter().collect();
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let worker = || {
            while let Some((name, program)) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
                note(notes, format_args!("runs {name}"));
                let begun = Instant::now();
                let (made, result) = match self.one(name, program) {
                    Ok((made, result)) => (Some(made), result),
                    Err(e) => (None, Outcome::Failed(format!("{e:#}"))),
                };
                let ran = Ran { name: (*name).clone(), seconds: begun.elapsed().as_secs_f64(), made, result };
                done.lock().expect("no worker panics").push(ran);
            }
        };
        std::thread::scope(|scope| {
            (0..jobs.min(programs.len())).for_each(|_| drop(scope.spawn(worker)));
        });
        let mut done = done.into_inner().expect("no worker panics");
        done.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(done)
    }

    fn one(&self, name: &str, program: &Program) -> anyhow::Result<(Made, Outcome)> {
        let work = tempfile::tempdir().context("cannot make a temporary folder")?;
        let (result, errors) = (work.path().join("result.json"), work.path().join("errors"));
        let baseline = self.baselines.join(format!("{name}.json"));
        let mut command = child::bifold(self.folder, &["compare"], &result, &errors)?;
        command.args(["--format", "json"]);
        command.args(self.spec.options(program));
        let saved = work.path().join("baseline.json");
        if self.save {
            command.arg("--save-baseline").arg(&saved);
        } else if baseline.exists() {
            let worse_than = program.worse_than_percent.or(self.spec.worse_than_percent);
            command.arg("--baseline").arg(&baseline);
            command.args(worse_than.map(|percent| format!("--worse-than={percent}")));
        } else {
            anyhow::bail!("there is no baseline {}: `bifold ci --save` writes it", baseline.display());
        }
        command.arg("--").args(child::in_fixed_environment(&program.env, &program.run));
        let status = child::wait(&mut command, self.stop)?;
        let said = || child::last_lines(&errors);
        let bytes = std::fs::read(&result).unwrap_or_default();
        let Ok(document) = serde_json::from_slice::<Document>(&bytes) else {
            anyhow::bail!("{}", said().unwrap_or_else(|| format!("`bifold compare` ended with {status}")));
        };
        let profile = named_profile(&document.outcome.profile, &document.overrides, document.kvm);
        let made = Made { vm: document.outcome.vm.name(), profile };
        match (document.exit, document.baseline) {
            (Some(exit), _) if exit != CommandExit::Code(0) && exit != CommandExit::AfterRegion => {
                anyhow::bail!(
                    "the command failed: {}{}",
                    exit.describe(),
                    said().map_or(String::new(), |s| format!(": {s}"))
                )
            }
            (_, Some(judged)) => Ok((made, Outcome::Judged(judged))),
            (_, None) if self.save && status.success() => {
                // Only now, so that the baseline of a run that succeeded outlives one that fails.
                let mut delivery = Delivery::new(false);
                delivery.file("baseline", create(Some(&baseline))?, || Ok(std::fs::read(&saved)?));
                delivery.done()?;
                Ok((made, Outcome::Saved))
            }
            _ => {
                anyhow::bail!("{}", said().unwrap_or_else(|| format!("`bifold compare` ended with {status}")))
            }
        }
    }
}
