// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads a process's mergeable memory as ksmd finds it: mergeable areas, their resident pages, and which
//! pages are parts of huge pages.
//!
//! `smaps` has the areas (flag `mg`), `pagemap` the frames, `/proc/kpageflags` the kinds of frames, and `mem`
//! the bytes. A process that is not stopped may change while it is read.

use super::process::gone;
use super::{Ksm, KsmError};
use crate::smaps::MOST_SMAPS;
use crate::{Mapping, read_up_to};
use std::collections::HashMap;
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
const KPF_KSM: u64 = 1 << 21;
const KPF_THP: u64 = 1 << 22;
const KPF_ZERO_PAGE: u64 = 1 << 24;

/// The page that ksmd finds at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageState {
    /// Nothing that ksmd scans: no page, the zero page, or a page of a file.
    None,
    /// An anonymous 4 KB page.
    Small,
    /// A part of a transparent huge page.
    Huge,
}

/// Mergeable memory at consecutive addresses.
#[derive(Debug, Clone)]
pub struct Area {
    /// Number of the first page (address / 4096).
    pub first: u64,
    /// State of each page.
    pub pages: Vec<PageState>,
    /// Bytes of all pages; zeros where there is no page.
    pub bytes: Vec<u8>,
}

/// An area that KSM may merge, from `smaps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MergeableArea {
    /// First address.
    pub start: u64,
    /// End address, exclusive.
    pub end: u64,
    /// Resident bytes (`Rss`).
    pub resident: u64,
    /// Resident bytes in huge pages (`AnonHugePages`).
    pub huge: u64,
}

/// What KSM has merged of some processes' memory. If no other process has mergeable memory, `pages_shared` is
/// `frames` and `pages_sharing` is `pages - frames`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Merged {
    /// Merged frames that the processes' page tables map.
    pub frames: u64,
    /// Pages that map these frames.
    pub pages: u64,
    /// Pages that KSM counts as merged (`ksm_merging_pages`), if the kernel has the figure. It includes pages
    /// that were written to since ksmd last visited them.
    pub merging_pages: Option<u64>,
    /// Pages that KSM made mappings of the kernel's zero page; 0 if the kernel lacks the figure.
    pub zero_pages: u64,
}

impl Ksm {
    /// What KSM has merged of these processes' memory, by their own page tables and figures. A frame that
    /// other processes map too is included.
    ///
    /// # Errors
    /// If the processes' files cannot be read (only root may), or a process has ended.
    pub fn merged(&self, pids: &[u32]) -> Result<Merged, KsmError> {
        let flags_path = self.proc.join("kpageflags");
        let flags = File::open(&flags_path).map_err(|e| KsmError::io(&flags_path, e))?;
        let mut merged = Merged::default();
        let mut is_merged: HashMap<u64, bool> = HashMap::new();
        for pid in pids {
            let path = self.proc.join(pid.to_string()).join("pagemap");
            let pagemap = File::open(&path).map_err(|e| KsmError::io(&path, e))?;
            for MergeableArea { start, end, .. } in self.mergeable_areas(*pid)? {
                for frame in
                    frames(&pagemap, start, end).map_err(|e| KsmError::io(&path, e))?.into_iter().flatten()
                {
                    let known = match is_merged.get(&frame) {
                        Some(known) => *known,
                        None => {
                            let flags = word(&flags, frame).map_err(|e| KsmError::io(&flags_path, e))?;
                            let new = flags & KPF_KSM != 0;
                            is_merged.insert(frame, new);
                            merged.frames += u64::from(new);
                            new
                        }
                    };
                    merged.pages += u64::from(known);
                }
            }
            let figures = self.process(*pid)?.unwrap_or_default();
            merged.zero_pages += figures.zero_pages.unwrap_or(0);
            if let Some(n) = figures.merging_pages {
                merged.merging_pages = Some(merged.merging_pages.unwrap_or(0) + n);
            }
        }
        Ok(merged)
    }

    /// A process's mergeable areas; empty if the process has ended.
    ///
    /// # Errors
    /// If `smaps` cannot be read: only root, or the process's owner, may.
    pub fn mergeable_areas(&self, pid: u32) -> Result<Vec<MergeableArea>, KsmError> {
        let smaps = self.proc.join(pid.to_string()).join("smaps");
        let text = match read_up_to(&smaps, MOST_SMAPS) {
            Err(e) if gone(&e) => Vec::new(),
            read => read.map_err(|e| KsmError::io(&smaps, e))?,
        };
        Ok(mergeable_areas(&String::from_utf8_lossy(&text)))
    }

