// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who else has memory that ksmd goes over. KSM cannot be told to leave a process out, so other programs'
//! mergeable memory costs time in every pass and is in the host's counters.

use super::{Ksm, KsmError};
use crate::one_line;
use crate::process::name_of;
use std::fmt;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Processes that are named in one line.
const NAMED: usize = 8;

/// A process whose memory ksmd goes over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeableProcess {
    /// Its process id.
    pub pid: u32,
    /// The name of the guest that it runs, else its own.
    pub name: String,
    /// Pages of its mergeable areas that are in memory.
    pub pages: u64,
    /// Pages that are merged (`ksm_merging_pages`); 0 where the kernel does not tell.
    pub merged: u64,
}

/// Processes with mergeable memory, besides some that are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Others(pub Vec<MergeableProcess>);

impl Ksm {
    /// All processes with mergeable memory but `own`, those with most of it first. Processes whose files
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
    /// Mergeable pages in memory of all of them.
    pub fn pages(&self) -> u64 {
        self.0.iter().map(|p| p.pages).sum()
    }

    /// Merged pages of all of them.
    pub fn merged(&self) -> u64 {
        self.0.iter().map(|p| p.merged).sum()
    }
}

/// In one line: process id, name and mergeable memory of each, the largest first.
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
