// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold sweep run`: a worker.

use super::args::RunArgs;
use crate::child;
use crate::console::{Progress, note, stop_on_signals};
use crate::status::Status;
use anyhow::Context as _;
use bifold_sweep::{Folder, FolderError, Task};
use bifold_trace::{CommandExit, bounded};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// What a worker did with a task.
enum Did {
    Finished,
    /// It has a result already.
    Nothing,
    /// Another worker runs it.
    LeftToAnother,
    Failed,
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
    let stop = stop_on_signals()?;
    // A scheduler that asks for a task wants its result, so the task runs even if another worker is at it: that one may have
    // lost its machine. Who asks for all tasks gets on with others.
    let worker = Worker { folder: &folder, share: args.task.is_empty(), stop: &stop, quiet: args.quiet };
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
    let (done, failed, others) = (counts.of(0), counts.of(1), counts.of(2));
    if chosen.len() > 1 {
        let of_others = if others > 0 { format!(", {others} left to other workers") } else { String::new() };
        note(
            !args.quiet,
            format_args!("{done} of {} tasks have results, {failed} failed{of_others}", chosen.len()),
        );
    }
    Ok(match () {
        () if stop.load(Ordering::Relaxed) => Status::OfCommand(CommandExit::Interrupted),
        () if failed > 0 => Status::Failed,
        () => Status::Done,
    })
}

/// How many tasks have results, failed, and were left to others.
#[derive(Default)]
struct Counts([AtomicUsize; 3]);

impl Counts {
    fn add(&self, did: &Did) {
        let at = match did {
            Did::Finished | Did::Nothing => 0,
            Did::Failed => 1,
            Did::LeftToAnother => 2,
            Did::Stopped => return,
        };
        self.0[at].fetch_add(1, Ordering::Relaxed);
    }

    fn of(&self, at: usize) -> usize {
        self.0[at].load(Ordering::Relaxed)
    }

    fn all(&self) -> usize {
        (0..3).map(|at| self.of(at)).sum()
    }
}

struct Worker<'a> {
    folder: &'a Folder,
    /// Whether tasks of other workers are left to them.
    share: bool,
    stop: &'a AtomicBool,
    quiet: bool,
}

impl Worker<'_> {
    /// Runs a task. An error is one of the folder, such as a full disk, after which no other task can be kept either.
    fn one(&self, task: &Task) -> anyhow::Result<Did> {
        let number = task.number;
        if self.folder.is_done(number) {
            return Ok(Did::Nothing);
        }
        let claim = self.folder.claim(number)?;
        if claim.is_none() && self.share {
            return Ok(Did::LeftToAnother);
        }
        // Another worker may have finished it before the claim.
        if self.folder.is_done(number) {
            return Ok(Did::Nothing);
        }
        let begun = Instant::now();
        let tried = self.compare(task);
        if self.stop.load(Ordering::Relaxed) {
            return Ok(Did::Stopped);
        }
        let kept = tried
            .and_then(|document| Ok(self.folder.keep(number, &document, begun.elapsed().as_secs_f64())?));
        let Err(e) = kept else { return Ok(Did::Finished) };
        if let Some(FolderError::Io { .. }) = e.downcast_ref() {
            return Err(e);
        }
        let why = format!("{e:#}");
        note(
            !self.quiet,
            format_args!("task {} failed: {}", task.words(), why.lines().next().unwrap_or_default()),
        );
        self.folder.fail(number, &why)?;
        Ok(Did::Failed)
    }

    /// The document of a task's `bifold compare`.
    fn compare(&self, task: &Task) -> anyhow::Result<Vec<u8>> {
        let work = tempfile::tempdir().context("cannot make a temporary folder")?;
        let (result, errors) = (work.path().join("result.json"), work.path().join("errors"));
        let mut command = child::compare(&self.folder.plan().folder, &result, &errors)?;
        command.args(&task.args);
        if !task.command.is_empty() {
            let env = task.env.iter().map(|(name, value)| (name, value));
            command.arg("--").args(child::in_fixed_environment(env, &task.command));
        }
        let status = child::wait(&mut command, self.stop)?;
        let document = bounded::read(&result, bifold_report::diff::MOST_BYTES);
        // A status other than 0 with a document is the command's own, which the document has.
        match document {
            Ok(bytes) if status.success() => Ok(bytes),
            Ok(bytes) if !bytes.is_empty() && child::last_lines(&errors).is_none() => Ok(bytes),
            _ => anyhow::bail!(
                "{}",
                child::last_lines(&errors).unwrap_or_else(|| format!("`bifold compare` ended with {status}"))
            ),
        }
    }
}
