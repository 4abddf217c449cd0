// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `place check`, and their help.

use crate::status;
use crate::words;
use bifold_place::apply::FOLDER;
use bifold_report::Format;
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  bifold place check
  bifold place check web
  bifold place check web --plan plan.json --format json";

/// Check that guests that run are where they belong
///
/// Compares each guest with its plan: the CPUs of vCPUs, emulator and I/O threads, the node of each page of
/// memory, the size of pages, cgroups, KVM's page tables, interrupts, and what the guest sees of nodes,
/// distances, L3 caches and threads. The plan is that of --plan, or else the one that `bifold place apply`
/// has applied. Without a plan, it checks what holds for any guest whose owner has placed it.
///
/// A finding has a name, its figures, and the command that mends it; docs/reference/findings.md lists all.
/// What could not be looked at is listed as `not seen`, and a guest of which no vCPU was seen is
/// `not checked`. The exit status is 3 if there is a finding, and 77 if there is none and a guest was not
/// checked, or only root could look at the rest. Of guests with more than 1,048,576 pages, so many are looked
/// at, chosen evenly. Changes nothing.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct CheckArgs {
    /// The guest: its process id, its PID-FD, or its name if the name is unique [default: all guests]
    #[arg(value_name = "VM")]
    pub vm: Option<String>,

    /// Compare with this plan, the JSON that `bifold place plan` writes
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,

    /// Ask the guest's QEMU at this QMP socket [default: the socket on QEMU's command line]
    ///
    /// The monitor tells the threads of vCPUs without names, and which mapping is which node's memory.
    /// Without it, names (-name debug-threads=on) and the sizes of mappings tell.
    #[arg(long, value_name = "SOCKET")]
    pub qmp: Option<PathBuf>,

    /// Folder of the journal and of the plan that is applied
    #[arg(long, value_name = "DIR", default_value = FOLDER)]
    pub state: PathBuf,

    /// Output format; `json` has the schema `bifold.place-check/1`
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json", help_heading = "Output")]
    pub format: Format,

    /// No notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,
}
