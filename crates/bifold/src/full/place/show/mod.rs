// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold place show`: a host's nodes, CPUs, caches, huge pages, devices and limits.
//!
//! [`text`] is the table, [`json`] the document. Both show the same
//! [`Topology`](bifold_host::topology::Topology).

mod json;
mod text;

pub use json::schema;

use crate::console::{note, print};
use crate::status::{self, Status};
use crate::usage::UsageError;
use crate::words as values;
use bifold_host::{Host, printable};
use bifold_report::Format;
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  bifold place show
  bifold place show --cgroup /machine.slice
  bifold place show --root copied-tree --format json";

/// Show this host's nodes, CPUs, caches, huge pages, devices and limits
///
/// For each NUMA node: its CPUs, memory, pools of huge pages, page tables of VMs, distances, the latency and
/// bandwidth that the firmware states (HMAT), the groups of CPUs that share an L3 cache, the CPUs that share
/// a core, and the devices. For the host: CPUs that are offline, isolated (isolcpus) or tickless (nohz_full),
/// and what the cgroup of this process may use. In a container, the view can be restricted to a part of the
/// host.
///
/// What sysfs does not tell is `-` in the table and null in `json`. Damaged or contradictory files are noted
/// on stderr, and under `notes` in `json`. Changes nothing, and needs no root.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct ShowArgs {
    /// Read a copied tree: a folder with the machine's `sys` and `proc`
    ///
    /// `hwloc-gather-topology` makes such a tree.
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Show what this cgroup may use [default: the cgroup of this process]
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<String>,

    /// Output format; `json` has the schema `bifold.place-show/1`
    #[arg(long, value_parser = values::formats(values::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json", help_heading = "Output")]
    pub format: Format,

    /// No notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,
}

/// Carries out the verb.
pub fn run(args: &ShowArgs) -> anyhow::Result<Status> {
    let host = args.root.as_ref().map_or_else(Host::live, |root| Host::copied(root));
    let mut topology = host.topology()?;
    if let Some(group) = &args.cgroup {
        topology.allowed = Some(host.allowed_in(group).ok_or_else(|| no_group(group))?);
    }
    topology.notes.iter().for_each(|text| note(!args.quiet, text));
    print(&match args.format {
        Format::Json => json::document(&topology)?,
        _ => text::table(&topology),
    })?;
    Ok(Status::Done)
}

pub fn no_group(group: &str) -> UsageError {
    let problem =
        "is no cgroup with the controller cpuset, nor below one: give a path as in /proc/PID/cgroup";
    UsageError::value(format!("--cgroup `{}`", printable(group)), problem)
}

#[cfg(test)]
mod tests;
