// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exit status: one meaning per number, as `--help` lists them.

#[cfg(feature = "host")]
use bifold_daemon::DaemonError;
use bifold_guest::{GuestError, Kind};
use bifold_host::HostError;
use bifold_host::exit_counts::ExitCountersError;
use bifold_host::ksm::KsmError;
use bifold_host::tracing::TracingError;
#[cfg(feature = "host")]
use bifold_live::order::OrderError;
use bifold_measure::MeasureError;
#[cfg(feature = "host")]
use bifold_place::apply::ApplyError;
#[cfg(feature = "host")]
use bifold_place::check::CheckError;
#[cfg(feature = "host")]
use bifold_share::image::ImageError;
use bifold_trace::CommandExit;
#[cfg(feature = "host")]
use bifold_trial::ExperimentError;
use std::process::ExitCode;

/// The exit status in words, for help and man pages.
pub const IN_WORDS: &str = "\
Exit status:
  0    done
  1    failed
  2    wrong usage
  3    a self-check found mismatches
  4    a count grew above its baseline (`compare --baseline`, `ci`)
  77   this machine lacks something that the verb needs (see `bifold doctor`)
  124  stopped at --timeout
  125  Bifold itself failed, not the command of `compare -- CMD` or `record -- CMD`
  126  the command cannot be executed
  127  the command was not found
  130  stopped by Ctrl-C
If the command fails, the table is still printed, and Bifold exits with the command's status, or
128+N if signal N ended it. On stderr, an error of Bifold itself begins with `bifold:`, and a usage
error with `error:`.";

/// The exit status in words below a verb's examples.
pub fn below(examples: &str) -> String {
    format!("{examples}\n\n{IN_WORDS}")
}

/// How the program ends when nothing failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// 0.
    Done,
    /// 1.
    Failed,
    /// 3.
    CheckFailed,
    /// 4.
    Worse,
    /// 77.
    Unavailable,
    /// The command's status, or that of a command that was stopped.
    OfCommand(CommandExit),
}

/// A failure.
pub const FAILED: u8 = 1;
/// This machine lacks something.
const UNAVAILABLE: u8 = 77;

/// A command stopped by --timeout, as in `timeout(1)`.
const TIMED_OUT: u8 = 124;
/// A failure of Bifold itself where it should run a command, as in `env(1)` and `timeout(1)`.
pub const FAILED_BESIDE_A_COMMAND: u8 = 125;
/// A command that is found and cannot be executed, as in POSIX's shells (XCU 2.8.2).
const NOT_EXECUTABLE: u8 = 126;
/// A command that is not found, as in POSIX's shells.
const NOT_FOUND: u8 = 127;
/// Added to a signal's number, as in shells.
const SIGNAL: i32 = 128;
const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;

impl From<Status> for ExitCode {
    fn from(status: Status) -> ExitCode {
        let code = match status {
            Status::Done => 0,
            Status::Failed => FAILED,
            Status::CheckFailed => 3,
            Status::Worse => 4,
            Status::Unavailable => UNAVAILABLE,
            Status::OfCommand(CommandExit::Code(c)) => c as u8, // wait(2) hands on 8 bits
            Status::OfCommand(CommandExit::Signal(s)) => (SIGNAL + s) as u8,
            // The kernel ended it with SIGKILL.
            Status::OfCommand(CommandExit::OutOfMemory) => (SIGNAL + SIGKILL) as u8,
            Status::OfCommand(CommandExit::AfterRegion | CommandExit::AccurateEnough) => 0,
            Status::OfCommand(CommandExit::TimedOut) => TIMED_OUT,
            Status::OfCommand(CommandExit::Interrupted) => (SIGNAL + SIGINT) as u8,
        };
        ExitCode::from(code)
    }
}

