// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads all VMs, asks their pilots, and switches.
//!
//! What the engine guarantees, at every moment:
//!
//! - a VM that no rule with `act` fits, a VM of `never`, and a held VM are not switched, except back to their
//!   own modes;
//! - a VM's own mode is in the journal before the daemon first switches the VM;
//! - a VM whose rule is gone is given back, and tried again after [`AGAIN`] if KVM refuses;
//! - for a policy, KVM is not asked for a switch that it would refuse ([`obstacle`]). Giving a VM back is always
//!   tried.

mod act;
mod ask;
mod done;
mod obstacle;
mod vm;

pub use vm::Event;
pub(crate) use vm::Hold;

use crate::config::Config;
use crate::error::DaemonError;
use crate::homes::{Homes, has_ended};
use crate::memory::{LogLine, Memory, Place};
use crate::pilot::{Choice, Verdict};
use crate::record::{DecisionLine, Recorder};
use crate::status::{SCHEMA, Status};
use act::Return;
use bifold_base::with_causes;
use bifold_host::{Statistic, VmId};
use bifold_live::{Interval, IntervalRow, Measured, Observation, Watch};
use done::{Done, NotSwitched};
use std::collections::BTreeMap;
use std::time::Duration;
use vm::Vm;

/// Time after which a request that KVM refused is tried again.
const AGAIN: Duration = Duration::from_secs(10);
/// Number of a VM's intervals after which a missing counter is reported.
const TELL_MISSING: u64 = 5;

/// The daemon without its sockets and signals.
pub struct Engine {
    watch: Watch,
    config: Config,
    homes: Homes,
    recorder: Option<Recorder>,
    vms: BTreeMap<VmId, Vm>,
    memory: Memory,
    /// What happened since [`Engine::events`] was asked.
    events: Vec<Event>,
    /// Time of the present interval: seconds since 1970, and since the start.
    time: f64,
    up: Duration,
    intervals: u64,
    reading: Duration,
    trouble: BTreeMap<Source, String>,
}

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

impl Engine {
    /// An engine over a watched host. VMs that an earlier daemon left in another mode than their own are
    /// found in `homes`.
    ///
    /// # Errors
    /// If the recording cannot be opened.
    pub fn new(mut watch: Watch, config: Config, homes: Homes) -> Result<Engine, DaemonError> {
        let recorder = config.recording.as_ref().map(Recorder::open).transpose()?;
        watch.read_only(Measured::STATISTICS);
        let mut engine = Engine {
            watch,
            config,
            homes,
            recorder,
            vms: BTreeMap::new(),
            memory: Memory::default(),
            events: Vec::new(),
            time: 0.0,
            up: Duration::ZERO,
            intervals: 0,
            reading: Duration::ZERO,
            trouble: BTreeMap::new(),
        };
        engine.name_reporters();
        Ok(engine)
    }

    /// Has orders about the memory of VMs made at this place. Without, their memory is not looked at.
    pub fn order_at(&mut self, place: Option<Place>) {
        match place {
            Some(place) => self.memory.order_at(place),
            None => self.memory.refuse(),
        }
    }

    /// Tells the watch which sockets of reporters the configuration names.
    fn name_reporters(&mut self) {
        let config = self.config.clone();
        self.watch.report_from(move |vm| config.reporter(vm.id, vm.name.as_deref()));
    }

    /// Takes another configuration. VMs whose rules are gone are given back at the next tick.
    ///
    /// # Errors
    /// If the new recording cannot be opened: the old configuration stays.
    pub fn reload(&mut self, config: Config) -> Result<(), DaemonError> {
        if self.recorder.as_ref().map(Recorder::recording) != config.recording.as_ref() {
            self.recorder = config.recording.as_ref().map(Recorder::open).transpose()?;
        }
        if (config.interval_s, &config.estimator) != (self.config.interval_s, &self.config.estimator) {
            self.vms.values_mut().for_each(Vm::forget_policy);
        }
        self.memory.reload(&self.config, &config);
        self.config = config;
        self.vms.values_mut().for_each(Vm::forget_rule);
        self.name_reporters();
        Ok(())
    }

