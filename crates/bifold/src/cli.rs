// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a user may write: verbs, options and their help. Nothing is looked up or
//! decided here; [`crate::compare::plan`] turns these words into a plan.
//!
//! The first paragraph of a comment is what `-h` shows, all of it is what
//! `--help` and the man pages show.

use crate::compare::region::RegionArgs;
use crate::{diff::args as diff, mode::args as mode, policy::args as policy, share::args as share};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

// Macros, because help attributes take literals that `concat!` can join.
macro_rules! exit_status {
    () => {
        "\
Exit status:
  0    done
  1    failed
  2    wrong usage
  3    a self-check found mismatches
  77   this machine lacks what the verb needs (see `bifold doctor`)
  124  stopped at --timeout
  125  Bifold itself failed where it was to run a command (`compare -- CMD`, `record -- CMD`)
  126  the command cannot be executed
  127  the command was not found
  130  stopped by Ctrl-C
A command that fails passes on its own status, 128+N if signal N ended it, after the table has
been printed. Bifold's own failure is a line `bifold: ...` on stderr."
    };
}

/// What the exit status means, for pages of verbs whose help does not say.
pub const EXIT_STATUS: &str = exit_status!();

macro_rules! compare_examples {
    () => {
        "\
Examples:
  bifold compare -- gcc -O2 -c mid_size.c
  bifold compare --report cost.html --fast -- make -j2
  bifold compare --generate pointer-chase --profile sapphire-rapids
  bifold compare --format json --set cpu.base_cpi=1.0 run.bifold"
    };
}

macro_rules! record_examples {
    () => {
        "\
Examples:
  bifold record -o gcc.bifold -- gcc -O2 -c mid_size.c
  bifold compare --profile phenom2-x3-720 gcc.bifold"
    };
}

macro_rules! doctor_examples {
    () => {
        "\
Examples:
  bifold doctor
  bifold doctor compare && bifold compare -- make -j2
  bifold doctor share run --format json
  sudo bifold doctor --restore"
    };
}

macro_rules! mode_examples {
    () => {
        "\
Examples:
  bifold mode
  bifold mode web
  bifold mode web shadow
  bifold mode 4242-12 nested --format json"
    };
}

/// The hardware profile unless told otherwise.
pub const DEFAULT_PROFILE: &str = "i5-7600";
/// The seed of the host frames' placement unless told otherwise.
pub const DEFAULT_SEED: u64 = 1;

