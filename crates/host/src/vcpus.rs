// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the threads that run a VM's vCPUs, and what time they got.

use crate::memory::text;
use crate::{Host, VmId};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// A vCPU and its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vcpu {
    /// KVM's number of the vCPU.
    pub number: u32,
    /// The thread that runs the vCPU.
    pub thread: u32,
}

/// Time of a thread, in nanoseconds since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadTime {
    /// On a CPU, host and guest together.
    pub ran_ns: u64,
    /// Ready to run while others had the CPU: the run delay, which a Linux guest sees as steal.
    pub waited_ns: u64,
}

impl Host {
    /// The threads of a VM's vCPUs, by vCPU. KVM's directory of the VM names them (Linux 6.0 and newer);
    /// without that directory, the threads' names do, as QEMU (with `-name debug-threads=on`), Cloud
    /// Hypervisor, Firecracker and crosvm choose them. Empty if neither tells.
    pub fn vcpus(&self, vm: Option<VmId>, pid: u32) -> Vec<Vcpu> {
        let mut all = vm.map(|vm| by_kvm(&self.vm_dir(vm))).unwrap_or_default();
        if all.is_empty() {
            all = by_name(&self.proc.join(pid.to_string()).join("task"));
        }
        all.sort_unstable();
        all
    }

    /// Opens the times of a thread of a process.
    ///
    /// # Errors
    /// If the thread has ended, or the kernel does not account run delays (CONFIG_SCHED_INFO).
    pub fn thread_times(&self, pid: u32, thread: u32) -> io::Result<ThreadTimes> {
        Ok(ThreadTimes(File::open(self.proc.join(format!("{pid}/task/{thread}/schedstat")))?))
    }
}

/// The open file of a thread's times. Reading the times takes one system call.
#[derive(Debug)]
pub struct ThreadTimes(File);

impl ThreadTimes {
    /// The time until now; `None` if the thread has ended.
    pub fn read(&self) -> Option<ThreadTime> {
        let mut bytes = [0; 80]; // three numbers of up to 20 digits
        let length = self.0.read_at(&mut bytes, 0).ok()?;
        let text = std::str::from_utf8(&bytes[..length]).ok()?;
        let mut numbers = text.split_whitespace().map(|n| n.parse().ok());
        Some(ThreadTime { ran_ns: numbers.next()??, waited_ns: numbers.next()?? })
    }
}

/// From the files `vcpuN/pid`. They hold 0 until a vCPU runs for the first time.
fn by_kvm(dir: &Path) -> Vec<Vcpu> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let vcpu = |entry: std::fs::DirEntry| {
        let number = entry.file_name().to_str()?.strip_prefix("vcpu")?.parse().ok()?;
        let thread = text(&entry.path().join("pid")).trim().parse().ok().filter(|t| *t > 0)?;
        Some(Vcpu { number, thread })
    };
    entries.flatten().filter_map(vcpu).collect()
}

fn by_name(tasks: &Path) -> Vec<Vcpu> {
    let Ok(entries) = std::fs::read_dir(tasks) else { return Vec::new() };
    let vcpu = |entry: std::fs::DirEntry| {
        let thread = entry.file_name().to_str()?.parse().ok()?;
        Some(Vcpu { number: number(text(&entry.path().join("comm")).trim())?, thread })
    };
    entries.flatten().filter_map(vcpu).collect()
}

/// The number of the vCPU in a thread's name.
pub(crate) fn number(comm: &str) -> Option<u32> {
    let qemu = comm.strip_prefix("CPU ").and_then(|n| n.strip_suffix("/KVM"));
    // Cloud Hypervisor, crosvm and Firecracker.
    let others = ["vcpu", "crosvm_vcpu", "fc_vcpu "];
    qemu.or_else(|| others.iter().find_map(|p| comm.strip_prefix(p)))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::host;

    fn put(path: &Path, text: &str) {
        crate::tests::put(path, text.as_bytes());
    }

    fn pairs(all: &[Vcpu]) -> Vec<(u32, u32)> {
        all.iter().map(|v| (v.number, v.thread)).collect()
    }

    #[test]
    fn threads_come_from_kvm_and_else_from_their_names() {
        let (_dir, host) = host();
        let id = VmId::parse("42-7").unwrap();
        let task = |tid: u32, comm: &str| put(&host.proc.join(format!("42/task/{tid}/comm")), comm);
        for (tid, comm) in
            [(42, "qemu-system-x86\n"), (45, "CPU 1/KVM\n"), (44, "CPU 0/KVM\n"), (46, "CPU x/KVM\n")]
        {
            task(tid, comm);
        }
        assert_eq!(pairs(&host.vcpus(None, 42)), [(0, 44), (1, 45)]);
        // vCPU 1 has not run yet.
        put(&host.vm_dir(id).join("vcpu0/pid"), "77\n");
        put(&host.vm_dir(id).join("vcpu1/pid"), "0\n");
        put(&host.vm_dir(id).join("vcpu10/pid"), "70\n");
        assert_eq!(pairs(&host.vcpus(Some(id), 42)), [(0, 77), (10, 70)]);
        assert_eq!(host.vcpus(None, 43), []);
    }

    #[test]
    fn every_vmm_names_its_threads_in_its_own_way() {
        let names = ["vcpu3", "crosvm_vcpu2", "fc_vcpu 1", "CPU 12/KVM", "vcpu", "CPU 0/TCG", "vcpu-3"];
        assert_eq!(names.map(number), [Some(3), Some(2), Some(1), Some(12), None, None, None]);
    }

    #[test]
    fn times_are_nanoseconds_or_unknown() {
        let (_dir, host) = host();
        let path = host.proc.join("42/task/44/schedstat");
        put(&path, "1500 300 12\n");
        let times = host.thread_times(42, 44).unwrap();
        assert_eq!(times.read(), Some(ThreadTime { ran_ns: 1500, waited_ns: 300 }));
        put(&path, "");
        assert_eq!(times.read(), None);
        assert_eq!(host.thread_times(42, 45).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
