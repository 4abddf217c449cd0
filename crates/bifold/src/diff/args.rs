// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words of `diff`.

use crate::cli::{DoctorFormat, ModelArgs};
use clap::Args;
use std::path::PathBuf;

macro_rules! examples {
    () => {
        "\
Examples:
  bifold diff before.bifold after.bifold
  bifold diff --profile sapphire-rapids --report diff.html before.bifold after.bifold
  bifold compare --runs 5 --format json -o before.json -- gcc -O2 -c mid_size.c
  bifold diff before.json after.json"
    };
}
pub(crate) use examples;

/// Arguments of `diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The first recording or result
    #[arg(value_name = "A")]
    pub a: PathBuf,

    /// The second
    #[arg(value_name = "B")]
    pub b: PathBuf,

    /// Form of the data
    ///
    /// `table` is for reading and at most 100 columns wide; `json` is one document with every figure
    /// and counter (schema bifold.diff/1).
    #[arg(long, value_enum, default_value_t = DoctorFormat::Table, hide_possible_values = true,
          value_name = "table|json", help_heading = "Output")]
    pub format: DoctorFormat,

    /// Write the data to FILE instead of stdout
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,

    /// Also write a report: one HTML file that needs no network
    #[arg(long, value_name = "FILE.html", help_heading = "Output")]
    pub report: Option<PathBuf>,

    /// No progress and no notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,

    /// How recordings are modelled.
    #[command(flatten)]
    pub model: ModelArgs,
}
