// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs that a trainer learns from, each with its timeline.

use crate::recorded::TooFewPairs;
use bifold_policy::{Timeline, TimelineError};
use std::path::PathBuf;

/// A program and its timeline.
#[derive(Debug, Clone)]
#[allow(missing_docs)] // the names say it
pub struct Program {
    /// The timeline's file name without extension.
    pub name: String,
    pub timeline: Timeline,
}

/// Why training failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A timeline cannot be used.
    #[error(transparent)]
    Timeline(#[from] TimelineError),
    /// Two files have the same name.
    #[error(
        "two timelines are called {0}: give each program one timeline, so that leaving it out leaves all of it out"
    )]
    Twice(String),
    /// Fewer programs than needed.
    #[error(
        "got {0} timelines, and training takes 2 or more: each program is left out in turn and tested on what the others teach"
    )]
    TooFew(usize),
    /// A timeline lacks one of the two modes on the pages to learn from.
    #[error("timeline {name} has no pair of modes on {pages} host pages")]
    NoPair {
        /// The program.
        name: String,
        /// The host pages.
        pages: &'static str,
    },
    /// The timelines were made on different machines.
    #[error("timelines {a} and {b} are of different {what}: what is learnt holds for one machine")]
    Mixed {
        /// One program.
        a: String,
        /// Another.
        b: String,
        /// What differs.
        what: &'static str,
    },
    /// Both modes cost the same in all timelines.
    #[error("the modes do not differ by {0}: there is nothing to learn from these timelines")]
    NoDifference(&'static str),
    /// Recordings have too few pairs of both modes' costs.
    #[error("{0}")]
    TooFewPairs(TooFewPairs),
    /// No counter helps to estimate the other mode's cost.
    #[error(
        "no counter of a VM in {0} paging tells what the other mode costs: the pairs of these recordings contradict each other"
    )]
    Unexplained(&'static str),
    /// The solver failed.
    #[error("{0}")]
    Solver(String),
}

impl Program {
    /// Reads timelines, in the order of the programs' names.
    pub fn read(paths: &[PathBuf]) -> Result<Vec<Program>, TrainError> {
        let read = |path: &PathBuf| -> Result<Program, TrainError> {
            let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            Ok(Program { name, timeline: Timeline::read(path)? })
        };
        let mut programs = paths.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        programs.sort_by(|a, b| a.name.cmp(&b.name));
        Program::check(&programs)?;
        Ok(programs)
    }

    /// Checks that there are two or more programs with different names, all modelled with the same profile.
    pub fn check(programs: &[Program]) -> Result<(), TrainError> {
        if programs.len() < 2 {
            return Err(TrainError::TooFew(programs.len()));
        }
        for pair in programs.windows(2) {
            let [a, b] = pair else { unreachable!("windows of 2") };
            if a.name == b.name {
                return Err(TrainError::Twice(a.name.clone()));
            }
            let mixed = |what| TrainError::Mixed { a: a.name.clone(), b: b.name.clone(), what };
            if a.timeline.costs != b.timeline.costs {
                return Err(mixed("costs"));
            }
            if a.timeline.about.config_hash != b.timeline.about.config_hash {
                return Err(mixed("profiles"));
            }
        }
        Ok(())
    }
}
