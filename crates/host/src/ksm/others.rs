// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds other processes whose memory ksmd scans. KSM cannot leave a process out, so other programs'
//! mergeable memory costs time in every pass and is in the host's counters.

use super::{Ksm, KsmError};
use crate::one_line;
use crate::process::name_of;
use std::fmt;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Upper limit of processes that a message names.
const NAMED: usize = 8;

/// A process whose memory ksmd scans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeableProcess {
    /// Process id.
    pub pid: u32,
    /// The name of the process's guest, else of the process.
    pub name: String,
    /// Resident pages of the mergeable areas.
    pub pages: u64,
    /// Merged pages (`ksm_merging_pages`); 0 if the kernel lacks the figure.
    pub merged: u64,
}

/// Other processes with mergeable memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Others(pub Vec<MergeableProcess>);

impl Ksm {
    /// All processes with mergeable memory except `own`, in order of falling amount. Processes whose files
    /// this user may not read are left out.
    ///
    /// # Errors
    /// If procfs cannot be read.
    pub fn others(&self, own: &[u32]) -> Result<Others, KsmError> {
        let mut all = Vec::new();
        for pid in self.merging_processes()?.into_iter().filter(|pid| !own.contains(pid)) {
            let areas = self.mergeable_areas(pid).unwrap_or_default();
            let pages = areas.iter().map(|a| a.resident / PAGE).sum();
            let merged = self.process(pid).ok().flatten().and_then(|p| p.merging_pages).unwrap_or(0);
            let name = name_of(&self.proc, pid).map_or("?".into(), |n| one_line(n.as_bytes()));
            all.push(MergeableProcess { pid, name, pages, merged });
        }
        all.sort_by_key(|p| (std::cmp::Reverse(p.pages), p.pid));
        Ok(Others(all))
    }
}

impl Others {
    /// Resident mergeable pages of all these processes.
    pub fn pages(&self) -> u64 {
        self.0.iter().map(|p| p.pages).sum()
    }

    /// Merged pages of all these processes.
    pub fn merged(&self) -> u64 {
        self.0.iter().map(|p| p.merged).sum()
    }
}

/// One line with process id, name and mergeable memory of each, the largest first.
impl fmt::Display for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, p) in self.0.iter().take(NAMED).enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}process {} {} with {} MiB", p.pid, p.name, (p.pages * PAGE).div_ceil(1 << 20))?;
        }
        match self.0.len() {
            0 => f.write_str("no process"),
            n if n > NAMED => write!(f, " and {} more", n - NAMED),
            _ => Ok(()),
        }
    }
}
