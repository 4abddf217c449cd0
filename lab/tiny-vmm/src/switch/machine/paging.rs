// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The mode of a machine's VM, and what KVM says of the VM in debugfs.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bifold_host::{Host, PagingFiles, VmId};

use super::Machine;
use crate::vm::Unavailable;

impl Machine {
    fn id(&self) -> VmId {
        VmId { thread: std::process::id(), fd: self.fd.as_raw_fd() as u32 }
    }

    fn debugfs(&self) -> PathBuf {
        Host::live().vm_dir(self.id())
    }

    fn paging(&self) -> Result<PagingFiles> {
        let lacks =
            || Unavailable(format!("{}: this KVM has no paging mode per VM", self.mode_file().display()));
        Ok(Host::live().paging_files(self.id())?.ok_or_else(lacks)?)
    }

    /// Path of `paging_mode`, for tests that [`PagingFiles`] does not allow: invalid words, other users.
    pub fn mode_file(&self) -> PathBuf {
        self.debugfs().join("paging_mode")
    }

    pub fn mode(&self) -> Result<String> {
        Ok(self.paging()?.state()?.to_string())
    }

    /// Switches the VM. The inner error is the error number of a refusal.
    pub fn try_switch(&self, mode: &str) -> Result<std::result::Result<(), i32>> {
        match fs::write(self.mode_file(), mode) {
            Ok(()) => Ok(Ok(())),
            Err(e) => Ok(Err(e.raw_os_error().context("a write failed without a number")?)),
        }
    }

    pub fn switch(&self, mode: &str) -> Result<()> {
        match self.try_switch(mode)? {
            Ok(()) => Ok(()),
            Err(e) => bail!("switching to {mode}: {}", std::io::Error::from_raw_os_error(e)),
        }
    }

    /// KVM's figures of this VM's switches, by name.
    pub fn stats(&self) -> Result<BTreeMap<&'static str, u64>> {
        Ok(self.paging()?.stats()?.known().collect())
    }

    /// A line of `paging_stats`.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let path = self.debugfs().join("paging_stats");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        Ok(line.with_context(|| format!("{} has no {name}", path.display()))?.parse()?)
    }

    /// The switches for the guest so far. Each is counted when it has ended, and the vCPU may be faster:
    /// waits up to 5 s for as many as are expected.
    pub fn switches_by_guest(&self, expected: u64) -> Result<u64> {
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            let now = self.counter("switches_by_guest")?;
            if now >= expected || Instant::now() >= until {
                return Ok(now);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A statistic of KVM for this VM, summed over all vCPUs.
    pub fn kvm_stat(&self, name: &str) -> Result<u64> {
        let path = self.debugfs().join(name);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(text.trim().parse()?)
    }

    /// Whether the VM has reverse maps, which nested paging does without.
    pub fn has_reverse_maps(&self) -> Result<bool> {
        let path = self.debugfs().join("mmu_rmaps_stat");
        Ok(!fs::read_to_string(&path).with_context(|| path.display().to_string())?.is_empty())
    }

    /// Faults that KVM's MMU has handled: violations under nested paging, page faults under shadow paging.
    pub fn faults(&self) -> Result<u64> {
        self.kvm_stat("pf_taken")
    }
}
