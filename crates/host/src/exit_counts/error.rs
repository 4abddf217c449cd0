// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of counting exits. Each message says what is wrong and what to do.

use crate::{Host, memory::text};
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};

/// Why exits cannot be counted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExitCountersError {
    /// tracefs is not mounted.
    #[error(
        "tracefs is not mounted, or this kernel cannot trace (no {}): as root, mount -t tracefs none /sys/kernel/tracing",
        path.display()
    )]
    NotMounted {
        /// The missing directory.
        path: PathBuf,
    },
    /// Only root may use the file.
    #[error("cannot {doing} {}: only root may; run the command with sudo", path.display())]
    NotRoot {
        /// The refused operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The kernel forbids tracing.
    #[error(
        "cannot use {}: this kernel is locked down and forbids tracing (/sys/kernel/security/lockdown): boot without lockdown=confidentiality",
        path.display()
    )]
    LockedDown {
        /// The file.
        path: PathBuf,
    },
    /// KVM's trace events do not exist.
    #[error("KVM has no trace events here (no {}): load kvm_amd or kvm_intel", path.display())]
    NoKvmEvents {
        /// The missing directory.
        path: PathBuf,
    },
    /// The kernel cannot count trace events.
    #[error(
        "this kernel cannot count trace events (no {}): use a kernel with CONFIG_HIST_TRIGGERS, such as Debian's",
        path.display()
    )]
    NoHistograms {
        /// The missing file.
        path: PathBuf,
    },
    /// A table of the kernel cannot be read. The error names the file.
    #[error(transparent)]
    Table(io::Error),
    /// Any other error of a file.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

impl ExitCountersError {
    pub(crate) fn io(doing: &'static str, path: &Path, source: io::Error) -> ExitCountersError {
        let path = path.into();
        match source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::ACCESS) => ExitCountersError::NotRoot { doing, path },
            // tracing_check_open_get_tr and event_trigger_regex_open, if the kernel is locked down.
            Some(Errno::PERM) => ExitCountersError::LockedDown { path },
            _ => ExitCountersError::Io { doing, path, source },
        }
    }

    /// The error for a missing file: tracefs has no files in a kernel that was locked down at boot
    /// (`tracefs_create_file`).
    pub(crate) fn missing(host: &Host, path: PathBuf, otherwise: fn(PathBuf) -> Self) -> ExitCountersError {
        let lockdown = text(&host.sys.join("kernel/security/lockdown"));
        if lockdown.contains("[confidentiality]") {
            return ExitCountersError::LockedDown { path };
        }
        otherwise(path)
    }

    /// Whether this machine, or this user's rights, lack something (exit status 77).
    pub fn cannot_work_here(&self) -> bool {
        !matches!(self, ExitCountersError::Table(_) | ExitCountersError::Io { .. })
    }
}
