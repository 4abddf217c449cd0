// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a sweep's folder cannot be used.

use bifold_report::diff::ReadError;
use std::io;
use std::path::PathBuf;

/// Why a sweep's folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// A file cannot be read or written.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The folder has no plan.
    #[error("{} is no sweep: `bifold sweep new SPEC.toml FOLDER` makes one", path.display())]
    NoSweep {
        /// The folder.
        path: PathBuf,
    },
    /// A file is damaged.
    #[error("{} is damaged: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The folder has the plan of another sweep.
    #[error(
        "{} has the plan of another sweep, of {had} tasks, and this one has {asked}: programs, axes, options, hardware \
         profiles or the folder of the description differ. Name another folder, or remove this one with its results",
        path.display()
    )]
    Other {
        /// The folder.
        path: PathBuf,
        /// Number of its tasks.
        had: usize,
        /// Number of the tasks that were to be planned.
        asked: usize,
    },
    /// The plan is of another Bifold.
    #[error(
        "{} was planned by Bifold {planned}, and this is {here}: use the same version on all machines, as counts may differ",
        path.display()
    )]
    Version {
        /// The folder.
        path: PathBuf,
        /// Version of the plan.
        planned: String,
        /// This version.
        here: String,
    },
    /// There is no task of this number.
    #[error("{} has no task {number}: tasks are 0 to {last}", path.display())]
    NoTask {
        /// The folder.
        path: PathBuf,
        /// The number.
        number: usize,
        /// The last task's number.
        last: usize,
    },
    /// A result cannot be read.
    #[error("{source}; if the file was a task's result, remove it and run the task again")]
    Read {
        /// What is wrong, with the file.
        source: ReadError,
    },
    /// A result cannot be counted.
    #[error("{}: {problem}", path.display())]
    Result {
        /// The result's file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}
