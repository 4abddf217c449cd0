// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes ksmd do one pass at a time, so that its counters can be read at the end of a pass.
//!
//! The end of a pass ends ksmd's batch too (`ksm_do_scan`). With more pages per batch than the host has, ksmd
//! does one pass and then sleeps. On a host with more mergeable pages than [`BATCH`], a pass takes several
//! batches, because ksmd holds its lock for a whole batch and cannot be turned off before the batch ends. A
//! change of `sleep_millisecs` wakes ksmd (`ksm_scan_thread` waits for it), so each change starts one pass.
//! While ksmd sleeps, only writes of the processes change memory.

use super::{Counter, Counters, KsmError, KsmGuard, Ksmd, Setting, Settings};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Pages per batch, which takes some seconds at most.
const BATCH: i64 = 1 << 18;
/// More pages than any host has, for kernels that do not count visits.
const ALL_PAGES: u64 = u32::MAX as u64;
/// Two values of `sleep_millisecs` that differ, both longer than any pass.
const LONG: [u64; 2] = [3_600_000, 3_600_001];
/// Pause between two reads of the counters.
const LOOK: Duration = Duration::from_millis(1);
/// If ksmd has not begun a pass after this time, it was about to sleep and missed the change.
const MISSED: Duration = Duration::from_millis(300);
/// A pass that makes no progress for so long has failed.
const STUCK: Duration = Duration::from_secs(30);

/// Counters at the end of a pass.
#[derive(Debug, Clone, Copy)]
pub struct PassEnd {
    /// KSM's counters.
    pub counters: Counters,
    /// CPU time that ksmd took for the pass, if ksmd is visible.
    pub cpu: Option<Duration>,
}

/// How far a pass is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassProgress {
    /// Pages that ksmd has visited in this pass.
    pub visited: u64,
    /// Time since the pass was requested.
    pub elapsed: Duration,
}

/// Runs ksmd pass by pass.
#[derive(Debug)]
pub struct Passes<'a> {
    guard: &'a KsmGuard,
    ksmd: Option<Ksmd>,
    asked: usize,
}

impl<'a> Passes<'a> {
    /// Unmerges all pages and changes the settings. ksmd then waits for its first pass.
    ///
    /// # Errors
    /// If the kernel refuses a setting.
    pub fn begin(guard: &'a KsmGuard, settings: &Settings) -> Result<Passes<'a>, KsmError> {
        guard.ksm().unmerge()?;
        let mut all = settings.clone();
        if guard.found().get(Setting::AdvisorMode).is_some() {
            all.put(Setting::AdvisorMode, 0);
        }
        let counts = guard.ksm().counter(Counter::PagesScanned)?.is_some();
        all.put(Setting::PagesToScan, if counts { BATCH as u64 } else { ALL_PAGES });
        all.put(Setting::SleepMillisecs, LONG[0]);
        all.put(Setting::Run, 2);
        guard.set(&all)?;
        let ksmd = guard.ksm().ksmd();
        Ok(Passes { guard, ksmd, asked: 0 })
    }

    /// Runs one pass. `stop` gets the progress every few milliseconds; if it returns true, the result is
    /// `None`, and ksmd continues until its settings are restored.
    ///
    /// # Errors
    /// If ksmd makes no progress, as on a host without mergeable memory.
    pub fn pass(&mut self, stop: &dyn Fn(PassProgress) -> bool) -> Result<Option<PassEnd>, KsmError> {
        let ksm = self.guard.ksm();
        let read = |c: Counter| Ok::<i64, KsmError>(ksm.counter(c)?.unwrap_or(0));
        let progress = || Ok::<_, KsmError>((read(Counter::FullScans)?, read(Counter::PagesScanned)?));
        let before = progress()?;
        self.ask()?;
        let begun = Instant::now();
        let (mut last, mut moved) = (before, begun);
        // The visits at the batch's start, and the number of requests for the batch.
        let (mut batch, mut asked) = (before.1, 1);
        loop {
            let now = progress()?;
            let visited = now.1.saturating_sub(before.1).max(0) as u64;
            if stop(PassProgress { visited, elapsed: begun.elapsed() }) {
                return Ok(None);
            }
            if now.0 > before.0 {
                break;
            }
            if now != last {
                (last, moved) = (now, Instant::now());
            }
            if moved.elapsed() > STUCK {
                return Err(KsmError::NoPass);
            }
            if now.1 - batch >= BATCH {
                (batch, asked) = (now.1, 1);
                self.ask()?;
            } else if now.1 == batch && moved.elapsed() > MISSED * asked.min(20) {
                asked += 1;
                self.ask()?;
            }
            sleep(LOOK);
        }
        let cpu = self.ksmd.map(|k| k.cpu);
        self.ksmd = self.ksmd.and_then(|k| ksm.ksmd_at(k.pid));
        let cpu = self.ksmd.zip(cpu).map(|(k, before)| k.cpu.saturating_sub(before));
        Ok(Some(PassEnd { counters: ksm.counters()?, cpu }))
    }

    fn ask(&mut self) -> Result<(), KsmError> {
        self.asked += 1;
        let ksm = self.guard.ksm();
        ksm.write(Setting::SleepMillisecs, LONG[self.asked % 2])?;
        ksm.write(Setting::Run, 1)
    }
}
