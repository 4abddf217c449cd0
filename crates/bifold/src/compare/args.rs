// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `compare` and `record`, and their help.

use super::guest::GuestArgs;
use crate::run::ModelArgs;
use crate::{status, words};
use bifold_report::Format;
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

const COMPARE_EXAMPLES: &str = "\
Examples:
  bifold compare -- gcc -O2 -c mid_size.c
  bifold compare --report cost.html --fast -- make -j2
  bifold compare --generate pointer-chase --profile sapphire-rapids
  bifold compare --format json --set cpu.base_cpi=1.0 run.bifold";

const RECORD_EXAMPLES: &str = "\
Examples:
  bifold record -o gcc.bifold -- gcc -O2 -c mid_size.c
  bifold compare --profile phenom2-x3-720 gcc.bifold";

/// Run a command in a guest and print what each paging mode would cost it
///
/// Runs CMD in a Linux guest, or reads a recording of such a run, or takes events from a
/// built-in generator, and prints one row per paging mode and host page size. The command's own
/// output goes to stderr, so that stdout holds nothing but data.
#[derive(Debug, Args)]
#[command(
    override_usage = "bifold compare [OPTIONS] -- CMD...\n       \
                      bifold compare [OPTIONS] FILE\n       \
                      bifold compare [OPTIONS] --generate NAME[:N]",
    after_help = COMPARE_EXAMPLES,
    after_long_help = status::below(COMPARE_EXAMPLES)
)]
pub struct CompareArgs {
    /// A recording made by `bifold record`
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// A command or a generator.
    #[command(flatten)]
    pub program: ProgramArgs,

    /// Write the data to FILE instead of stdout
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,

    /// What is printed.
    #[command(flatten)]
    pub show: OutputArgs,
    /// What is modelled.
    #[command(flatten)]
    pub model: ModelArgs,
    /// How policies see it.
    #[command(flatten)]
    pub policies: PolicyArgs,
    /// Where the command runs.
    #[command(flatten)]
    pub guest: GuestArgs,

    /// Run the command N times, each in a fresh guest, and show means and spread [default: 1]
    ///
    /// The table has each figure's mean and standard deviation, the 95 % t interval of the overhead's
    /// mean, and names the runs that stand out: those more than 5 scaled median absolute deviations
    /// from the median of 5 runs or more. Runs that are reproducible agree to the bit, and the table
    /// says so. `--format json` has all runs and their spread (schema bifold.runs/1).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "Guest", conflicts_with_all = ["keep", "where"])]
    pub runs: Option<u32>,
}

/// Compare, and write the events to a file for `bifold compare FILE`
///
/// Does what `compare -- CMD` does and writes the events to a file at once. `bifold compare
/// FILE` then gives the same figures to the last digit, or other figures for other profiles.
#[derive(Debug, Args)]
#[command(
    override_usage = "bifold record [OPTIONS] -o FILE -- CMD...\n       \
                      bifold record [OPTIONS] -o FILE --generate NAME[:N]",
    after_help = RECORD_EXAMPLES,
    after_long_help = status::below(RECORD_EXAMPLES)
)]
pub struct RecordArgs {
    /// A command or a generator.
    #[command(flatten)]
    pub program: ProgramArgs,

    /// Write the events to FILE
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: PathBuf,

    /// What is printed.
    #[command(flatten)]
    pub show: OutputArgs,
    /// What is modelled.
    #[command(flatten)]
    pub model: ModelArgs,
    /// How policies see it.
    #[command(flatten)]
    pub policies: PolicyArgs,
    /// Where the command runs.
    #[command(flatten)]
    pub guest: GuestArgs,
}

/// What makes events.
#[derive(Debug, Args)]
pub struct ProgramArgs {
    /// The command to run in the guest, and its arguments
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,

    /// Take events from a built-in generator instead of a guest
    ///
    /// N is the generator's size and has a default. Generators: `t` (N loads, random in 1 GiB and
    /// sequential in another by turns), `t-seq` (its sequential half), `t-4m` (random in 4 MiB),
    /// `fork-storm` (N times a process forks and its child exits), `pointer-chase` (N dependent
    /// loads in random order over 1 GiB).
    #[arg(long, value_name = "NAME[:N]")]
    pub generate: Option<String>,
}

/// What is printed, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Form of the data
    ///
    /// `table` is for reading. `json` is one document with everything in it (schema
    /// bifold.compare/1). `csv` has one row per interval and configuration; `jsonl` has the same
    /// rows as objects, after one for the run and one per configuration's total. The rows of several
    /// runs also have the run's number.
    #[arg(long, value_parser = words::formats(&Format::ALL), default_value = "table", hide_possible_values = true,
          value_name = "table|json|jsonl|csv")]
    pub format: Format,

    /// Further parts of the table: exits, policies, checks, or all
    ///
    /// A list, separated by commas. `exits` splits the exits by reason, `policies` says what switching
    /// between the modes would have made of the run, `checks` counts the self-checks and names what the
    /// figures assume. The other forms and the report have all of it. Warnings are always shown.
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', hide_possible_values = true)]
    pub show: Vec<ShowArg>,

    /// Also write a report with charts: one HTML file that needs no network
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,

    /// Also say where the cost is: by process, function and mapping
    ///
    /// Every TLB miss, walk and exit is charged to the process, binary, function and mapping that
    /// brought it. Shown are the ten dearest in CONFIG (default: the dearest under a hypervisor),
    /// and a flame graph in the report. Names of functions come from the files of this machine. A
    /// recording must have been made with `record --where`.
    #[arg(long = "where", id = "where", value_name = "CONFIG", num_args = 0..=1, require_equals = true,
          default_missing_value = "")]
    pub place: Option<String>,

    /// With --where: write stacks `process;binary;function;mapping COUNT`, for other tools
    #[arg(long, value_name = "FILE", requires = "where")]
    pub folded: Option<PathBuf>,

    /// What --folded counts: extra-cycles (the default), tlb-misses, walk-cycles or exits
    #[arg(long, value_enum, requires = "folded", hide_possible_values = true, value_name = "COUNT")]
    pub folded_count: Option<CountArg>,

    /// Also write the timeline, for `bifold policy`: both modes' costs interval by interval
    #[arg(long, value_name = "FILE")]
    pub timeline: Option<PathBuf>,

    /// No progress and no notes on stderr
    #[arg(short, long)]
    pub quiet: bool,

    /// More notes on stderr
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
}

/// What stacks count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // the names say it
pub enum CountArg {
    ExtraCycles,
    TlbMisses,
    WalkCycles,
    Exits,
}

/// A further part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // documented at `--show`
pub enum ShowArg {
    Exits,
    Policies,
    Checks,
    All,
}

/// How policies see the run.
#[derive(Debug, Args)]
#[command(next_help_heading = "Policies")]
pub struct PolicyArgs {
    /// Let a second of the run stand for N seconds of a policy [default: 100]
    ///
    /// Published policies decide every 1 to 5 s, and a captured run lasts seconds. So their time is
    /// compressed, and the costs of switching with it, to keep their proportion to an interval. With
    /// 1, both are as they are.
    #[arg(long, value_name = "N", value_parser = words::time_scale)]
    pub time_scale: Option<f64>,

    /// Also switch on line by these policies, and say how far the replay is from that
    ///
    /// A list, separated by commas, of policies; each with `+shadow` to begin in shadow mode, `+dropped`
    /// to drop the nested tables at a switch, `+2m` for 2 MB host pages. Tables are really dropped and
    /// built again in the model, at their full cost. The exit status is 3 if a replay is off by more
    /// than 2 % of the run's cycles.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub check: Vec<String>,
}
