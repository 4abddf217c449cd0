// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `diff`, and their help.

use crate::run::ModelArgs;
use crate::{status, words};
use bifold_report::Format;
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  bifold diff before.bifold after.bifold
  bifold diff --profile sapphire-rapids --report diff.html before.bifold after.bifold
  bifold compare --runs 5 --format json -o before.json -- gcc -O2 -c mid_size.c
  bifold diff before.json after.json";

/// Show what differs between two recordings or results
///
/// A and B are each a recording (`bifold record`) or a result (`bifold compare --format json`). Recordings
/// are modelled with the options given here; without --profile, a recording beside a result has the result's
/// profile. The table shows, per configuration, the figures of both, their differences, and the exits that
/// changed most. It lists what differs between the runs themselves, and warns if they are not comparable. If
/// A and B are results of `--runs N`, it says which differences are larger than the spread of the runs.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct DiffArgs {
    /// The first recording or result
    #[arg(value_name = "A")]
    pub a: PathBuf,

    /// The second recording or result
    #[arg(value_name = "B")]
    pub b: PathBuf,

    /// Output format
    ///
    /// `table` is for reading and at most 100 columns wide; `json` is one document with every figure
    /// and counter (schema bifold.diff/2).
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json", help_heading = "Output")]
    pub format: Format,

    /// Write the data to FILE instead of stdout
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,

    /// Also write an HTML report: one file that needs no network
    #[arg(long, value_name = "FILE.html", help_heading = "Output")]
    pub report: Option<PathBuf>,

    /// No progress and no notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,

    /// How recordings are modelled.
    #[command(flatten)]
    pub model: ModelArgs,
}
