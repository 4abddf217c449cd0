// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads all VMs, asks their pilots, and switches.
//!
//! What the engine guarantees, at every moment:
//!
//! - a VM that no rule with `act` fits, a VM of `never`, and a held VM are not switched, except back to their
//!   own modes;
//! - a VM's own mode is in the journal before the daemon first switches the VM;
//! - a VM whose rule is gone is given back, and tried again after [`AGAIN`](switcher) if KVM refuses;
//! - for a policy, KVM is not asked for a switch that it would refuse ([`crate::vm::mode::ObstacleCheck`]),
//!   nor for a stay in shadow paging soon after one that ended early ([`crate::vm::mode::Stays`]). Giving a
//!   VM back is always tried.

mod ask;
mod room;
mod switcher;

pub use switcher::Source;

use crate::config::Config;
use crate::error::DaemonError;
use crate::homes::{Homes, has_ended};
use crate::log::{Event, Log};
use crate::memory::{Memory, Place};
use crate::record::Recorder;
use crate::status::{SCHEMA, Status};
use crate::vm::Vms;
use crate::vm::mode::ModeHalf;
use bifold_host::VmId;
use bifold_live::{Interval, Measured, Watch};
use std::collections::BTreeMap;
use std::time::Duration;
use switcher::{Return, Switcher};

