// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What procfs says of KSM: a process's share of it, and ksmd's CPU time.

use super::{Ksm, KsmError, ProcessKsm};
use crate::read;
use rustix::io::Errno;
use std::io;
use std::path::Path;
use std::time::Duration;

/// The kernel thread that merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ksmd {
    /// Its process id.
    pub pid: u32,
    /// CPU time that it has taken since boot.
    pub cpu: Duration,
}

impl Ksm {
    /// What KSM has counted of a process; `None` if the process is gone. Figures that the kernel does
    /// not have are absent (`ksm_stat` came with Linux 6.0, `ksm_merging_pages` with 5.19).
    ///
    /// # Errors
    /// If its files cannot be read.
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

    /// ksmd, if it can be seen from here: a container has process ids of its own.
    pub fn ksmd(&self) -> Option<Ksmd> {
        let pids = std::fs::read_dir(&self.proc).ok()?;
        let pids = pids.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok());
        pids.filter_map(|pid| self.ksmd_at(pid)).next()
    }

    /// ksmd under a process id that it had before.
    pub fn ksmd_at(&self, pid: u32) -> Option<Ksmd> {
        let dir = self.proc.join(pid.to_string());
        if read(&dir.join("comm")).ok()?.trim_ascii_end() != b"ksmd" {
            return None;
        }
        let stat = Stat::parse(&read(&dir.join("stat")).ok()?)?;
        // Anybody can call a program ksmd, but only the kernel's are children of kthreadd.
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
        // The name may hold spaces and parentheses; what follows the last one does not.
        let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Stat { parent: u32::try_from(number(4)?).ok()?, ticks: number(14)?.checked_add(number(15)?)? })
    }
}

/// CPU time in nanoseconds, where the kernel tells it (CONFIG_SCHED_INFO): ticks are 10 ms.
fn precise(schedstat: &Path) -> Option<Duration> {
    let bytes = read(schedstat).ok()?;
    let first = std::str::from_utf8(&bytes).ok()?.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(first))
}

/// The process has ended, or the kernel has no such file.
pub(super) fn gone(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::NotFound || Errno::from_io_error(e) == Some(Errno::SRCH)
}
