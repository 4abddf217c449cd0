// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `sweep`, and their help.

use crate::status;
use crate::words;
use bifold_report::Format;
use clap::{Args, Subcommand, ValueEnum};
use std::num::NonZeroUsize;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  bifold sweep new sweep.toml runs
  bifold sweep run --jobs 2 runs
  hq submit --array 0-499 -- sh -c 'bifold sweep run --task $HQ_TASK_ID runs'
  sbatch --array=0-499 --wrap 'bifold sweep run --task $SLURM_ARRAY_TASK_ID runs'
  bifold sweep tasks runs | cut -d' ' -f1 | xargs -P 8 -I{} bifold sweep run -q --task {} runs
  bifold sweep status runs
  bifold sweep merge -o results.parquet runs
  bifold sweep report --report sweep.html runs";

/// Run programs under every combination of settings, on one machine or many
///
/// A description in TOML lists programs and axes; docs/guide/sweep.md has an example. `new` makes a folder
/// with a task for each combination. A task is a `bifold compare`, and its result a file in the folder.
/// Workers on several machines share the folder and need nothing else, or a scheduler gives them tasks by
/// number. A worker that is killed loses its task's run alone: the task is run again, and none counts twice.
/// A description of guests' images makes tasks of `share fingerprint` and `share count`, whose results
/// `share merge` adds.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true,
          after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct SweepArgs {
    #[command(subcommand)]
    pub verb: SweepVerb,
}

/// The verbs of `bifold sweep`. The help of a verb is the doc comment of its arguments.
#[derive(Debug, Subcommand)]
pub enum SweepVerb {
    New(NewArgs),
    Tasks(TasksArgs),
    Run(RunArgs),
    Status(StatusArgs),
    Merge(MergeArgs),
    Report(ReportArgs),
}

/// Make a sweep's folder from its description
///
/// Prints the number of tasks. With a folder that has the same plan already, nothing changes; with another
/// plan, the command is refused.
#[derive(Debug, Args)]
pub struct NewArgs {
    /// The description
    #[arg(value_name = "SPEC.toml")]
    pub spec: PathBuf,

    /// The folder to be made
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,

    /// No notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,
}

/// List the tasks: number, program and settings, one a line
#[derive(Debug, Args)]
pub struct TasksArgs {
    /// The sweep's folder
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,

    /// Only tasks without a result
    #[arg(long)]
    pub left: bool,
}

/// Run tasks that have no result
///
/// Without --task, all tasks that no other worker runs. The exit status is 1 if a task failed; `sweep status`
/// says why, and the next `sweep run` tries it again.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The sweep's folder
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,

    /// Only this task, by number (repeatable, or a list with commas)
    ///
    /// A task that has a result is done already, and nothing runs.
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub task: Vec<usize>,

    /// Number of tasks that run at the same time
    ///
    /// Counts do not depend on it: guest time counts instructions.
    #[arg(short, long, value_name = "N", default_value = "1")]
    pub jobs: NonZeroUsize,

    /// No progress and no notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,
}

/// Show how many tasks are done, and why others failed
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The sweep's folder
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,

    /// Output format
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json", help_heading = "Output")]
    pub format: Format,
}

/// Put all results into one table: Parquet, Arrow or CSV
///
/// The rows are those of `bifold export`, with the columns `task`, `name` (the program's name in the
/// description) and the axes before them, in the order of tasks. The same tasks give the same bytes, wherever
/// and in whatever order they ran. The table `tasks` has a row for each task, with the seconds it took and
/// the machine.
#[derive(Debug, Args)]
pub struct MergeArgs {
    /// The sweep's folder
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,

    /// Write the table to FILE; its end names the format: .parquet, .arrow or .csv
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: PathBuf,

    /// The rows: `results` for each configuration, `intervals` over time, `places` of --where, `tasks`
    #[arg(
        long,
        value_enum,
        default_value = "results",
        hide_possible_values = true,
        value_name = "results|intervals|places|tasks"
    )]
    pub table: MergedTable,

    /// Leave out tasks without a result, instead of refusing
    #[arg(long)]
    pub partial: bool,

    /// No notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,
}

/// A table of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MergedTable {
    Results,
    Intervals,
    Places,
    Tasks,
}

/// Show means over repeats, and what each value of each axis changes
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The sweep's folder
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,

    /// Also write an HTML report
    #[arg(long, value_name = "FILE.html", help_heading = "Output")]
    pub report: Option<PathBuf>,

    /// No notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,
}
