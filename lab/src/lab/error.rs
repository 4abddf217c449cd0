// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of a boot of the laboratory. Each message names the job or file, and the console's log.

use std::path::PathBuf;

use bifold_guest::{GuestError, Kind};

use super::kvm_module::ModuleError;
use crate::vendor::Vendor;

/// The error of what needs something optional that is missing, such as built modules.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Skipped(pub(crate) String);

/// Why a boot failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The emulator, a kernel or another part of a guest is missing.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The kernel's KVM cannot be used.
    #[error("{version}: {why}")]
    Module {
        /// The kernel's release.
        version: String,
        /// What is wrong.
        why: ModuleError,
    },
    /// A module was built for another kernel.
    #[error("{}: the module was built for {built}, but the laboratory's kernel is {version}; run make kernel", path.display())]
    OtherKernel {
        /// The module's file.
        path: PathBuf,
        /// The release in the module's `vermagic`.
        built: String,
        /// The kernel's release.
        version: String,
    },
    /// The kernel package lacks KVM for the emulated vendor.
    #[error(
        "{version} has no module {}: the laboratory emulates {}'s virtualization and needs it",
        vendor.module.replace('_', "-"), vendor.name
    )]
    NoKvm {
        /// The emulated vendor.
        vendor: &'static Vendor,
        /// The kernel's release.
        version: String,
    },
    /// There is no Bochs.
    #[error("{}: there is no emulator of Intel's virtualization; run lab/bochs/build, or name a Bochs with BIFOLD_BOCHS", at.display())]
    NoBochs {
        /// Where it was looked for.
        at: PathBuf,
    },
    /// A machine without disks was to swap.
    #[error("Bochs's machine has no disk to swap to: run this with --vendor amd, or without --noise swap")]
    NoSwap,
    /// Another model of CPU than the vendor's.
    #[error("--model {model}: the emulator of {}'s processors has one model here, with or without flags such as +la57 or -xsave,+la57", vendor.name)]
    Model {
        /// The model asked for.
        model: String,
        /// The emulated vendor.
        vendor: &'static Vendor,
    },
    /// The emulator cannot start the kernel.
    #[error("{}: {why}", path.display())]
    Kernel {
        /// The kernel's image.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The emulated processor cannot do what a job needs.
    #[error("the laboratory's processor: {why}")]
    Processor {
        /// What it lacks.
        why: String,
    },
    /// A program cannot go into the image.
    #[error("{}: {why}", path.display())]
    Program {
        /// The program.
        path: PathBuf,
        /// What is wrong.
        why: &'static str,
    },
    /// The boot exceeded its time limit.
    #[error(
        "the laboratory did not finish within {seconds} s: it was at job {job}; its console log is in {}", log.display()
    )]
    Timeout {
        /// The time limit.
        seconds: u64,
        /// Number of the current job, from 0.
        job: usize,
        /// File with the console's log.
        log: PathBuf,
    },
    /// A job failed.
    #[error("job {job} of the laboratory failed: {why}; its console log is in {}", log.display())]
    Job {
        /// Number of the job, from 0.
        job: usize,
        /// Init's message.
        why: String,
        /// File with the console's log.
        log: PathBuf,
    },
    /// The laboratory ended before its jobs did.
    #[error("the laboratory ended during job {job}: {why}; its console log is in {}", log.display())]
    Died {
        /// Number of the current job, from 0.
        job: usize,
        /// The emulator's messages, or the error of the connection.
        why: String,
        /// File with the console's log.
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
            LabError::NoKvm { .. }
            | LabError::NoBochs { .. }
            | LabError::NoSwap
            | LabError::Processor { .. }
            | LabError::Module { .. }
            | LabError::OtherKernel { .. } => Kind::CannotWorkHere,
            _ => Kind::Failed,
        }
    }
}

pub(super) fn os(what: &'static str) -> impl FnOnce(std::io::Error) -> LabError {
    move |source| LabError::Os { what, source }
}
