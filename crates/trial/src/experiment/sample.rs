// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Samples a host and its guests, from procfs and [`Ksm`].

use super::outcome::{GuestSample, Sample};
use super::tune::Orders;
use crate::guest::memory_of;
use bifold_host::Host;
use bifold_host::ksm::{Activity, Ksm, KsmError, ProcessKsm, Setting};

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
