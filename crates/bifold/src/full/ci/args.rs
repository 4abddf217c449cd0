// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `ci`, and their help.

use crate::{status, words};
use bifold_report::Format;
use clap::Args;
use std::num::NonZeroUsize;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  bifold ci --save
  bifold ci --junit bifold.xml --markdown bifold.md
  bifold ci --only sort perf/bifold-ci.toml";

/// Compare several programs with their baselines, as a job of continuous integration
///
/// FILE lists programs in TOML, each with its command and options of `compare`; docs/guide/ci.md has an
/// example. Each program runs as `bifold compare --baseline` does, in the folder of FILE and in a small fixed
/// environment. The baselines lie in a folder beside FILE. The exit status is 4 if a count of a program grew,
/// and 1 if a program could not be compared.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct CiArgs {
    /// The list of programs
    #[arg(value_name = "FILE", default_value = "bifold-ci.toml")]
    pub file: PathBuf,

    /// Write the programs' baselines instead of comparing with them
    #[arg(long)]
    pub save: bool,

    /// Only these programs of FILE
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub only: Vec<String>,

    /// Number of programs that run at the same time, each in a guest of its own
    ///
    /// Counts do not depend on it: guest time counts instructions.
    #[arg(short, long, value_name = "N", default_value = "1")]
    pub jobs: NonZeroUsize,

    /// Output format
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json", help_heading = "Output")]
    pub format: Format,

    /// Also write a JUnit report, which CI services show
    #[arg(long, value_name = "FILE.xml", help_heading = "Output")]
    pub junit: Option<PathBuf>,

    /// Also write a summary in Markdown, for a comment or $GITHUB_STEP_SUMMARY
    #[arg(long, value_name = "FILE.md", help_heading = "Output")]
    pub markdown: Option<PathBuf>,

    /// No progress and no notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,
}
