// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads KSM's figures from procfs: those of one process, and ksmd's CPU time.

use super::{Ksm, KsmError, ProcessKsm};
use crate::read;
use rustix::io::Errno;
use std::io;
use std::path::Path;
use std::time::Duration;

/// ksmd, the kernel thread that merges pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ksmd {
    /// Process id.
    pub pid: u32,
    /// CPU time since boot.
    pub cpu: Duration,
}

impl Ksm {
    /// KSM's figures for a process; `None` if the process has ended. Figures that the kernel lacks are
    /// absent (`ksm_stat` came with Linux 6.0, `ksm_merging_pages` with 5.19).
    ///
    /// # Errors
    /// If the process's files cannot be read.
    pub fn process(&self, pid: u32) -> Result<Option<ProcessKsm>, KsmError> {
        let dir = self.proc.join(pid.to_string());
        if !dir.is_dir() {
            return Ok(None);
        }
        let text = |file: &str| {
            let path = dir.join(file);
            match read(&path) {
                Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
                Err(e) if gone(&e) => Ok(String::new()),
                Err(e) => Err(KsmError::io(&path, e)),
            }
        };
        let mut found = ProcessKsm::parse(&text("ksm_stat")?);
        if found.merging_pages.is_none() {
            found.merging_pages = text("ksm_merging_pages")?.trim().parse().ok();
        }
        Ok(Some(found))
    }

    /// ksmd, if it is visible from here. A container with its own process ids hides it.
    pub fn ksmd(&self) -> Option<Ksmd> {
        let pids = std::fs::read_dir(&self.proc).ok()?;
        let pids = pids.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok());
        pids.filter_map(|pid| self.ksmd_at(pid)).next()
    }

    /// ksmd, if it still has this process id.
    pub fn ksmd_at(&self, pid: u32) -> Option<Ksmd> {
        let dir = self.proc.join(pid.to_string());
        if read(&dir.join("comm")).ok()?.trim_ascii_end() != b"ksmd" {
            return None;
        }
        let stat = Stat::parse(&read(&dir.join("stat")).ok()?)?;
        // Any program can be called ksmd, but only kernel threads are children of kthreadd.
        (stat.parent == KTHREADD).then_some(())?;
        let cpu = precise(&dir.join("schedstat")).unwrap_or(Duration::from_millis(stat.ticks * MS_PER_TICK));
        Some(Ksmd { pid, cpu })
    }
}

/// kthreadd's process id.
const KTHREADD: u32 = 2;
/// USER_HZ is 100 on all machines that Bifold runs on.
const MS_PER_TICK: u64 = 10;

/// Two fields of `/proc/PID/stat`.
struct Stat {
    parent: u32,
    /// utime + stime.
    ticks: u64,
}

impl Stat {
    fn parse(bytes: &[u8]) -> Option<Stat> {
        let text = String::from_utf8_lossy(bytes);
        // The name may contain spaces and parentheses, so the fields begin after the last parenthesis.
        let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Stat { parent: u32::try_from(number(4)?).ok()?, ticks: number(14)?.checked_add(number(15)?)? })
    }
}

/// CPU time in nanoseconds from `schedstat`, which needs CONFIG_SCHED_INFO. Ticks have only 10 ms.
fn precise(schedstat: &Path) -> Option<Duration> {
    let bytes = read(schedstat).ok()?;
    let first = std::str::from_utf8(&bytes).ok()?.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(first))
}

/// Whether the error means that the process has ended or the kernel lacks the file.
pub(super) fn gone(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::NotFound || Errno::from_io_error(e) == Some(Errno::SRCH)
}
