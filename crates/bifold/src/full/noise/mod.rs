// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold noise`: what interrupts programs, and what that costs parallel ones. Each verb is a file;
//! [`values`] has the syntax of their arguments.

mod record;
mod simulate;
mod values;

use crate::doctor::needs::Needs;
use crate::status::{self, Status};
use clap::{Args, Subcommand};
use serde_json::Value;

const EXAMPLES: &str = "\
Examples:
  sudo bifold noise record -o noise
  bifold noise simulate --sources noise/*.noise
  bifold noise simulate --noise periodic:10Hz:2.5ms --noise periodic:10kHz:2.5us";

/// Record what interrupts CPUs, and simulate what that costs up to a million ranks
///
/// A parallel program waits for its slowest rank, so a rare interruption of one CPU can delay a thousand
/// others. `record` finds the interruptions of this machine, host or guest; `simulate` finds what they cost.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true,
          after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct NoiseArgs {
    #[command(subcommand)]
    verb: NoiseVerb,
}

/// The verbs of `bifold noise`. The help of a verb is the doc comment of its arguments.
#[derive(Debug, Subcommand)]
enum NoiseVerb {
    Record(record::RecordArgs),
    Simulate(Box<simulate::SimulateArgs>),
}

/// What each verb needs of the machine.
pub const NEEDS: &[Needs] = &[Needs::of("record", &[]), Needs::of("simulate", &[])];

/// Carries out a verb.
pub fn run(args: NoiseArgs) -> anyhow::Result<Status> {
    match args.verb {
        NoiseVerb::Record(args) => record::run(&args),
        NoiseVerb::Simulate(args) => simulate::run(&args),
    }
}

/// The schemas of the verbs' documents.
pub fn schemas() -> Vec<Value> {
    vec![record::schema(), simulate::schema()]
}