/// The status for an error that ends the program.
pub fn of_error(error: &anyhow::Error) -> u8 {
    if error.downcast_ref::<HostError>().is_some_and(HostError::cannot_work_here)
        || error.downcast_ref::<ExitCountersError>().is_some_and(ExitCountersError::cannot_work_here)
        || error.downcast_ref::<TracingError>().is_some_and(TracingError::cannot_work_here)
        || error.downcast_ref::<KsmError>().is_some_and(KsmError::cannot_work_here)
    {
        return UNAVAILABLE;
    }
    #[cfg(feature = "host")]
    if let Some(status) = of_host(error) {
        return status;
    }
    match error.downcast_ref::<MeasureError>() {
        Some(MeasureError::Stopped) => return (SIGNAL + SIGINT) as u8,
        Some(e) if e.cannot_work_here() => return UNAVAILABLE,
        _ => {}
    }
    match error.downcast_ref::<GuestError>() {
        Some(GuestError::InterruptedEarly) => (SIGNAL + SIGINT) as u8,
        Some(e) if e.kind() == Kind::CannotWorkHere => UNAVAILABLE,
        _ => FAILED,
    }
}

/// The status for an error that ends `compare` or `record` with a command. 1 is left to the command, so that
/// a script can tell the command's failure from Bifold's.
pub fn of_error_beside_a_command(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<GuestError>() {
        Some(GuestError::ProgramNotFound { .. }) => NOT_FOUND,
        Some(GuestError::NotExecutable { .. } | GuestError::NotStarted(_)) => NOT_EXECUTABLE,
        _ => match of_error(error) {
            FAILED => FAILED_BESIDE_A_COMMAND,
            other => other,
        },
    }
}

/// The status for an error of a verb of the feature `host`; none for another error.
#[cfg(feature = "host")]
fn of_host(error: &anyhow::Error) -> Option<u8> {
    if let Some(e) = error.downcast_ref::<ExperimentError>() {
        return Some(of_experiment(e));
    }
    let unavailable = error.downcast_ref::<DaemonError>().is_some_and(DaemonError::cannot_work_here)
        || error.downcast_ref::<OrderError>().is_some_and(OrderError::cannot_work_here)
        || error.downcast_ref::<ApplyError>().is_some_and(ApplyError::cannot_work_here)
        || error.downcast_ref::<CheckError>().is_some_and(CheckError::cannot_work_here)
        || error.downcast_ref::<ImageError>().is_some_and(ImageError::is_privilege);
    unavailable.then_some(UNAVAILABLE)
}

#[cfg(feature = "host")]
fn of_experiment(error: &ExperimentError) -> u8 {
    match error {
        ExperimentError::Capture(e) if e.kind() == Kind::CannotWorkHere => UNAVAILABLE,
        ExperimentError::Ksm(e) if e.cannot_work_here() => UNAVAILABLE,
        ExperimentError::Order(e) if e.cannot_work_here() => UNAVAILABLE,
        ExperimentError::Memory { .. } | ExperimentError::TooLittle { .. } => UNAVAILABLE,
        _ => FAILED,
    }
}

#[cfg(all(test, feature = "host"))]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn failures_beside_a_command_have_numbers_of_their_own() {
        let program = || "x".to_string();
        let denied = || {
            DaemonError::Io { path: program().into(), source: io::ErrorKind::PermissionDenied.into() }.into()
        };
        for (error, beside, alone) in [
            (anyhow::anyhow!("no room"), 125, 1),
            (GuestError::ProgramNotFound { program: program() }.into(), 127, 1),
            (GuestError::NotExecutable { path: program().into() }.into(), 126, 1),
            (GuestError::NotStarted("running x: Exec format error".into()).into(), 126, 1),
            (GuestError::Guest("no disk".into()).into(), 125, 1),
            (GuestError::QemuMissing.into(), 77, 77),
            (denied(), 77, 77),
            (GuestError::InterruptedEarly.into(), 130, 130),
        ] {
            assert_eq!((of_error_beside_a_command(&error), of_error(&error)), (beside, alone), "{error}");
            // Context around the cause does not hide it.
            let error = error.context("while running x");
            assert_eq!((of_error_beside_a_command(&error), of_error(&error)), (beside, alone), "{error:#}");
        }
    }
}
