// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs that a trainer learns from, each with its timeline.

use crate::TrainError;
use bifold_policy::Timeline;
use bifold_policy::evaluate;
use std::path::PathBuf;

/// A program and its timeline.
#[derive(Debug, Clone)]
#[allow(missing_docs)] // the names say it
pub struct Program {
    /// The timeline's file name without extension.
    pub name: String,
    pub timeline: Timeline,
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

    /// Checks that there are two or more programs with different names, all modelled with the same profile
    /// and in VMs of one state.
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
        evaluate::state(programs.iter().map(|p| (p.name.as_str(), &p.timeline)))?;
        Ok(())
    }
}
