// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold place undo`: takes back what `place apply` changed.

use super::plans::tell;
use crate::console::print;
use crate::status::{self, Status};
use crate::usage::UsageError;
use bifold_host::Host;
use bifold_place::apply::{FOLDER, IfChanged, Kept, Undone, undo};
use bifold_place::check::chosen;
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  bifold place undo
  bifold place undo --vm web
  bifold place undo --keep";

/// Take back what `place apply` changed
///
/// Restores settings and the CPUs of threads from the journal, last change first, and removes the journal and
/// the copy of the plan. A change that the kernel refuses to take back stays in the journal, and the command
/// fails: huge pages that a guest uses, for example, until that guest ends. Needs root.
///
/// A setting that another program has changed after `place apply` is not overwritten: the command names the
/// file, the value that Bifold set, the present value and the value before, takes back all other changes, and
/// fails. The same holds for a thread's CPUs. --force puts the old value back all the same; --keep leaves the
/// present value and forgets the change.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct UndoArgs {
    /// Only this guest's threads: its process id, its PID-FD, or its name; can be given several times
    #[arg(long, value_name = "VM")]
    pub vm: Vec<String>,

    /// Put old values back even where another program has changed them since
    #[arg(long, conflicts_with = "keep")]
    pub force: bool,

    /// Leave values that another program has changed since, and forget these changes
    #[arg(long)]
    pub keep: bool,

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
    let if_changed = match (args.force, args.keep) {
        (true, _) => IfChanged::Force,
        (_, true) => IfChanged::Keep,
        _ => IfChanged::Refuse,
    };
    let kept = Kept::within(&args.state);
    print(&told(&undo(&host, &kept, only, if_changed, &mut |e| tell(!args.quiet, e))?))?;
    Ok(Status::Done)
}

fn told(undone: &Undone) -> String {
    let Undone { settings, threads, kept, .. } = undone;
    match (undone.was_applied, kept) {
        (false, _) => "nothing is applied\n".to_string(),
        (true, 0) => format!("undone: {settings} settings, {threads} threads\n"),
        (true, _) => format!(
            "undone: {settings} settings, {threads} threads; {kept} later values of other programs are kept\n"
        ),
    }
}
