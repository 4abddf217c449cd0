// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of starting and running guests. A message names the fact and, where there is one, the remedy; it
//! never repeats its source.

use std::path::PathBuf;

/// Which package of Debian holds a recent QEMU.
pub(crate) const QEMU_PACKAGES: &str = "(Debian 13, Ubuntu 25.04 and newer: in main; Debian 12: from bookworm-backports, apt-get install -t bookworm-backports qemu-system-x86)";

/// Whether an error means that this machine lacks something, or that the run failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// This machine lacks something (exit status 77).
    CannotWorkHere,
    /// The run failed (exit status 1).
    Failed,
}

/// Why there is no [`crate::CaptureReport`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestError {
    /// QEMU is not installed.
    #[error("qemu-system-x86_64 not found; install qemu-system-x86 {}", QEMU_PACKAGES)]
    QemuMissing,
    /// QEMU is too old: its plugins cannot read registers.
    #[error("qemu {found} is too old: 9.0 or later is needed; install qemu-system-x86 {}", QEMU_PACKAGES)]
    QemuTooOld {
        /// QEMU's version.
        found: String,
    },
    /// QEMU is too new: it calls plugins with other arguments.
    #[error(
        "qemu {found} is too new: this bifold knows the plugin interface of 9.0 to 10.2; take a newer bifold, or name an older QEMU in BIFOLD_QEMU"
    )]
    QemuTooNew {
        /// QEMU's version.
        found: String,
    },
    /// QEMU was built without plugin support.
    #[error(
        "{path} has no plugin support (built with --disable-plugins); use your distribution's qemu-system-x86"
    )]
    NoPlugins {
        /// QEMU's file.
        path: PathBuf,
    },
    /// The capture plugin's file was not found.
    #[error(
        "libbifold_capture_plugin.so not found beside the executable or in ../lib/bifold; build with cargo build --workspace, or set BIFOLD_PLUGIN"
    )]
    PluginMissing,
    /// apt has no kernel of a series.
    #[error("apt knows no kernel of series {series} ({known}): {why}")]
    NoSuchKernel {
        /// The requested series.
        series: String,
        /// What is missing, or what to do.
        why: String,
        /// All series, and which release has each: `6.1: Debian 12; ...`.
        known: String,
    },
    /// The host is no x86-64 machine.
    #[error("capture runs the host's programs in an x86-64 guest, but this machine is {0}")]
    Architecture(&'static str),
    /// A value of the [`GuestSpec`](crate::GuestSpec) is invalid.
    #[error("{0}")]
    Spec(String),
    /// Bifold was built where the C compiler could not build the init of a 32-bit guest.
    #[error(
        "this bifold has no init for 32-bit guests: install libc6-dev-i386 and lib32gcc-12-dev (the number is gcc's version), and build it again"
    )]
    NoNarrowInit,
    /// The command is a program of 64-bit mode, and the guest is in 32-bit mode.
    #[error(
        "{}: a 64-bit program, and a guest with --guest-tables {tables} is in 32-bit mode: build the program with -m32 -static", path.display()
    )]
    LongProgram {
        /// The program's file.
        path: PathBuf,
        /// The guest's tables.
        tables: &'static str,
    },
    /// The command does not exist.
    #[error("{program}: program not found")]
    ProgramNotFound {
        /// The program as the user named it.
        program: String,
    },
    /// The command exists but cannot be executed.
    #[error("{}: not an executable file", path.display())]
    NotExecutable {
        /// The file.
        path: PathBuf,
    },
    /// A kernel image or its modules cannot be used.
    #[error("kernel {}: {why}", path.display())]
    Kernel {
        /// The image or directory.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The kernel lacks a driver.
    #[error("kernel {version} has no module {module}{}", if module == "9p" { ": it cannot mount the host's root; use --root initramfs" } else { "" })]
    NoModule {
        /// The kernel's release.
        version: String,
        /// The module.
        module: String,
    },
    /// The default kernel could not be fetched.
    #[error("cannot fetch a guest kernel: {why}; give one with --kernel")]
    KernelFetch {
        /// What failed.
        why: String,
    },
    /// Packages for a guest could not be fetched.
    #[error("cannot fetch packages for a guest: {why}")]
    PackageFetch {
        /// What failed.
        why: String,
    },
    /// A file could not be read or written.
    #[error("{}: {what}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The operating system refused something.
    #[error("{what}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Something failed in the guest before or after the command.
    #[error("in the guest: {0}")]
    Guest(String),
    /// The guest does not have the command's working directory.
    #[error("in the guest: {0}")]
    WorkingDirectory(String),
    /// The guest's kernel could not execute the command's file.
    #[error("in the guest: {0}")]
    NotStarted(String),
    /// The command ended before its region began.
    #[error("nothing was recorded: the command ended ({exit}) before its region began: {why}")]
    RegionMissed {
        /// How the command ended.
        exit: String,
        /// The place that the command did not reach.
        why: String,
    },
    /// The guest's kernel panicked.
    #[error("the guest's kernel panicked:\n{0}")]
    Panic(String),
    /// The guest ran out of memory.
    #[error("the guest ran out of memory ({memory_mib} MiB); give it more with --memory\n{console}")]
    GuestOutOfMemory {
        /// The guest's memory in MiB.
        memory_mib: u64,
        /// The end of the guest's console.
        console: String,
    },
    /// QEMU ended before the guest did.
    #[error("qemu ended before the guest did ({status}):\n{log}")]
    QemuDied {
        /// QEMU's exit status.
        status: String,
        /// The end of QEMU's messages and of the guest's console.
        log: String,
    },
    /// The guest did not boot in time.
    #[error(
        "the guest did not start the command in {ran} s of CPU time, and did nothing for {idle} s:\n{console}"
    )]
    BootTimeout {
        /// Seconds of the emulator's CPU time.
        ran: u64,
        /// Seconds in which the vCPU thread neither ran nor waited for a CPU.
        idle: u64,
        /// The end of the guest's console.
        console: String,
    },
    /// The consumer of the events failed.
    #[error("the events could not be used")]
    Sink(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The caller stopped the capture before the command started.
    #[error("interrupted before the command started")]
    InterruptedEarly,
}

impl GuestError {
    /// Whether this machine lacks something or the run failed.
    pub fn kind(&self) -> Kind {
        use GuestError::*;
        match self {
            QemuMissing
            | QemuTooOld { .. }
            | QemuTooNew { .. }
            | NoPlugins { .. }
            | PluginMissing
            | Architecture(_)
            | KernelFetch { .. }
            | PackageFetch { .. }
            | NoNarrowInit
            | NoSuchKernel { .. } => Kind::CannotWorkHere,
            _ => Kind::Failed,
        }
    }

    pub(crate) fn file(path: impl Into<PathBuf>, what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| GuestError::File { path, what, source }
    }

    pub(crate) fn os<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |e| GuestError::Os { what, source: e.into() }
    }
}