/// See what each paging mode of a hypervisor costs a real program.
///
/// Bifold runs a program, unchanged, in a real Linux guest under QEMU (no KVM and no performance
/// counters are needed), follows every load, store, page-table write and CR3 load of it and of its
/// kernel, and says what it would cost under native, nested and shadow paging.
#[derive(Debug, Parser)]
#[command(
    name = "bifold",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    after_long_help = exit_status!()
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run a command in a guest and print what each paging mode would cost it
    ///
    /// Runs CMD in a Linux guest, or reads a recording of such a run, or takes events from a
    /// built-in generator, and prints one row per paging mode and host page size. The command's own
    /// output goes to stderr, so that stdout holds nothing but data.
    #[command(
        override_usage = "bifold compare [OPTIONS] -- CMD...\n       \
                          bifold compare [OPTIONS] FILE\n       \
                          bifold compare [OPTIONS] --generate NAME[:N]",
        after_help = compare_examples!(),
        after_long_help = concat!(compare_examples!(), "\n\n", exit_status!())
    )]
    Compare(Box<CompareArgs>),
    /// Compare, and write the events to a file for `bifold compare FILE`
    ///
    /// Does what `compare -- CMD` does and writes the events to a file at once. `bifold compare
    /// FILE` then gives the same figures to the last digit, or other figures for other profiles.
    #[command(
        override_usage = "bifold record [OPTIONS] -o FILE -- CMD...\n       \
                          bifold record [OPTIONS] -o FILE --generate NAME[:N]",
        after_help = record_examples!(),
        after_long_help = concat!(record_examples!(), "\n\n", exit_status!())
    )]
    Record(Box<RecordArgs>),
    /// Show what differs between two recordings or results
    ///
    /// A and B are recordings (`bifold record`), each of which is modelled with the options given here,
    /// or results (`bifold compare --format json`), or one of each. Shows per configuration the figures
    /// of both and their differences, the exits that changed most, and what differs in what made the
    /// two; warns where they are not comparable. With results of `--runs N` on both sides, says which
    /// differences are larger than the runs' spread.
    #[command(
        after_help = diff::examples!(),
        after_long_help = concat!(diff::examples!(), "\n\n", exit_status!())
    )]
    Diff(Box<diff::DiffArgs>),
    /// Say when to switch between shadow and nested paging: replays of policies over timelines
    ///
    /// A timeline holds what one program would have cost in both modes, interval by interval (`bifold
    /// compare --timeline FILE`). A policy sees what can be counted in the mode that the VM is in and
    /// decides on the mode of the next interval.
    #[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true,
              after_long_help = exit_status!())]
    Policy {
        /// What to do.
        #[command(subcommand)]
        verb: policy::PolicyVerb,
    },
    /// Show the paging modes of this host's VMs, or switch one
    ///
    /// Without an argument, lists the VMs that run under this host's KVM: name, process, vCPUs, paging
    /// mode (`nested -> shadow` while a switch is under way) and switches each way. With a VM, shows
    /// what KVM counts of its switches; with a mode too, switches it, and says how long that took and
    /// what it dropped. The VM runs on meanwhile but for a pause of its vCPUs.
    ///
    /// Needs root, KVM and debugfs. Switching needs the KVM modules that `make kernel` builds; an
    /// unmodified KVM has one mode for all VMs, which is shown.
    #[command(
        override_usage = "bifold mode [OPTIONS]\n       \
                          bifold mode [OPTIONS] VM\n       \
                          bifold mode [OPTIONS] VM nested|shadow",
        after_help = mode_examples!(),
        after_long_help = concat!(mode_examples!(), "\n\n", exit_status!())
    )]
    Mode(mode::ModeArgs),
    /// Say how much memory guests could share, how much they do, and what it costs
    ///
    /// Identical pages of several guests can be one page on the host, if someone looks for them: the
    /// kernel's KSM does, for guests whose memory is anonymous and marked mergeable, as QEMU's is.
    #[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true,
              after_long_help = exit_status!())]
    Share {
        /// What to do.
        #[command(subcommand)]
        verb: share::ShareVerb,
    },
    /// Say which verbs work on this machine, and what the others lack
    ///
    /// Looks for what each verb needs, and says of each verb whether it works, works in part or cannot
    /// work here, and of each thing that is missing how to get it. Nothing is changed.
    ///
    /// With VERB (`compare`, `share run`, or `share` for all verbs of that name), the exit status is 0 if it
    /// works in full, and 77 otherwise. Without VERB, it is the exit status of `bifold doctor compare`,
    /// as commands in guests are what most verbs are for.
    ///
    /// A command of Bifold that changes KSM's settings restores them, also when it is killed. Where it and
    /// its guardian were killed together, a journal is left behind: doctor says so, and restores from the
    /// journal with --restore.
    #[command(after_help = doctor_examples!(), after_long_help = concat!(doctor_examples!(), "\n\n", exit_status!()))]
    Doctor(DoctorArgs),
    /// Write the man pages into a directory
    Man {
        /// Directory for the pages, made if it is not there
        dir: PathBuf,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

impl Verb {
    /// Whether a command was to run, whose exit status is passed on.
    pub fn runs_a_command(&self) -> bool {
        match self {
            Verb::Compare(args) => !args.program.command.is_empty(),
            Verb::Record(args) => !args.program.command.is_empty(),
            _ => false,
        }
    }
}

/// Arguments of `compare`.
#[derive(Debug, Args)]
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

/// Arguments of `record`.
#[derive(Debug, Args)]
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
    #[arg(long, value_enum, default_value_t = FormatArg::Table, hide_possible_values = true,
          value_name = "table|json|jsonl|csv")]
    pub format: FormatArg,

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

impl OutputArgs {
    /// The words of someone who asks for no file and no further part.
    pub fn nothing() -> OutputArgs {
        OutputArgs {
            format: FormatArg::Table,
            show: Vec::new(),
            report: None,
            timeline: None,
            place: None,
            folded: None,
            folded_count: None,
            quiet: false,
            verbose: false,
        }
    }
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

/// Form of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // documented at `--format`
pub enum FormatArg {
    Table,
    Json,
    Jsonl,
    Csv,
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

/// What is modelled.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// Hardware profile: a built-in name or a TOML file
    ///
    /// Built in: i5-7600, phenom2-x3-720, sapphire-rapids, and geometry-g, a bare TLB geometry whose
    /// miss counts other simulators agree on.
    #[arg(long, value_name = "NAME|FILE", default_value = DEFAULT_PROFILE)]
    pub profile: String,

    /// Change one value of the profile (repeatable)
    ///
    /// KEY is the value's dotted name in the profile's TOML, as in `--set cpu.base_cpi=1.0` or
    /// `--set tlb.l2.ways=6`.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// Configurations to model, all if not given
    ///
    /// A list, separated by commas, of native, nested-4k, nested-2m, shadow-4k and shadow-2m; a mode
    /// alone stands for each of its page sizes. The size is that of the host's pages.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub configs: Vec<String>,

    /// Length of the timeline's intervals, in seconds of the ideal run [default: 0.01]
    #[arg(short, long, value_name = "SECS", value_parser = parse_seconds)]
    pub interval: Option<f64>,

