// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold place`: where a guest's CPUs and memory belong on this host.
//!
//! Each verb is a file or folder. [`bifold_host::topology`] reads the host, [`bifold_place`] plans.

mod plan;
mod show;
mod words;

use crate::status::{self, Status};
use clap::{Args, Subcommand};

/// Place guests: see a host's nodes, CPUs, caches, huge pages and devices, and plan where guests belong
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
}

/// Carries out a verb.
pub fn run(args: PlaceArgs) -> anyhow::Result<Status> {
    match args.verb {
        PlaceVerb::Show(args) => show::run(&args),
        PlaceVerb::Plan(args) => plan::run(&args),
    }
}
