// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The host's swap, and the time that tasks waited for memory.

use crate::memory::{kib, text};
use crate::{Host, one_line};

/// The host's swap, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swap {
    /// Of all swap devices and files.
    pub total: u64,
    /// Unused.
    pub free: u64,
    /// Memory that zswap takes (`Zswap`); `None` if the kernel lacks zswap.
    pub zswap: Option<u64>,
    /// What zswap has compressed (`Zswapped`).
    pub zswapped: Option<u64>,
}

impl Swap {
    /// Parses `/proc/meminfo`; `None` if the kernel was built without swap.
    pub fn parse(meminfo: &str) -> Option<Swap> {
        Some(Swap {
            total: kib(meminfo, "SwapTotal")?,
            free: kib(meminfo, "SwapFree")?,
            zswap: kib(meminfo, "Zswap"),
            zswapped: kib(meminfo, "Zswapped"),
        })
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

    /// The devices and files of the host's swap, as `/proc/swaps` names them; empty without swap.
    pub fn swap_devices(&self) -> Vec<String> {
        let swaps = text(&self.proc.join("swaps"));
        let names = swaps.lines().skip(1).filter_map(|l| l.split_whitespace().next());
        names.map(|name| one_line(name.as_bytes()).trim_matches('`').to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{host, put};

    #[test]
    fn swap_and_stalls_come_from_their_files() {
        let (_dir, host) = host();
        assert_eq!((host.swap(), host.stalls(), host.swap_devices().len()), (None, None, 0));
        put(&host.proc.join("meminfo"), b"SwapTotal: 8 kB\nSwapFree: 4 kB\nZswap: 1 kB\nZswapped: 3 kB\n");
        let swap = Swap { total: 8192, free: 4096, zswap: Some(1024), zswapped: Some(3072) };
        assert_eq!(host.swap(), Some(swap));
        put(&host.proc.join("swaps"), b"Filename Type Size Used Priority\n/dev/zram0 partition 8 4 100\n");
        assert_eq!(host.swap_devices(), ["/dev/zram0"]);
        put(
            &host.proc.join("pressure/memory"),
            b"some avg10=0.00 avg60=0.00 avg300=0.00 total=70\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
        );
        assert_eq!(host.stalls(), Some(Stalls { some_us: 70, full_us: 7 }));
        assert_eq!(Stalls::parse("some avg10=0.00\n"), None);
    }
}
