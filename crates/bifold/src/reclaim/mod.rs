// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold reclaim`: what guests' memory is worth, and taking it back.

mod plan;
mod show;

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
    Show(Box<show::ShowArgs>),
    Plan(plan::PlanArgs),
}

impl ReclaimArgs {
    /// Whether the verb runs a command, whose status is then the verb's.
    pub fn runs_a_command(&self) -> bool {
        matches!(&self.verb, ReclaimVerb::Show(args) if !args.program.command.is_empty())
    }
}

/// Carries out a verb.
pub fn run(args: ReclaimArgs) -> anyhow::Result<Status> {
    match args.verb {
        ReclaimVerb::Show(args) => show::run(*args),
        ReclaimVerb::Plan(args) => plan::run(&args),
    }
}
