// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The folder of a sweep: its plan, the tasks' results, and what failed.
//!
//! ```text
//! sweep.json            the plan, written once
//! results/0017.json     the result of task 17; a directory, results/0017, for fingerprints
//! failed/0017.txt       why task 17 failed at its last try
//! locks/0017            locked by the worker that runs task 17
//! ```
//!
//! A result appears under its name when it is complete, by a rename. The system unlocks the locks of a worker
//! that is killed. Locks only keep two workers from the same work: where a file system has none, tasks may
//! run twice, and their results stay right.

use super::error::FolderError;
use crate::plan::{Plan, SCHEMA, Task, Verb};
use bifold_base::bounded;
use bifold_base::whole::{self, UNFINISHED};
use bifold_report::diff::{MOST_BYTES, Side};
use bifold_trace::CommandExit;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// Name and version of a result's schema.
const RESULT: &str = "bifold.sweep-result/1";
/// Most bytes of a plan: 100,000 tasks of 600 bytes.
const MOST_PLAN: u64 = 64 << 20;
/// Most bytes of a failure's text.
const MOST_TEXT: u64 = 1 << 16;
/// How often a claim is tried.
const LOOKS: u32 = 4;

/// The folder of a sweep.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    plan: Plan,
    identity: String,
}

/// The right to run a task. Other workers see it as long as it is not dropped.
#[derive(Debug)]
pub struct Claim(
    // Unlocked when it is dropped.
    #[allow(dead_code)] Option<File>,
);

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It has a result.
    Done,
    /// Its last try failed.
    Failed,
    /// A worker runs it.
    Running,
    /// None of these.
    Left,
}

/// Why a task has no result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Failure {
    /// The task's number, from 0.
    pub task: usize,
    /// Why the task failed at its last try.
    pub why: String,
}

/// A task's result.
#[derive(Debug)]
pub struct Finished {
    /// How long the task ran, in s.
    pub seconds: f64,
    /// The machine on which the task ran.
    pub host: String,
    /// The result's document, schema `bifold.compare/2`.
    pub bytes: Vec<u8>,
    /// The result as read.
    pub side: Side,
}

/// What `bifold sweep run` writes into the first line of a result's file: which task has the result. The rest
/// is the document that `bifold compare --format json` wrote.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Head {
    /// Name and version of this schema.
    schema: String,
    /// Identity of the sweep: the XXH3-64 of its plan, 16 hexadecimal digits.
    sweep: String,
    /// The task's number, from 0.
    task: usize,
    /// Time that the task took. Unit: s.
    seconds: f64,
    /// The machine on which the task ran.
    host: String,
}

/// The schemas of the plan and of the first line of a result's file.
pub fn schemas() -> Vec<serde_json::Value> {
    vec![bifold_report::schema::schema::<Plan>(SCHEMA), bifold_report::schema::schema::<Head>(RESULT)]
}

/// The fields of a result that are judged.
#[derive(Deserialize)]
struct Ended {
    exit: Option<CommandExit>,
}

impl Folder {
    /// Makes the folder of a plan. A folder that has the plan already is opened.
    ///
    /// # Errors
    /// If the folder cannot be made, or has another plan.
    pub fn create(path: &Path, plan: Plan) -> Result<Folder, FolderError> {
        let file = path.join("sweep.json");
        if file.exists() {
            let there = Folder::open(path)?;
            // As written: how this run came to a profile is no part of a plan.
            return if there.identity == plan.identity() {
                Ok(there)
            } else {
                let (had, asked) = (there.plan.tasks.len(), plan.tasks.len());
                Err(FolderError::Other { path: path.into(), had, asked })
            };
        }
        for part in ["results", "failed", "locks"] {
            let dir = path.join(part);
            std::fs::create_dir_all(&dir).map_err(io("make", &dir))?;
        }
        let bytes = serde_json::to_vec(&plan).expect("a plan has text and numbers alone");
        write(&file, &[&bytes])?;
        let identity = plan.identity();
        Ok(Folder { path: path.into(), plan, identity })
    }

