// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a command in a real Linux guest under QEMU's TCG and hands everything
//! that it and its kernel did to a consumer, as the event stream of
//! [`bifold_trace::event`].
//!
//! [`capture`] finds a kernel, builds an initramfs, starts QEMU with the plugin
//! of `qemu-plugin/` and passes on what the plugin writes to a shared ring.
//! Recording covers the command, and the boot if asked for ([`Record`]). No file, process or shared
//! memory outlives the call: guest memory, ring and logs are memfds, and QEMU
//! dies with the thread that called.
//!
//! Guests that are not captured but live on, to be looked at from outside, are [`vm`]'s; what they
//! run can come from Debian packages ([`packages`]).
//!
//! Left out: the memory accesses of the page walker (the consumer models them),
//! the descriptor-table reads of exception delivery, and devices' DMA.

use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub use bifold_trace::{Clock, Stats, Windows};

pub mod cpio;
pub mod doctor;
mod error;
mod guest;
pub mod image;
pub mod kernel;
pub mod modules;
mod pace;
pub mod packages;
mod places;
mod plugin;
pub mod qemu;
mod region;
mod ring;
mod run;
pub mod vm;

pub use error::{CaptureError, Kind};
pub use guest::workload_initramfs;
pub use region::{Begin, Region};
pub use run::most_stdin;

/// How guest time passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Timing {
    /// By instructions executed: the same guest does the same, bit for bit.
    Exact,
    /// By the host's clock: faster, with more timer interrupts per instruction.
    Fast,
}

/// The guest's transparent huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the kernel's own words
pub enum Thp {
    Always,
    Madvise,
    Never,
}

impl Thp {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Thp::Always => "always",
            Thp::Madvise => "madvise",
            Thp::Never => "never",
        }
    }
}

/// What the guest sees as its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// The host's root, read-only, under a writable layer in memory.
    Host,
    /// Only the command, its libraries and the files named.
    Initramfs {
        /// Further files and directories.
        include: Vec<PathBuf>,
    },
}

/// Where a recording begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Record {
    /// At the command's start: booting costs nothing, and the machine is cold.
    Command,
    /// At the kernel's first steps: what the command finds warm is in the stream. Takes one
    /// vCPU; user addresses are not randomised, so that they can be compared between runs.
    Boot,
}

/// The host's pages behind the guest's memory, see [`under_kvm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HostPage {
    /// Anonymous memory, never in huge pages.
    Size4K,
    /// Huge pages of hugetlbfs, as many as the guest's memory takes; the host must have them.
    Size2M,
}

/// What to run, and in what guest.
#[derive(Debug, Clone)]
pub struct GuestSpec {
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// Its working directory.
    pub cwd: PathBuf,
    /// Its environment; `PATH` of it finds the program.
    pub env: Vec<(OsString, OsString)>,
    /// How time passes.
    pub timing: Timing,
    /// 1 or 2.
    pub vcpus: u32,
    /// Whether the kernel isolates its page tables.
    pub kpti: bool,
    /// Transparent huge pages.
    pub thp: Thp,
    /// Guest memory.
    pub memory_mib: u64,
    /// Kernel image; Debian's if `None`.
    pub kernel: Option<PathBuf>,
    /// Its modules; beside it or in /lib/modules if `None`.
    pub modules: Option<PathBuf>,
    /// Root file system.
    pub root: Root,
    /// The command is ended after this long (host time from its start).
    pub timeout: Option<Duration>,
    /// A self-check every this many words of the stream; 0 = none.
    pub check_every: u64,
    /// Where the recording begins.
    pub record: Record,
    /// What the command reads from standard input, to its end.
    pub stdin: Vec<u8>,
    /// Whether the files that the command writes are wanted, see [`CaptureReport::kept`].
    /// Takes [`Root::Host`].
    pub keep: bool,
    /// Who runs, what is mapped where and what it is called goes into the stream too, so that
    /// costs can be attributed. Not with [`Record::Boot`].
    pub attribute: bool,
    /// Which part of the command is recorded, and how much of that.
    pub region: Region,
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandExit {
    /// It exited.
    Code(i32),
    /// A signal killed it.
    Signal(i32),
    /// The guest's kernel killed it, or a child of it, for want of memory.
    OutOfMemory,
    /// It ran longer than [`GuestSpec::timeout`].
    TimedOut,
    /// The caller asked for its end.
    Interrupted,
    /// The recording was over: [`Region::length`] or its second marker was reached.
    AfterRegion,
}

impl CommandExit {
    /// For people: `exit status 1`, `signal 11`.
    fn describe(self) -> String {
        match self {
            CommandExit::Code(n) => format!("exit status {n}"),
            CommandExit::Signal(n) => format!("signal {n}"),
            CommandExit::OutOfMemory => "the guest ran out of memory".into(),
            CommandExit::TimedOut => "stopped at the time limit".into(),
            CommandExit::Interrupted => "interrupted".into(),
            CommandExit::AfterRegion => "its region was over".into(),
        }
    }
}

/// What the command wrote to the layer over the host's root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Files and symbolic links, new or changed.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether the layer had no room left at the end.
    pub full: bool,
}

