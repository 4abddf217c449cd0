// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why orders fail.

use super::refusal::Refusal as NoOrder;
use bifold_host::held::HeldError;
use std::io;
use std::path::PathBuf;

/// Why an order fails, or cannot be given back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// Lock, journal, guardian.
    #[error(transparent)]
    Held(HeldError),
    /// A journal cannot be parsed.
    #[error(
        "the journal {} cannot be used: {why}; give process {pid} its size again by QEMU's `balloon` (for virtio-mem by `qom-set` of requested-size), then remove the journal",
        path.display()
    )]
    Journal {
        /// The journal's file.
        path: PathBuf,
        /// The guest's process, by the file's name.
        pid: String,
        /// What is wrong with it.
        why: String,
    },
    /// The order may not begin.
    #[error("VM {name}: {refusal}")]
    Refused {
        /// The guest's name.
        name: String,
        /// Why.
        refusal: Box<NoOrder>,
    },
    /// QEMU's monitor does not answer, or refuses.
    #[error("the monitor of process {pid} ({place}) does not answer, or refuses")]
    Monitor {
        /// The guest's process.
        pid: u32,
        /// The monitor.
        place: String,
        /// Why.
        source: io::Error,
    },
    /// No memory can be taken from the cgroup.
    #[error(
        "no memory is taken from the cgroup of process {pid}; its pages come back when the guest uses them"
    )]
    Group {
        /// The guest's process.
        pid: u32,
        /// Why.
        source: io::Error,
    },
    /// The guest has ended.
    #[error("the guest's process {pid} has ended")]
    Gone {
        /// The process.
        pid: u32,
    },
    /// An earlier order has left something to give back.
    #[error(
        "an earlier order about process {pid} has to be given back first: run `bifold reclaim restore {pid}`"
    )]
    Left {
        /// The guest's process.
        pid: u32,
    },
    /// Another user's order has the guest.
    #[error("another user's order has process {pid} ({}): that user's `bifold reclaim restore {pid}` ends what it left", path.display())]
    OfAnotherUser {
        /// The guest's process.
        pid: u32,
        /// The order's journal.
        path: PathBuf,
    },
    /// It cannot be seen whether another user's order has the guest.
    #[error("whether another user's order has process {pid} cannot be seen: {}", path.display())]
    Unseen {
        /// The guest's process.
        pid: u32,
        /// Where the order's journal would be.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another program has set another size since the order.
    #[error(
        "process {pid} has {size} MiB now, which no order asked for: `bifold reclaim restore {pid} --force` gives it the {found} MiB of before, --keep leaves its size"
    )]
    Changed {
        /// The guest's process.
        pid: u32,
        /// Its size in MiB.
        size: u64,
        /// The size before the order, in MiB.
        found: u64,
    },
    /// Ctrl-C came before the first step.
    #[error("stopped before anything was taken")]
    Interrupted,
    /// There is no folder for the journal.
    #[error(
        "only root has a folder for journals by default: set XDG_RUNTIME_DIR, or run the command with sudo"
    )]
    NoFolder,
}

impl From<HeldError> for OrderError {
    fn from(e: HeldError) -> OrderError {
        match e {
            HeldError::Journal { path, why, .. } => {
                let name = path.file_stem().and_then(|n| n.to_str()).unwrap_or_default();
                let pid = name.split('-').next().unwrap_or_default().into();
                OrderError::Journal { path, pid, why }
            }
            e => OrderError::Held(e),
        }
    }
}

impl OrderError {
    /// The least size that the order may ask for, in bytes, if it was refused for asking for less.
    pub fn least(&self) -> Option<u64> {
        match self {
            OrderError::Refused { refusal, .. } => match **refusal {
                NoOrder::BelowLeast { least, .. } => Some(least << 20),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether this machine, or this user's rights, lack what an order needs.
    pub fn cannot_work_here(&self) -> bool {
        match self {
            OrderError::NoFolder | OrderError::Held(HeldError::NotRoot { .. }) => true,
            OrderError::Refused { refusal, .. } => {
                matches!(**refusal, NoOrder::Group(_) | NoOrder::NoReclaim | NoOrder::NoSwap)
            }
            _ => false,
        }
    }
}
