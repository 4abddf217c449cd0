// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory of a process that ksmd scans, as ksmd finds it: areas marked mergeable, the pages that are
//! there, and which of them are parts of huge pages.
//!
//! `smaps` has the areas (flag `mg`), `pagemap` the frames, `/proc/kpageflags` what these are. The bytes
//! come from `mem`. A process that is not stopped changes meanwhile.

use super::{Ksm, KsmError};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// `pagemap`: the page is in memory; its frame is in the bits below 55.
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;
/// `kpageflags`.
const KPF_ANON: u64 = 1 << 12;
const KPF_THP: u64 = 1 << 22;
const KPF_ZERO_PAGE: u64 = 1 << 24;

/// What ksmd finds at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageState {
    /// Nothing that it looks at: no page yet, the zero page, a page of a file.
    None,
    /// A page of the process's own.
    Small,
    /// A part of a transparent huge page.
    Huge,
}

/// Mergeable memory at consecutive addresses.
#[derive(Debug, Clone)]
pub struct Area {
    /// Its first page's number: the address / 4096.
    pub first: u64,
    /// Each page's state.
    pub pages: Vec<PageState>,
    /// The bytes, page by page; zeros where there is none.
    pub bytes: Vec<u8>,
}

impl Ksm {
    /// The mergeable memory of a process, in order of addresses; empty if it has none.
    ///
    /// # Errors
    /// If its files cannot be read: only root may.
    pub fn mergeable(&self, pid: u32) -> Result<Vec<Area>, KsmError> {
        let dir = self.proc.join(pid.to_string());
        let smaps = dir.join("smaps");
        let text = std::fs::read(&smaps).map_err(|e| KsmError::io(&smaps, e))?;
        let areas = areas(&String::from_utf8_lossy(&text));
        let open = |path: &Path| File::open(path).map_err(|e| KsmError::io(path, e));
        if areas.is_empty() {
            return Ok(Vec::new());
        }
        let flags_path = self.proc.join("kpageflags");
        let (pagemap, mem) = (dir.join("pagemap"), dir.join("mem"));
        let files = (open(&pagemap)?, open(&mem)?, open(&flags_path)?);
        areas
            .into_iter()
            .map(|(start, end)| area(start, end, &files).map_err(|e| KsmError::io(&mem, e)))
            .collect()
    }

    /// Processes with mergeable memory.
    ///
    /// # Errors
    /// If procfs cannot be read.
    pub fn merging_processes(&self) -> Result<Vec<u32>, KsmError> {
        let pids = std::fs::read_dir(&self.proc).map_err(|e| KsmError::io(&self.proc, e))?;
        let mut pids: Vec<u32> = pids.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
        pids.sort_unstable();
        pids.retain(|pid| {
            let stat = self.process(*pid).ok().flatten().unwrap_or_default();
            // Before Linux 6.16 it does not say so; a process with records has such memory.
            stat.mergeable.unwrap_or(stat.rmap_items.is_some_and(|n| n > 0))
        });
        Ok(pids)
    }
}

/// Addresses of the areas with the flag `mg`, in the text of `/proc/PID/smaps`.
fn areas(smaps: &str) -> Vec<(u64, u64)> {
    let mut at = None;
    let mut found = Vec::new();
    for line in smaps.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let hex = |s| u64::from_str_radix(s, 16).ok();
            at = hex(start).zip(hex(end)).filter(|(s, e)| s < e && s % PAGE == 0 && e % PAGE == 0).or(at);
        } else if first == "VmFlags:" && line.split_whitespace().any(|w| w == "mg") {
            found.extend(at);
        }
    }
    found
}

fn area(start: u64, end: u64, (pagemap, mem, flags): &(File, File, File)) -> io::Result<Area> {
    let pages = ((end - start) / PAGE) as usize;
    let mut entries = vec![0; pages * 8];
    pagemap.read_exact_at(&mut entries, start / PAGE * 8)?;
    let mut area = Area { first: start / PAGE, pages: Vec::new(), bytes: vec![0; pages * PAGE as usize] };
    for (n, entry) in entries.chunks_exact(8).enumerate() {
        let entry = u64::from_le_bytes(entry.try_into().expect("8 bytes"));
        let mut state = PageState::None;
        if entry & PRESENT != 0 && entry & FRAME != 0 {
            let mut word = [0; 8];
            flags.read_exact_at(&mut word, (entry & FRAME) * 8)?;
            state = state_of(u64::from_le_bytes(word));
        }
        if state != PageState::None {
            let at = n * PAGE as usize;
            mem.read_exact_at(&mut area.bytes[at..at + PAGE as usize], start + n as u64 * PAGE)?;
        }
        area.pages.push(state);
    }
    Ok(area)
}

fn state_of(flags: u64) -> PageState {
    match (flags & KPF_ANON != 0 && flags & KPF_ZERO_PAGE == 0, flags & KPF_THP != 0) {
        (false, _) => PageState::None,
        (true, false) => PageState::Small,
        (true, true) => PageState::Huge,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_those_with_the_flag() {
        let smaps = "7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \nSize: 2048 kB\nVmFlags: rd wr mr mw me ac mg \n\
                     7f0000300000-7f0000400000 rw-p 00000000 00:00 0  [heap]\nVmFlags: rd wr mr mw me ac \n\
                     7f0000400000-7f0000401000 rw-p 00000000 00:00 0\nVmFlags: mg";
        let (a, b) = (0x7f00_0000_0000, 0x7f00_0040_0000);
        assert_eq!(areas(smaps), [(a, a + 0x20_0000), (b, b + 0x1000)]);
        assert_eq!(areas("mg\nVmFlags: mg\nx-y\nVmFlags: mg"), []);
    }

    #[test]
    fn frames_are_ksms_if_anonymous_and_not_the_zero_page() {
        assert_eq!(state_of(KPF_ANON), PageState::Small);
        assert_eq!(state_of(KPF_ANON | KPF_THP), PageState::Huge);
        assert_eq!(state_of(KPF_THP | KPF_ZERO_PAGE), PageState::None);
        assert_eq!(state_of(0), PageState::None);
    }
}
