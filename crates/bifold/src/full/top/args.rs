// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `top`, and their help.

use crate::status;
use crate::words;
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  bifold top
  bifold top -i 5 web db";

/// Show what this host's VMs do now: time, exits, page walks, page sizes, mode, on a screen with keys
///
/// The first page has a line for each VM. Enter opens the page of one VM: its vCPUs, KVM's statistics, its
/// memory, and the last 120 intervals. What this host cannot tell is `-`, never 0. VMs that start or end
/// meanwhile are followed. `bifold stat` has the same figures for files and scripts.
///
/// Keys: arrows, j, k: select; Enter: open; Esc, q: back, end; /: filter by name; < > s: sort by another
/// column; r: reverse; + -: change the interval; space: pause; ? or h: help.
///
/// Changes nothing. Root sees all; another user sees the VMs of that user, without most of KVM's statistics.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct TopArgs {
    /// Only these VMs: process id, PID-FD, or name [default: all]
    #[arg(value_name = "VM")]
    pub vm: Vec<String>,

    /// Length of an interval
    #[arg(short, long, value_name = "SECS", default_value = "1", value_parser = words::seconds)]
    pub interval: f64,

    /// End after N intervals [default: at q or Ctrl-C]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// Use no hardware counters
    #[arg(long)]
    pub no_pmu: bool,
}
