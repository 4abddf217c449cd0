// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs one command in a guest of its own and, if asked to, streams what the guest does.
//!
//! A capture starts QEMU (`command`) with the plugin of `qemu-plugin/` (`plugin`), which fills a ring
//! in shared memory (`ring`). `run` passes the ring's chunks to the consumer and follows the
//! guest's init until the guest ends.

mod boot;
mod command;
mod output;
mod pace;
mod places;
pub(crate) mod plugin;
mod region;
mod ring;
mod run;
mod start;

use std::error::Error;
use std::sync::atomic::AtomicBool;

use bifold_trace::{Clock, CommandExit, Stats};

use crate::error::GuestError;
use crate::spec::{GuestSpec, HostPage};

/// Counts of what the command wrote to the layer over the host's root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Files and symbolic links, new or changed.
    pub files: u64,
    /// Bytes in these files.
    pub bytes: u64,
    /// Whether the layer was full at the end.
    pub full: bool,
}

/// How the guest came to the point at which it starts the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootKind {
    /// It booted with its command. So do guests without the host's root, with fast timing or with several
    /// vCPUs, recorded boots, guests under KVM, and commands with much standard input.
    Whole,
    /// It booted for this run, was saved, and went on from the saved state.
    Saved,
    /// It went on from a kept boot ([`crate::boots`]).
    Kept,
}

/// The outcome of a capture.
#[derive(Debug)]
pub struct CaptureReport {
    /// How the command ended.
    pub exit: CommandExit,
    /// The command's standard output.
    pub stdout: Vec<u8>,
    /// The command's standard error.
    pub stderr: Vec<u8>,
    /// QEMU's version.
    pub qemu_version: String,
    /// The guest kernel's release.
    pub kernel_version: String,
    /// The guest's frames, see [`guest_frames`](crate::guest_frames()).
    pub guest_frames: u64,
    /// The plugin's counters; all 0 if the guest had to be killed.
    pub stats: Stats,
    /// Whether the stream ends with its stop marker. Without it, the guest had to be killed; the stream is
    /// then valid but cut short.
    pub complete: bool,
    /// Host time from the start of QEMU to the start of the command. A new boot's time is part of it.
    pub boot_seconds: f64,
    /// How the guest came to the command's start.
    pub boot: BootKind,
    /// How time passed for the command.
    pub clock: Clock,
    /// What the command wrote; `None` if the guest had to be killed, or without
    /// [`Root::Host`](crate::Root::Host).
    pub written: Option<Written>,
    /// The files that the command wrote, as a tar archive in memory, if [`GuestSpec::keep`] is set.
    pub kept: Option<std::fs::File>,
}

/// A step of a capture.
#[derive(Debug)]
#[non_exhaustive]
pub enum CaptureProgress<'a> {
    /// A stage of the preparation began.
    Stage(&'a str),
    /// What the user should know of how the guest began: a kept boot was not used, or a new one not kept.
    Note(&'a str),
    /// The guest has booted and the recording has begun.
    Recording,
    /// Words delivered so far.
    Words(u64),
}

/// The consumer of events. It gets whole events, in order.
pub type Sink<'a> = dyn FnMut(&[u64]) -> Result<(), Box<dyn Error + Send + Sync>> + 'a;

/// Runs the command and passes its events to `sink`.
///
/// `stop` may be set at any time, for example by a signal handler. The command then ends, and the recording
/// up to then is valid.
pub fn capture(
    spec: &GuestSpec,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(CaptureProgress),
    sink: &mut Sink,
) -> Result<CaptureReport, GuestError> {
    run::capture(spec, run::RunKind::Recorded, stop, progress, sink)
}

/// Runs the command in the same guest without the plugin, to measure the overhead of a capture: there are no
/// events, only the CPU time of plain TCG.
pub fn plain(
    spec: &GuestSpec,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(CaptureProgress),
) -> Result<CaptureReport, GuestError> {
    run::capture(spec, run::RunKind::Plain, stop, progress, &mut |_| Ok(()))
}

/// Runs the command in the same guest under this machine's KVM. There are no events; the host's tracing can
/// count the exits. Guest memory is backed by pages of one size, when the guest touches them. The laboratory
/// (`lab/`) is the machine for which this is made.
pub fn under_kvm(
    spec: &GuestSpec,
    host_page: HostPage,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(CaptureProgress),
) -> Result<CaptureReport, GuestError> {
    run::capture(spec, run::RunKind::Kvm(host_page), stop, progress, &mut |_| Ok(()))
}
