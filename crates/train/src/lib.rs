// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Learns from timelines: the estimator of the other mode's cost, and policies' parameters.
//!
//! Every trainer takes programs' timelines, leaves each program out in turn to say how well
//! what was learnt on the others does on it, and gives a table for reading and the TOML
//! that `bifold-policy` reads. Nothing random: the same timelines give the same file.
//! A crate of its own because solvers bring dependencies that a replay does not need.
#![forbid(unsafe_code)]

pub mod estimator;
pub mod kuang;
mod linear;
mod programs;
pub mod published;
pub mod search;
mod text;

#[cfg(test)]
mod testing;

pub use programs::{Program, TrainError};

/// What a trainer says while it works.
pub type Progress<'a> = dyn Fn(&str) + Sync + 'a;

/// What was learnt.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    /// How well it does, for reading.
    pub table: String,
    /// The file.
    pub toml: String,
}
