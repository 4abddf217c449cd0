// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold place`: where a guest's CPUs and memory belong on this host.
//!
//! Each verb is a file or folder. [`bifold_host::topology`] reads the host, [`bifold_place`] plans, checks
//! and applies.

mod apply;
mod check;
mod plan;
mod plans;
mod show;
mod undo;
mod words;

use crate::doctor::needs::Needs;
use crate::status::{self, Status};
use clap::{Args, Subcommand};

/// Place guests: see a host's nodes, CPUs, caches, huge pages and devices, plan where guests belong, check
/// guests that run
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true,
          after_long_help = status::IN_WORDS)]
pub struct PlaceArgs {
    #[command(subcommand)]
    verb: PlaceVerb,
}

/// The verbs of `bifold place`. The help of a verb is the doc comment of its arguments.
#[derive(Debug, Subcommand)]
enum PlaceVerb {
    Show(show::ShowArgs),
    Plan(plan::PlanArgs),
    Check(check::CheckArgs),
    Apply(apply::ApplyArgs),
    Undo(undo::UndoArgs),
}

/// What each verb needs of the machine.
pub const NEEDS: &[Needs] = &[
    Needs::of("show", &[]),
    Needs::of("plan", &[]),
    Needs::of("check", &[]),
    Needs::of("apply", &[]),
    Needs::of("undo", &[]),
];

/// The schemas of the verbs' documents.
pub fn schemas() -> [serde_json::Value; 3] {
    use bifold_place::{check, plan};
    use bifold_report::schema::schema;
    [show::schema(), schema::<plan::Plan>(plan::SCHEMA), schema::<check::Document>(check::SCHEMA)]
}

/// Carries out a verb.
pub fn run(args: PlaceArgs) -> anyhow::Result<Status> {
    match args.verb {
        PlaceVerb::Show(args) => show::run(&args),
        PlaceVerb::Plan(args) => plan::run(&args),
        PlaceVerb::Check(args) => check::run(&args),
        PlaceVerb::Apply(args) => apply::run(&args),
        PlaceVerb::Undo(args) => undo::run(&args),
    }
}
