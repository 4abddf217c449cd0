// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of experiments.

use crate::paging::PagingError;
use bifold_guest::GuestError;
use bifold_host::HostError;
use bifold_host::ksm::KsmError;
use bifold_live::order::OrderError;

/// Why an experiment could not be run at all. A later failure gives a partial outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// Guests could not be prepared or started.
    #[error(transparent)]
    Capture(#[from] GuestError),
    /// KSM's settings could not be held.
    #[error(transparent)]
    Ksm(#[from] KsmError),
    /// The guests need more memory than is available.
    #[error(
        "{guests} guests take {needed_mib} MiB here, potential's copies included, and {available_mib} MiB are available: run it at a smaller --scale{}",
        hint.as_ref().map_or(String::new(), |h| format!(" (--scale {h} fits)"))
    )]
    Memory {
        /// Number of guests.
        guests: usize,
        /// Memory that they need, MiB.
        needed_mib: u64,
        /// Memory that is available, MiB.
        available_mib: u64,
        /// A scale that fits, if one does.
        hint: Option<String>,
    },
    /// The guests of an experiment without a scale need more memory than is available.
    #[error(
        "{guests} guests take up to {needed_mib} MiB here, and {available_mib} MiB are available: make them smaller, or take fewer"
    )]
    TooLittle {
        /// Number of guests.
        guests: usize,
        /// Memory that they need, MiB.
        needed_mib: u64,
        /// Memory that is available, MiB.
        available_mib: u64,
    },
    /// Orders about guests' sizes cannot be written down or guarded.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// A folder for the guests' disks and sockets cannot be made.
    #[error("cannot make a folder for guests' disks")]
    Folder(#[source] std::io::Error),
    /// The host cannot page guests of its own.
    #[error(transparent)]
    Paging(#[from] PagingError),
    /// Guests cannot run under KVM.
    #[error("guests cannot run under KVM: {why}")]
    Kvm {
        /// Why.
        why: String,
    },
    /// A file of the host cannot be read.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The kernel does not say how much memory is available.
    #[error("/proc/meminfo has no MemAvailable: this kernel is older than Linux 3.14")]
    NoMemAvailable,
    /// All guests died, or none was ready.
    #[error("{case}: {why}")]
    Guests {
        /// The case's name.
        case: String,
        /// What went wrong.
        why: String,
    },
}
