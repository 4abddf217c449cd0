// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold profile`: hardware profiles. Each verb is a file.

mod check;
mod list;
mod measure;

use crate::status::{self, Status};
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  bifold profile list
  bifold profile show zen4 > mine.toml
  bifold profile measure --name mine -o mine.toml
  bifold profile check mine.toml";

/// List, show, check and measure hardware profiles
///
/// A profile has the geometry and the costs of a machine: TLBs, caches, memory, walks, exits. `bifold compare
/// --profile NAME|FILE` uses one.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true,
          after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct ProfileArgs {
    #[command(subcommand)]
    verb: ProfileVerb,
}

/// The verbs of `bifold profile`. The help of a verb is the doc comment of its arguments.
#[derive(Debug, Subcommand)]
enum ProfileVerb {
    List(list::ListArgs),
    Show(list::ShowArgs),
    Check(check::CheckArgs),
    Measure(measure::MeasureArgs),
}

/// The schemas of the verbs' documents.
pub fn schemas() -> [serde_json::Value; 3] {
    [measure::schema(), list::schema(), check::schema()]
}

/// Carries out a verb.
pub fn run(args: ProfileArgs) -> anyhow::Result<Status> {
    match args.verb {
        ProfileVerb::List(args) => list::list(&args),
        ProfileVerb::Show(args) => list::show(&args),
        ProfileVerb::Check(args) => check::run(&args),
        ProfileVerb::Measure(args) => measure::run(&args),
    }
}
