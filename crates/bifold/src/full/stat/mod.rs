// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold stat`: what each VM of this host did, interval by interval.
//!
//! [`bifold_live`] reads the VMs; [`out`] writes rows to stdout or a file; [`table`] is the table for
//! terminals.

mod args;
mod out;
mod table;

pub use args::StatArgs;
use args::StatFormat;

use crate::console::{note, stop_on_signals};
use crate::doctor::needs::{FEW_FIGURES, MODULE, Needs};
use crate::full::vms;
use crate::status::Status;
use crate::usage::UsageError;
use anyhow::Context as _;
use bifold_guest::GuestError;
use bifold_host::{Host, Vendor};
use bifold_live::hardware::{Cpu, FileLimit, NoPmu, Pmu};
use bifold_live::{Tick, Watch};
use bifold_trace::CommandExit;
use out::Out;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time between two looks at Ctrl-C and at the command.
const LOOK: Duration = Duration::from_millis(50);

/// What the verb needs of the machine.
pub const NEEDS: &[Needs] = &[Needs { parts: &[FEW_FIGURES], ..Needs::of("", &[MODULE]) }];

/// Carries out the verb on this machine.
pub fn run(args: &StatArgs) -> anyhow::Result<Status> {
    let host = Host::live();
    let pmu = vms::pmu(&host, args.no_pmu);
    stat(host, pmu, args)
}

/// Carries out the verb on a host.
fn stat(host: Host, (pmu, no_pmu): (Option<Pmu>, Option<NoPmu>), args: &StatArgs) -> anyhow::Result<Status> {
    if args.exits && args.format == StatFormat::Table {
        return Err(UsageError::conflict(
            "--exits",
            "needs a format with rows: csv, jsonl, parquet or arrow",
        )
        .into());
    }
    let stop = stop_on_signals()?;
    let files = FileLimit::raise().context("cannot raise the limit of open files")?;
    let mut watch = Watch::new(host, pmu.into())?;
    watch.forecast_switches();
    let vendor = vendor(&watch, args)?;
    if args.exits {
        watch.count_exits()?;
    }
    let mut out = Out::create(args, vendor)?;
    let start = Instant::now();
    watch.tick(&|| start.elapsed());
    vms::notes(&watch, no_pmu.as_ref(), &args.vm).iter().for_each(|text| note(!args.quiet, text));
    let mut command =
        files.lowered(|| Running::start(&args.command)).context("cannot set the limit of open files")??;
    let mut intervals: u64 = 0;
    // A command without -i is one interval.
    let length = args.interval.map(Duration::from_secs_f64).or(command.is_none().then_some(SECOND));
    let mut end = length;
    while args.count != Some(intervals) {
        let ended = wait(&stop, command.as_mut(), start, end)?;
        let time = bifold_live::now();
        let tick = watch.tick(&|| start.elapsed());
        let read = rows(&watch, &tick, time, args, &mut out)?;
        intervals += 1;
        if ended || !read {
            break;
        }
        // Intervals that were missed, as while the process was stopped, are not made up for.
        end = end.zip(length).map(|(end, length)| (end + length).max(start.elapsed()));
    }
    out.finish(args)?;
    if let Some(e) = watch.exits_failed() {
        note(!args.quiet, format_args!("exits by reason are missing in some intervals: {e}"));
    }
    match command {
        Some(command) => Ok(Status::OfCommand(command.wait()?)),
        None => Ok(Status::Done),
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// Waits until the interval's end; true if the run has ended: by Ctrl-C, or with the command.
fn wait(
    stop: &AtomicBool,
    mut command: Option<&mut Running>,
    start: Instant,
    end: Option<Duration>,
) -> anyhow::Result<bool> {
    loop {
        let ended = match &mut command {
            // Ctrl-C reaches the command too, whose end decides.
            Some(command) => command.has_ended()?,
            None => stop.load(Ordering::Relaxed),
        };
        if ended {
            return Ok(true);
        }
        let left = end.map(|end| end.saturating_sub(start.elapsed()));
        if left == Some(Duration::ZERO) {
            return Ok(false);
        }
        std::thread::sleep(left.unwrap_or(LOOK).min(LOOK));
    }
}

/// The vendor whose exit reasons are counted, if they are.
fn vendor(watch: &Watch, args: &StatArgs) -> Result<Option<Vendor>, UsageError> {
    let found = watch.kvm().vendor().or_else(|| Cpu::of(watch.host()).map(|cpu| cpu.vendor));
    match (args.exits, found) {
        (false, _) => Ok(None),
        (true, None) => {
            Err(UsageError::conflict("--exits", "knows the reasons of Intel and AMD only").failing())
        }
        (true, vendor) => Ok(vendor),
    }
}

/// Writes the rows of a tick at `time`. Returns whether somebody still reads them.
fn rows(watch: &Watch, tick: &Tick, time: f64, args: &StatArgs, out: &mut Out) -> anyhow::Result<bool> {
    let of = tick.intervals.iter().filter_map(|(id, interval)| Some((watch.vm(*id)?, interval)));
    let chosen: Vec<_> = of.filter(|(vm, _)| vms::is_chosen(vm, &args.vm)).collect();
    out.interval(time, &chosen, args)
}

/// Why a command did not start, with the exit status of a shell.
fn not_started(program: &OsStr, error: io::Error) -> anyhow::Error {
    let name = program.to_string_lossy().into_owned();
    match error.kind() {
        io::ErrorKind::NotFound => GuestError::ProgramNotFound { program: name }.into(),
        io::ErrorKind::PermissionDenied => GuestError::NotExecutable { path: name.into() }.into(),
        _ => anyhow::Error::from(error).context(format!("cannot run {name}")),
    }
}

/// The command during which VMs are watched. If the verb fails, the command is ended.
struct Running {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Running {
    fn start(command: &[OsString]) -> anyhow::Result<Option<Running>> {
        let Some((program, words)) = command.split_first() else { return Ok(None) };
        let child = Command::new(program).args(words).spawn();
        let child = child.map_err(|e| not_started(program, e))?;
        Ok(Some(Running { child, ended: None }))
    }

    fn has_ended(&mut self) -> anyhow::Result<bool> {
        self.ended = self.child.try_wait().context("cannot wait for the command")?;
        Ok(self.ended.is_some())
    }

    fn wait(mut self) -> anyhow::Result<CommandExit> {
        let status = match self.ended {
            Some(status) => status,
            None => self.child.wait().context("cannot wait for the command")?,
        };
        Ok(match (status.code(), status.signal()) {
            (Some(code), _) => CommandExit::Code(code),
            (None, signal) => CommandExit::Signal(signal.unwrap_or(0)),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended.is_none() && !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests;
