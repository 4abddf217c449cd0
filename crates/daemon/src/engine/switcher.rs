// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an interval of a VM leads to: decides, switches, and gives back. All that the daemon does to a VM's
//! mode is here.

use crate::config::Config;
use crate::homes::{Home, Homes, has_ended};
use crate::log::Log;
use crate::pilot::{Choice, Verdict};
use crate::record::{DecisionLine, Recorder};
use crate::status::VmStatus;
use crate::vm::mode::{Done, ModeHalf, NotSwitched, ObstacleCheck};
use bifold_base::with_causes;
use bifold_host::held::HeldError;
use bifold_host::{Happened, HostError, Mode, Refusal, State, Switch, VmId};
use bifold_live::{Interval, IntervalRow, Observation, Watch};
use std::collections::BTreeMap;
use std::time::Duration;

/// Time after which a request that KVM refused is tried again.
const AGAIN: Duration = Duration::from_secs(10);

/// What may be in trouble without the daemon's ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The journal of modes.
    Journal,
    /// The recording.
    Recording,
    /// The file of metrics.
    Metrics,
    /// How memory is divided.
    Memory,
}

/// What the engine needs to switch a VM, and to say so.
pub struct Switcher {
    pub watch: Watch,
    pub homes: Homes,
    pub recorder: Option<Recorder>,
    pub log: Log,
    pub trouble: BTreeMap<Source, String>,
}

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
pub enum Return {
    /// The VM was not away, or has ended.
    Nothing,
    /// The VM is in its own mode.
    Back(String),
    /// The VM could not be given back.
    Away(String),
}

impl Switcher {
    /// Finds the rule of a VM that has none yet, or was renamed.
    pub fn find_rule(&mut self, vm: &mut ModeHalf, config: &Config) {
        let Some(watched) = self.watch.vm(vm.id) else { return };
        if vm.has_rule_for(watched.name.as_deref()) {
            return;
        }
        if let Some(text) = vm.take_rule(watched, config, self.homes.get(vm.id).is_some()) {
            vm.tell(&mut self.log, &text);
        }
    }

    /// Takes an interval, records it, and carries out what is decided.
    pub fn interval(&mut self, vm: &mut ModeHalf, interval: &Interval, config: &Config) {
        self.find_rule(vm, config);
        let Some(watched) = self.watch.vm(vm.id) else { return };
        let seen = Observation::of(interval);
        if let Some(recorder) = &mut self.recorder {
            recorder.reading(&IntervalRow::observed(self.log.time, watched, interval, &seen));
        }
        vm.count(&seen, interval);
        self.see_stays(vm);
        let choice = vm.interval(&seen);
        if let Some(text) = vm.new_missing() {
            vm.tell(&mut self.log, &text);
        }
        if let Some(choice) = choice {
            self.decided(vm, choice);
        }
        self.look_at_room(vm);
    }

    /// Carries a decision out, and writes down what became of it.
    fn decided(&mut self, vm: &mut ModeHalf, choice: Choice) {
        // The mode as KVM knows it.
        let to = choice.decision.mode.switchable();
        if let Some(to) = to.filter(|_| choice.verdict == Verdict::Switch) {
            self.look(vm, to);
        }
        vm.totals.decisions += 1;
        let may_not = to.and_then(|to| vm.may_not(to, self.log.up));
        let done = match (choice.verdict, to) {
            (Verdict::Stay, _) => Done::Stayed,
            (_, None) => Done::NotSwitched(NotSwitched::NoMode(choice.decision.mode.words())),
            (Verdict::Switch, Some(to)) => {
                may_not.unwrap_or_else(|| self.switch(vm, to).unwrap_or_else(Done::NotSwitched))
            }
            (Verdict::TooEarly { left_s }, _) => Done::NotSwitched(NotSwitched::TooEarly(left_s)),
            (Verdict::TooMany { switches }, _) => Done::NotSwitched(NotSwitched::TooMany(switches)),
        };
        let line = DecisionLine {
            schema: DecisionLine::schema(),
            time: self.log.time,
            vm: vm.id.to_string(),
            name: vm.name.clone(),
            policy: vm.policy.clone().unwrap_or_default(),
            now: choice.now.name().into(),
            wants: choice.decision.mode.name().into(),
            verdict: choice.verdict.word().into(),
            done: done.to_string(),
            why: choice.decision.why.clone(),
        };
        let text = format!("{} mode, wants {}: {} ({})", line.now, line.wants, line.done, line.why);
        // Every decision is recorded. The log has those that differ from the last.
        let news = vm.is_news(choice.decision.mode, &done);
        vm.remember(self.log.time, text.clone(), choice);
        if let Some(recorder) = &mut self.recorder {
            recorder.line(&line);
        }
        if news {
            vm.say(&mut self.log, &text);
        }
    }

    /// Looks whether KVM would refuse a switch that a VM's policy wants, if it is time to.
    fn look(&mut self, vm: &mut ModeHalf, to: Mode) {
        let up = self.log.up;
        if vm.wants_look(to, up) {
            let paging = self.watch.host().paging(vm.id);
            vm.look = Some(ObstacleCheck::at(&paging, to, up, vm.look.as_ref()));
        }
    }

