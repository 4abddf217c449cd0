// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The host's swap, and the time that tasks waited for memory.

use crate::Host;
use crate::memory::{kib, text};

/// The host's swap, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swap {
    /// Of all swap devices and files.
    pub total: u64,
    /// Unused.
    pub free: u64,
}

impl Swap {
    /// Parses `/proc/meminfo`; `None` if the kernel was built without swap.
    pub fn parse(meminfo: &str) -> Option<Swap> {
        Some(Swap { total: kib(meminfo, "SwapTotal")?, free: kib(meminfo, "SwapFree")? })
    }
}

/// Microseconds in which tasks waited for memory, since boot or since a cgroup was made (PSI).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stalls {
    /// At least one task waited.
    pub some_us: u64,
    /// All tasks waited.
    pub full_us: u64,
}

impl Stalls {
    /// Parses `/proc/pressure/memory`, or a cgroup's `memory.pressure`.
    pub fn parse(text: &str) -> Option<Stalls> {
        let of = |kind: &str| {
            let line = text.lines().find_map(|l| l.strip_prefix(kind))?;
            line.split_whitespace().find_map(|w| w.strip_prefix("total=")?.parse().ok())
        };
        Some(Stalls { some_us: of("some ")?, full_us: of("full ").unwrap_or(0) })
    }
}

impl Host {
    /// The host's swap.
    pub fn swap(&self) -> Option<Swap> {
        Swap::parse(&text(&self.proc.join("meminfo")))
    }

    /// Time in which the host's tasks waited for memory, if the kernel has PSI.
    pub fn stalls(&self) -> Option<Stalls> {
        Stalls::parse(&text(&self.proc.join("pressure/memory")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{host, put};

    #[test]
    fn swap_and_stalls_come_from_their_files() {
        let (_dir, host) = host();
        assert_eq!((host.swap(), host.stalls()), (None, None));
        put(&host.proc.join("meminfo"), b"SwapTotal: 8 kB\nSwapFree: 4 kB\n");
        assert_eq!(host.swap(), Some(Swap { total: 8192, free: 4096 }));
        put(
            &host.proc.join("pressure/memory"),
            b"some avg10=0.00 avg60=0.00 avg300=0.00 total=70\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
        );
        assert_eq!(host.stalls(), Some(Stalls { some_us: 70, full_us: 7 }));
        assert_eq!(Stalls::parse("some avg10=0.00\n"), None);
    }
}
