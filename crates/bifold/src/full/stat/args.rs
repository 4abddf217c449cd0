// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `stat`, and their help.

use crate::status;
use crate::words;
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  bifold stat
  bifold stat -i 10 --format csv > vms.csv
  bifold stat -n 60 web db -o vms.parquet --format parquet
  bifold stat --vcpus web -- sleep 30";

/// Count what this host's VMs do: time, exits, TLB misses, page sizes, mode, interval by interval
///
/// Prints a table (or rows) at the end of each interval: for each VM the share of time that its vCPUs ran and
/// waited, KVM's statistics, and, with a PMU, cycles in guest and hypervisor, TLB misses and page-walk cycles
/// of the vCPUs' threads. What this host cannot tell is `-` in the table, empty in `csv`, missing in `jsonl`,
/// null in `parquet` and `arrow`: never 0. VMs that start or end meanwhile are followed.
///
/// Below the table stands, for each VM, the change that would help the VM most: nested in place of shadow
/// paging, huge pages in host or guest, or CPUs that fewer threads want; with the share of its CPU time that
/// this would give back. If KVM would refuse to switch the VM's mode now, the line has the reason, and
/// another line the next best change.
///
/// With CMD, runs the command on this host and counts until the command ends: in one interval, or in
/// intervals of -i. Bifold ends with the command's status. Without CMD, counts until Ctrl-C or for -n
/// intervals.
///
/// Changes nothing. Root sees all; another user sees the VMs of that user, without most of KVM's statistics.
#[derive(Debug, Args)]
#[command(
    override_usage = "bifold stat [OPTIONS] [VM]... [-- CMD...]",
    after_help = EXAMPLES,
    after_long_help = status::below(EXAMPLES)
)]
pub struct StatArgs {
    /// Only these VMs: process id, PID-FD, or name [default: all]
    #[arg(value_name = "VM")]
    pub vm: Vec<String>,

    /// Count while this command runs
    #[arg(value_name = "CMD", last = true)]
    pub command: Vec<OsString>,

    /// Length of an interval [default: 1; with CMD: until its end]
    #[arg(short, long, value_name = "SECS", value_parser = words::interval)]
    pub interval: Option<f64>,

    /// End after N intervals [default: at Ctrl-C, or with CMD]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "command")]
    pub count: Option<u64>,

    /// A row for each vCPU too
    #[arg(long)]
    pub vcpus: bool,

    /// Count exits by the hardware's reason too, in rows; needs root
    ///
    /// The kernel counts them in tables of its tracing. While Bifold runs, each exit of each VM of the host
    /// costs a look-up in a table, and a page fault several.
    #[arg(long)]
    pub exits: bool,

    /// Use no hardware counters
    #[arg(long)]
    pub no_pmu: bool,

    /// Output format; `jsonl` is what `policy replay` reads
    ///
    /// All but `table` have a row for each VM and interval, and a column for each figure. Their names and
    /// units: docs/reference/stat.md. Lines of `csv` and `jsonl` are complete after each interval; `parquet`
    /// and `arrow` are complete at the end, and need -o.
    #[arg(
        long,
        value_enum,
        default_value = "table",
        hide_possible_values = true,
        value_name = "table|csv|jsonl|parquet|arrow",
        help_heading = "Output"
    )]
    pub format: StatFormat,

    /// Write to this file instead of stdout
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,

    /// No notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,
}

/// A format of intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatFormat {
    Table,
    Csv,
    Jsonl,
    Parquet,
    Arrow,
}