    /// Seed of the placement of host frames
    #[arg(long, default_value_t = DEFAULT_SEED)]
    pub seed: u64,
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
    #[arg(long, value_name = "N", value_parser = parse_scale)]
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

/// Where the command runs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Guest")]
pub struct GuestArgs {
    /// Let guest time follow the host's instead of counting instructions
    ///
    /// Exact timing, the default, counts guest time in instructions: the same command over the same
    /// files gives the same figures to the bit, whatever else the host does. Fast timing is faster,
    /// above all with two vCPUs, but a slowed guest takes more timer interrupts per instruction than
    /// hardware does. A run with too many of them is marked.
    #[arg(long)]
    pub fast: bool,

    /// Number of virtual CPUs, 1 or 2 [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2))]
    pub vcpus: Option<u32>,

    /// Page-table isolation in the guest's kernel [default: off]
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true)]
    pub kpti: Option<OnOff>,

    /// Transparent huge pages in the guest [default: madvise]
    #[arg(long, value_enum, value_name = "always|madvise|never", hide_possible_values = true)]
    pub thp: Option<ThpArg>,

    /// Guest memory in MiB, or with a suffix: 512M, 2G [default: 2048]
    #[arg(short, long, value_name = "SIZE", value_parser = parse_memory)]
    pub memory: Option<u64>,

    /// Kernel image for the guest [default: Debian's, fetched and unpacked]
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,

    /// Directory of that kernel's modules
    #[arg(long, value_name = "DIR", requires = "kernel")]
    pub modules: Option<PathBuf>,

    /// What the command sees as its file system [default: host]
    ///
    /// `host` is this machine's root, read-only, with an overlay that takes writes. `initramfs` holds
    /// the program, its libraries and what `--include` names, and depends on no other file.
    #[arg(long, value_enum, value_name = "host|initramfs", hide_possible_values = true)]
    pub root: Option<RootArg>,

    /// File or directory to put into the initramfs (repeatable)
    #[arg(long, value_name = "PATH")]
    pub include: Vec<PathBuf>,

    /// Stop the command after this long
    #[arg(long, value_name = "SECS", value_parser = parse_seconds)]
    pub timeout: Option<f64>,

    /// Keep the files that the command writes, below DIR
    ///
    /// The guest's file system is this machine's, read-only under a layer that takes writes. That layer
    /// ends with the guest, unless its files are kept: /tmp/a.out becomes DIR/tmp/a.out. DIR has to be
    /// empty or missing.
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Check the capture against the emulator every N words of events, 0 for never [default: 10000]
    #[arg(long, value_name = "N")]
    pub check_every: Option<u64>,

    /// Which part of it is recorded.
    #[command(flatten)]
    pub region: RegionArgs,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // the names say it
pub enum OnOff {
    On,
    Off,
}

/// Transparent huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // the kernel's names
pub enum ThpArg {
    Always,
    Madvise,
    Never,
}

/// The guest's root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // documented at `--root`
pub enum RootArg {
    Host,
    Initramfs,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Look at this verb only: `compare`, `share run`, `share` [default: all verbs]
    #[arg(value_name = "VERB", num_args = 0..=2)]
    pub verb: Vec<String>,

    /// Restore KSM's settings from the journal that a killed command has left behind
    #[arg(long, conflicts_with = "verb")]
    pub restore: bool,

    /// Form of the answer
    #[arg(long, value_enum, default_value_t = DoctorFormat::Table, hide_possible_values = true,
          value_name = "table|json")]
    pub format: DoctorFormat,
}

/// Form of doctor's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // the names say it
pub enum DoctorFormat {
    Table,
    Json,
}

pub(crate) fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        // A year is more than any run, and within what a `Duration` and a cycle count hold.
        Ok(s) if s > 0.0 && s <= 3.2e7 => Ok(s),
        _ => Err("not a number of seconds above 0".into()),
    }
}

pub(crate) fn parse_scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if (1e-3..=1e6).contains(&n) => Ok(n),
        _ => Err("not a number from 0.001 to 1000000".into()),
    }
}

/// MiB, from a number of MiB or one with the suffix M or G.
fn parse_memory(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.as_bytes().last() {
        Some(b'G' | b'g') => (&text[..text.len() - 1], 1024),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 1),
        _ => (text, 1),
    };
    let mib = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(factor));
    match mib {
        Some(n) if (64..=1 << 20).contains(&n) => Ok(n),
        Some(_) => Err("not from 64 MiB to 1 TiB".into()),
        None => Err("not a size such as 2048, 512M or 2G".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_parser_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn memory_and_seconds_have_the_units_they_say() {
        assert_eq!(parse_memory("2048"), Ok(2048));
        assert_eq!(parse_memory("512M"), Ok(512));
        assert_eq!(parse_memory("2G"), Ok(2048));
        assert!(parse_memory("2T").is_err());
        assert!(parse_memory("").is_err());
        assert!(parse_memory("16").is_err());
        assert!(parse_memory("99999999999999999999G").is_err());
        assert_eq!(parse_seconds("0.5"), Ok(0.5));
        for bad in ["0", "-1", "nan", "inf", "1s"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
        for bad in ["-0.1", "nan", "NaN", "inf", "-inf", "1e300", "2%", ""] {
            assert!(parse_scale(bad).is_err(), "{bad}");
        }
    }
}
