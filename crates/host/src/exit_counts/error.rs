// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of counting exits. Each message says what is wrong and what to do.

use crate::tracing::TracingError;
use std::io;
use std::path::PathBuf;

/// Why exits cannot be counted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExitCountersError {
    /// This host cannot trace.
    #[error(transparent)]
    Tracing(#[from] TracingError),
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
}

impl ExitCountersError {
    /// Whether this machine, or this user's rights, lack something (exit status 77).
    pub fn cannot_work_here(&self) -> bool {
        match self {
            ExitCountersError::Tracing(e) => e.cannot_work_here(),
            ExitCountersError::Table(_) => false,
            ExitCountersError::NoKvmEvents { .. } | ExitCountersError::NoHistograms { .. } => true,
        }
    }
}
