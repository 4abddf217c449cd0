// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks at a host and at its guests: procfs for memory, [`Ksm`] for the rest.
//!
//! What a guest takes is its RAM's mapping in the emulator's /proc/PID/smaps: `Rss` counts its resident
//! pages, `Pss` counts a page with n mappings as 1/n, so that the sum over all guests is what they take.
//! A merged page is mapped by every place that had it. The kernel's zero page counts in neither.

use super::outcome::{GuestSample, Sample};
use super::tune::Orders;
use bifold_host::ksm::{Ksm, KsmError, ProcessKsm};
use std::path::{Path, PathBuf};

/// More than the largest of the files, smaps, has for an emulator.
const MOST_BYTES: u64 = 64 << 20;

/// A process's memory by its smaps, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// The guest's RAM: resident.
    pub rss: u64,
    /// The guest's RAM: its share of it.
    pub pss: u64,
    /// Everything: its share of it.
    pub all: u64,
}

/// Reads memory out of the text of /proc/PID/smaps. The guest's RAM is the largest mapping that can be
/// read and written, of at least `ram` bytes.
pub fn memory(smaps: &str, ram: u64) -> Option<Memory> {
    let mut found = Memory::default();
    let mut largest = 0;
    let mut here = 0; // bytes of the mapping in which we are, 0 if it cannot be the RAM
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        let kib = |mut words: std::str::SplitWhitespace| words.next()?.parse::<u64>().ok()?.checked_mul(1024);
        match name {
            "Rss:" if here > 0 => found.rss = kib(words)?,
            "Pss:" => {
                let pss = kib(words)?;
                found.all += pss;
                if here > 0 {
                    found.pss = pss;
                }
            }
            _ if !name.ends_with(':') => {
                let (start, end) = name.split_once('-')?;
                let number = |s| u64::from_str_radix(s, 16).ok();
                let bytes = number(end)?.checked_sub(number(start)?)?;
                let mode = words.next()?;
                here = if mode.starts_with("rw-") && bytes >= ram.max(largest + 1) { bytes } else { 0 };
                largest = largest.max(here);
            }
            _ => {}
        }
    }
    (largest > 0).then_some(found)
}

/// A number of /proc/vmstat.
pub fn vmstat(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// `MemAvailable` of /proc/meminfo, bytes.
pub fn available(meminfo: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What has to be known of a guest to look at it.
#[derive(Debug, Clone, Copy)]
pub struct Watched {
    /// The emulator's process.
    pub pid: u32,
    /// Its RAM in bytes.
    pub ram: u64,
    /// Cycles of its workload so far.
    pub cycles: u64,
}

/// Looks, and remembers what was counted at the start.
#[derive(Debug)]
pub struct Eye {
    proc: PathBuf,
    ksm: Ksm,
    ksmd: Option<u32>,
    cpu: Option<f64>,
    copies: Option<u64>,
    swapped_in: Option<u64>,
}

impl Eye {
    /// Opens it: counting begins here.
    pub fn open(proc: &Path, ksm: &Ksm) -> Eye {
        let ksmd = ksm.ksmd();
        let mut eye = Eye {
            proc: proc.into(),
            ksm: ksm.clone(),
            ksmd: ksmd.map(|k| k.pid),
            cpu: ksmd.map(|k| k.cpu.as_secs_f64()),
            copies: None,
            swapped_in: None,
        };
        let text = eye.text("vmstat");
        (eye.copies, eye.swapped_in) = (vmstat(&text, "cow_ksm"), vmstat(&text, "ksm_swpin_copy"));
        eye
    }

    fn text(&self, file: &str) -> String {
        let bytes = bifold_host::read_up_to(&self.proc.join(file), MOST_BYTES).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// What is there now.
    pub fn look(&self, at_s: f64, guests: &[Option<Watched>], orders: Orders) -> Result<Sample, KsmError> {
        let vmstat_text = self.text("vmstat");
        let since = |name, start: Option<u64>| Some(vmstat(&vmstat_text, name)?.saturating_sub(start?));
        let mut sample = Sample {
            at_s,
            available: available(&self.text("meminfo")),
            running: orders.run,
            pages_to_scan: self.ksm.settings()?.get(bifold_host::ksm::Setting::PagesToScan),
            ksm: self.ksm.counters()?,
            ksmd_cpu_s: self.ksmd.and_then(|p| Some(self.ksm.ksmd_at(p)?.cpu.as_secs_f64() - self.cpu?)),
            copies: since("cow_ksm", self.copies),
            swapped_in: since("ksm_swpin_copy", self.swapped_in),
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

    /// A guest that is just ending has no figures.
    fn guest(&self, g: &Watched, sample: &mut Sample) -> Result<Option<GuestSample>, KsmError> {
        let Some(memory) = memory(&self.text(&format!("{}/smaps", g.pid)), g.ram) else { return Ok(None) };
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
KSM:               60000 kB
7f2000000000-7f2000001000 r--p 00000000 00:00 0 /lib/x
Rss:                   4 kB
Pss:                   1 kB
";

    #[test]
    fn a_guests_ram_is_the_largest_mapping_without_code() {
        let k = |n: u64| n * 1024;
        let expected = Memory { rss: k(100_000), pss: k(40_000), all: k(45_901) };
        assert_eq!(memory(SMAPS, 256 << 20), Some(expected));
        assert_eq!(memory(SMAPS, 512 << 20), None, "no mapping is that large");
        assert_eq!(memory("", 1), None, "the process is gone");
        assert_eq!(memory("a line that is none\nRss: much", 1), None);
    }

    #[test]
    fn numbers_are_found_by_their_whole_name() {
        let text = "cow_ksm_other 3\ncow_ksm 17\n";
        assert_eq!(vmstat(text, "cow_ksm"), Some(17));
        assert_eq!(vmstat(text, "ksm_swpin_copy"), None);
        assert_eq!(available("MemFree: 1 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
    }
}