/// What is known after a capture.
#[derive(Debug)]
pub struct CaptureReport {
    /// How the command ended.
    pub exit: CommandExit,
    /// What it printed.
    pub stdout: Vec<u8>,
    /// What it printed as errors.
    pub stderr: Vec<u8>,
    /// Of the emulator.
    pub qemu_version: String,
    /// Of the guest's kernel.
    pub kernel_version: String,
    /// See [`guest_frames`].
    pub guest_frames: u64,
    /// The plugin's counters; all 0 if the guest had to be killed.
    pub stats: Stats,
    /// Whether the stream ends with its stop marker. If not, the guest had to
    /// be killed, and the stream is a valid beginning.
    pub complete: bool,
    /// Host time from the start of QEMU to the start of the command.
    pub boot_seconds: f64,
    /// How time passed for the command.
    pub clock: Clock,
    /// What it wrote; none if the guest had to be killed, or without [`Root::Host`].
    pub written: Option<Written>,
    /// The files it wrote, as a tar archive in memory, if [`GuestSpec::keep`] asked for them.
    pub kept: Option<std::fs::File>,
}

/// What is going on.
#[derive(Debug)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// A stage of the preparation began.
    Stage(&'a str),
    /// The guest has booted and the recording has begun.
    Recording,
    /// Words delivered so far.
    Words(u64),
}

/// The consumer of events: whole events, in order.
pub type Sink<'a> = dyn FnMut(&[u64]) -> Result<(), Box<dyn Error + Send + Sync>> + 'a;

/// Below 4 GB, RAM ends here and the hole for devices begins (`max-ram-below-4g`).
pub(crate) const LOW_MIB: u64 = 2048;

/// Guest-physical frames of 4 KB, the hole below 4 GB included: frame numbers
/// in the stream are smaller than this.
pub fn guest_frames(spec: &GuestSpec) -> u64 {
    let mib = if spec.memory_mib > LOW_MIB { 4096 + spec.memory_mib - LOW_MIB } else { spec.memory_mib };
    mib << 8
}

/// Runs the command and passes its events to `sink`.
///
/// `stop` may be set at any time, by a signal handler for example: the command
/// is ended, and what was recorded remains valid.
pub fn capture(
    spec: &GuestSpec,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress),
    sink: &mut Sink,
) -> Result<CaptureReport, CaptureError> {
    run::capture(spec, run::How::Recorded, stop, progress, sink)
}

/// Runs the command in the same guest without the plugin: no events, only the
/// CPU time that plain TCG takes, to measure a capture against.
pub fn plain(
    spec: &GuestSpec,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress),
) -> Result<CaptureReport, CaptureError> {
    run::capture(spec, run::How::Plain, stop, progress, &mut |_| Ok(()))
}

/// Runs the command in the same guest under this machine's KVM: no events, but exits that
/// the host's tracing can count. Its memory is backed as the guest touches it, by pages of
/// one size. For a machine made for this, as the laboratory in `lab/` is.
pub fn under_kvm(
    spec: &GuestSpec,
    host_page: HostPage,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress),
) -> Result<CaptureReport, CaptureError> {
    run::capture(spec, run::How::Kvm(host_page), stop, progress, &mut |_| Ok(()))
}
