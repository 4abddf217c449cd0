// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What users ask of the daemon about a VM: its mode and its memory together.

use super::Engine;
use super::act::Return;
use super::vm::{Event, Hold, Vm};
use crate::error::DaemonError;
use crate::status::Explanation;
use bifold_host::{HostError, VmId, word_rank};
use std::collections::BTreeSet;
use std::time::Duration;

impl Engine {
    /// Holds a VM in its mode and its memory as it is, for some seconds from `now` (the time since the start)
    /// or until [`Engine::release`].
    ///
    /// # Errors
    /// If the word means no VM or several, or the seconds are no time.
    pub fn hold(&mut self, word: &str, seconds: Option<f64>, now: Duration) -> Result<String, DaemonError> {
        let meant = self.meant(word)?;
        let end = |s| Duration::try_from_secs_f64(s).ok().and_then(|length| now.checked_add(length));
        let until = match seconds.map(|s| (s, end(s))) {
            Some((s, None)) => {
                return Err(DaemonError::Refused(format!("{s} s is no time for which a VM can be held")));
            }
            until => until.and_then(|(_, until)| until),
        };
        let hold = Hold { until };
        if let Some(vm) = meant.vm.and_then(|id| self.vms.get_mut(&id)) {
            vm.hold = Some(hold);
        }
        meant.memory.iter().for_each(|id| self.memory.hold(*id, hold));
        let until = seconds.map_or("until it is released".into(), |s| format!("for {s} s"));
        Ok(match (meant.vm, meant.memory) {
            (Some(id), None) => self.event(id, format!("is held in its mode {until}")),
            (Some(id), Some(_)) => {
                self.event(id, format!("is held in its mode, and its memory as it is, {until}"))
            }
            (None, Some(id)) => self.of_memory(id, &format!("is held with the memory that it has {until}")),
            (None, None) => return Err(no_such_vm(word)),
        })
    }

    /// Lets the policies decide again over a VM that was held.
    ///
    /// # Errors
    /// If the word means no VM, or several.
    pub fn release(&mut self, word: &str) -> Result<String, DaemonError> {
        let meant = self.meant(word)?;
        let was = meant.vm.and_then(|id| self.vms.get_mut(&id)).and_then(|vm| {
            vm.wants_home = false;
            vm.hold.take()
        });
        let had_memory = meant.memory.is_some_and(|id| self.memory.release(id));
        let text = if was.is_some() || had_memory { "is released" } else { "was not held" };
        Ok(match (meant.vm, meant.memory) {
            (Some(id), _) => self.event(id, text.into()),
            (None, Some(id)) => self.of_memory(id, text),
            (None, None) => return Err(no_such_vm(word)),
        })
    }

    /// Gives a VM, or all VMs, back to their own modes, gives their memory back, and holds them so.
    ///
    /// # Errors
    /// If the word means no VM or several, or KVM refuses.
    pub fn undo(&mut self, word: Option<&str>) -> Result<Vec<String>, DaemonError> {
        let (vms, guests) = match word {
            Some(word) => {
                let meant = self.meant(word)?;
                (meant.vm.into_iter().collect::<Vec<_>>(), meant.memory.into_iter().collect())
            }
            None => (self.vms.keys().copied().collect(), self.memory.all()),
        };
        let mut told = Vec::new();
        let mut refused = Vec::new();
        for id in vms {
            if let Some(vm) = self.vms.get_mut(&id) {
                vm.hold = Some(Hold { until: None });
                vm.wants_home = true;
            }
            match self.give_back(id, "asked to undo") {
                Return::Back(text) => told.push(text),
                Return::Nothing => told.push(self.event(id, "is in its own mode and held".into())),
                Return::Away(text) => refused.push(text),
            }
        }
        for id in guests {
            if let Some(text) = self.memory.undo(id) {
                told.push(self.of_memory(id, text));
            }
        }
        if refused.is_empty() { Ok(told) } else { Err(DaemonError::Refused(refused.join("\n"))) }
    }

    /// The last events of a VM, oldest first.
    ///
    /// # Errors
    /// If the word means no VM, or several.
    pub fn explain(&self, word: &str) -> Result<Explanation, DaemonError> {
        let meant = self.meant(word)?;
        let vm = meant.vm.and_then(|id| Some((id, self.vms.get(&id)?)));
        let memory = meant.memory.and_then(|id| self.memory.explain(id, &self.config, self.up));
        let (memory, more) = memory.unzip();
        let mut lately: Vec<Event> = vm.iter().flat_map(|(_, vm)| vm.lately.iter().cloned()).collect();
        lately.extend(more.into_iter().flatten());
        lately.sort_by(|a, b| a.time.total_cmp(&b.time));
        Ok(Explanation { vm: vm.map(|(id, vm)| self.status_of(id, vm)), memory, lately })
    }

    /// Notes something about a guest's memory that a user asked for. Returns the log's line.
    fn of_memory(&mut self, id: (u32, u64), text: &str) -> String {
        let said = self.memory.note(id, self.time, text);
        let line = said.as_ref().map(|said| said.text.clone()).unwrap_or_default();
        self.said(said);
        line
    }

    /// What a word means, for modes and for memory: both only of one process. Identifiers come before names
    /// in both, see [`bifold_host::named`].
    fn meant(&self, word: &str) -> Result<Meant, DaemonError> {
        let rank = |(id, vm): (&VmId, &Vm)| {
            Some((word_rank(word, Some(*id), vm.pid, vm.name.as_deref())?, (*id, vm.pid)))
        };
        let modes: Vec<_> = self.vms.iter().filter_map(rank).collect();
        let memory = self.memory.ranks(word);
        let best = modes.iter().map(|(rank, _)| *rank).chain(memory.iter().map(|(rank, _)| *rank)).min();
        let vms: Vec<(VmId, u32)> = modes.into_iter().filter(|m| Some(m.0) == best).map(|m| m.1).collect();
        let guests: Vec<(u32, u64)> = memory.into_iter().filter(|m| Some(m.0) == best).map(|m| m.1).collect();
        match (&vms[..], &guests[..]) {
            ([], []) => Err(no_such_vm(word)),
            ([(id, _)], []) => Ok(Meant { vm: Some(*id), memory: None }),
            ([], [memory]) => Ok(Meant { vm: None, memory: Some(*memory) }),
            ([(id, pid)], [memory]) if *pid == memory.0 => Ok(Meant { vm: Some(*id), memory: Some(*memory) }),
            ([_, _, ..], _) => {
                let ids = vms.iter().map(|(id, _)| *id).collect();
                Err(DaemonError::Refused(HostError::SeveralVms { word: word.into(), ids }.to_string()))
            }
            _ => {
                let pids: BTreeSet<u32> =
                    vms.iter().map(|vm| vm.1).chain(guests.iter().map(|g| g.0)).collect();
                let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                let word = word.escape_debug();
                Err(DaemonError::Refused(format!(
                    "`{word}` means several VMs: give one of the process ids {}",
                    pids.join(", ")
                )))
            }
        }
    }
}

/// What a user's word means.
struct Meant {
    vm: Option<VmId>,
    memory: Option<(u32, u64)>,
}

fn no_such_vm(word: &str) -> DaemonError {
    DaemonError::Refused(format!(
        "the daemon sees no VM `{}`: `bifold ctl status` lists them",
        word.escape_debug()
    ))
}
