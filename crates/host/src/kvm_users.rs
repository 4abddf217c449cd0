// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the processes that use KVM by their open files, from procfs.
//!
//! A VM and each of its vCPUs is a file descriptor of the VM's process (`kvm_dev_ioctl_create_vm` and
//! `create_vcpu_fd` in Linux's `virt/kvm/kvm_main.c` name them). Whoever may trace a process may read where
//! its descriptors lead, so this works without debugfs, for one's own VMs without root too.

use crate::{BinaryStatistics, Host};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Most file descriptors of a process that are looked at: the default of `fs.nr_open`.
const MOST_FDS: usize = 1 << 20;

/// What a process has of KVM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KvmProcess {
    /// Process id.
    pub pid: u32,
    /// File descriptors of VMs, in order. More than one is rare.
    pub vms: Vec<u32>,
    /// Number of vCPUs, of all its VMs.
    pub vcpus: usize,
    /// File descriptors of KVM's statistics of the VM and of vCPUs, where the process has asked for them:
    /// QEMU keeps them from the first `query-stats` on.
    pub statistics: Vec<u32>,
}

impl Host {
    /// The processes that hold a VM of KVM, by process id; those only that this user may look into.
    pub fn kvm_processes(&self) -> Vec<KvmProcess> {
        self.pids().into_iter().filter_map(|pid| self.kvm_process(pid)).collect()
    }

    /// What this process has of KVM; `None` if that is no VM, or this user may not look.
    pub fn kvm_process(&self, pid: u32) -> Option<KvmProcess> {
        let mut found = KvmProcess { pid, ..KvmProcess::default() };
        for (fd, leads_to) in descriptors(&self.proc.join(format!("{pid}/fd"))) {
            match leads_to.as_str() {
                "anon_inode:kvm-vm" => found.vms.push(fd),
                "anon_inode:kvm-vm-stats" => found.statistics.push(fd),
                name if name.starts_with("anon_inode:kvm-vcpu-stats:") => found.statistics.push(fd),
                name if name.starts_with("anon_inode:kvm-vcpu:") => found.vcpus += 1,
                _ => {}
            }
        }
        (!found.vms.is_empty()).then_some(found)
    }
}

impl KvmProcess {
    /// Opens the statistics that the process has asked KVM for; empty if there are none.
    ///
    /// # Errors
    /// If this user may not take file descriptors of the process (ptrace access), or the process has ended.
    pub fn statistics(&self) -> io::Result<Vec<BinaryStatistics>> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let open = |&fd: &u32| {
            let fd = i32::try_from(fd).map_err(|_| io::ErrorKind::InvalidInput)?;
            BinaryStatistics::new(File::from(pidfd_getfd(&process, fd, PidfdGetfdFlags::empty())?))
        };
        self.statistics.iter().map(open).collect()
    }
}

/// A process's file descriptors in order, and where they lead; empty if this user may not look.
fn descriptors(dir: &Path) -> Vec<(u32, String)> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let descriptor = |entry: fs::DirEntry| {
        let fd = entry.file_name().to_str()?.parse().ok()?;
        Some((fd, fs::read_link(entry.path()).ok()?.to_str()?.to_owned()))
    };
    let mut all: Vec<_> = entries.flatten().take(MOST_FDS).filter_map(descriptor).collect();
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn processes_are_told_by_their_descriptors() {
        let (_dir, host) = crate::tests::host();
        assert_eq!(host.kvm_processes(), []);
        let fd = |pid: u32, fd: u32, to: &str| {
            let dir = host.proc.join(format!("{pid}/fd"));
            fs::create_dir_all(&dir).unwrap();
            symlink(to, dir.join(fd.to_string())).unwrap();
        };
        let leads = ["/dev/kvm", "anon_inode:kvm-vm", "anon_inode:kvm-vcpu:0", "anon_inode:kvm-vcpu:1"];
        leads.iter().enumerate().for_each(|(n, to)| fd(42, 10 + n as u32, to));
        fd(42, 30, "anon_inode:kvm-vcpu-stats:0");
        fd(42, 29, "anon_inode:kvm-vm-stats");
        // It has opened the device, and made no VM.
        fd(43, 3, "/dev/kvm");
        fd(9, 5, "anon_inode:kvm-vm");
        let seen = host.kvm_processes();
        let web = KvmProcess { pid: 42, vms: vec![11], vcpus: 2, statistics: vec![29, 30] };
        let bare = KvmProcess { pid: 9, vms: vec![5], vcpus: 0, statistics: vec![] };
        assert_eq!(seen, [bare, web]);
    }

    #[test]
    fn descriptors_of_a_process_can_be_taken() {
        // This process, whose file is no file of KVM's.
        let file = tempfile::tempfile().unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file) as u32;
        let this = KvmProcess { pid: std::process::id(), statistics: vec![fd], ..KvmProcess::default() };
        assert_eq!(this.statistics().unwrap_err().kind(), io::ErrorKind::InvalidData);
        let closed = KvmProcess { statistics: vec![1 << 20], ..this };
        assert!(closed.statistics().is_err());
    }
}
