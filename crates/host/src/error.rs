// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of reading and switching a host's VMs. Each message says what is wrong and what to do.

use crate::guest_memory::Shortage;
use crate::paging::Obstacle;
use crate::vm_id::VmId;
use bifold_mmu::Mode;
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a host cannot be read, or a VM cannot be switched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The module kvm is not loaded.
    #[error(
        "this machine has no KVM ({} does not exist): load kvm_amd or kvm_intel; if that fails, switch virtualization on in the firmware, or, inside a VM, in that VM's settings",
        path.display()
    )]
    NoKvm {
        /// The module's place in sysfs.
        path: PathBuf,
    },
    /// The module of the processor's vendor is not loaded.
    #[error(
        "KVM is loaded without a module for this processor ({} does not exist): load kvm_amd or kvm_intel",
        path.display()
    )]
    NoVendor {
        /// The directory that the module would create.
        path: PathBuf,
    },
    /// debugfs is not mounted.
    #[error("debugfs is not mounted: as root, mount -t debugfs none {}", path.display())]
    NoDebugfs {
        /// The mount point.
        path: PathBuf,
    },
    /// Only root may read the file.
    #[error("cannot read {}: only root may; run the command with sudo", path.display())]
    NotRoot {
        /// The file.
        path: PathBuf,
    },
    /// There are no CPUs in sysfs.
    #[error("{} has no CPUs: mount sysfs, or give the folder in which a copied tree's sys and proc are", path.display())]
    NoCpus {
        /// The directory.
        path: PathBuf,
    },
    /// Any other error of a file.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The user's word selects no VM.
    #[error("no VM `{}`: {}", word.escape_debug(), none_of(*of))]
    NoVm {
        /// The user's word.
        word: String,
        /// Number of VMs on the host.
        of: usize,
    },
    /// The user's word selects several VMs.
    #[error("`{}` means {} VMs: give one of {}", word.escape_debug(), ids.len(), listed(ids))]
    SeveralVms {
        /// The user's word.
        word: String,
        /// The selected VMs.
        ids: Vec<VmId>,
    },
    /// The VM has ended.
    #[error("VM {vm} has ended")]
    Gone {
        /// The VM.
        vm: VmId,
    },
    /// KVM can switch VMs, but this VM's directory has no `paging_mode` (yet).
    #[error("VM {vm} has no file paging_mode: the VM is being made, or is ending; try again")]
    NoFile {
        /// The VM.
        vm: VmId,
    },
    /// The host's KVM is unmodified and has one mode for all VMs.
    #[error(
        "this KVM has one paging mode for all VMs ({}: {kvm}) and cannot switch a VM: build modules that can by `make kernel` in Bifold's repository, and load them",
        mode.map_or("unknown", Mode::name)
    )]
    OneModeForAll {
        /// The mode of all VMs.
        mode: Option<Mode>,
        /// The modules and parameters that decide the mode.
        kvm: String,
    },
    /// KVM did not switch the VM.
    #[error("VM {vm} was not switched to {} mode: {refusal}{}", to.name(), hint(hardware))]
    Refused {
        /// The VM.
        vm: VmId,
        /// The requested mode.
        to: Mode,
        /// KVM's reason.
        refusal: Refusal,
        /// The vendor module's parameter, if it explains the refusal.
        hardware: Option<String>,
    },
}

fn none_of(vms: usize) -> String {
    const GIVE: &str = "give a process id, a PID-FD or a name";
    match vms {
        0 => "no VM is running here".into(),
        1 => format!("{GIVE}; `bifold mode` shows the one VM there is"),
        n => format!("{GIVE}; `bifold mode` lists the {n} VMs there are"),
    }
}

fn listed(ids: &[VmId]) -> String {
    ids.iter().map(VmId::to_string).collect::<Vec<_>>().join(", ")
}

fn hint(hardware: &Option<String>) -> String {
    hardware.as_ref().map_or(String::new(), |h| format!("; here: {h}, which allows only shadow mode"))
}

impl HostError {
    pub(crate) fn io(path: &Path, source: io::Error) -> HostError {
        match source.kind() {
            io::ErrorKind::PermissionDenied => HostError::NotRoot { path: path.into() },
            _ => HostError::Io { path: path.into(), source },
        }
    }

