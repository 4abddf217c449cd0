// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold reclaim`: what guests' memory is worth, and taking it back.

mod plan;

use crate::status::{self, Status};
use clap::{Args, Subcommand};

/// See how much memory guests need, and plan how to divide a host's memory among them
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true,
          after_long_help = status::IN_WORDS)]
pub struct ReclaimArgs {
    #[command(subcommand)]
    verb: ReclaimVerb,
}

/// The verbs of `bifold reclaim`. The help of a verb is the doc comment of its arguments.
#[derive(Debug, Subcommand)]
enum ReclaimVerb {
    Plan(plan::PlanArgs),
}

/// Carries out a verb.
pub fn run(args: ReclaimArgs) -> anyhow::Result<Status> {
    match args.verb {
        ReclaimVerb::Plan(args) => plan::run(&args),
    }
}
