// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guest memory: anonymous 4 KB pages, which the host backs one by one as they are
//! touched, or 2 MB pages of hugetlbfs.

use anyhow::{Context, Result, ensure};
use bifold_mmu::PageSize;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// One mapping of host memory.
#[derive(Debug)]
pub struct Memory {
    at: *mut u8,
    len: usize,
}

// SAFETY: the pointer is to a mapping of our own; every access goes through `write` and
// `read`, which copy bytes, and no references into it are made.
unsafe impl Send for Memory {}
// SAFETY: as above; the VMM only accesses it while the vCPUs are stopped.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `len` bytes of pages of `size`.
    pub fn new(len: u64, size: PageSize) -> Result<Memory> {
        let len = len as usize;
        let mut flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        if size == PageSize::Size2M {
            flags |= MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        }
        // SAFETY: a new mapping at a place that the kernel chooses.
        let at =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }
                .with_context(|| format!("cannot map {len} bytes of {size:?} pages"))?;
        let memory = Memory { at: at.cast(), len };
        if size == PageSize::Size4K {
            // SAFETY: the mapping just made. Kernels without huge pages refuse, rightly.
            let _ = unsafe { madvise(at, len, Advice::LinuxNoHugepage) };
        }
        Ok(memory)
    }

    /// Where KVM finds it.
    pub fn host_address(&self) -> u64 {
        self.at as u64
    }

    /// Its length.
    pub fn len(&self) -> u64 {
        self.len as u64
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
        // SAFETY: made by `new`; KVM has let go of it, as `Vm` drops its file first.
        let _ = unsafe { munmap(self.at.cast(), self.len) };
    }
}
