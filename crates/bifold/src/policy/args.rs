// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a user may write after `bifold policy`.

use crate::cli::{FormatArg, parse_scale, parse_seconds};
use bifold_policy::Mode;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

macro_rules! compare_examples {
    () => {
        "\
Examples:
  bifold compare --timeline gcc.timeline -- gcc -O2 -c mid_size.c
  bifold policy compare gcc.timeline
  bifold policy compare --policy dsp --policy mine.toml --report policies.html"
    };
}

macro_rules! replay_examples {
    () => {
        "\
Examples:
  bifold policy replay --policy rpms-dynamic --explain gcc.timeline
  bifold policy replay --policy dsp --set interval_s=2 --start shadow gcc.timeline"
    };
}

macro_rules! sweep_examples {
    () => {
        "\
Examples:
  bifold policy sweep --policy dsp --set interval_s=1,2,5,10 gcc.timeline
  bifold policy sweep --policy zhang --set tlb_miss_start=0.5:8:16:log --set n=3,5,7 --format csv -o zhang.csv"
    };
}

macro_rules! train_examples {
    () => {
        "\
Examples:
  bifold policy train estimator -o estimator.toml *.timeline
  bifold policy train dsp -o mine.toml *.timeline
  bifold policy train rpms-shipped --set t_low=1:4:7 --set t_high=5:20:16 *.timeline
  bifold policy train dsp --samples experiments/published/dsp-vee2011.toml"
    };
}

/// The verbs of `bifold policy`.
#[derive(Debug, Subcommand)]
pub enum PolicyVerb {
    /// List the policies that are built in
    List(ListArgs),
    /// Replay policies over timelines, and say when and why they switch
    ///
    /// Prints the stays in each mode and what they cost. With --explain it prints every decision in
    /// words: what was looked at, against which threshold.
    #[command(after_help = replay_examples!())]
    Replay(Box<ReplayArgs>),
    /// Compare policies with each other, with static modes and with the oracle
    ///
    /// Every policy runs over every timeline from both starting modes; its figures are those of the
    /// worse. The oracle knows the future and pays for its switches. Without a timeline, those in
    /// experiments/timelines of Bifold's repository are taken.
    #[command(after_help = compare_examples!())]
    Compare(Box<CompareArgs>),
    /// Compare lengths of the interval at which a policy decides
    ///
    /// DSP's authors compared 2, 5 and 10 s. This is `policy compare` with one policy under several
    /// values of interval_s.
    Intervals(Box<IntervalsArgs>),
    /// Try a policy's parameters over a grid
    ///
    /// Replays every combination of the values of --set over every timeline from both starting modes,
    /// and prints those nearest to the oracle; `--format csv` and `json` have all.
    #[command(after_help = sweep_examples!())]
    Sweep(Box<SweepArgs>),
    /// Learn a policy's parameters, or the estimate of the other mode's cost, from timelines
    ///
    /// Prints on stderr how well what was learnt does, each program as judged from all others, and
    /// writes the TOML that the other verbs read. What is learnt is for one hardware profile.
    #[command(after_help = train_examples!())]
    Train(Box<crate::policy::train::TrainArgs>),
}

/// Arguments of `policy list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Form of the list
    #[arg(long, value_enum, default_value_t = ShortFormat::Table, hide_possible_values = true,
          value_name = "table|json")]
    pub format: ShortFormat,
}

/// Arguments of `policy replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Timelines written by `bifold compare --timeline`
    #[arg(value_name = "TIMELINE", required = true)]
    pub timelines: Vec<PathBuf>,

    /// Which policies.
    #[command(flatten)]
    pub which: WhichArgs,

    /// Print every decision in words
    #[arg(long)]
    pub explain: bool,

    /// The mode in which the VM starts
    #[arg(long, value_enum, default_value_t = ModeArg::Nested, value_name = "shadow|nested",
          hide_possible_values = true)]
    pub start: ModeArg,

    /// Form of the data
    #[arg(long, value_enum, default_value_t = ShortFormat::Table, hide_possible_values = true,
          value_name = "table|json", help_heading = "Output")]
    pub format: ShortFormat,

    /// Also check the replay against VMs that switched during the capture; exit status 3 if it is off
    ///
    /// These are the VMs of `bifold compare --check`. What a policy decides depends on the time scale,
    /// so it is checked on that of the capture, whatever --time-scale says here.
    #[arg(long)]
    pub check: bool,

    /// Which VM.
    #[command(flatten)]
    pub vm: VmArgs,
}

/// Arguments of `policy compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Timelines written by `bifold compare --timeline` [default: experiments/timelines]
    #[arg(value_name = "TIMELINE")]
    pub timelines: Vec<PathBuf>,

    /// Which policies.
    #[command(flatten)]
    pub which: WhichArgs,

    /// Also check the replay against VMs that switched during the capture; exit status 3 if it is off
    ///
    /// These are the VMs of `bifold compare --check`. What a policy decides depends on the time scale,
    /// so it is checked on that of the capture, whatever --time-scale says here.
    #[arg(long)]
    pub check: bool,

    /// What is printed.
    #[command(flatten)]
    pub show: ShowArgs,
    /// Which VM.
    #[command(flatten)]
    pub vm: VmArgs,
}

/// Arguments of `policy intervals`.
#[derive(Debug, Args)]
pub struct IntervalsArgs {
    /// Timelines written by `bifold compare --timeline` [default: experiments/timelines]
    #[arg(value_name = "TIMELINE")]
    pub timelines: Vec<PathBuf>,

