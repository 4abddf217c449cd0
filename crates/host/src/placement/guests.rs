// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guests that run here, emulated ones included.

use crate::process::name_of;
use crate::{Host, Vcpu, VmId};
use std::collections::BTreeSet;

/// A process that runs a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// The guests by process id: programs that are known to run guests, and processes that hold a VM of KVM.
    pub fn live_guests(&self) -> Vec<LiveGuest> {
        let kvm: BTreeSet<u32> = self.kvm_processes().into_iter().map(|p| p.pid).collect();
        let ids = self.vm_ids().unwrap_or_default();
        let vms: Vec<(u32, VmId)> = ids.into_iter().map(|id| (self.process(id.thread).pid, id)).collect();
        let pids: BTreeSet<u32> =
            self.guest_pids().into_iter().chain(kvm.iter().copied()).chain(vms.iter().map(|v| v.0)).collect();
        let guest = |pid: u32| {
            let vm = vms.iter().find(|v| v.0 == pid).map(|v| v.1);
            Some(LiveGuest {
                pid,
                name: name_of(&self.proc, pid)?,
                started: self.started(pid)?,
                vm,
                kvm: vm.is_some() || kvm.contains(&pid),
                vcpus: vm.map(|vm| self.vcpus(Some(vm), pid)).unwrap_or_default(),
            })
        };
        pids.into_iter().filter_map(guest).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::{host, put};

    #[test]
    fn emulated_guests_are_guests_too() {
        let (_dir, host) = host();
        let fields = (3..=22).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        for (pid, cmdline) in [(42, "qemu-system-x86_64\0-name\0a,,b\0"), (43, "/bin/cat\0")] {
            put(&host.proc.join(format!("{pid}/cmdline")), cmdline.as_bytes());
            put(&host.proc.join(format!("{pid}/stat")), format!("{pid} (x) {fields}\n").as_bytes());
        }
        let guests = host.live_guests();
        assert_eq!(guests.len(), 1);
        assert_eq!((guests[0].name.as_str(), guests[0].started, guests[0].kvm), ("a,b", 22, false));
    }
}
