// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Trainers: they learn policies' parameters, and the estimator of the other mode's cost, from timelines.
//!
//! Every trainer takes programs' timelines; [`recorded`] learns from real VMs, of which recordings have pairs
//! of both modes' costs. A trainer leaves each program out in turn and measures on it what was learnt from
//! the others. The result is [`Trained`]: a table for people, and the TOML that `bifold-policy` reads.
//! Nothing is random: the same timelines give the same file.
//!
//! This crate replays through `bifold-policy` and decides nothing at run time. It is a crate of its own
//! because its solvers bring dependencies that a replay does not need.
//!
//! ```
//! use bifold_policy::Named;
//! use bifold_train::search;
//!
//! // The settings of DSP among which the search chooses, fixed before it sees a timeline.
//! let grid = search::dsp_grid(&Named::load("dsp")?);
//! assert!(grid.len() > 1000 && grid.iter().all(|dsp| dsp.spec.check().is_ok()));
//! # Ok::<(), bifold_policy::SpecError>(())
//! ```
#![forbid(unsafe_code)]

mod error;
pub mod estimator;
mod linear;
mod programs;
pub mod published;
pub mod recorded;
pub mod search;
mod text;

#[cfg(test)]
mod testing;

pub use error::{TooFewPairs, TrainError};
pub use programs::Program;

/// Takes what a trainer reports while it works.
pub type Progress<'a> = dyn Fn(&str) + Sync + 'a;

/// What was learnt.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    /// How well it does, for people.
    pub table: String,
    /// The file.
    pub toml: String,
}
