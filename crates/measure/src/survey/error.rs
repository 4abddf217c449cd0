// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why nothing could be measured.

use crate::rounds::End;
use std::io;

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// The CPU is not there, or not allowed.
    #[error("cannot run on CPU {cpu}: this process may use CPUs {allowed:?}")]
    Cpu {
        /// The CPU asked for.
        cpu: usize,
        /// CPUs of the process.
        allowed: Vec<usize>,
        /// The kernel's error.
        source: io::Error,
    },
    /// Memory is short.
    #[error("measuring takes {needed} MiB of free memory, and {there} MiB are available: end other programs")]
    TooLittleMemory {
        /// MiB needed.
        needed: u64,
        /// MiB available.
        there: u64,
    },
    /// A system call failed.
    #[error("cannot {what}")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The user stopped the survey before any part was complete.
    #[error("measuring was stopped before a value was complete: no profile was made")]
    Stopped,
    /// The limit ended the survey before any part was complete.
    #[error(
        "--limit {seconds} ended before a value was complete: give more seconds, or measure a calmer machine"
    )]
    TooShort {
        /// The limit.
        seconds: f64,
    },
    /// A part was not complete in time; [`survey()`](super::survey()) keeps the others.
    #[error("the survey ended before this part was complete")]
    Ended(End),
}

impl MeasureError {
    /// Whether the machine lacks something, as opposed to a failure.
    pub fn cannot_work_here(&self) -> bool {
        matches!(self, MeasureError::TooLittleMemory { .. })
    }
}
