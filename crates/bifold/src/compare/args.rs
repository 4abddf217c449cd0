// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `compare` and `record`, and their help.

use super::baseline::BaselineArgs;
use super::guest::GuestArgs;
use super::placement::PlacementArgs;
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
  bifold compare --format json --set cpu.base_cpi=1.0 run.bifold
  bifold compare --baseline gcc.json --worse-than 3% -- gcc -O2 -c mid_size.c";

const RECORD_EXAMPLES: &str = "\
Examples:
  bifold record -o gcc.bifold -- gcc -O2 -c mid_size.c
  bifold compare --profile phenom2-x3-720 gcc.bifold";

/// Run a command in a guest and print what each paging mode would cost it
///
/// Runs CMD in a Linux guest, or reads a recording, or takes events from a built-in generator. Prints one row
/// per paging mode and host page size. The command's own output goes to stderr, so that stdout has only the
/// data.
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

    /// Write the data to FILE instead of stdout
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,

    /// The options that `record` has too.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Run the command N times, each in a fresh guest, and show mean and spread [default: 1]
    ///
    /// The table has each figure's mean and standard deviation, and the 95 % t interval of the mean overhead.
    /// With 5 or more runs, the table names outliers: runs more than 5 scaled median absolute deviations from
    /// the median. If all runs agree to the bit, the table says so. `--format json` has all runs and their
    /// spread (schema bifold.runs/2).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "Guest", conflicts_with_all = ["keep", "where"])]
    pub runs: Option<u32>,

    /// What the counts must not exceed.
    #[command(flatten)]
    pub baseline: BaselineArgs,
}

/// Compare, and write the events to a file for `bifold compare FILE`
///
/// Does what `compare -- CMD` does, and also writes the events to a file. `bifold compare FILE` then prints
/// the same figures to the last digit, or figures for another hardware profile.
#[derive(Debug, Args)]
#[command(
    override_usage = "bifold record [OPTIONS] -o FILE -- CMD...\n       \
                      bifold record [OPTIONS] -o FILE --generate NAME[:N]",
    after_help = RECORD_EXAMPLES,
    after_long_help = status::below(RECORD_EXAMPLES)
)]
pub struct RecordArgs {
    /// Write the events to FILE
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: PathBuf,

    /// Write the pages of loads and fetches in place of their addresses, which takes less space
    ///
    /// `bifold compare --caches off FILE` gives the same figures as from the whole recording, under every
    /// profile. Data caches need lines, so such a recording is refused without --caches off. `bifold compact`
    /// does the same to a recording.
    #[arg(long, help_heading = "Output")]
    pub compact: bool,

    /// The options that `compare` has too.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// The options that `compare` and `record` have in common.
#[derive(Debug, Args)]
pub struct CommonArgs {
    /// A command or a generator.
    #[command(flatten)]
    pub program: ProgramArgs,
    /// Options of the output.
    #[command(flatten)]
    pub show: OutputArgs,
    /// Options of the model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Where the guest's memory lies.
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// How policies see the run.
    #[command(flatten)]
    pub policies: PolicyArgs,
    /// The guest in which the command runs.
    #[command(flatten)]
    pub guest: GuestArgs,
}

impl CommonArgs {
    /// Whether a command is run, in place of a generator or a recording.
    pub fn runs_a_command(&self) -> bool {
        !self.program.command.is_empty()
    }
}

/// The source of events.
#[derive(Debug, Args)]
pub struct ProgramArgs {
    /// The command to run in the guest, and its arguments
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,

