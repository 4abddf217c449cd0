// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The VMs of a host, by process. What the daemon remembers of a VM has two halves: the paging mode, by
//! KVM's identifier, and the memory, which is the process's.

pub mod memory;
pub mod mode;

use bifold_host::VmId;
use memory::MemoryHalf;
use mode::ModeHalf;
use std::collections::BTreeMap;
use std::time::Duration;

/// A process, and when it started in ticks since boot; 0 if procfs does not tell.
pub type ProcessId = (u32, u64);

/// That a user holds a half of a VM as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// Time since the daemon's start at which the hold ends; `None` if it does not end by itself.
    pub until: Option<Duration>,
}

impl Hold {
    /// Whether the hold has not ended yet.
    pub fn lasts(&self, up: Duration) -> bool {
        self.until.is_none_or(|until| until > up)
    }

    /// How long it lasts, in words.
    pub fn left(self, up: Duration) -> String {
        self.until
            .map_or("until released".into(), |until| format!("{:.0} s more", (until - up).as_secs_f64()))
    }
}

/// A VM.
#[derive(Default)]
struct Vm {
    /// A process rarely has several VMs of KVM. A guest that is emulated has none.
    modes: BTreeMap<VmId, ModeHalf>,
    /// `None` without a rule about memory.
    memory: Option<MemoryHalf>,
}

/// The VMs of a host.
#[derive(Default)]
pub struct Vms(BTreeMap<ProcessId, Vm>);

impl Vms {
    /// Takes a VM that is watched from now on. A VM that could not be read for a moment is the same VM: the
    /// counters behind its limits are kept.
    pub fn came(
        &mut self,
        id: VmId,
        (pid, started): ProcessId,
        new: impl FnOnce() -> ModeHalf,
    ) -> &mut ModeHalf {
        let before = self.0.values_mut().find_map(|vm| vm.modes.remove(&id));
        let mode = before.filter(|mode| started == 0 || mode.started == started).unwrap_or_else(new);
        self.0.entry((pid, mode.started)).or_default().modes.entry(id).or_insert(mode)
    }

    /// The halves about modes, by KVM's identifiers.
    pub fn modes(&self) -> BTreeMap<VmId, &ModeHalf> {
        self.0.values().flat_map(|vm| &vm.modes).map(|(id, mode)| (*id, mode)).collect()
    }

    /// All halves, to be changed: those about modes by KVM's identifiers, those about memory by process.
    pub fn halves(&mut self) -> (BTreeMap<VmId, &mut ModeHalf>, Vec<&mut MemoryHalf>) {
        let (mut modes, mut memories) = (BTreeMap::new(), Vec::new());
        for vm in self.0.values_mut() {
            modes.extend(vm.modes.iter_mut().map(|(id, mode)| (*id, mode)));
            memories.extend(&mut vm.memory);
        }
        (modes, memories)
    }

    /// Drops the halves about modes that are not to be kept, and VMs of which nothing is left.
    pub fn retain_modes(&mut self, mut keep: impl FnMut(&ModeHalf) -> bool) {
        self.0.values_mut().for_each(|vm| vm.modes.retain(|_, mode| keep(mode)));
        self.0.retain(|_, vm| !vm.modes.is_empty() || vm.memory.is_some());
    }

    /// The halves about memory, by process.
    pub fn memories(&self) -> impl Iterator<Item = &MemoryHalf> {
        self.0.values().filter_map(|vm| vm.memory.as_ref())
    }

    /// The same, to be changed.
    pub fn memories_mut(&mut self) -> impl Iterator<Item = &mut MemoryHalf> {
        self.0.values_mut().filter_map(|vm| vm.memory.as_mut())
    }

    /// What is known of the memory of a process.
    pub fn memory(&mut self, id: ProcessId) -> Option<&mut MemoryHalf> {
        self.0.get_mut(&id)?.memory.as_mut()
    }

    /// Takes a half about memory.
    pub fn put_memory(&mut self, memory: MemoryHalf) {
        let vm = self.0.entry(memory.process()).or_default();
        vm.memory = Some(memory);
    }

    /// Removes the half about the memory of a process.
    pub fn take_memory(&mut self, id: ProcessId) -> Option<MemoryHalf> {
        self.0.get_mut(&id)?.memory.take()
    }
}
