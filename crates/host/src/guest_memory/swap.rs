// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The host's swap, and the time that tasks waited for memory.

use crate::Host;
use crate::memory::{kib, psi, text};

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

impl Host {
    /// The host's swap.
    pub fn swap(&self) -> Option<Swap> {
        Swap::parse(&text(&self.proc.join("meminfo")))
    }

    /// Microseconds since boot in which some task of the host waited for memory, if the kernel has PSI.
    pub fn stalls_us(&self) -> Option<u64> {
        psi(&text(&self.proc.join("pressure/memory")), "total=")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{host, put};

    #[test]
    fn swap_and_stalls_come_from_their_files() {
        let (_dir, host) = host();
        assert_eq!((host.swap(), host.stalls_us()), (None, None));
        put(&host.proc.join("meminfo"), b"SwapTotal: 8 kB\nSwapFree: 4 kB\n");
        assert_eq!(host.swap(), Some(Swap { total: 8192, free: 4096 }));
        put(
            &host.proc.join("pressure/memory"),
            b"some avg10=0.00 avg60=0.00 avg300=0.00 total=70\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
        );
        assert_eq!(host.stalls_us(), Some(70));
        assert_eq!(psi::<u64>("some avg10=0.00\n", "total="), None);
    }
}
