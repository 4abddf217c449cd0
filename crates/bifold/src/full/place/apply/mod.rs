// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold place apply`: a plan's settings, and the pins of guests that run.
//!
//! [`bifold_place::apply`] does it, with a journal.

use super::plans::{self, tell};
use crate::console::print;
use crate::status::{self, Status};
use crate::usage::UsageError;
use bifold_host::Host;
use bifold_place::apply::{Applied, FOLDER, Kept, apply};
use bifold_place::check::{chosen, misfit};
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  bifold place apply plan.json
  bifold place apply plan.json --vm web
  bifold place undo";

/// Set the host as a plan has it, and pin guests that run
///
/// Does the plan's steps: pools of huge pages, NUMA balancing, KSM, halt polling, interrupts. With --vm, also
/// pins that guest's vCPUs, I/O threads and other threads. A guest that is not named is not touched. Start a
/// guest with the plan's options after the first call, and name the guest in a second one: QEMU makes vCPU
/// threads when memory is allocated.
///
/// Each change is written down before it is made, and compared with what the kernel then has. If the kernel
/// gives less, as 60 of 64 huge pages, the command takes back what it changed, and fails. `bifold place undo`
/// takes back everything, after a kill too. Needs root.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct ApplyArgs {
    /// The plan, the JSON that `bifold place plan` writes
    #[arg(value_name = "PLAN")]
    pub plan: PathBuf,

    /// Pin this guest's threads: its process id, its PID-FD, or its name; can be given several times
    #[arg(long, value_name = "VM")]
    pub vm: Vec<String>,

    /// Folder of the journal and of the copy of the plan; it should not survive a reboot
    #[arg(long, value_name = "DIR", default_value = FOLDER)]
    pub state: PathBuf,

    /// No notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,
}

/// Carries out the verb on this machine.
pub fn run(args: &ApplyArgs) -> anyhow::Result<Status> {
    let host = Host::live();
    let plan = plans::read(&args.plan)?;
    if let Some(finding) = misfit(&host.topology()?, &plan) {
        anyhow::bail!("{}: {}; {}", args.plan.display(), finding.evidence, finding.mend);
    }
    let guests = if args.vm.is_empty() { Vec::new() } else { host.live_guests() };
    let mut pids = Vec::new();
    for vm in &args.vm {
        pids.extend(chosen(&guests, Some(vm)).map_err(|e| UsageError::value("--vm", e).failing())?);
    }
    let named: Vec<_> = guests.iter().filter(|g| pids.contains(&g.pid)).collect();
    let applied = apply(&host, &plan, &named, &Kept::within(&args.state), &mut |e| tell(!args.quiet, e))?;
    print(&told(&applied))?;
    Ok(Status::Done)
}

fn told(applied: &Applied) -> String {
    let Applied { changed, as_planned, refused, pinned } = applied;
    format!(
        "applied: {changed} settings changed, {as_planned} were as planned, {refused} refused, {pinned} threads pinned\n"
    )
}
