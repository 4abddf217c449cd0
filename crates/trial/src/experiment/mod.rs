// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Experiments: real Linux guests under the real KSM, observed from outside.
//!
//! A [`Spec`] is a TOML file: guests, their workloads, KSM's settings, and cases that differ in some of these.
//! At a [`Scale`] it becomes a [`Plan`], in which all sizes and times are this machine's. A
//! [`run`](run::run) starts the guests of one case after the other, samples the memory they take and KSM's
//! work, counts the potential of their memory at marked times, and yields an [`Outcome`]. [`output`] makes
//! tables, rows and charts of the outcome.
//!
//! [`tune`] decides as ksmtuned does when KSM runs. Memory is counted over the guests rather than the host,
//! because other programs change the host's free memory. Left out: guests' disks and networks, several
//! vCPUs, KVM (guests are emulated, which changes how fast they write but not what is in their memory).

pub mod guests;
pub mod outcome;
pub mod output;
pub mod run;
mod sample;
pub mod spec;
pub mod tune;

pub use outcome::{CaseOutcome, Ending, GuestOutcome, GuestSample, Mark, Outcome, Sample};
pub use run::{Notice, RunOptions, run};
pub use spec::{Plan, Rate, Scale, Spec, SpecError};

use bifold_guest::GuestError;
use bifold_host::HostError;
use bifold_host::ksm::KsmError;

/// Why an experiment could not be run at all. What goes wrong later ends in a partial [`Outcome`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// Guests could not be prepared or started.
    #[error(transparent)]
    Capture(#[from] GuestError),
    /// KSM could not be taken over.
    #[error(transparent)]
    Ksm(#[from] KsmError),
    /// More memory than there is.
    #[error(
        "{guests} guests take {needed_mib} MiB here, potential's copies included, and {available_mib} MiB are available: run it at a smaller --scale{}",
        hint.as_ref().map_or(String::new(), |h| format!(" (--scale {h} fits)"))
    )]
    Memory {
        /// Number of guests.
        guests: usize,
        /// What they take.
        needed_mib: u64,
        /// What there is.
        available_mib: u64,
        /// A scale that fits, if one does.
        hint: Option<String>,
    },
    /// A file of the kernel's cannot be read.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The kernel does not say how much memory is available.
    #[error("/proc/meminfo has no MemAvailable: this kernel is older than Linux 3.14")]
    NoMemAvailable,
    /// Every guest died, or none was ready.
    #[error("{case}: {why}")]
    Guests {
        /// The case.
        case: String,
        /// What happened.
        why: String,
    },
}
