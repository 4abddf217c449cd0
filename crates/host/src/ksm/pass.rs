// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ksmd made to go one pass at a time, so that its counters can be read where a pass ends.
//!
//! The end of a pass ends ksmd's batch too (`ksm_do_scan`), so that with more pages per batch than there
//! are it does one pass and then sleeps. A change of `sleep_millisecs` wakes it (`ksm_scan_thread` waits
//! for that): one change, one pass. While it sleeps nothing moves but what processes write.

use super::{Counter, Counters, KsmError, KsmGuard, Ksmd, Setting, Settings};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// More pages than a host has.
const ALL_PAGES: u64 = u32::MAX as u64;
/// Longer than anybody waits, in milliseconds, and one more for a change.
const LONG: [u64; 2] = [3_600_000, 3_600_001];
/// How often the counters are looked at.
const LOOK: Duration = Duration::from_millis(1);
/// ksmd, asked for a pass, has not begun: it was about to sleep and has not seen the change.
const NOT_HEARD: Duration = Duration::from_millis(300);
/// A pass that does not move for so long is none.
const STUCK: Duration = Duration::from_secs(30);

/// Counters at the end of a pass.
#[derive(Debug, Clone, Copy)]
pub struct PassEnd {
    /// What KSM counts then.
    pub counters: Counters,
    /// CPU time that ksmd took for the pass, if ksmd can be seen.
    pub cpu: Option<Duration>,
}

/// ksmd in passes.
#[derive(Debug)]
pub struct Passes<'a> {
    guard: &'a KsmGuard,
    ksmd: Option<Ksmd>,
    asked: usize,
}

impl<'a> Passes<'a> {
    /// Unmerges all pages, makes the settings, and has ksmd wait before its first pass.
    ///
    /// # Errors
    /// If the kernel refuses a setting.
    pub fn begin(guard: &'a KsmGuard, settings: &Settings) -> Result<Passes<'a>, KsmError> {
        guard.ksm().unmerge()?;
        let mut all = settings.clone();
        if guard.found().get(Setting::AdvisorMode).is_some() {
            all.put(Setting::AdvisorMode, 0);
        }
        all.put(Setting::PagesToScan, ALL_PAGES);
        all.put(Setting::SleepMillisecs, LONG[0]);
        all.put(Setting::Run, 2);
        guard.set(&all)?;
        let ksmd = guard.ksm().ksmd();
        Ok(Passes { guard, ksmd, asked: 0 })
    }

    /// One pass, from its beginning to its end. `None` if `stop` said so first.
    ///
    /// # Errors
    /// If there is no mergeable memory, so that ksmd never begins.
    pub fn pass(&mut self, stop: &dyn Fn() -> bool) -> Result<Option<PassEnd>, KsmError> {
        let ksm = self.guard.ksm();
        let read = |c: Counter| Ok::<i64, KsmError>(ksm.counter(c)?.unwrap_or(0));
        let progress = || Ok::<_, KsmError>((read(Counter::FullScans)?, read(Counter::PagesScanned)?));
        let before = progress()?;
        self.ask()?;
        let (mut last, mut moved) = (before, Instant::now());
        loop {
            if stop() {
                return Ok(None);
            }
            let now = progress()?;
            if now.0 > before.0 {
                break;
            }
            if now != last {
                (last, moved) = (now, Instant::now());
            }
            if moved.elapsed() > STUCK {
                return Err(KsmError::NoPass);
            }
            if now == before && moved.elapsed() > NOT_HEARD * self.asked.min(20) as u32 {
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