    /// Opens a sweep's folder.
    ///
    /// # Errors
    /// If the folder has no plan, a damaged one, or one of another version.
    pub fn open(path: &Path) -> Result<Folder, FolderError> {
        let file = path.join("sweep.json");
        let bytes = bounded::read(&file, MOST_PLAN).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => FolderError::NoSweep { path: path.into() },
            _ => FolderError::Io { what: "read", path: file.clone(), source },
        })?;
        let damaged = |problem: String| FolderError::Damaged { path: file.clone(), problem };
        let plan: Plan = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
        let here = bifold_base::version();
        if plan.schema != SCHEMA || plan.bifold != here {
            return Err(FolderError::Version { path: path.into(), planned: plan.bifold, here: here.into() });
        }
        if let Some((i, _)) = plan.tasks.iter().enumerate().find(|(i, t)| t.number != *i) {
            return Err(damaged(format!("task {i} has another number")));
        }
        if plan.tasks.is_empty() {
            return Err(damaged("there is no task".into()));
        }
        let identity = plan.identity();
        Ok(Folder { path: path.into(), plan, identity })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The task of a number.
    ///
    /// # Errors
    /// If no task has the number.
    pub fn task(&self, number: usize) -> Result<&Task, FolderError> {
        let last = self.plan.tasks.len() - 1;
        self.plan.tasks.get(number).ok_or_else(|| FolderError::NoTask {
            path: self.path.clone(),
            number,
            last,
        })
    }

    fn file(&self, part: &str, task: usize, end: &str) -> PathBuf {
        self.path.join(part).join(format!("{task:04}{end}"))
    }

    /// Where the result of a task is, when it is there: a file, or a directory of fingerprints.
    pub fn result(&self, task: usize) -> PathBuf {
        let is_directory = self.plan.tasks.get(task).is_some_and(|t| t.verb == Verb::Fingerprint);
        self.file("results", task, if is_directory { "" } else { ".json" })
    }

    /// Claims a task; none if another worker runs it now.
    ///
    /// # Errors
    /// If the lock's file cannot be made.
    pub fn claim(&self, task: usize) -> Result<Option<Claim>, FolderError> {
        let path = self.file("locks", task, "");
        let options = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = options.map_err(io("make", &path))?;
        // `state` holds a lock for a moment, which is no claim.
        for _ in 0..LOOKS {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Claim(Some(file)))),
                Err(Errno::WOULDBLOCK) => std::thread::sleep(std::time::Duration::from_millis(5)),
                // A file system without locks.
                Err(_) => return Ok(Some(Claim(None))),
            }
        }
        Ok(None)
    }

    /// Where a task stands.
    pub fn state(&self, task: usize) -> State {
        if self.result(task).exists() {
            return State::Done;
        }
        let lock = OpenOptions::new().write(true).open(self.file("locks", task, ""));
        let locked = |f: &File| flock(f, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK);
        match lock {
            Ok(file) if locked(&file) => State::Running,
            _ if self.file("failed", task, ".txt").exists() => State::Failed,
            _ => State::Left,
        }
    }

    /// Whether a task has a result.
    pub fn is_done(&self, task: usize) -> bool {
        self.result(task).exists()
    }

    /// Why a task failed at its last try.
    pub fn failure(&self, task: usize) -> Option<Failure> {
        let bytes = bounded::read(&self.file("failed", task, ".txt"), MOST_TEXT).ok()?;
        Some(Failure { task, why: String::from_utf8_lossy(&bytes).trim().to_owned() })
    }

    /// Keeps the result of a task: the document that its verb wrote. A directory of fingerprints is in its
    /// place already, and the document is empty.
    ///
    /// # Errors
    /// If a document of `compare` is no whole result of one run, or a document cannot be written.
    pub fn keep(&self, task: usize, document: &[u8], seconds: f64) -> Result<(), FolderError> {
        let path = self.result(task);
        match self.plan.tasks.get(task).map(|t| t.verb).unwrap_or_default() {
            Verb::Compare => {
                judged(&path, document)?;
                let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                let head = Head { schema: RESULT.into(), sweep: self.identity.clone(), task, seconds, host };
                let head = serde_json::to_vec(&head).expect("a head has text and numbers alone");
                write(&path, &[&head, b"\n", document])?;
            }
            Verb::Fingerprint => {}
            // `bifold share merge` reads the file, and tells by the document what was counted.
            Verb::Count => write(&path, &[document])?,
        }
        let _ = std::fs::remove_file(self.file("failed", task, ".txt"));
        Ok(())
    }

    /// Notes why a task failed.
    ///
    /// # Errors
    /// If the note cannot be written.
    pub fn fail(&self, task: usize, why: &str) -> Result<(), FolderError> {
        let most =
            why.char_indices().map(|(i, _)| i).find(|i| *i >= MOST_TEXT as usize - 1).unwrap_or(why.len());
        write(&self.file("failed", task, ".txt"), &[&why.as_bytes()[..most], b"\n"])
    }

    /// The result of a task; none if it has none.
    ///
    /// # Errors
    /// If the result is damaged, or of another sweep or task.
    pub fn finished(&self, task: usize) -> Result<Option<Finished>, FolderError> {
        let path = self.result(task);
        let mut bytes = match bounded::read(&path, MOST_BYTES) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(io("read", &path))?,
        };
        let bad = |problem: String| FolderError::Result { path: path.clone(), problem };
        let end = bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len());
        let head: Head = serde_json::from_slice(&bytes[..end])
            .map_err(|e| bad(format!("is no result of a sweep: {e}")))?;
        if (head.schema.as_str(), head.sweep.as_str(), head.task) != (RESULT, &self.identity, task) {
            return Err(bad(format!(
                "is the result of task {} of sweep {}, and belongs to no task of this one: remove it",
                head.task, head.sweep
            )));
        }
        bytes.drain(..(end + 1).min(bytes.len()));
        let side = judged(&path, &bytes)?;
        Ok(Some(Finished { seconds: head.seconds, host: head.host, bytes, side }))
    }

    /// Removes what killed workers left unfinished longer ago than a day, and returns how many files and
    /// directories remain.
    pub fn tidy(&self) -> usize {
        let day = std::time::Duration::from_secs(24 * 3600);
        let entries = std::fs::read_dir(self.path.join("results")).into_iter().flatten().flatten();
        let unfinished = entries.filter(|e| e.file_name().to_string_lossy().starts_with(UNFINISHED));
        let stays = |e: &std::fs::DirEntry| {
            let age = e.metadata().and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
            let removed = || match e.path().is_dir() {
                true => std::fs::remove_dir_all(e.path()),
                false => std::fs::remove_file(e.path()),
            };
            age.is_none_or(|age| age < day) || removed().is_err()
        };
        unfinished.filter(stays).count()
    }
}

