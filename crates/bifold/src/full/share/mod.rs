// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold share`: how much memory guests could share, how much they share, and what sharing costs.
//!
//! Each verb is a file or folder. Several verbs use [`guests`] (memory that a user names), [`counted`] (a
//! count as table or rows), [`out`] (output options) and [`settings`] (settings of KSM).

mod advise;
mod check;
mod counted;
mod fingerprint;
mod guests;
mod model;
mod out;
mod potential;
mod run;
mod settings;
mod watch;

use crate::doctor::needs::{EXPERIMENT, KSM, Needs};
use crate::status::{self, Status};
use bifold_report::schema::schema;
use bifold_share::fingerprint::Part;
use clap::{Args, Subcommand};
use serde_json::Value;

/// Measure how much memory guests could share, how much they share, and what sharing costs
///
/// The host can keep identical pages of several guests in one frame. The kernel's KSM does this for anonymous
/// memory that is marked mergeable, such as the memory of QEMU's guests.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true,
          after_long_help = status::IN_WORDS)]
pub struct ShareArgs {
    #[command(subcommand)]
    verb: ShareVerb,
}

/// The verbs of `bifold share`. The help of a verb is the doc comment of its arguments.
#[derive(Debug, Subcommand)]
enum ShareVerb {
    Potential(Box<potential::PotentialArgs>),
    Fingerprint(Box<fingerprint::FingerprintArgs>),
    Count(Box<fingerprint::CountArgs>),
    Merge(Box<fingerprint::MergeArgs>),
    Import(Box<fingerprint::ImportArgs>),
    Model(Box<model::ModelArgs>),
    Check(Box<check::CheckArgs>),
    Run(Box<run::RunArgs>),
    Watch(watch::WatchArgs),
    Advise(advise::AdviseArgs),
}

/// What each verb needs of the machine.
pub const NEEDS: &[Needs] = &[
    Needs::of("potential", &[]),
    Needs::of("fingerprint", &[]),
    Needs::of("count", &[]),
    Needs::of("merge", &[]),
    Needs::of("import", &[]),
    Needs::of("model", &[]),
    Needs::of("check", &[KSM]),
    Needs::of("run", EXPERIMENT),
    Needs::of("watch", &["KSM counters"]),
    Needs::of("advise", &["KSM counters"]),
];

/// Carries out a verb.
pub fn run(args: ShareArgs) -> anyhow::Result<Status> {
    match args.verb {
        ShareVerb::Advise(args) => advise::run(&args),
        ShareVerb::Check(args) => check::run(&args),
        ShareVerb::Model(args) => model::run(&args),
        ShareVerb::Run(args) => run::run(&args),
        ShareVerb::Watch(args) => watch::run(&args),
        ShareVerb::Potential(args) => potential::run(&args),
        ShareVerb::Fingerprint(args) => fingerprint::write(&args),
        ShareVerb::Count(args) => fingerprint::count(&args),
        ShareVerb::Merge(args) => fingerprint::merge(&args),
        ShareVerb::Import(args) => fingerprint::import(&args),
    }
}

/// The schemas of the verbs' documents.
pub fn schemas() -> Vec<Value> {
    let [potential, rows] = counted::schemas();
    vec![potential, rows, schema::<Part>(Part::SCHEMA), model::schema(), check::schema(), advise::schema()]
}
