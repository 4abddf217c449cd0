// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guests that run here, emulated ones included.
//!
//! [`Host::vms`] lists KVM's VMs alone, which only root may see. A [`LiveGuest`] is found by the program's
//! name, which any user may read, or by its file descriptors.

mod command_line;
mod options;

pub use command_line::CommandLine;
pub use options::Pairs;

use crate::process::name_of;
use crate::{Host, Vcpu, VmId};
use std::collections::BTreeSet;

/// A process that runs a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveGuest {
    /// Process id.
    pub pid: u32,
    /// The VM's name, else the process's. Chosen by the VM's owner: show it with
    /// [`printable`](crate::printable).
    pub name: String,
    /// When the process started, in ticks since boot.
    pub started: u64,
    /// The VM, if KVM runs the guest and its directory is visible.
    pub vm: Option<VmId>,
    /// Whether the process holds a VM of KVM.
    pub kvm: bool,
    /// The threads of its vCPUs, where KVM names them.
    pub vcpus: Vec<Vcpu>,
}

impl Host {
    /// The guests of programs that are known to run guests, by process id, without what KVM has of them.
    /// Other than for [`live_guests`](Host::live_guests), no file descriptor is looked at.
    pub fn known_guests(&self) -> Vec<LiveGuest> {
        self.known_pids().filter_map(|pid| self.guest(pid, false, None)).collect()
    }

    /// The guests by process id: programs that are known to run guests, and processes that hold a VM of KVM.
    pub fn live_guests(&self) -> Vec<LiveGuest> {
        let kvm: BTreeSet<u32> = self.kvm_processes().into_iter().map(|p| p.pid).collect();
        let ids = self.vm_ids().unwrap_or_default();
        let vms: Vec<(u32, VmId)> = ids.into_iter().map(|id| (self.process(id.thread).pid, id)).collect();
        let known = self.known_pids();
        let pids: BTreeSet<u32> = known.chain(kvm.iter().copied()).chain(vms.iter().map(|v| v.0)).collect();
        let guest = |pid: u32| {
            let vm = vms.iter().find(|v| v.0 == pid).map(|v| v.1);
            self.guest(pid, vm.is_some() || kvm.contains(&pid), vm)
        };
        pids.into_iter().filter_map(guest).collect()
    }

    fn known_pids(&self) -> impl Iterator<Item = u32> + '_ {
        let known = |pid: &u32| self.command_line(*pid).is_some_and(|line| line.runs_a_guest());
        self.pids().into_iter().filter(known)
    }

    /// The guest of a process; `None` if the process has ended.
    fn guest(&self, pid: u32, kvm: bool, vm: Option<VmId>) -> Option<LiveGuest> {
        let vcpus = vm.map(|vm| self.vcpus(Some(vm), pid)).unwrap_or_default();
        Some(LiveGuest { pid, name: name_of(&self.proc, pid)?, started: self.started(pid)?, vm, kvm, vcpus })
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::{host, put};

    #[test]
    fn emulated_guests_are_guests_too() {
        let (_dir, host) = host();
        assert_eq!(host.live_guests(), []);
        let fields = (3..=22).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        for (pid, cmdline) in [
            (42, "/usr/bin/qemu-system-x86_64\0-name\0a,,b\0-mem-path\0/dev/hugepages\0"),
            (7, "firecracker\0--id\0x\0"),
            (43, "/bin/cat\0"),
            (44, "/usr/bin/emacs\0qemu-notes\0"),
            // A capture of Bifold's.
            (45, "/usr/bin/qemu-system-x86_64\0-name\0bifold,debug-threads=on\0-plugin\0file=/x.so\0"),
        ] {
            put(&host.proc.join(format!("{pid}/cmdline")), cmdline.as_bytes());
            put(&host.proc.join(format!("{pid}/stat")), format!("{pid} (x) {fields}\n").as_bytes());
        }
        put(&host.proc.join("self/cmdline"), b"qemu-x\0");
        let guests = host.live_guests();
        let found: Vec<_> = guests.iter().map(|g| (g.pid, g.name.as_str(), g.started, g.kvm)).collect();
        assert_eq!(found, [(7, "x", 22, false), (42, "a,b", 22, false)]);
        assert_eq!(host.known_guests(), guests);
        let hugetlb = |pid| host.command_line(pid).map(|line| line.asks_for_hugetlb());
        assert_eq!([42, 7, 1].map(hugetlb), [Some(true), Some(false), None]);
    }
}
