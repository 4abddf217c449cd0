// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold reclaim`: what guests' memory is worth, and taking it back without harm.
//!
//! Each verb is a file. [`whole`] has the runs of `show` and `cost`, [`guests`] finds the guests that a user
//! names.

mod advise;
mod cost;
mod guests;
mod plan;
mod restore;
mod run;
mod set;
mod show;
mod watch;
mod whole;

pub use restore::{GUARDIAN, guard};

use crate::doctor::needs::{GUESTS_OF_EXPERIMENT, Needs, WITHOUT_A_GUEST};
use crate::status::{self, Status};
use bifold_report::schema::schema;
use bifold_trial::pressure::output;
use clap::{Args, Subcommand};
use serde_json::Value;

/// See how much memory guests need, plan how to divide a host's memory, and take memory back in steps
///
/// A host that has promised more memory than it has takes some back: the guest reports free pages, a balloon
/// makes the guest choose pages, or the host pages out.
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
    Cost(Box<cost::CostArgs>),
    Plan(plan::PlanArgs),
    Run(run::RunArgs),
    Watch(watch::WatchArgs),
    Advise(advise::AdviseArgs),
    Set(set::SetArgs),
    Restore(restore::RestoreArgs),
}

impl ReclaimArgs {
    /// Whether the verb runs a command, whose status is then the verb's.
    pub fn runs_a_command(&self) -> bool {
        let run = match &self.verb {
            ReclaimVerb::Show(args) => &args.run,
            ReclaimVerb::Cost(args) => &args.run,
            _ => return false,
        };
        !run.program.command.is_empty()
    }
}

/// What each verb needs of the machine.
pub const NEEDS: &[Needs] = &[
    Needs::of_guest("show", WITHOUT_A_GUEST),
    Needs::of_guest("cost", WITHOUT_A_GUEST),
    Needs::of("plan", &[]),
    Needs::of("run", GUESTS_OF_EXPERIMENT),
    Needs::of("watch", &[]),
    Needs::of("advise", &[]),
    Needs::of("set", &[]),
    Needs::of("restore", &[]),
];

/// Carries out a verb.
pub fn run(args: ReclaimArgs) -> anyhow::Result<Status> {
    match args.verb {
        ReclaimVerb::Show(args) => show::run(*args),
        ReclaimVerb::Cost(args) => cost::run(*args),
        ReclaimVerb::Plan(args) => plan::run(&args),
        ReclaimVerb::Run(args) => run::run(&args),
        ReclaimVerb::Watch(args) => watch::run(&args),
        ReclaimVerb::Advise(args) => advise::run(&args),
        ReclaimVerb::Set(args) => set::run(&args),
        ReclaimVerb::Restore(args) => restore::run(&args),
    }
}

/// The schemas of the verbs' documents and lines.
pub fn schemas() -> Vec<Value> {
    vec![
        cost::schema(),
        plan::schema(),
        schema::<output::Document>(output::SCHEMA),
        watch::schema(),
        advise::schema(),
        set::schema(),
    ]
}
