// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold place undo`: takes back what `place apply` changed.

use super::plans::tell;
use crate::console::print;
use crate::status::{self, Status};
use crate::usage::UsageError;
use bifold_host::Host;
use bifold_place::apply::{FOLDER, Kept, undo};
use bifold_place::check::chosen;
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  bifold place undo
  bifold place undo --vm web";

/// Take back what `place apply` changed
///
/// Restores settings and the CPUs of threads from the journal, last change first, and removes the journal and the copy of
/// the plan. A change that the kernel refuses to take back stays in the journal, and the command fails: huge pages that a
/// guest uses, for example, until that guest ends. Needs root.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct UndoArgs {
    /// Only this guest's threads: its process id, its PID-FD, or its name; can be given several times
    #[arg(long, value_name = "VM")]
    pub vm: Vec<String>,

    /// Folder of the journal
    #[arg(long, value_name = "DIR", default_value = FOLDER)]
    pub state: PathBuf,

    /// No notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,
}

/// Carries out the verb on this machine.
pub fn run(args: &UndoArgs) -> anyhow::Result<Status> {
    let host = Host::live();
    let guests = if args.vm.is_empty() { Vec::new() } else { host.live_guests() };
    let mut pids = Vec::new();
    for vm in &args.vm {
        pids.extend(chosen(&guests, Some(vm)).map_err(|e| UsageError::value("--vm", e).failing())?);
    }
    let only = (!args.vm.is_empty()).then_some(pids.as_slice());
    let undone = undo(&host, &Kept::within(&args.state), only, &mut |e| tell(!args.quiet, e))?;
    print(&match undone.was_applied {
        false => "nothing is applied\n".to_string(),
        true => format!("undone: {} settings, {} threads\n", undone.settings, undone.threads),
    })?;
    Ok(Status::Done)
}
