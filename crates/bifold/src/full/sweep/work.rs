// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold sweep run`: a worker.

use super::args::RunArgs;
use crate::console::{Progress, note, stop_on_signals};
use crate::full::child;
use crate::run::PROFILE_VARIABLE;
use crate::status::Status;
use anyhow::Context as _;
use bifold_base::bounded;
use bifold_sweep::{Folder, FolderError, State, Task, Verb};
use bifold_trace::CommandExit;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How often a worker looks whether others have written what a task of its own reads.
const LOOK: Duration = Duration::from_millis(200);

/// Threads that hold the lock only look into a set or add to it.
const UNPOISONED: &str = "no thread panics with the lock";

/// What a worker did with a task.
enum Did {
    Finished,
    /// It has a result already.
    Nothing,
    /// Another worker runs it.
    LeftToAnother,
    Failed,
    /// What it reads has failed.
    Blocked,
    Stopped,
}

/// Works.
pub fn run(args: &RunArgs) -> anyhow::Result<Status> {
    let folder = Folder::open(&args.folder)?;
    let chosen: BTreeSet<usize> = match &args.task[..] {
        [] => (0..folder.plan().tasks.len()).collect(),
        some => some.iter().copied().collect(),
    };
    let chosen: Vec<&Task> = chosen.into_iter().map(|n| folder.task(n)).collect::<Result<_, _>>()?;
    let runs_in = &folder.plan().folder;
    if !runs_in.is_dir() {
        anyhow::bail!(
            "{} is not there on this machine, and the sweep's commands run in it: mount it, or make the sweep in a folder that \
             all machines have",
            runs_in.display()
        );
    }
    note_other_profile(&folder, args.quiet);
    let stop = stop_on_signals()?;
    // A scheduler that asks for a task wants its result, so the task runs even if another worker is at it:
    // that one may have lost its machine. Who asks for all tasks gets on with others.
    let failed = Mutex::default();
    let worker = Worker { folder: &folder, asked: &args.task, stop: &stop, quiet: args.quiet, failed };
    let (next, counts) = (AtomicUsize::new(0), Counts::default());
    let progress = Progress::start(!args.quiet && chosen.len() > 1, "sweep");
    let work = || -> anyhow::Result<()> {
        while let Some(task) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let did = worker.one(task).inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
            counts.add(&did);
            progress.count("tasks", counts.all(), chosen.len());
        }
        Ok(())
    };
    let ended = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..args.jobs.get().min(chosen.len())).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|w| w.join().expect("a worker does not panic"))
    });
    progress.end();
    ended?;
    folder.tidy();
    let (done, failed, others, blocked) = (counts.of(0), counts.of(1), counts.of(2), counts.of(3));
    if chosen.len() > 1 {
        let of_others = if others > 0 { format!(", {others} left to other workers") } else { String::new() };
        let of_blocked = if blocked > 0 { format!(", {blocked} read what failed") } else { String::new() };
        note(
            !args.quiet,
            format_args!(
                "{done} of {} tasks have results, {failed} failed{of_blocked}{of_others}",
                chosen.len()
            ),
        );
    }
    Ok(match () {
        () if stop.load(Ordering::Relaxed) => Status::OfCommand(CommandExit::Interrupted),
        () if failed + blocked > 0 => Status::Failed,
        () => Status::Done,
    })
}

/// Says that the profile of the environment is not that of the sweep's tasks.
fn note_other_profile(folder: &Folder, quiet: bool) {
    if let Some(named) = std::env::var_os(PROFILE_VARIABLE).filter(|v| !v.is_empty()) {
        let own = folder.plan().profiles.values().map(|p| p.name.as_str()).collect::<BTreeSet<_>>();
        let own: Vec<&str> = own.into_iter().filter(|name| named != *name).collect();
        let text = format!(
            "{PROFILE_VARIABLE} names {}, and the sweep's tasks have profiles of its plan: {}",
            named.to_string_lossy(),
            own.join(", ")
        );
        note(!quiet && !own.is_empty(), &text);
    }
}

/// How many tasks have results, failed, were left to others, and cannot run as others failed.
#[derive(Default)]
struct Counts([AtomicUsize; 4]);

impl Counts {
    fn add(&self, did: &Did) {
        let at = match did {
            Did::Finished | Did::Nothing => 0,
            Did::Failed => 1,
            Did::LeftToAnother => 2,
            Did::Blocked => 3,
            Did::Stopped => return,
        };
        self.0[at].fetch_add(1, Ordering::Relaxed);
    }

    fn of(&self, at: usize) -> usize {
        self.0[at].load(Ordering::Relaxed)
    }

    fn all(&self) -> usize {
        (0..4).map(|at| self.of(at)).sum()
    }
}

struct Worker<'a> {
    folder: &'a Folder,
    /// The tasks that it was asked for by number; none if all, of which those of other workers are left to
    /// them.
    asked: &'a [usize],
    stop: &'a AtomicBool,
    quiet: bool,
    /// Tasks that failed in this run.
    failed: Mutex<BTreeSet<usize>>,
}