/// The daemon without its sockets and signals.
pub struct Engine {
    switcher: Switcher,
    config: Config,
    vms: Vms,
    memory: Memory,
    intervals: u64,
    reading: Duration,
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
            switcher: Switcher { watch, homes, recorder, log: Log::default(), trouble: BTreeMap::new() },
            config,
            vms: Vms::default(),
            memory: Memory::default(),
            intervals: 0,
            reading: Duration::ZERO,
        };
        engine.name_reporters();
        Ok(engine)
    }

    /// Has orders about the memory of VMs made at this place. Without, their memory is not looked at.
    pub fn order_at(&mut self, place: Option<Place>) {
        self.memory.order_at(place);
    }

    /// Tells the watch which sockets of reporters the configuration names.
    fn name_reporters(&mut self) {
        let config = self.config.clone();
        self.switcher.watch.report_from(move |vm| config.reporter(vm.id, vm.name.as_deref()));
    }

    /// Takes another configuration. VMs whose rules are gone are given back at the next tick.
    ///
    /// # Errors
    /// If the new recording cannot be opened: the old configuration stays.
    pub fn reload(&mut self, config: Config) -> Result<(), DaemonError> {
        let recorder = &mut self.switcher.recorder;
        if recorder.as_ref().map(Recorder::recording) != config.recording.as_ref() {
            *recorder = config.recording.as_ref().map(Recorder::open).transpose()?;
        }
        let same = (config.interval_s, &config.estimator) == (self.config.interval_s, &self.config.estimator);
        self.memory.reload(&mut self.vms, &self.config, &config);
        self.config = config;
        for vm in self.vms.halves().0.into_values() {
            if !same {
                vm.forget_policy();
            }
            vm.forget_rule();
        }
        self.name_reporters();
        Ok(())
    }

    /// Reads all VMs, decides, and switches. `clock` tells the time since the start and never jumps; `time`
    /// is the time since 1970 in seconds, and may jump.
    pub fn tick(&mut self, clock: &dyn Fn() -> Duration, time: f64) {
        let start = clock();
        let Switcher { watch, homes, recorder, log, .. } = &mut self.switcher;
        (log.time, log.up) = (time, start);
        if self.intervals == 0 {
            recorder.iter_mut().for_each(|r| r.start(time, &homes.vms()));
        }
        let tick = watch.tick(clock);
        self.drop_ended();
        for id in &tick.came {
            self.came(*id);
        }
        self.decide(&tick.intervals);
        self.switcher.give_back_others(self.vms.halves().0);
        if self.intervals == 0 || !tick.gone.is_empty() {
            self.switcher.forget_ended();
        }
        self.divide_memory();
        self.switcher.write_recording();
        self.intervals += 1;
        self.reading = clock().saturating_sub(start);
    }

    /// Lets the policy of the VMs' memory decide, if it is time to.
    fn divide_memory(&mut self) {
        let Switcher { watch, recorder, log, .. } = &mut self.switcher;
        let lines = self.memory.tick(&mut self.vms, watch.host(), &self.config, log);
        if let Some(recorder) = recorder {
            lines.iter().for_each(|line| recorder.line(line));
        }
        self.switcher.trouble(Source::Memory, self.memory.trouble());
    }

    fn came(&mut self, id: VmId) {
        let Switcher { watch, homes, .. } = &self.switcher;
        let Some(watched) = watch.vm(id) else { return };
        let started = watch.host().started(watched.pid).unwrap_or(0);
        let new = || ModeHalf::new(watched, started, homes.get(id).is_some());
        let vm = self.vms.came(id, (watched.pid, started), new);
        self.switcher.find_rule(vm, &self.config);
    }

    /// Drops what is known of the modes of VMs that have ended.
    fn drop_ended(&mut self) {
        let Switcher { watch, log, .. } = &mut self.switcher;
        // Without debugfs, the watch itself looks at processes.
        let blind = watch.no_debugfs().is_some();
        self.vms.retain_modes(|vm| {
            let lives = watch.vm(vm.id).is_some() || !(blind || has_ended(watch.host(), vm.id, vm.started));
            if !lives {
                vm.say(log, "has ended");
            }
            lives
        });
    }

    /// What the intervals of VMs lead to.
    fn decide(&mut self, intervals: &[(VmId, Interval)]) {
        let Switcher { watch, log, .. } = &self.switcher;
        let watched = intervals.iter().filter_map(|(id, _)| watch.vm(*id));
        for (pid, view) in watched.filter_map(|vm| Some((vm.pid, vm.memory_inside()?))) {
            let memory = self.vms.memories_mut().find(|memory| memory.live.pid == pid);
            memory.into_iter().for_each(|memory| memory.report(log.up, *view));
        }
        let (mut modes, _) = self.vms.halves();
        for (id, interval) in intervals {
            if let Some(vm) = modes.get_mut(id) {
                self.switcher.interval(vm, interval, &self.config);
            }
        }
    }

    /// Gives all VMs back, with their memory. Returns what could not be given back: journals keep that.
    pub fn end(&mut self) -> Vec<String> {
        // Memory comes back while modes are switched, one by one.
        self.memory.begin_end(&self.vms);
        let (mut modes, _) = self.vms.halves();
        let mut away = Vec::new();
        for id in self.switcher.homes.vms() {
            let vm = modes.get_mut(&id).map(|vm| &mut **vm);
            if let Return::Away(text) = self.switcher.give_back(id, vm, "the daemon ends") {
                away.push(text);
            }
        }
        let log = &mut self.switcher.log;
        let left = self.memory.end(&mut self.vms, log);
        left.iter().for_each(|text| log.say(None, text.clone()));
        away.extend(left);
        away
    }

    /// What the daemon knows now.
    pub fn status(&self) -> Status {
        let Switcher { trouble, log, .. } = &self.switcher;
        Status {
            schema: SCHEMA.into(),
            pid: std::process::id(),
            version: bifold_base::version().into(),
            up_s: log.up.as_secs_f64(),
            intervals: self.intervals,
            reading_s: self.reading.as_secs_f64(),
            only_observes: self.only_observes(),
            warnings: self.warnings(),
            trouble: Some(trouble.values().cloned().collect::<Vec<_>>().join("; ")).filter(|t| !t.is_empty()),
            vms: self.vms.modes().into_values().map(|vm| self.switcher.status_of(vm)).collect(),
            memory: self.memory.status(&self.vms, &self.config, log.up),
        }
    }

    /// Why no VM of this host can be switched.
    pub fn only_observes(&self) -> Option<String> {
        self.switcher.only_observes()
    }

    /// What the operator should know: what the configuration has and the daemon does not do, and holes of the
    /// loaded modules.
    pub fn warnings(&self) -> Vec<String> {
        self.config.notes.iter().cloned().chain(self.watch().kvm().holes_warning()).collect()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The watched host.
    pub fn watch(&self) -> &Watch {
        &self.switcher.watch
    }

    /// What happened since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.switcher.log.events)
    }

    /// Notes an error of this source, or with `None` that the error is over. No decision depends on the
    /// error. The log gets changes alone.
    pub fn trouble(&mut self, of: Source, text: Option<String>) {
        self.switcher.trouble(of, text);
    }
}

#[cfg(test)]
mod day;
#[cfg(test)]
mod tests;