    /// Reads all VMs, decides, and switches. `clock` tells the time since the start and never jumps; `time`
    /// is the time since 1970 in seconds, and may jump.
    pub fn tick(&mut self, clock: &dyn Fn() -> Duration, time: f64) {
        let start = clock();
        (self.time, self.up) = (time, start);
        if self.intervals == 0 {
            let away = self.homes.vms();
            self.recorder.iter_mut().for_each(|r| r.start(time, &away));
        }
        let tick = self.watch.tick(clock);
        self.drop_ended();
        for id in &tick.came {
            self.came(*id);
        }
        for (id, interval) in &tick.intervals {
            self.interval(*id, interval);
        }
        self.give_back_others();
        if self.intervals == 0 || !tick.gone.is_empty() {
            self.forget_ended();
        }
        self.divide_memory();
        if let Some(written) = self.recorder.as_mut().map(Recorder::write) {
            let text = written
                .err()
                .map(|e| format!("{}; the recording lacks what it cannot take", with_causes(&e)));
            self.trouble(Source::Recording, text);
        }
        self.intervals += 1;
        self.reading = clock().saturating_sub(start);
    }

    /// Lets the policy of the VMs' memory decide, if it is time to.
    fn divide_memory(&mut self) {
        let (said, lines) = self.memory.tick(self.watch.host(), &self.config, self.up, self.time);
        if let Some(recorder) = &mut self.recorder {
            lines.iter().for_each(|line| recorder.line(line));
        }
        self.said(said);
        self.trouble(Source::Memory, self.memory.trouble());
    }

    fn said(&mut self, said: impl IntoIterator<Item = LogLine>) {
        let time = self.time;
        self.events.extend(said.into_iter().map(|LogLine { vm, text }| Event { time, vm, text }));
    }

    fn came(&mut self, id: VmId) {
        let Some(watched) = self.watch.vm(id) else { return };
        let started = self.watch.host().started(watched.pid).unwrap_or(0);
        // A VM that could not be read for a moment is the same VM: the counters behind its limits are kept.
        if self.vms.get(&id).is_none_or(|vm| started != 0 && vm.started != started) {
            self.vms.insert(id, Vm::new(watched, started, self.homes.get(id).is_some()));
        }
        self.find_rule(id);
    }

    /// Drops the VMs that have ended.
    fn drop_ended(&mut self) {
        let unread = self.vms.iter().filter(|(id, _)| self.watch.vm(**id).is_none());
        // Without debugfs, the watch itself looks at processes.
        let host = self.watch.host();
        let blind = self.watch.no_debugfs().is_some();
        let ended = unread.filter(|(id, vm)| blind || has_ended(host, **id, vm.started)).map(|(id, _)| *id);
        for id in ended.collect::<Vec<_>>() {
            self.event(id, "has ended".into());
            self.vms.remove(&id);
        }
    }

    /// Finds the rule of a VM that has none yet, or was renamed.
    fn find_rule(&mut self, id: VmId) {
        let Some((vm, watched)) = self.vms.get_mut(&id).zip(self.watch.vm(id)) else { return };
        if vm.has_rule_for(watched.name.as_deref()) {
            return;
        }
        if let Some(text) = vm.take_rule(watched, &self.config, self.homes.get(id).is_some()) {
            self.event(id, text);
        }
    }

    /// What an interval of a VM leads to.
    fn interval(&mut self, id: VmId, interval: &Interval) {
        self.find_rule(id);
        let Some((vm, watched)) = self.vms.get_mut(&id).zip(self.watch.vm(id)) else { return };
        let seen = Observation::of(interval);
        if let Some(recorder) = &mut self.recorder {
            recorder.reading(&IntervalRow::observed(self.time, watched, interval, &seen));
        }
        if let Some(view) = watched.memory_inside() {
            self.memory.report(watched.pid, self.up, view);
        }
        vm.count(&seen, interval.statistics.get(Statistic::Exits), interval.ran_ns(), interval.waited_ns());
        let choice = vm.interval(&seen);
        let missing = vm.new_missing();
        if let Some(text) = missing {
            self.event(id, text);
        }
        if let Some(choice) = choice {
            self.decided(id, choice);
        }
    }