    /// Take events from a built-in generator instead of a guest
    ///
    /// N is the generator's size; each generator has a default. Generators: `t` (N loads, alternately at
    /// random in one GiB and in sequence in another), `t-seq` (only the sequential loads), `t-4m` (loads at
    /// random in 4 MiB), `fork-storm` (a process forks and its child exits, N times), `pointer-chase` (N
    /// dependent loads in random order over 1 GiB), `gups` (N random updates of a table in 4 KB pages;
    /// `gups:N@16g` sets the table's size), `gups-2m` (the same in the guest's 2 MB pages).
    #[arg(long, value_name = "NAME[:N]")]
    pub generate: Option<String>,
}

/// Options of the output.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Output format
    ///
    /// `table` is for reading. `json` is one document with all results (schema bifold.compare/2). `csv` has
    /// one row per interval and configuration. `jsonl` has one object for the run, one for each
    /// configuration's total, and then the rows of `csv` as objects. With --runs, each row also has the
    /// number of its run.
    #[arg(long, value_parser = words::formats(&Format::ALL), default_value = "table", hide_possible_values = true,
          value_name = "table|json|jsonl|csv")]
    pub format: Format,

    /// Add parts to the table: exits, policies, checks, or all
    ///
    /// LIST is separated by commas. `exits` splits the VM exits by reason. `policies` shows what switching
    /// between the modes would have cost. `checks` counts the self-checks and lists the assumptions behind
    /// the figures. The other formats and the report always have all parts. Warnings are always shown.
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', hide_possible_values = true)]
    pub show: Vec<ShowArg>,

    /// Also write an HTML report with charts: one file that needs no network
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,

    /// Also write the predicted times as a chart: an SVG image for light and dark pages
    #[arg(long, value_name = "FILE.svg")]
    pub chart: Option<PathBuf>,

    /// Also show which processes, functions and mappings cause the cost
    ///
    /// Each TLB miss, walk, exit and wait for data is charged to a process, binary, function and mapping.
    /// LIST has at most one of `cause` (the default), which charges the work of the guest's kernel to the
    /// user function that entered the kernel, and `code`, which charges the work to the kernel's own
    /// function. With `stacks` in LIST, --folded and the report's flame graph also have the functions that
    /// called each other. LIST can also name the configuration in which the table ranks places, such as
    /// `code,shadow-4k` (default: the cheaper mode with the smallest host pages, which the verdict keeps).
    /// The table lists the ten most expensive places; the report has both tables and a flame graph. Function
    /// names come from this machine's files. A recording needs `record --where`.
    #[arg(long = "where", id = "where", value_name = "LIST", num_args = 0..=1, require_equals = true,
          value_delimiter = ',', default_missing_value = "")]
    pub place: Vec<String>,

    /// With --where: also write stacks for flame-graph tools, `process;binary;function;mapping COUNT` per
    /// line; with --where=stacks `process;CALLER;...;function;mapping COUNT`
    #[arg(long, value_name = "FILE", requires = "where")]
    pub folded: Option<PathBuf>,

    /// With --where: also write a profile for pprof, speedscope and other tools that read `profile.proto`
    ///
    /// Stacks are of process and functions, with the mapping as a label, in the configuration in which
    /// --where ranks; with --where=stacks, of all callers. Each has every count of --folded-count.
    #[arg(long, value_name = "FILE.pb.gz", requires = "where")]
    pub pprof: Option<PathBuf>,

    /// The count in the stacks of --folded, and the first of --pprof: extra-cycles (the default), tlb-misses,
    /// walk-cycles, data-waits or exits
    #[arg(long, value_enum, requires = "where", hide_possible_values = true, value_name = "COUNT")]
    pub folded_count: Option<CountArg>,

    /// Also show how much memory the guest needs: refaults at each size, and the working set over time
    ///
    /// The parts that `bifold reclaim show` has, with its defaults. Not for sampled runs and several regions,
    /// and native has to be among --configs. `record` also records what the guest's kernel uses its memory
    /// for, and what the host's files move there, for `bifold reclaim`.
    #[arg(long)]
    pub memory_use: bool,

    /// Also write a timeline for `bifold policy`: the cost of both modes in each interval
    #[arg(long, value_name = "FILE")]
    pub timeline: Option<PathBuf>,

    /// Also write the intervals as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing
    ///
    /// Each configuration has tracks of its overhead in percent of the ideal run, split into walks, exits and
    /// waits for data, and of TLB misses and exits per millisecond, over the seconds of the ideal run.
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,

    /// No progress and no notes on stderr
    #[arg(short, long)]
    pub quiet: bool,

    /// More notes on stderr
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
}

/// The count in stacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // the names say it
pub enum CountArg {
    ExtraCycles,
    TlbMisses,
    WalkCycles,
    DataWaits,
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

/// Options of policies.
#[derive(Debug, Args)]
#[command(next_help_heading = "Policies")]
pub struct PolicyArgs {
    /// Count each second of the run as N seconds for policies [default: 100]
    ///
    /// Published policies decide every 1 to 5 s, and a captured run lasts seconds. So policies see their time
    /// compressed by N, and switching costs are compressed too, to keep their share of an interval. With 1,
    /// neither is compressed.
    #[arg(long, value_name = "N", value_parser = words::time_scale)]
    pub time_scale: Option<f64>,

    /// Also switch VMs by these policies during the run, and compare with the replay
    ///
    /// LIST is separated by commas. Each policy may have `+shadow` (start in shadow mode), `+dropped` (drop
    /// the nested tables at a switch) and `+2m` (2 MB host pages). The model drops the tables and builds them
    /// again at their full cost. The exit status is 3 if a replay differs by more than 2 % of the run's
    /// cycles.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub check: Vec<String>,
}
