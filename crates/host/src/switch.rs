// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Switches a VM's paging mode.

use crate::paging::{MODE_FILE, Paging, PagingStats, State};
use crate::paging_files::write_mode;
use crate::vm::Vm;
use crate::{Host, HostError, Refusal};
use bifold_mmu::Mode;
use std::fs::OpenOptions;
use std::io;
use std::time::{Duration, Instant};

/// A successful request for a switch: the VM is in the requested mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    /// The requested mode.
    pub to: Mode,
    /// What the request did.
    pub happened: Happened,
    /// Wall time of the request.
    pub wall: Duration,
    /// KVM's figures after the request.
    pub stats: PagingStats,
}

/// What a request did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// The request switched the VM. The figures of the last switch are its own.
    Switched,
    /// The VM was already in that mode.
    Nothing,
    /// Other requests switched the VM at the same time, and the figures of the last switch may be theirs.
    Crowded,
}

impl Host {
    /// Switches a VM. Returns when all vCPUs run in the new mode. KVM is not asked for shadow paging where a
    /// cgroup leaves too little memory for a stay.
    pub fn switch(&self, vm: &Vm, to: Mode) -> Result<Switch, HostError> {
        let dir = self.vm_dir(vm.id);
        let before = Paging::read(&dir);
        if to == Mode::Shadow && before.state() == Some(State::In(Mode::Nested)) {
            if let Some(shortage) = self.shortage(vm.pid) {
                let refusal = Refusal::NoRoom(shortage);
                return Err(HostError::Refused { vm: vm.id, to, refusal, hardware: None });
            }
        }
        let file = OpenOptions::new().write(true).open(dir.join(MODE_FILE));
        let start = Instant::now();
        let written = file.and_then(|file| write_mode(&file, to));
        let wall = start.elapsed();
        if let Err(e) = written {
            return Err(self.refused(vm, to, e));
        }
        let stats = Paging::read(&dir).stats();
        Ok(Switch { to, happened: happened(&before, &stats, to), wall, stats })
    }

    /// The error for the user that an error of the write stands for.
    pub(crate) fn refused(&self, vm: &Vm, to: Mode, e: io::Error) -> HostError {
        let (id, dir) = (vm.id, self.vm_dir(vm.id));
        if matches!(vm.paging, Paging::HostWide) {
            return match self.kvm() {
                _ if !dir.is_dir() => HostError::Gone { vm: id },
                Ok(kvm) if kvm.default.is_some() => HostError::NoFile { vm: id },
                Ok(kvm) => HostError::OneModeForAll { mode: kvm.host_mode(), kvm: kvm.describe() },
                Err(e) => e,
            };
        }
        let paging = Paging::read(&dir);
        // What refuses a switch to the other direction is another's reason.
        let obstacle = paging.obstacle().filter(|(mode, _)| *mode == to).map(|(_, obstacle)| obstacle);
        let refusal = Refusal::of(&e, obstacle);
        // The file disappears with the VM, so a missing file means the VM's end, whatever the error is.
        if matches!(refusal, Refusal::Gone) || !dir.join(MODE_FILE).exists() {
            return HostError::Gone { vm: id };
        }
        // The usual reason for `Never` is visible: the module does not use nested paging.
        let shadow_only = self.kvm().ok().filter(|kvm| kvm.host_mode() == Some(Mode::Shadow));
        let hardware = shadow_only.filter(|_| matches!(refusal, Refusal::Never(_))).map(|kvm| kvm.describe());
        HostError::Refused { vm: id, to, refusal, hardware }
    }
}

pub(crate) fn happened(before: &Paging, after: &PagingStats, to: Mode) -> Happened {
    let done = before.stats().switches().zip(after.switches()).map(|(b, a)| a.saturating_sub(b));
    match done {
        Some(0) => Happened::Nothing,
        Some(1) => Happened::Switched,
        Some(_) => Happened::Crowded,
        // Without counts, the mode before the request decides.
        None if before.state() == Some(State::In(to)) => Happened::Nothing,
        None => Happened::Switched,
    }
}
