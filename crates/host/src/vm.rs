// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists the host's VMs, from KVM's directories in debugfs.

use crate::kvm::Kvm;
use crate::paging::{Paging, State};
use crate::{Host, HostError, VmId};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A virtual machine.
#[derive(Debug)]
pub struct Vm {
    /// KVM's identifier.
    pub id: VmId,
    /// Id of the VM's process.
    pub pid: u32,
    /// The VM's name on QEMU's command line, else the process's name; `None` if the process is not visible
    /// from here.
    pub name: Option<String>,
    /// Number of vCPUs.
    pub vcpus: usize,
    /// Paging mode and figures of switches.
    pub paging: Paging,
}

impl Vm {
    /// The VM's paging mode, which is the host's if KVM has one mode for all VMs; `None` if unknown.
    pub fn state(&self, kvm: &Kvm) -> Option<State> {
        match &self.paging {
            Paging::Own { state, .. } => state.as_ref().ok().copied(),
            // A KVM that can switch creates the file some time after the VM's directory.
            Paging::HostWide if kvm.default.is_some() => None,
            Paging::HostWide => kvm.host_mode().map(State::In),
        }
    }
}

impl Host {
    /// All VMs, in order of thread and file descriptor. A VM that ends meanwhile is left out.
    pub fn vms(&self) -> Result<Vec<Vm>, HostError> {
        Ok(self.vm_ids()?.into_iter().filter_map(|id| self.vm(id)).collect())
    }

    /// The identifiers of all VMs, in order.
    ///
    /// # Errors
    /// If KVM's directory in debugfs does not exist or this user may not list it.
    pub fn vm_ids(&self) -> Result<Vec<VmId>, HostError> {
        let dir = self.debug.join("kvm");
        let entries = fs::read_dir(&dir).map_err(|e| self.no_directory(&dir, e))?;
        let mut ids: Vec<VmId> = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| HostError::io(&dir, e))?;
            ids.extend(entry.file_name().to_str().and_then(VmId::parse));
        }
        ids.sort_unstable();
        Ok(ids)
    }

    /// The VM with this identifier, if it exists.
    pub fn vm(&self, id: VmId) -> Option<Vm> {
        let dir = self.vm_dir(id);
        let vcpus = self.vcpu_count(id)?;
        let process = self.process(id.thread);
        let paging = Paging::read(&dir).with_room(|| self.shortage(process.pid));
        // The files of a VM that ends go one by one, so what was read may be incomplete.
        dir.is_dir().then_some(Vm { id, pid: process.pid, name: process.name, vcpus, paging })
    }

    /// Number of a VM's vCPUs, by KVM's directory of the VM; `None` if there is no such directory.
    pub fn vcpu_count(&self, id: VmId) -> Option<usize> {
        let entries = fs::read_dir(self.vm_dir(id)).ok()?;
        Some(entries.flatten().filter(is_vcpu).count())
    }

    /// KVM's directory of a VM, whether it exists or not.
    pub fn vm_dir(&self, id: VmId) -> PathBuf {
        self.debug.join("kvm").join(id.to_string())
    }

    /// The error for a KVM directory that cannot be listed.
    fn no_directory(&self, dir: &Path, e: io::Error) -> HostError {
        if e.kind() != io::ErrorKind::NotFound {
            return HostError::io(dir, e);
        }
        // The mount point of a file system that is not mounted is empty.
        let mounted = fs::read_dir(&self.debug).is_ok_and(|mut entries| entries.next().is_some());
        if mounted {
            HostError::NoVendor { path: dir.into() }
        } else {
            HostError::NoDebugfs { path: self.debug.clone() }
        }
    }
}

/// Whether the entry is a vCPU's directory, `vcpuN`.
fn is_vcpu(entry: &fs::DirEntry) -> bool {
    let number = entry.file_name().to_str().and_then(|n| n.strip_prefix("vcpu")?.parse::<u32>().ok());
    number.is_some() && entry.file_type().is_ok_and(|t| t.is_dir())
}

/// How exactly the user's word means a guest: 0 as KVM's directory (`PID-FD`), 1 as a process or thread id, 2
/// as its name; `None` if it does not.
pub fn word_rank(word: &str, id: Option<VmId>, pid: u32, name: Option<&str>) -> Option<u8> {
    let number: Option<u32> = word.parse().ok();
    let is = |n| n == pid || id.is_some_and(|id| n == id.thread);
    match VmId::parse(word) {
        Some(word) if Some(word) == id => Some(0),
        _ if number.is_some_and(is) => Some(1),
        _ => (name == Some(word)).then_some(2),
    }
}

/// The guests that the user's word means, by their [`word_rank`]. An identifier comes before a name: the
/// owner of a VM chose the name, which may look like another VM's identifier.
pub fn named<T>(guests: impl IntoIterator<Item = T>, rank: impl Fn(&T) -> Option<u8>) -> Vec<T> {
    let ranked: Vec<(u8, T)> = guests.into_iter().filter_map(|g| Some((rank(&g)?, g))).collect();
    let best = ranked.iter().map(|(rank, _)| *rank).min();
    ranked.into_iter().filter(|(rank, _)| Some(*rank) == best).map(|(_, g)| g).collect()
}

/// The VM that the user's word selects: a directory (`PID-FD`), a process or thread id, or a name.
pub fn select(mut vms: Vec<Vm>, word: &str) -> Result<Vm, HostError> {
    let found =
        named(0..vms.len(), |at| word_rank(word, Some(vms[*at].id), vms[*at].pid, vms[*at].name.as_deref()));
    match found[..] {
        [at] => Ok(vms.swap_remove(at)),
        [] => Err(HostError::NoVm { word: word.into(), of: vms.len() }),
        _ => {
            let ids = found.into_iter().map(|at| vms[at].id).collect();
            Err(HostError::SeveralVms { word: word.into(), ids })
        }
    }
}
