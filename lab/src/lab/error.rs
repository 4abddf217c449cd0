// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a boot of the laboratory did not do its jobs.

use std::path::PathBuf;

use bifold_guest::{GuestError, Kind};

use super::kvm_module::ModuleError;
use crate::vendor::Vendor;

/// Why a boot did not do its jobs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// No emulator, no kernel and the like.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The kernel's KVM cannot be used.
    #[error("{version}: {why}")]
    Module {
        /// The kernel.
        version: String,
        /// What is wrong.
        why: ModuleError,
    },
    /// A module does not belong to the kernel.
    #[error("{}: built for {built}, and the laboratory's kernel is {version}", path.display())]
    OtherKernel {
        /// The module.
        path: PathBuf,
        /// What it says that it was built for.
        built: String,
        /// The kernel.
        version: String,
    },
    /// The kernel package lacks KVM for the emulated vendor.
    #[error(
        "{version} has no module {}: the laboratory emulates {}'s virtualization and needs it",
        vendor.module.replace('_', "-"), vendor.name
    )]
    NoKvm {
        /// The vendor.
        vendor: &'static Vendor,
        /// The kernel.
        version: String,
    },
    /// A program that is to run there cannot.
    #[error("{}: {why}", path.display())]
    Program {
        /// The program.
        path: PathBuf,
        /// What is wrong.
        why: &'static str,
    },
    /// It did not end in time.
    #[error(
        "the laboratory did not finish within {seconds} s: it was at job {job}; its console log is in {}", log.display()
    )]
    Timeout {
        /// The limit.
        seconds: u64,
        /// The current job, from 0.
        job: usize,
        /// Its console.
        log: PathBuf,
    },
    /// A job failed.
    #[error("job {job} of the laboratory failed: {why}; its console log is in {}", log.display())]
    Job {
        /// Which, from 0.
        job: usize,
        /// What init said.
        why: String,
        /// The console.
        log: PathBuf,
    },
    /// It ended without a word.
    #[error("the laboratory ended during job {job}: {why}; its console log is in {}", log.display())]
    Died {
        /// The current job, from 0.
        job: usize,
        /// The emulator's own words, or what was read.
        why: String,
        /// The console.
        log: PathBuf,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl LabError {
    /// Whether this machine lacks something (exit status 77) or the run failed.
    pub fn kind(&self) -> Kind {
        match self {
            LabError::Guest(e) => e.kind(),
            LabError::NoKvm { .. } | LabError::Module { .. } | LabError::OtherKernel { .. } => {
                Kind::CannotWorkHere
            }
            _ => Kind::Failed,
        }
    }
}

pub(super) fn os(what: &'static str) -> impl FnOnce(std::io::Error) -> LabError {
    move |source| LabError::Os { what, source }
}