    /// Whether this machine, or this user's rights, lack something (exit status 77).
    pub fn cannot_work_here(&self) -> bool {
        use HostError::*;
        match self {
            NoKvm { .. } | NoVendor { .. } | NoDebugfs { .. } | NotRoot { .. } | OneModeForAll { .. } => true,
            Refused { refusal, .. } => matches!(refusal, Refusal::NotRoot | Refusal::Forbidden),
            Io { .. } | NoCpus { .. } | NoVm { .. } | SeveralVms { .. } | Gone { .. } | NoFile { .. } => {
                false
            }
        }
    }
}

/// KVM's answer to a switch that it refused, or why KVM was not asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// EINVAL.
    UnknownMode,
    /// EOPNOTSUPP, and the reason if KVM tells it.
    Never(Option<Obstacle>),
    /// EBUSY, and the reason if KVM tells it.
    NotNow(Option<Obstacle>),
    /// ETIMEDOUT.
    TimedOut,
    /// EINTR.
    Interrupted,
    /// ENODEV, ENOENT.
    Gone,
    /// EACCES.
    NotRoot,
    /// EPERM.
    Forbidden,
    /// ENOMEM.
    NoMemory,
    /// KVM was not asked: a cgroup leaves too little memory for a stay.
    NoRoom(Shortage),
    /// Any other error.
    Other(io::Error),
}

/// ERESTARTSYS, a number inside the kernel that no user header has.
const ERESTARTSYS: i32 = 512;

impl Refusal {
    /// The refusal that an error of the write stands for. `obstacle` is what KVM says afterwards would refuse
    /// the switch.
    pub(crate) fn of(e: &io::Error, obstacle: Option<&Obstacle>) -> Refusal {
        let Some(number) = e.raw_os_error() else {
            return Refusal::Other(io::Error::new(e.kind(), e.to_string()));
        };
        match Errno::from_raw_os_error(number) {
            Errno::INVAL => Refusal::UnknownMode,
            // An obstacle of the other kind came after the refusal.
            Errno::OPNOTSUPP => Refusal::Never(obstacle.filter(|o| o.lasts() != Some(false)).cloned()),
            Errno::BUSY => Refusal::NotNow(obstacle.filter(|o| o.lasts() != Some(true)).cloned()),
            Errno::TIMEDOUT => Refusal::TimedOut,
            Errno::INTR => Refusal::Interrupted,
            _ if number == ERESTARTSYS => Refusal::Interrupted,
            Errno::NODEV | Errno::NOENT => Refusal::Gone,
            Errno::ACCESS => Refusal::NotRoot,
            Errno::PERM => Refusal::Forbidden,
            Errno::NOMEM => Refusal::NoMemory,
            _ => Refusal::Other(io::Error::from_raw_os_error(number)),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            Refusal::UnknownMode => {
                "KVM does not know the mode; were its modules built by this version's `make kernel`?"
            }
            Refusal::Never(Some(o)) => return write!(f, "never (EOPNOTSUPP): {o}; {}", o.remedy()),
            Refusal::NotNow(Some(o)) => return write!(f, "not now (EBUSY): {o}; {}", o.remedy()),
            Refusal::Never(None) => {
                "this VM can never run in that mode, or this hardware cannot; the kernel log says why (dmesg)"
            }
            Refusal::NotNow(None) => {
                "not now: the VM is doing something that allows no switch, such as being a hypervisor itself; the kernel log says what (dmesg); try again later"
            }
            Refusal::TimedOut => {
                "its vCPUs did not stop in time, and nothing has changed; is the host overloaded, or a thread of the VM stopped? Try again later"
            }
            Refusal::Interrupted => "the request was interrupted, and nothing has changed",
            Refusal::Gone => "it is ending",
            Refusal::NotRoot => "only root may; run the command with sudo",
            Refusal::Forbidden => {
                "the kernel forbids it: a switch takes CAP_SYS_ADMIN, and a kernel that is not locked down (/sys/kernel/security/lockdown; Secure Boot locks it)"
            }
            Refusal::NoMemory => {
                "there is too little memory for the switch (ENOMEM), and nothing has changed; free memory of the host, or raise memory.max of the VM's cgroup"
            }
            Refusal::NoRoom(shortage) => {
                return write!(f, "not tried (room): {shortage}; {}", Shortage::REMEDY);
            }
            Refusal::Other(e) => return write!(f, "{e}"),
        };
        f.write_str(words)
    }
}
