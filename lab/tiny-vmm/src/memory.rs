// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guest memory on host pages of several kinds. The kinds differ in the result of a read of a cold page: the
//! zero page (anonymous memory, of 4 KB or 2 MB), a new page that is mapped read-only (private hugetlbfs,
//! `hugetlb_no_page`), or a new page that is mapped writable (shared memory). KVM maps the page of a read
//! fault writable only if the host does (`hva_to_pfn_slow`).

use crate::numa::bind;
use anyhow::{Context, Result, ensure};
use bifold_mmu::PageSize;
use clap::ValueEnum;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use serde::{Deserialize, Serialize};
use std::ops::Range;

const THP: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const HUGE: usize = 2 << 20;

/// The host's pages behind guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum HostPages {
    /// Anonymous 4 KB pages.
    #[value(name = "4k")]
    #[serde(rename = "4k")]
    Small,
    /// 2 MB pages of hugetlbfs, private (/proc/sys/vm/nr_hugepages must be 40 or more).
    #[value(name = "2m")]
    #[serde(rename = "2m")]
    Large,
    /// 4 KB pages of shared memory.
    #[value(name = "4k-shared")]
    #[serde(rename = "4k-shared")]
    SmallShared,
    /// 2 MB pages of hugetlbfs, shared.
    #[value(name = "2m-shared")]
    #[serde(rename = "2m-shared")]
    LargeShared,
    /// Transparent 2 MB pages (which must not be off).
    #[value(name = "thp")]
    #[serde(rename = "thp")]
    Transparent,
}

impl HostPages {
    /// Size of the host's pages.
    pub fn size(self) -> PageSize {
        match self {
            HostPages::Small | HostPages::SmallShared => PageSize::Size4K,
            _ => PageSize::Size2M,
        }
    }
}

/// One mapping of host memory.
#[derive(Debug)]
pub struct Memory {
    /// The mapping.
    map: *mut u8,
    map_len: usize,
    /// Guest memory within: from a multiple of 2 MB.
    at: *mut u8,
    len: usize,
}

// SAFETY: the pointer is to a mapping of our own; every access goes through `write` and
// `read`, which copy bytes, and no references into it are made.
unsafe impl Send for Memory {}
// SAFETY: as above; the VMM only accesses it while the vCPUs are stopped.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `len` bytes.
    pub fn new(len: u64, backing: HostPages) -> Result<Memory> {
        let len = (len as usize).next_multiple_of(HUGE);
        let rw = ProtFlags::READ | ProtFlags::WRITE;
        let large = backing.size() == PageSize::Size2M && backing != HostPages::Transparent;
        let huge = if large { MapFlags::HUGETLB | MapFlags::HUGE_2MB } else { MapFlags::empty() };
        let map_len = len + HUGE;
        let null = std::ptr::null_mut();
        let map = match backing {
            HostPages::SmallShared | HostPages::LargeShared => {
                let flags =
                    if large { MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB } else { MemfdFlags::empty() };
                let file = memfd_create("guest", flags | MemfdFlags::CLOEXEC).context("memfd_create")?;
                ftruncate(&file, map_len as u64).context("ftruncate")?;
                let flags = MapFlags::SHARED | MapFlags::NORESERVE;
                // SAFETY: a new mapping at a place that the kernel chooses.
                unsafe { mmap(null, map_len, rw, flags, &file, 0) }
            }
            _ => {
                let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | huge;
                // SAFETY: a new mapping at a place that the kernel chooses.
                unsafe { mmap_anonymous(null, map_len, rw, flags) }
            }
        };
        let map = map.with_context(|| format!("cannot map {len} bytes, {backing:?}"))?.cast::<u8>();
        // SAFETY: `map_len` is `HUGE` longer than `len`, so this stays within the mapping.
        let at = unsafe { map.add(map.align_offset(HUGE)) };
        let memory = Memory { map, map_len, at, len };
        let advice = match backing {
            HostPages::Transparent => Some(Advice::LinuxHugepage),
            // The advice has no effect on hugetlbfs, and 6.1 logs a warning when it splits the mapping
            // (`hugetlb_split`).
            _ if large => None,
            _ => Some(Advice::LinuxNoHugepage),
        };
        // SAFETY: part of the mapping just made.
        let advised = advice.map_or(Ok(()), |advice| unsafe { madvise(at.cast(), len, advice) });
        if backing == HostPages::Transparent {
            advised.context("the kernel has no transparent huge pages")?;
            ensure!(!std::fs::read_to_string(THP)?.contains("[never]"), "{THP} says never");
        }
        Ok(memory)
    }

    /// The address for KVM's memory slot.
    pub fn host_address(&self) -> u64 {
        self.at as u64
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Binds a range of guest memory to a node of the host. Pages that are there already stay where they are.
    pub fn bind(&self, range: Range<u64>, node: u32) -> Result<()> {
        ensure!(range.start <= range.end && range.end <= self.len(), "{range:x?} is beyond guest memory");
        // SAFETY: within the mapping, whose contents do not change.
        let done =
            unsafe { bind(self.at.add(range.start as usize), (range.end - range.start) as usize, node) };
        done.with_context(|| format!("cannot bind guest memory to node {node}"))
    }

    /// Writes `bytes` at `gpa`.
    pub fn write(&self, gpa: u64, bytes: &[u8]) -> Result<()> {
        ensure!(gpa as usize + bytes.len() <= self.len, "{gpa:#x} is beyond guest memory");
        // SAFETY: within the mapping; the guest is stopped.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.add(gpa as usize), bytes.len()) };
        Ok(())
    }

    /// Reads 8 bytes at `gpa`.
    pub fn read(&self, gpa: u64) -> Result<u64> {
        ensure!(gpa as usize + 8 <= self.len, "{gpa:#x} is beyond guest memory");
        let mut bytes = [0; 8];
        // SAFETY: within the mapping; the guest is stopped.
        unsafe { std::ptr::copy_nonoverlapping(self.at.add(gpa as usize), bytes.as_mut_ptr(), 8) };
        Ok(u64::from_le_bytes(bytes))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: made by `new`; KVM has let go of it, as `TinyVm` drops its file first.
        let _ = unsafe { munmap(self.map.cast(), self.map_len) };
    }
}
