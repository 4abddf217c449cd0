// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Switching a VM's paging mode.

use crate::paging::{MODE_FILE, Paging, PagingStats, State};
use crate::paging_files::write_mode;
use crate::vm::Vm;
use crate::{Host, HostError, Refusal};
use bifold_mmu::Mode;
use std::fs::OpenOptions;
use std::io;
use std::time::{Duration, Instant};

/// What came of a switch: the VM is in the mode asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    /// The mode asked for.
    pub to: Mode,
    /// What had to be done for it.
    pub happened: Happened,
    /// How long the request took.
    pub wall: Duration,
    /// The figures afterwards.
    pub stats: PagingStats,
}

/// What a request did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// It switched the VM; the figures of the last switch are this one's.
    Switched,
    /// The VM was in that mode already.
    Nothing,
    /// The VM was switched, by others too: the figures of the last switch may be theirs.
    Crowded,
}

impl Host {
    /// Switches a VM. Returns when all of its vCPUs run in the mode.
    pub fn switch(&self, vm: &Vm, to: Mode) -> Result<Switch, HostError> {
        let dir = self.vm_dir(vm.id);
        let before = Paging::read(&dir);
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

    /// What an error of the write means for the user.
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
        let refusal = Refusal::of(&e);
        // Whatever the error was: the file goes when the VM does.
        if matches!(refusal, Refusal::Gone) || !dir.join(MODE_FILE).exists() {
            return HostError::Gone { vm: id };
        }
        // The usual reason why a VM cannot ever is one that can be seen.
        let shadow_only = self.kvm().ok().filter(|kvm| kvm.host_mode() == Some(Mode::Shadow));
        let hardware = shadow_only.filter(|_| matches!(refusal, Refusal::Never)).map(|kvm| kvm.describe());
        HostError::Refused { vm: id, to, refusal, hardware }
    }
}

pub(crate) fn happened(before: &Paging, after: &PagingStats, to: Mode) -> Happened {
    let done = before.stats().switches().zip(after.switches()).map(|(b, a)| a.saturating_sub(b));
    match done {
        Some(0) => Happened::Nothing,
        Some(1) => Happened::Switched,
        Some(_) => Happened::Crowded,
        // Without counts, by what the VM's mode was.
        None if before.state() == Some(State::In(to)) => Happened::Nothing,
        None => Happened::Switched,
    }
}