/// The result in a document.
fn judged(path: &Path, document: &[u8]) -> Result<Side, FolderError> {
    let bad = |problem: String| FolderError::Result { path: path.into(), problem };
    let side = Side::from_json(&path.display().to_string(), document)
        .map_err(|source| FolderError::Read { source })?;
    if side.runs() != 1 {
        return Err(bad("holds several runs, and a task is one".into()));
    }
    let ended: Ended = serde_json::from_slice(document).map_err(|e| bad(e.to_string()))?;
    match (side.partial(), ended.exit) {
        (Some(partial), _) => Err(bad(format!("the run is not whole: {}", partial.describe()))),
        (None, Some(exit)) if !exit.is_success() => {
            Err(bad(format!("the command failed: {}", exit.describe())))
        }
        _ => Ok(side),
    }
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    move |source| FolderError::Io { what, path: path.into(), source }
}

/// Writes a file as a whole: a reader sees all of it or nothing.
fn write(path: &Path, parts: &[&[u8]]) -> Result<(), FolderError> {
    whole::write(path, parts).map_err(io("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Spec;
    use bifold_model::{ChosenBy, Profile};
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_folder_with_the_same_plan_is_opened_and_another_plan_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (at, mut profile) = (dir.path().join("runs"), Profile::load("zen4", &[]).unwrap());
        let plan = |profile: &Profile| {
            let mut plan = Spec::plan_of("[programs.a]\ngenerate = 't'", Path::new("s"), dir.path()).unwrap();
            plan.give_profile(0, profile);
            plan
        };
        profile.chosen.by = ChosenBy::Processor;
        let identity = Folder::create(&at, plan(&profile)).unwrap().identity;
        assert_eq!(Folder::create(&at, plan(&profile)).unwrap().identity, identity);
        let other = plan(&Profile::load("zen5", &[]).unwrap());
        assert!(matches!(Folder::create(&at, other), Err(FolderError::Other { had: 1, asked: 1, .. })));
    }

    #[test]
    fn what_killed_workers_left_is_removed_after_a_day() {
        let dir = tempfile::tempdir().unwrap();
        let plan = Spec::plan_of("[programs.a]\ngenerate = 't'", Path::new("s"), dir.path()).unwrap();
        let folder = Folder::create(&dir.path().join("runs"), plan).unwrap();
        let results = dir.path().join("runs/results");
        let old = SystemTime::now() - Duration::from_secs(25 * 3600);
        for (name, is_old) in [("a", true), ("b", false)] {
            let (file, directory) = (
                results.join(format!("{UNFINISHED}{name}")),
                results.join(format!("{UNFINISHED}{name}.tmp")),
            );
            std::fs::write(&file, "x").unwrap();
            std::fs::create_dir(&directory).unwrap();
            std::fs::write(directory.join("part"), "x").unwrap();
            for path in [file, directory].iter().filter(|_| is_old) {
                File::open(path).unwrap().set_modified(old).unwrap();
            }
        }
        std::fs::write(results.join("0000.json"), "x").unwrap();
        assert_eq!(folder.tidy(), 2);
        let mut left: Vec<_> = std::fs::read_dir(&results)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, [".bifold-b", ".bifold-b.tmp", "0000.json"]);
    }
}
