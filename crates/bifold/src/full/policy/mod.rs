// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold policy`: replays of policies over timelines.
//!
//! Each verb is a file. [`setting`] has the options of several verbs: timelines, policies and the VM.

mod compare;
mod list;
mod replay;
mod setting;
mod sweep;
mod train;

use crate::status::{self, Status};
use clap::{Args, Subcommand};

/// Replay policies that switch between shadow and nested paging
///
/// A timeline has the cost of one program in both modes, interval by interval; `bifold compare --timeline
/// FILE` writes it. A policy sees the counters of the mode that the VM is in, and decides on the mode of the
/// next interval.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true,
          after_long_help = status::IN_WORDS)]
pub struct PolicyArgs {
    #[command(subcommand)]
    verb: PolicyVerb,
}

/// The verbs of `bifold policy`. The help of a verb is the doc comment of its arguments.
#[derive(Debug, Subcommand)]
enum PolicyVerb {
    List(list::ListArgs),
    Replay(Box<replay::ReplayArgs>),
    Compare(Box<compare::CompareArgs>),
    Intervals(Box<compare::IntervalsArgs>),
    Sweep(Box<sweep::SweepArgs>),
    Train(Box<train::TrainArgs>),
}

/// The schemas of the verbs' documents, without those of reports.
pub fn schemas() -> Vec<serde_json::Value> {
    [list::schema(), sweep::schema()].into_iter().chain(replay::schemas()).collect()
}

/// Carries out a verb.
pub fn run(args: PolicyArgs) -> anyhow::Result<Status> {
    match args.verb {
        PolicyVerb::List(args) => list::run(&args),
        PolicyVerb::Replay(args) => replay::run(*args),
        PolicyVerb::Compare(args) => compare::compare(*args),
        PolicyVerb::Intervals(args) => compare::intervals(*args),
        PolicyVerb::Sweep(args) => sweep::run(*args),
        PolicyVerb::Train(args) => train::run(*args),
    }
}
