// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of a live host: what is wrong, and what to do.

use crate::vm_id::VmId;
use bifold_mmu::Mode;
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why something cannot be told of the host, or done to it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The module kvm is not there.
    #[error(
        "this machine has no KVM ({} does not exist): load kvm_amd or kvm_intel; if that fails, switch virtualization on in the firmware, or, inside a VM, in that VM's settings",
        path.display()
    )]
    NoKvm {
        /// Where it would be.
        path: PathBuf,
    },
    /// The module of the processor's vendor is not there.
    #[error(
        "KVM is loaded without a module for this processor ({} does not exist): load kvm_amd or kvm_intel",
        path.display()
    )]
    NoVendor {
        /// What it would make.
        path: PathBuf,
    },
    /// debugfs is not mounted.
    #[error("debugfs is not mounted: as root, mount -t debugfs none {}", path.display())]
    NoDebugfs {
        /// Its place.
        path: PathBuf,
    },
    /// Only root may read the file.
    #[error("cannot read {}: only root may; run the command with sudo", path.display())]
    NotRoot {
        /// What.
        path: PathBuf,
    },
    /// Something else in the file system.
    #[error("cannot read {}", path.display())]
    Io {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Nothing of that name.
    #[error("no VM `{}`: {}", word.escape_debug(), none_of(*of))]
    NoVm {
        /// The user's word.
        word: String,
        /// VMs there are.
        of: usize,
    },
    /// More than one of that name.
    #[error("`{}` means {} VMs: give one of {}", word.escape_debug(), ids.len(), listed(ids))]
    SeveralVms {
        /// The user's word.
        word: String,
        /// Those that it means.
        ids: Vec<VmId>,
    },
    /// The VM has ended.
    #[error("VM {vm} has ended")]
    Gone {
        /// Which.
        vm: VmId,
    },
    /// KVM switches VMs, but has no file for it in this VM's directory.
    #[error("VM {vm} has no file paging_mode: the VM is being made, or is ending; try again")]
    NoFile {
        /// Which.
        vm: VmId,
    },
    /// An unmodified KVM.
    #[error(
        "this KVM has one paging mode for all VMs ({}: {kvm}) and cannot switch a VM: build modules that can by `make kernel` in Bifold's repository, and load them",
        mode.map_or("unknown", Mode::name)
    )]
    OneModeForAll {
        /// That mode.
        mode: Option<Mode>,
        /// What decides it.
        kvm: String,
    },
    /// KVM did not switch the VM.
    #[error("VM {vm} was not switched to {} mode: {refusal}{}", to.name(), hint(hardware))]
    Refused {
        /// Which.
        vm: VmId,
        /// The mode asked for.
        to: Mode,
        /// Why.
        refusal: Refusal,
        /// What the vendor module says, if that explains it.
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

    /// Whether it is this machine, or this user's rights on it, that lack something.
    pub fn cannot_work_here(&self) -> bool {
        use HostError::*;
        match self {
            NoKvm { .. } | NoVendor { .. } | NoDebugfs { .. } | NotRoot { .. } | OneModeForAll { .. } => true,
            Refused { refusal, .. } => matches!(refusal, Refusal::NotRoot | Refusal::Forbidden),
            Io { .. } | NoVm { .. } | SeveralVms { .. } | Gone { .. } | NoFile { .. } => false,
        }
    }
}

/// What KVM answered instead of switching.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// EINVAL.
    UnknownMode,
    /// EOPNOTSUPP.
    Never,
    /// EBUSY.
    NotNow,
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
    /// Anything else.
    Other(io::Error),
}

/// ERESTARTSYS, which the kernel keeps to itself.
const ERESTARTSYS: i32 = 512;

impl Refusal {
    /// What an error of the write means.
    pub(crate) fn of(e: &io::Error) -> Refusal {
        let Some(number) = e.raw_os_error() else {
            return Refusal::Other(io::Error::new(e.kind(), e.to_string()));
        };
        match Errno::from_raw_os_error(number) {
            Errno::INVAL => Refusal::UnknownMode,
            Errno::OPNOTSUPP => Refusal::Never,
            Errno::BUSY => Refusal::NotNow,
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
            Refusal::Never => {
                "this VM can never run in that mode, or this hardware cannot; the kernel log says why (dmesg)"
            }
            Refusal::NotNow => {
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
            Refusal::NoMemory => "the host has too little memory for the switch, and nothing has changed",
            Refusal::Other(e) => return write!(f, "{e}"),
        };
        f.write_str(words)
    }
}
