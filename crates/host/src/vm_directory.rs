// SPDX-License-Identifier: Apache-2.0 OR MIT
//! KVM's directory of a VM in debugfs, held open, so that a reading need not look for it again.

use crate::paging::{Forecast, Paging, REFUSAL_FILE, Unreadable, forecast};
use crate::{Host, HostError, VmId};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, fstat, open, openat};
use rustix::io::{Errno, read};
use std::io;

/// Most bytes of a paging file that are read.
const MOST_BYTES: usize = 2048;

/// KVM's directory of a VM. It keeps nothing alive: once the VM has ended, every file in it is missing.
///
/// A file is opened and closed at each reading, which takes three system calls: while a file is open, KVM
/// keeps the VM, also after its process has ended (`kvm_debugfs_open` in Linux, `open_for` in `kernel/src`).
#[derive(Debug)]
pub struct VmDirectory(OwnedFd);

/// When a directory's entries changed. Two of the same directory are equal if they did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entries {
    /// Debugfs counts the subdirectories here, and no more: a VM's are those of its vCPUs.
    links: u64,
    /// Other file systems than debugfs keep this.
    modified: (i64, u64),
}

impl Host {
    /// Opens KVM's directory of a VM.
    ///
    /// # Errors
    /// If the directory cannot be opened by this user, or does not exist.
    pub fn vm_directory(&self, vm: VmId) -> Result<VmDirectory, HostError> {
        let path = self.vm_dir(vm);
        let opened = open(&path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        Ok(VmDirectory(opened.map_err(|e| HostError::io(&path, io::Error::from(e)))?))
    }
}

impl VmDirectory {
    /// The VM's mode and figures of switches. The forecast is left out: for it, KVM looks at each vCPU, and
    /// [`VmDirectory::forecast`] reads it.
    pub fn paging(&self) -> Paging {
        Paging::by(|name| match name {
            REFUSAL_FILE => Err(io::ErrorKind::NotFound.into()),
            name => self.bytes(name),
        })
    }

    /// Whether KVM would refuse to switch the VM to its other mode now.
    ///
    /// # Errors
    /// If `paging_refusal` cannot be read, or has another text than KVM writes.
    pub fn forecast(&self) -> Result<Forecast, Unreadable> {
        forecast(self.bytes(REFUSAL_FILE))
    }

    fn bytes(&self, name: &str) -> io::Result<Vec<u8>> {
        Ok(self.read(name, &mut [0; MOST_BYTES])?.to_vec())
    }

    /// When vCPUs were last added; `None` if the kernel does not tell.
    pub fn entries(&self) -> Option<Entries> {
        let stat = fstat(&self.0).ok()?;
        Some(Entries {
            links: stat.st_nlink as u64,
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as u64),
        })
    }

    /// The text of a file, as far as one read gives it.
    pub(crate) fn read<'a>(&self, name: &str, bytes: &'a mut [u8]) -> Result<&'a [u8], Errno> {
        let file = openat(&self.0, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let length = read(&file, &mut *bytes)?;
        Ok(&bytes[..length])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::tests::{host, put};

    #[test]
    fn a_directory_tells_modes_and_new_vcpus_until_the_vm_ends() {
        let (_dir, host) = host();
        let id = VmId::parse("42-7").unwrap();
        assert!(matches!(host.vm_directory(id), Err(HostError::Io { .. })));
        let path = host.vm_dir(id);
        put(&path.join("vcpu0/pid"), b"70\n");
        let vm = host.vm_directory(id).unwrap();
        assert!(matches!(vm.paging(), Paging::HostWide), "the KVM of a distribution");
        put(&path.join("paging_mode"), b"shadow\n");
        put(&path.join("paging_stats"), b"switches_to_shadow 3\nswitches_to_nested 2\n");
        let (state, switches) = (vm.paging().state(), vm.paging().stats().switches());
        assert_eq!((state, switches), (Some(State::In(bifold_mmu::Mode::Shadow)), Some(5)));
        assert_eq!(vm.forecast().unwrap(), Forecast::Unknown, "older modules");
        put(&path.join("paging_refusal"), b"smm vcpu 0\n");
        assert_eq!(vm.forecast().unwrap().obstacle().unwrap().vcpu, Some(0));
        assert_eq!(vm.paging().obstacle(), None, "not read");
        put(&path.join("paging_refusal"), b"smm vcpu\n");
        assert_eq!(vm.forecast().unwrap_err().to_string(), "`smm vcpu` is no reason of a refusal");
        let before = vm.entries();
        assert_eq!(vm.entries(), before);
        put(&path.join("vcpu1/pid"), b"0\n");
        assert_ne!(vm.entries(), before);
        std::fs::remove_dir_all(&path).unwrap();
        put(&path.join("paging_mode"), b"nested\n");
        assert!(matches!(vm.paging(), Paging::HostWide), "another VM of this name");
    }
}