    /// Carries a decision out, and writes down what became of it.
    fn decided(&mut self, id: VmId, choice: Choice) {
        // The mode as KVM knows it.
        let to = choice.decision.mode.switchable();
        if let Some(to) = to.filter(|_| choice.verdict == Verdict::Switch) {
            self.look(id, to);
        }
        let Some(vm) = self.vms.get_mut(&id) else { return };
        vm.totals.decisions += 1;
        let may_not = to.and_then(|to| vm.may_not(to, self.up));
        let done = match (choice.verdict, to) {
            (Verdict::Stay, _) => Done::Stayed,
            (_, None) => Done::NotSwitched(NotSwitched::NoMode(choice.decision.mode.words())),
            (Verdict::Switch, Some(to)) => {
                may_not.unwrap_or_else(|| self.switch(id, to).unwrap_or_else(Done::NotSwitched))
            }
            (Verdict::TooEarly { left_s }, _) => Done::NotSwitched(NotSwitched::TooEarly(left_s)),
            (Verdict::TooMany { switches }, _) => Done::NotSwitched(NotSwitched::TooMany(switches)),
        };
        let Some(vm) = self.vms.get_mut(&id) else { return };
        let line = DecisionLine {
            schema: DecisionLine::schema(),
            time: self.time,
            vm: id.to_string(),
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
        vm.remember(self.time, text.clone(), Some(choice));
        if let Some(recorder) = &mut self.recorder {
            recorder.line(&line);
        }
        if news {
            self.say(id, text);
        }
    }

    /// Gives all VMs back, with their memory. Returns what could not be given back: journals keep that.
    pub fn end(&mut self) -> Vec<String> {
        // Memory comes back while modes are switched, one by one.
        self.memory.begin_end();
        let kept: Vec<VmId> = self.homes.vms();
        let mut away = Vec::new();
        for id in kept {
            if let Return::Away(text) = self.give_back(id, "the daemon ends") {
                away.push(text);
            }
        }
        let (said, left) = self.memory.end(self.time);
        self.said(said);
        self.said(left.iter().map(|text| LogLine { vm: None, text: text.clone() }));
        away.extend(left);
        away
    }

    /// What the daemon knows now.
    pub fn status(&self) -> Status {
        Status {
            schema: SCHEMA.into(),
            pid: std::process::id(),
            version: bifold_base::version().into(),
            up_s: self.up.as_secs_f64(),
            intervals: self.intervals,
            reading_s: self.reading.as_secs_f64(),
            only_observes: self.only_observes(),
            trouble: Some(self.trouble.values().cloned().collect::<Vec<_>>().join("; "))
                .filter(|t| !t.is_empty()),
            vms: self.vms.iter().map(|(id, vm)| self.status_of(*id, vm)).collect(),
            memory: self.memory.status(&self.config, self.up),
        }
    }

    fn status_of(&self, id: VmId, vm: &Vm) -> crate::VmStatus {
        let state = self.watch.vm(id).and_then(|w| w.state());
        vm.status(id, state, self.homes.get(id).map(|h| h.mode), self.up)
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

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The watched host.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// What happened since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Notes an error that decides nothing, or that there is none any more. The log has what is new.
    pub fn trouble(&mut self, of: Source, text: Option<String>) {
        let before = match &text {
            Some(text) => self.trouble.insert(of, text.clone()),
            None => self.trouble.remove(&of),
        };
        if let Some(text) = text.filter(|t| before.as_ref() != Some(t)) {
            self.events.push(Event { time: self.time, vm: None, text });
        }
    }

    /// Notes something that happened to a VM, in the log and in the VM's own history. Returns the log's line.
    fn event(&mut self, id: VmId, text: String) -> String {
        if let Some(vm) = self.vms.get_mut(&id) {
            vm.remember(self.time, text.clone(), None);
        }
        self.say(id, text)
    }

    fn say(&mut self, id: VmId, text: String) -> String {
        let who = self.vms.get(&id).map_or_else(|| format!("VM {id}"), |vm| vm.who(id));
        let text = format!("{who} {text}");
        self.events.push(Event { time: self.time, vm: Some(id.to_string()), text: text.clone() });
        text
    }
}

#[cfg(test)]
mod day;
#[cfg(test)]
mod tests;
