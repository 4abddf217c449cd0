// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Switches VMs, and gives them back. All that the daemon does to a VM is here.

use super::done::{Done, NotSwitched};
use super::obstacle::ObstacleCheck;
use super::{AGAIN, Engine, Source};
use crate::homes::{Home, has_ended};
use bifold_base::with_causes;
use bifold_host::Mode;
use bifold_host::held::HeldError;
use bifold_host::{Happened, HostError, Refusal, State, Switch, VmId};

/// Whether KVM's answer will be the same at every time.
fn is_final(error: &HostError) -> bool {
    use Refusal::*;
    match error {
        HostError::OneModeForAll { .. } | HostError::NotRoot { .. } => true,
        HostError::Refused { refusal, .. } => matches!(refusal, Never(_) | UnknownMode | NotRoot | Forbidden),
        _ => false,
    }
}

/// What became of giving a VM back, with the log's line.
pub(super) enum Return {
    /// The VM was not away, or has ended.
    Nothing,
    /// The VM is in its own mode.
    Back(String),
    /// The VM could not be given back.
    Away(String),
}

impl Engine {
    /// Looks whether KVM would refuse a switch that a VM's policy wants, if it is time to.
    pub(super) fn look(&mut self, id: VmId, to: Mode) {
        let up = self.up;
        let Some(vm) = self.vms.get_mut(&id).filter(|vm| vm.wants_look(to, up)) else { return };
        let paging = self.watch.host().paging(id);
        vm.look = Some(ObstacleCheck::at(&paging, to, up, vm.look.as_ref()));
    }

    /// Switches a VM because its policy wants that. The error says why it was not.
    pub(super) fn switch(&mut self, id: VmId, to: Mode) -> Result<Done, NotSwitched> {
        let Some(vm) = self.vms.get(&id) else { return Err(NotSwitched::Ended) };
        let started = vm.started;
        // Names are looked at every ten seconds; a VM with another name may have another rule.
        let name = self.watch.host().process(id.thread).name;
        if name.is_some() && name != vm.name {
            return Err(NotSwitched::Renamed);
        }
        let own = match self.watch.host().paging(id).state() {
            Some(State::In(mode)) => mode,
            Some(State::To(_)) => return Err(NotSwitched::Switching),
            None => return Err(self.unreadable(id)),
        };
        // Before the switch, so that a daemon that dies in between leaves a note.
        let home = self.homes.get(id).unwrap_or(Home { mode: own, started });
        if let Err(e) = self.homes.keep(id, home) {
            let text = format!("{}; no VM is switched whose mode cannot be written down", with_causes(&e));
            self.trouble(Source::Journal, Some(text));
            if let Some(vm) = self.vms.get_mut(&id) {
                vm.again = self.up + AGAIN;
            }
            return Err(NotSwitched::Unwritten);
        }
        self.trouble(Source::Journal, None);
        let switched = self.request(id, to, started);
        let at_home = self.watch.host().paging(id).state() == Some(State::In(home.mode));
        if at_home {
            self.forget(id);
        }
        let switch = switched?;
        Ok(match switch.happened {
            Happened::Nothing => Done::WasThere,
            Happened::Switched | Happened::Crowded => Done::Switched(switch.wall),
        })
    }

    /// Why a VM without a readable mode is not switched.
    fn unreadable(&mut self, id: VmId) -> NotSwitched {
        let (always, up) = (self.only_observes(), self.up);
        if let Some(vm) = self.vms.get_mut(&id) {
            vm.cannot.clone_from(&always);
            vm.again = up + AGAIN;
        }
        always.map_or(NotSwitched::Unreadable, NotSwitched::Answer)
    }

    /// Asks KVM for a mode. `started` is the start of the VM's process: another process's VM is left alone.
    fn request(&mut self, id: VmId, to: Mode, started: u64) -> Result<Switch, NotSwitched> {
        let host = self.watch.host();
        let vm = host.vm(id).ok_or(NotSwitched::Ended)?;
        if host.started(vm.pid).unwrap_or(0) != started {
            return Err(NotSwitched::Replaced);
        }
        let was = vm.paging.state();
        let answer = host.switch(&vm, to);
        let up = self.up;
        let Some(vm) = self.vms.get_mut(&id) else {
            return answer.map_err(|e| NotSwitched::Answer(e.to_string()));
        };
        match answer {
            Ok(switch) => {
                if was != Some(State::In(to)) {
                    vm.totals.switched += 1;
                    vm.switches.by_daemon();
                }
                Ok(switch)
            }
            Err(e) => {
                vm.totals.refused += 1;
                vm.again = up + AGAIN;
                let text = match &e {
                    HostError::Refused { refusal, .. } => refusal.to_string(),
                    e => e.to_string(),
                };
                if is_final(&e) {
                    vm.cannot = Some(text.clone());
                }
                Err(NotSwitched::Answer(text))
            }
        }
    }

    /// Gives a VM back to its own mode.
    pub(super) fn give_back(&mut self, id: VmId, why: &str) -> Return {
        let Some(home) = self.homes.get(id) else { return Return::Nothing };
        match self.request(id, home.mode, home.started) {
            Ok(_) => {
                self.forget(id);
                self.vms.entry(id).and_modify(|vm| vm.wants_home = false);
                Return::Back(self.event(id, format!("is back in its own mode, {}: {why}", home.mode.name())))
            }
            // There is nothing to give back.
            Err(_) if has_ended(self.watch.host(), id, home.started) => {
                self.forget(id);
                Return::Nothing
            }
            Err(refused) => {
                let text = format!("is not back in its own mode, {}: {refused}", home.mode.name());
                Return::Away(self.event(id, text))
            }
        }
    }

    /// Gives back the VMs that are away without a rule to act.
    pub(super) fn give_back_others(&mut self) {
        for id in self.homes.vms() {
            let Some(vm) = self.vms.get(&id).filter(|vm| vm.again <= self.up) else { continue };
            let why = match (vm.is_ours(), vm.wants_home) {
                (_, true) => "asked to undo",
                (false, _) => "no rule switches it",
                (true, false) => continue,
            };
            if matches!(self.give_back(id, why), Return::Away(_)) {
                if let Some(vm) = self.vms.get_mut(&id) {
                    vm.again = self.up + AGAIN;
                }
            }
        }
    }

    /// Forgets the modes of VMs that have ended.
    pub(super) fn forget_ended(&mut self) {
        let host = self.watch.host().clone();
        let forgotten = self.homes.forget_ended(&host);
        self.journal_written(forgotten);
    }

    fn forget(&mut self, id: VmId) {
        let forgotten = self.homes.forget(id);
        self.journal_written(forgotten);
    }

    fn journal_written(&mut self, written: Result<(), HeldError>) {
        if let Err(e) = written {
            self.trouble(Source::Journal, Some(with_causes(&e)));
        }
    }
}