    /// Which policy: a built-in name or a TOML file
    #[arg(long, value_name = "NAME|FILE", default_value = "dsp")]
    pub policy: String,

    /// Change one parameter of the policy (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// The lengths, in seconds of the policy
    #[arg(short, long, value_name = "SECS,...", value_delimiter = ',', value_parser = parse_seconds,
          default_value = "2,5,10")]
    pub intervals: Vec<f64>,

    /// What is printed.
    #[command(flatten)]
    pub show: ShowArgs,
    /// Which VM.
    #[command(flatten)]
    pub vm: VmArgs,
}

/// Arguments of `policy sweep`.
#[derive(Debug, Args)]
pub struct SweepArgs {
    /// Timelines written by `bifold compare --timeline` [default: experiments/timelines]
    #[arg(value_name = "TIMELINE")]
    pub timelines: Vec<PathBuf>,

    /// The policy: a built-in name or a TOML file
    #[arg(long, value_name = "NAME|FILE")]
    pub policy: String,

    /// Values of a parameter: KEY=FROM:TO:STEPS, with `:log` by even factors, or KEY=A,B,C (repeatable)
    #[arg(long, value_name = "KEY=VALUES", required = true)]
    pub set: Vec<String>,

    /// Number of settings that the table shows
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    pub count: usize,

    /// Form of the data; `json` and `csv` have every setting
    #[arg(long, value_enum, default_value_t = SweepFormat::Table, hide_possible_values = true,
          value_name = "table|json|csv", help_heading = "Output")]
    pub format: SweepFormat,

    /// Write the data to FILE instead of stdout
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,

    /// No notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,

    /// Which VM.
    #[command(flatten)]
    pub vm: VmArgs,
}

/// Form of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // the names say it
pub enum SweepFormat {
    Table,
    Json,
    Csv,
}

/// Which policies.
#[derive(Debug, Args)]
pub struct WhichArgs {
    /// A policy: a built-in name or a TOML file (repeatable) [default: all built in]
    #[arg(long, value_name = "NAME|FILE")]
    pub policy: Vec<String>,

    /// Change one parameter of the policy (repeatable); for a single --policy
    #[arg(long, value_name = "KEY=VALUE", requires = "policy")]
    pub set: Vec<String>,
}

/// What is printed, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct ShowArgs {
    /// Form of the data
    ///
    /// `table` is for reading. `json` is one document (schema bifold.policy-compare/1). `csv` has one
    /// row per program, policy and starting mode; `jsonl` has the same rows as objects, after those of
    /// the programs and the policies' summaries.
    #[arg(long, value_enum, default_value_t = FormatArg::Table, hide_possible_values = true,
          value_name = "table|json|jsonl|csv")]
    pub format: FormatArg,

    /// Write the data to FILE instead of stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Also write a report with charts: one HTML file that needs no network
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,

    /// No notes on stderr
    #[arg(short, long)]
    pub quiet: bool,
}

/// Which VM, and how policies see it.
#[derive(Debug, Args)]
#[command(next_help_heading = "VM")]
pub struct VmArgs {
    /// Let a second of the run stand for N seconds of a policy
    ///
    /// Published policies decide every 1 to 5 s, and a captured run lasts seconds. So their time is
    /// compressed, and the costs of switching with it, to keep their proportion to an interval. With
    /// 1, both are as they are.
    #[arg(long, value_name = "N", value_parser = parse_scale, default_value = "100")]
    pub time_scale: f64,

    /// Size of the host's pages
    #[arg(long, value_enum, default_value_t = HostPage::Small, value_name = "4k|2m", hide_possible_values = true)]
    pub host_page: HostPage,

    /// Has the host backed the VM's memory before (long-lived), or does it at first touch?
    #[arg(long, value_enum, default_value_t = Age::LongLived, value_name = "long-lived|short-lived",
          hide_possible_values = true)]
    pub vm: Age,

    /// Drop the nested tables at a switch to shadow mode instead of keeping them
    #[arg(long)]
    pub dropped: bool,

    /// Where policies that need it learn what the other mode would have cost
    ///
    /// `estimated` from what can be counted in the mode that the VM is in, as on a live host; `known`
    /// from the timeline, which shows what an exact estimate would be worth.
    #[arg(long, value_enum, default_value_t = OtherArg::Estimated, value_name = "estimated|known",
          hide_possible_values = true)]
    pub other: OtherArg,

    /// Coefficients of the estimate [default: those built in]
    #[arg(long, value_name = "FILE.toml")]
    pub estimator: Option<PathBuf>,
}

/// Form of what has few columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // the names say it
pub enum ShortFormat {
    Table,
    Json,
}

/// A paging mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // the names say it
pub enum ModeArg {
    Shadow,
    Nested,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Mode {
        match mode {
            ModeArg::Shadow => Mode::Shadow,
            ModeArg::Nested => Mode::Nested,
        }
    }
}

/// Size of the host's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // the names say it
pub enum HostPage {
    #[value(name = "4k")]
    Small,
    #[value(name = "2m")]
    Large,
}

/// How long the VM has been there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // documented at `--vm`
pub enum Age {
    LongLived,
    ShortLived,
}

/// Where the other mode's cost comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // documented at `--other`
pub enum OtherArg {
    Estimated,
    Known,
}
