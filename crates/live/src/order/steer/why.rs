// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why an order ends early.

use super::{MIB, STUCK};
use std::fmt;

/// Why an order ends early.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Why {
    /// vCPUs do not run.
    Stopped,
    /// A migration has begun.
    Migrating,
    /// The size is not between what was found and the least that was ordered.
    Another {
        /// The size now.
        size: u64,
    },
    /// The guest took pages back out of its balloon.
    Rises {
        /// The size now.
        size: u64,
        /// The last target.
        target: u64,
    },
    /// The statistics are old.
    Stale {
        /// Seconds since the last ones.
        seconds: u64,
    },
    /// The guest claims more available memory than it has.
    Untrue,
    /// The guest killed a process.
    Killed,
    /// More faults than before the order.
    Faults {
        /// Per second.
        rate: f64,
        /// The limit.
        limit: f64,
    },
    /// Too little is available.
    Short {
        /// Bytes available.
        available: u64,
        /// Least bytes.
        least: u64,
    },
    /// The size does not move any more.
    Stuck {
        /// The size now.
        size: u64,
        /// The target.
        target: u64,
    },
    /// The process's memory grows instead of shrinking.
    HostRises {
        /// Bytes by which it has grown.
        by: u64,
        /// Bytes that were taken from the guest.
        taken: u64,
    },
}

/// Bytes in MiB, rounded.
pub fn mib(bytes: u64) -> u64 {
    bytes.saturating_add(MIB / 2) / MIB
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Why::Stopped => f.write_str("its vCPUs have stopped"),
            Why::Migrating => f.write_str("a migration has begun"),
            Why::Another { size } => {
                write!(
                    f,
                    "its size is {} MiB, which this order did not ask for: another program orders sizes, or the guest has restarted",
                    mib(size)
                )
            }
            Why::Rises { size, target } => write!(
                f,
                "its size has risen to {} MiB from {} MiB: it takes pages back out of its balloon, or another program orders sizes",
                mib(size),
                mib(target)
            ),
            Why::Stale { seconds } => write!(f, "it has sent no statistics for {seconds} s"),
            Why::Untrue => f.write_str("its statistics cannot be true: more is available than it has"),
            Why::Killed => f.write_str("it has killed a process for lack of memory"),
            Why::Faults { rate, limit } => {
                write!(f, "{rate:.0} faults a second read from a disk, more than {limit:.0}")
            }
            Why::Short { available, least } => {
                write!(f, "{} MiB are available in it, less than {} MiB", mib(available), mib(least))
            }
            Why::Stuck { size, target } => write!(
                f,
                "its size stays at {} MiB, on the way to {} MiB, for {} s",
                mib(size),
                mib(target),
                STUCK.as_secs()
            ),
            Why::HostRises { by, taken } => write!(
                f,
                "its process has {} MiB more in the host's memory although {} MiB were taken from the guest",
                mib(by),
                mib(taken)
            ),
        }
    }
}