impl Worker<'_> {
    /// Runs a task. An error is one of the folder, such as a full disk, after which no other task can be kept
    /// either.
    fn one(&self, task: &Task) -> anyhow::Result<Did> {
        let number = task.number;
        if self.folder.is_done(number) {
            return Ok(Did::Nothing);
        }
        match self.sources(task)? {
            Did::Finished => {}
            other => return Ok(other),
        }
        let claim = self.folder.claim(number)?;
        if claim.is_none() && self.asked.is_empty() {
            return Ok(Did::LeftToAnother);
        }
        // Another worker may have finished it before the claim.
        if self.folder.is_done(number) {
            return Ok(Did::Nothing);
        }
        let begun = Instant::now();
        let tried = self.result(task);
        if self.stop.load(Ordering::Relaxed) {
            return Ok(Did::Stopped);
        }
        let kept = tried
            .and_then(|document| Ok(self.folder.keep(number, &document, begun.elapsed().as_secs_f64())?));
        let Err(e) = kept else { return Ok(Did::Finished) };
        // A worker whose lock was not seen may have finished it.
        if self.folder.is_done(number) {
            return Ok(Did::Nothing);
        }
        if let Some(FolderError::Io { .. }) = e.downcast_ref() {
            return Err(e);
        }
        let why = format!("{e:#}");
        note(
            !self.quiet,
            format_args!("task {} failed: {}", task.words(), why.lines().next().unwrap_or_default()),
        );
        self.folder.fail(number, &why)?;
        self.failed.lock().expect(UNPOISONED).insert(number);
        Ok(Did::Failed)
    }

    /// Sees to it that what a task reads is there. A worker runs what it may run and no other worker runs,
    /// and waits for the rest, which ends when the other worker is done, fails or dies.
    fn sources(&self, task: &Task) -> anyhow::Result<Did> {
        for source in self.folder.plan().sources(task) {
            while !self.folder.is_done(source.number) {
                if !self.asked.is_empty() && !self.asked.contains(&source.number) {
                    anyhow::bail!(
                        "task {} reads the result of task {}, which has none: run that one first",
                        task.words(),
                        source.words()
                    );
                }
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(Did::Stopped);
                }
                if self.failed.lock().expect(UNPOISONED).contains(&source.number) {
                    return Ok(Did::Blocked);
                }
                match self.folder.state(source.number) {
                    State::Done => {}
                    State::Running => std::thread::sleep(LOOK),
                    State::Left | State::Failed => {
                        if let Did::Stopped = self.one(source)? {
                            return Ok(Did::Stopped);
                        }
                    }
                }
            }
        }
        Ok(Did::Finished)
    }

    /// The document of a task's verb. A directory of fingerprints gets its place, and no document.
    fn result(&self, task: &Task) -> anyhow::Result<Vec<u8>> {
        let work = tempfile::tempdir().context("cannot make a temporary folder")?;
        let (document, errors) = (work.path().join("result.json"), work.path().join("errors"));
        // The verb runs in another folder.
        let place = |task: &Task| -> anyhow::Result<PathBuf> {
            let path = self.folder.result(task.number);
            std::path::absolute(&path).with_context(|| format!("cannot find {}", path.display()))
        };
        let result = match task.verb {
            Verb::Fingerprint => place(task)?,
            Verb::Compare | Verb::Count => document,
        };
        let mut command = child::bifold(&self.folder.plan().folder, task.verb.words(), &result, &errors)?;
        if task.verb == Verb::Compare {
            command.args(["--format", "json"]);
        }
        if let Some(profile) = self.folder.plan().profile(task) {
            let file = work.path().join("profile.toml");
            std::fs::write(&file, profile.to_toml()).context("cannot write a temporary file")?;
            command.env(PROFILE_VARIABLE, file);
        }
        command.args(&task.args);
        for source in self.folder.plan().sources(task) {
            command.arg(place(source)?);
        }
        if !task.command.is_empty() {
            let env = task.env.iter().map(|(name, value)| (name, value));
            command.arg("--").args(child::in_fixed_environment(env, &task.command));
        }
        let status = child::wait(&mut command, self.stop)?;
        if task.verb == Verb::Fingerprint && status.success() {
            return Ok(vec![]);
        }
        let document = bounded::read(&result, bifold_report::diff::MOST_BYTES);
        // A status other than 0 with a document is the command's own, which the document has.
        match document {
            Ok(bytes) if status.success() => Ok(bytes),
            Ok(bytes) if !bytes.is_empty() && child::last_lines(&errors).is_none() => Ok(bytes),
            _ => anyhow::bail!(
                "{}",
                child::last_lines(&errors).unwrap_or_else(|| format!(
                    "`bifold {}` ended with {status}",
                    task.verb.words().join(" ")
                ))
            ),
        }
    }
}