    /// Switches a VM because its policy wants that, or because a stay has to end. The error says why it was
    /// not.
    pub fn switch(&mut self, vm: &mut ModeHalf, to: Mode) -> Result<Done, NotSwitched> {
        let (id, started) = (vm.id, vm.started);
        // Names are looked at every ten seconds; a VM with another name may have another rule.
        let name = self.watch.host().process(id.thread).name;
        if name.is_some() && name != vm.name {
            return Err(NotSwitched::Renamed);
        }
        let own = match self.watch.host().paging(id).state() {
            Some(State::In(mode)) => mode,
            Some(State::To(_)) => return Err(NotSwitched::Switching),
            None => return Err(self.unreadable(vm)),
        };
        // Before the switch, so that a daemon that dies in between leaves a note.
        let home = self.homes.get(id).unwrap_or(Home { mode: own, started });
        if let Err(e) = self.homes.keep(id, home) {
            let text = format!("{}; no VM is switched whose mode cannot be written down", with_causes(&e));
            self.trouble(Source::Journal, Some(text));
            vm.again = self.log.up + AGAIN;
            return Err(NotSwitched::Unwritten);
        }
        self.trouble(Source::Journal, None);
        let switched = self.request(id, Some(vm), to, started);
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
    fn unreadable(&self, vm: &mut ModeHalf) -> NotSwitched {
        vm.cannot = self.only_observes();
        vm.again = self.log.up + AGAIN;
        vm.cannot.clone().map_or(NotSwitched::Unreadable, NotSwitched::Answer)
    }

    /// What is known of the mode of a VM.
    pub fn status_of(&self, vm: &ModeHalf) -> VmStatus {
        let state = self.watch.vm(vm.id).and_then(|w| w.state());
        vm.status(state, self.homes.get(vm.id).map(|h| h.mode), self.log.up)
    }

    /// Why no VM of this host can be switched.
    pub fn only_observes(&self) -> Option<String> {
        let kvm = self.watch.kvm();
        kvm.default.is_none().then(|| {
            format!(
                "this KVM has one paging mode for all VMs ({}): `make kernel` builds modules that switch",
                kvm.describe()
            )
        })
    }

    /// Asks KVM for a mode. `started` is the start of the VM's process: another process's VM is left alone.
    /// `vm` is `None` for a VM that is not seen yet.
    fn request(
        &mut self,
        id: VmId,
        vm: Option<&mut ModeHalf>,
        to: Mode,
        started: u64,
    ) -> Result<Switch, NotSwitched> {
        let host = self.watch.host();
        let found = host.vm(id).ok_or(NotSwitched::Ended)?;
        if host.started(found.pid).unwrap_or(0) != started {
            return Err(NotSwitched::Replaced);
        }
        let was = found.paging.state();
        let answer = host.switch(&found, to);
        let Some(vm) = vm else { return answer.map_err(|e| NotSwitched::Answer(e.to_string())) };
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
                vm.again = self.log.up + AGAIN;
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

    /// Gives a VM back to its own mode; `vm` is `None` if it is not seen yet.
    pub fn give_back(&mut self, id: VmId, mut vm: Option<&mut ModeHalf>, why: &str) -> Return {
        let Some(home) = self.homes.get(id) else { return Return::Nothing };
        match self.request(id, vm.as_deref_mut(), home.mode, home.started) {
            Ok(_) => {
                self.forget(id);
                if let Some(vm) = &mut vm {
                    vm.wants_home = false;
                }
                let text = format!("is back in its own mode, {}: {why}", home.mode.name());
                Return::Back(self.tell(id, vm, &text))
            }
            // There is nothing to give back.
            Err(_) if has_ended(self.watch.host(), id, home.started) => {
                self.forget(id);
                Return::Nothing
            }
            Err(refused) => {
                let text = format!("is not back in its own mode, {}: {refused}", home.mode.name());
                Return::Away(self.tell(id, vm, &text))
            }
        }
    }

    fn tell(&mut self, id: VmId, vm: Option<&mut ModeHalf>, text: &str) -> String {
        if let Some(vm) = vm {
            return vm.tell(&mut self.log, text);
        }
        let line = format!("VM {id} {text}");
        self.log.say(Some(id), line.clone());
        line
    }

    /// Gives back the VMs that are away without a rule to act.
    pub fn give_back_others(&mut self, mut modes: BTreeMap<VmId, &mut ModeHalf>) {
        for id in self.homes.vms() {
            let Some(vm) = modes.get_mut(&id).filter(|vm| vm.again <= self.log.up) else { continue };
            let why = match (vm.is_ours(), vm.wants_home) {
                (_, true) => "asked to undo",
                (false, _) => "no rule switches it",
                (true, false) => continue,
            };
            if matches!(self.give_back(id, Some(&mut **vm), why), Return::Away(_)) {
                vm.again = self.log.up + AGAIN;
            }
        }
    }

    /// Forgets the modes of VMs that have ended.
    pub fn forget_ended(&mut self) {
        let forgotten = self.homes.forget_ended(self.watch.host());
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

    /// Writes the interval's lines.
    pub fn write_recording(&mut self) {
        if let Some(written) = self.recorder.as_mut().map(Recorder::write) {
            let text = written
                .err()
                .map(|e| format!("{}; the recording lacks what it cannot take", with_causes(&e)));
            self.trouble(Source::Recording, text);
        }
    }

    /// Notes an error of this source, or with `None` that the error is over. No decision depends on the
    /// error. The log gets changes alone.
    pub fn trouble(&mut self, of: Source, text: Option<String>) {
        let before = match &text {
            Some(text) => self.trouble.insert(of, text.clone()),
            None => self.trouble.remove(&of),
        };
        if let Some(text) = text.filter(|t| before.as_ref() != Some(t)) {
            self.log.say(None, text);
        }
    }
}
