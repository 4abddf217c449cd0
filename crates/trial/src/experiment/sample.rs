// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Samples a host and its guests, from procfs and [`Ksm`].
//!
//! A guest's memory is the mapping of its RAM in the emulator's /proc/PID/smaps. `Rss` counts resident pages.
//! `Pss` counts a page with n mappings as 1/n, so that the sum over all guests is the memory that they use. A
//! merged page has a mapping for every page that was merged. Neither counts the kernel's zero page.

use super::outcome::{GuestSample, Sample};
use super::tune::Orders;
use bifold_host::ksm::{Activity, Ksm, KsmError, ProcessKsm, Setting};
use bifold_host::{Host, Mapping};

/// Upper limit for an emulator's smaps.
const MOST_BYTES: u64 = 64 << 20;

/// A process's memory in bytes, from smaps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Resident bytes of the guest's RAM.
    pub rss: u64,
    /// Proportional bytes of the guest's RAM.
    pub pss: u64,
    /// Bytes of the guest's RAM that were used since the kernel was last asked to forget uses.
    pub touched: u64,
    /// Bytes of the guest's RAM in the host's swap.
    pub swapped: u64,
    /// Proportional bytes of the whole process.
    pub all: u64,
}

/// Parses a process's memory from /proc/PID/smaps. The guest's RAM is the largest readable and writable
/// mapping with at least `ram` bytes.
fn memory(smaps: &str, ram: u64) -> Option<Memory> {
    let mappings = Mapping::parse(smaps);
    let size = |m: &&Mapping| m.end - m.start;
    // The first of equal mappings.
    let guest = mappings.iter().rev().filter(|m| m.data && size(m) >= ram).max_by_key(size)?;
    let all = mappings.iter().map(|m| m.proportional).sum();
    Some(Memory {
        rss: guest.resident,
        pss: guest.proportional,
        touched: guest.referenced,
        swapped: guest.swapped,
        all,
    })
}

/// The memory of a guest's process; `None` if the process has just ended.
pub(crate) fn memory_of(host: &Host, pid: u32, ram: u64) -> Option<Memory> {
    let path = host.proc.join(pid.to_string()).join("smaps");
    let smaps = bifold_host::read_up_to(&path, MOST_BYTES).ok()?;
    memory(&String::from_utf8_lossy(&smaps), ram)
}

/// What a sample needs of a guest.
#[derive(Debug, Clone, Copy)]
pub struct Watched {
    /// Process id of the emulator.
    pub pid: u32,
    /// The guest's RAM in bytes.
    pub ram: u64,
    /// Cycles of the workload so far.
    pub cycles: u64,
}

/// Samples a host and its guests, relative to the start.
#[derive(Debug)]
pub struct Sampler<'a> {
    host: &'a Host,
    ksm: Ksm,
    ksmd: Option<u32>,
    start: Activity,
}

impl Sampler<'_> {
    /// Reads the counters at the start.
    pub fn start<'a>(host: &'a Host, ksm: &Ksm) -> Result<Sampler<'a>, KsmError> {
        let ksmd = ksm.ksmd();
        let start = Activity::of(0.0, &ksm.counters()?, &host.vmstat(), ksmd);
        Ok(Sampler { host, ksm: ksm.clone(), ksmd: ksmd.map(|k| k.pid), start })
    }

    /// The sample of this moment.
    pub fn sample(&self, at_s: f64, guests: &[Option<Watched>], orders: Orders) -> Result<Sample, KsmError> {
        let counters = self.ksm.counters()?;
        let ksmd = self.ksmd.and_then(|pid| self.ksm.ksmd_at(pid));
        let since = Activity::of(at_s, &counters, &self.host.vmstat(), ksmd).since(&self.start);
        let mut sample = Sample {
            at_s,
            available: self.host.memory().ok().and_then(|m| m.available),
            running: orders.run,
            pages_to_scan: self.ksm.settings()?.get(Setting::PagesToScan),
            ksm: counters,
            ksmd_cpu_s: since.ksmd_cpu_s,
            copies: since.copies,
            swapped_in: since.swapped_in,
            ..Sample::default()
        };
        for guest in guests {
            let seen = match guest {
                Some(g) => self.guest(g, &mut sample)?,
                None => None,
            };
            sample.guests.push(seen);
        }
        Ok(sample)
    }

    /// The figures of a guest; `None` if it is just ending.
    fn guest(&self, g: &Watched, sample: &mut Sample) -> Result<Option<GuestSample>, KsmError> {
        let Some(memory) = memory_of(self.host, g.pid, g.ram) else { return Ok(None) };
        let ksm = self.ksm.process(g.pid)?.unwrap_or(ProcessKsm::default());
        sample.unshared += memory.rss + 4096 * ksm.zero_pages.unwrap_or(0);
        sample.used += memory.pss;
        sample.emulators += memory.all;
        Ok(Some(GuestSample {
            rss: memory.rss,
            pss: memory.pss,
            merging_pages: ksm.merging_pages,
            zero_pages: ksm.zero_pages,
            rmap_items: ksm.rmap_items,
            profit: ksm.profit,
            cycles: g.cycles,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d0c0000000-55d0c0400000 rw-p 00000000 00:00 0 [heap]
Size:               4096 kB
Rss:                1000 kB
Pss:                 900 kB
VmFlags: rd wr mr mw me ac
7f0000000000-7f0040000000 rwxp 00000000 00:00 0
Rss:                5000 kB
Pss:                5000 kB
7f1000000000-7f1010000000 rw-p 00000000 00:00 0
Size:             262144 kB
Rss:              100000 kB
Pss:               40000 kB
Pss_Dirty:         40000 kB
Referenced:        30000 kB
Swap:              500 kB
KSM:               60000 kB
7f2000000000-7f2000001000 r--p 00000000 00:00 0 /lib/x
Rss:                   4 kB
Pss:                   1 kB
";

    #[test]
    fn a_guests_ram_is_the_largest_mapping_without_code() {
        let k = |n: u64| n * 1024;
        let expected =
            Memory { rss: k(100_000), pss: k(40_000), touched: k(30_000), swapped: k(500), all: k(45_901) };
        assert_eq!(memory(SMAPS, 256 << 20), Some(expected));
        assert_eq!(memory(SMAPS, 512 << 20), None, "no mapping is that large");
        assert_eq!(memory("", 1), None, "the process is gone");
        assert_eq!(memory("a line without a mapping\nRss: much", 1), None);
    }
}