    /// The mergeable memory of a process, in order of addresses.
    ///
    /// # Errors
    /// If the process's files cannot be read: only root may.
    pub fn mergeable(&self, pid: u32) -> Result<Vec<Area>, KsmError> {
        let dir = self.proc.join(pid.to_string());
        let areas = self.mergeable_areas(pid)?;
        let open = |path: &Path| File::open(path).map_err(|e| KsmError::io(path, e));
        if areas.is_empty() {
            return Ok(Vec::new());
        }
        let flags_path = self.proc.join("kpageflags");
        let (pagemap, mem) = (dir.join("pagemap"), dir.join("mem"));
        let files = (open(&pagemap)?, open(&mem)?, open(&flags_path)?);
        areas.into_iter().map(|a| area(a.start, a.end, &files).map_err(|e| KsmError::io(&mem, e))).collect()
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
            // Before Linux 6.16 `ksm_stat` does not say whether a process has mergeable memory.
            let has_areas = || self.mergeable_areas(*pid).is_ok_and(|areas| !areas.is_empty());
            stat.mergeable.unwrap_or_else(has_areas)
        });
        Ok(pids)
    }
}

/// Parses the areas that KSM may merge (flag `mg`) from `/proc/PID/smaps`.
pub fn mergeable_areas(smaps: &str) -> Vec<MergeableArea> {
    let mergeable = Mapping::parse(smaps).into_iter().filter(|m| m.mergeable);
    mergeable
        .map(|m| MergeableArea { start: m.start, end: m.end, resident: m.resident, huge: m.huge })
        .collect()
}

fn area(start: u64, end: u64, (pagemap, mem, flags): &(File, File, File)) -> io::Result<Area> {
    let pages = ((end - start) / PAGE) as usize;
    let mut area = Area { first: start / PAGE, pages: Vec::new(), bytes: vec![0; pages * PAGE as usize] };
    for (n, frame) in frames(pagemap, start, end)?.into_iter().enumerate() {
        let state = match frame {
            Some(frame) => state_of(word(flags, frame)?),
            None => PageState::None,
        };
        if state != PageState::None {
            let at = n * PAGE as usize;
            mem.read_exact_at(&mut area.bytes[at..at + PAGE as usize], start + n as u64 * PAGE)?;
        }
        area.pages.push(state);
    }
    Ok(area)
}

/// The frame of each page from one address to another; `None` where no page is in memory.
fn frames(pagemap: &File, start: u64, end: u64) -> io::Result<Vec<Option<u64>>> {
    let mut entries = vec![0; ((end - start) / PAGE * 8) as usize];
    pagemap.read_exact_at(&mut entries, start / PAGE * 8)?;
    let entries = entries.chunks_exact(8).map(|e| u64::from_le_bytes(e.try_into().expect("8 bytes")));
    Ok(entries.map(|e| Some(e & FRAME).filter(|frame| e & PRESENT != 0 && *frame != 0)).collect())
}

/// A frame's word in `/proc/kpageflags`.
fn word(flags: &File, frame: u64) -> io::Result<u64> {
    let mut word = [0; 8];
    flags.read_exact_at(&mut word, frame * 8)?;
    Ok(u64::from_le_bytes(word))
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
        let smaps = "7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \nSize: 2048 kB\nRss: 1024 kB\n\
                     AnonHugePages:   512 kB\nVmFlags: rd wr mr mw me ac mg \n\
                     7f0000300000-7f0000400000 rw-p 00000000 00:00 0  [heap]\nRss: 4 kB\nVmFlags: rd wr mr mw me ac \n\
                     7f0000400000-7f0000401000 rw-p 00000000 00:00 0\nRss: 4 kB\nVmFlags: mg";
        let (a, b) = (0x7f00_0000_0000, 0x7f00_0040_0000);
        let whole =
            |start, length, resident, huge| MergeableArea { start, end: start + length, resident, huge };
        assert_eq!(
            mergeable_areas(smaps),
            [whole(a, 0x20_0000, 1 << 20, 1 << 19), whole(b, 0x1000, 4096, 0)]
        );
        for no_area in
            ["mg\nVmFlags: mg", "x-y\nVmFlags: mg", "2000-1000 a\nVmFlags: mg", "1000-1001 a\nVmFlags: mg"]
        {
            assert_eq!(mergeable_areas(no_area), [], "{no_area}");
        }
    }

    #[test]
    fn frames_are_ksms_if_anonymous_and_not_the_zero_page() {
        assert_eq!(state_of(KPF_ANON), PageState::Small);
        assert_eq!(state_of(KPF_ANON | KPF_THP), PageState::Huge);
        assert_eq!(state_of(KPF_THP | KPF_ZERO_PAGE), PageState::None);
        assert_eq!(state_of(0), PageState::None);
    }
}
