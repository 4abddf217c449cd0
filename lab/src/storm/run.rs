// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a storm within the laboratory: starts the guest, switches its mode, listens to the guest and the
//! kernel, and sends the findings every few seconds, so that they are known even if the machine dies.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bifold_mmu::Mode;

use super::guest::{self, Guest};
use super::log::{self, Kmsg};
use super::migrate::Migration;
use super::noise::{self, Noises};
use super::recorder::Recorder;
use super::switch::{self, Time, VcpuTime, Watch};
use super::{FOUND, Found, SWITCHES, Storm, SwitchRecord, Work};
use crate::lab::job::Word;

const BOOT: Duration = Duration::from_secs(600);
/// A guest without a line for this time hangs, because the load writes every second.
const SILENCE: Duration = Duration::from_secs(120);
/// A switch that takes this long is stuck.
const STUCK: Duration = Duration::from_secs(60);
/// Time limit of the load's last check of its memory.
const END: Duration = Duration::from_secs(360);
const HAND_OVER: Duration = Duration::from_secs(5);
const LINES: usize = 400;
/// Number of KVM's last events to keep.
const EVENTS: usize = 4000;

/// Sends a message to this laboratory's driver, followed by bytes.
pub type Say<'a> = dyn FnMut(&Word, &[u8]) -> Result<()> + 'a;

/// A storm while it runs.
struct StormRun<'a> {
    job: &'a Storm,
    say: &'a mut Say<'a>,
    found: Found,
    kmsg: Kmsg,
    guest: Guest,
    /// Time of the guest's last line.
    heard: Instant,
    /// Number of files of switches that were sent.
    files: usize,
    switches: usize,
    /// Run time of the vCPUs before the last migration.
    ran: Duration,
}

/// The switching of a guest in its present QEMU.
struct Switching {
    time: VcpuTime,
    /// Run time of the vCPUs at the beginning.
    before: Duration,
    watch: Arc<Watch>,
    new: Receiver<SwitchRecord>,
    switcher: Option<JoinHandle<Result<()>>>,
}

impl Switching {
    fn ran(&self) -> Duration {
        self.time.ran().unwrap_or(self.before).saturating_sub(self.before)
    }
}

/// Runs a storm and sends the findings through `say`. An error means that the laboratory failed.
pub fn run<'a>(job: &'a Storm, say: &'a mut Say<'a>) -> Result<()> {
    // Warnings and worse go to the console, whose log survives this machine.
    fs::write("/proc/sys/kernel/printk", "5 4 1 7")?;
    noise::prepare(job.pages)?;
    let kmsg = Kmsg::new()?;
    let begun = Instant::now();
    let guest = Guest::start(job)?;
    let mut host = StormRun {
        job,
        say,
        found: Found::default(),
        kmsg,
        guest,
        heard: begun,
        files: 0,
        switches: 0,
        ran: Duration::ZERO,
    };
    while host.found.boot_seconds == 0.0 {
        match host.guest.next_line(Duration::from_secs(1)) {
            Ok(Some(line)) => {
                host.line(&line);
                if line.starts_with("begin") {
                    host.found.boot_seconds = begun.elapsed().as_secs_f64();
                }
            }
            Ok(None) if begun.elapsed() < BOOT => {}
            Ok(None) => {
                host.found.trouble.push(format!("the guest was not up after {} s", BOOT.as_secs()));
                return host.hand_over(&[]);
            }
            Err(e) => {
                host.found.trouble.push(format!("{e:#}"));
                return host.hand_over(&[]);
            }
        }
    }
    host.storm()
}

impl StormRun<'_> {
    fn note(&mut self, text: String) -> Result<()> {
        (self.say)(&Word::Note(text), &[])
    }

    /// Takes a line of the load.
    fn line(&mut self, line: &str) {
        self.heard = Instant::now();
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "begin" => {}
            "work" | "end" => match serde_json::from_str::<Work>(rest) {
                Ok(work) => {
                    self.found.work = work;
                    self.found.ended |= word == "end";
                }
                Err(e) => self.found.trouble.push(format!("{e} in the load's {line:?}")),
            },
            _ if self.found.complaints.len() < LINES => self.found.complaints.push(line.to_owned()),
            _ => {}
        }
    }

    fn hand_over(&mut self, new: &[SwitchRecord]) -> Result<()> {
        self.found.log_lost |= self.kmsg.drain(&mut self.found.host_log)?;
        self.found.guest_log = log::console(&self.guest.console());
        for log in [&mut self.found.host_log, &mut self.found.guest_log] {
            self.found.log_lost |= log.len() > LINES;
            log.truncate(LINES);
        }
        if !new.is_empty() {
            let lines: Result<Vec<String>, _> = new.iter().map(serde_json::to_string).collect();
            let data = lines?.join("\n").into_bytes();
            let name = format!("{SWITCHES}{}", self.files);
            self.files += 1;
            (self.say)(&Word::File { name, bytes: data.len() as u64 }, &data)?;
        }
        let data = serde_json::to_vec(&self.found)?;
        (self.say)(&Word::File { name: FOUND.into(), bytes: data.len() as u64 }, &data)
    }

    fn storm(&mut self) -> Result<()> {
        let memory = (self.guest.pid(), self.job.memory_mib << 20);
        let qmp = self.guest.qmp.take();
        let mut noises = Noises::start(&self.job.noise, memory, self.job.seed, qmp)?;
        let recorder = Recorder::start()?;
        let begun = Instant::now();
        self.heard = begun;
        let mut stay = self.begin(begun)?;
        while let Some(migration) = self.follow(&mut stay, &mut noises)? {
            stay.watch.stop.store(true, Ordering::Relaxed);
            self.join(stay.switcher.take());
            let rest: Vec<SwitchRecord> = stay.new.try_iter().collect();
            self.switches += rest.len();
            self.hand_over(&rest)?;
            self.count_switches()?;
            self.ran += stay.ran();
            self.found.migrations += 1;
            let mut guest = migration.arrived(&mut self.guest);
            noises.qmp = guest.qmp.take();
            self.guest = guest;
            stay = self.begin(begun)?;
        }
        stay.watch.stop.store(true, Ordering::Relaxed);
        self.found.trouble.extend(noises.end());
        if self.found.trouble.is_empty() {
            self.end(stay.switcher)?;
        } else {
            if let Some(qmp) = &mut noises.qmp {
                self.found.state = guest::state(qmp, self.job.vcpus).unwrap_or_else(|e| format!("{e:#}"));
            }
            self.found.last_events = recorder.last(EVENTS).unwrap_or_else(|e| vec![format!("{e:#}")]);
        }
        self.found.noise = noises.counts(self.guest.pid());
        self.count_switches()?;
        let rest: Vec<SwitchRecord> = stay.new.try_iter().collect();
        self.switches += rest.len();
        self.hand_over(&rest)
    }

    /// Starts switching the guest in its present QEMU.
    fn begin(&mut self, begun: Instant) -> Result<Switching> {
        let (pid, vcpus) = (self.guest.pid(), self.job.vcpus);
        let (to, new) = channel();
        let time = VcpuTime::of(pid, vcpus, begun)?;
        let mut stay = Switching { before: time.ran()?, time, watch: Arc::default(), new, switcher: None };
        if self.job.switches == 0 {
            return Ok(stay);
        }
        let Some(vm) = switch::paging_files(&bifold_host::Host::live(), pid)? else {
            self.found.trouble.push("this KVM has no paging_mode: its VMs cannot be switched".into());
            return Ok(stay);
        };
        let left = self.job.switches.saturating_sub(self.switches as u64);
        let seed = self.job.seed + self.found.migrations;
        let plan = (left, Duration::from_micros(self.job.stay_us), seed);
        let watch = stay.watch.clone();
        stay.switcher = Some(std::thread::Builder::new().name("switcher".into()).spawn(move || {
            // The switching thread must not wait for the vCPUs to leave a CPU.
            let _ = rustix::process::setpriority_process(None, -20);
            let time = VcpuTime::of(pid, vcpus, begun)?;
            switch::storm(&vm, &time, plan, &watch, &mut |s| drop(to.send(s)))
        })?);
        Ok(stay)
    }

    /// Begins the next migration when it is due and completes it. True when the guest runs in the other QEMU.
    fn migrate(
        &mut self,
        moving: &mut Option<Migration>,
        made: usize,
        stay: &mut Switching,
        noises: &mut Noises,
    ) -> Result<bool> {
        let due = (self.found.migrations + 1) * self.job.switches / (self.job.migrations + 1);
        let Some(qmp) = noises.qmp.as_mut() else { return Ok(false) };
        match moving {
            Some(migration) => {
                if migration.is_ripe() {
                    self.settle(stay)?;
                    migration.hurry(qmp)?;
                }
                migration.ended(qmp)
            }
            None if self.found.migrations < self.job.migrations && made as u64 >= due => {
                *moving = Some(Migration::begin(self.job, qmp)?);
                Ok(false)
            }
            None => Ok(false),
        }
    }

    /// Stops switching, and leaves the guest in nested paging.
    fn settle(&mut self, stay: &mut Switching) -> Result<()> {
        stay.watch.stop.store(true, Ordering::Relaxed);
        self.join(stay.switcher.take());
        let Some(vm) = switch::paging_files(&bifold_host::Host::live(), self.guest.pid())? else {
            return Ok(());
        };
        if switch::mode(&vm)? == Mode::Shadow {
            vm.switch(Mode::Nested).context("to nested paging, to move")?;
            self.found.switches_to_move += 1;
        }
        Ok(())
    }

    /// Follows the guest until it has migrated (then it returns the migration), all switches are made, the
    /// time is over, or the guest cannot continue (then `trouble` says why).
    fn follow(&mut self, stay: &mut Switching, noises: &mut Noises) -> Result<Option<Migration>> {
        let mut handed = Instant::now();
        let mut new = Vec::new();
        let mut moving = None;
        loop {
            match self.guest.next_line(Duration::from_millis(100)) {
                Ok(Some(line)) => self.line(&line),
                Ok(None) => {}
                Err(e) => self.found.trouble.push(format!("{e:#}")),
            }
            new.extend(stay.new.try_iter());
            match self.migrate(&mut moving, self.switches + new.len(), stay, noises) {
                Ok(true) => {
                    self.switches += new.len();
                    self.hand_over(&new)?;
                    self.heard = Instant::now();
                    return Ok(moving);
                }
                Ok(false) => {}
                Err(e) => self.found.trouble.push(format!("{e:#}")),
            }
            self.found.seconds = stay.time.now().as_secs_f64();
            let over = self.found.seconds >= self.job.seconds as f64;
            let made = stay.switcher.as_ref().is_some_and(JoinHandle::is_finished);
            self.look(stay);
            let end = over || (made && moving.is_none()) || !self.found.trouble.is_empty();
            if end || handed.elapsed() > HAND_OVER {
                handed = Instant::now();
                self.switches += new.len();
                self.found.noise = noises.counts(self.guest.pid());
                self.found.ran_seconds = (self.ran + stay.ran()).as_secs_f64();
                self.hand_over(&new)?;
                new.clear();
                let work = &self.found.work;
                let wrong = work.corrupted + work.stale + work.died;
                let rounds = work.rounds.values().fold(0.0, |sum, n| sum + n);
                let mut log = self.found.host_log.iter().chain(&self.found.guest_log);
                let (lines, first) = (log.clone().count(), log.next().map_or("", |line| line));
                self.note(format!(
                    "{:.0} s: {} switches, {rounds} rounds of load, {wrong} errors, {lines} log lines {first}",
                    self.found.seconds, self.switches,
                ))?;
            }
            if end {
                self.found.complete = made || (over && stay.switcher.is_none());
                return Ok(None);
            }
        }
    }

    /// Checks that the guest and the switching still make progress.
    fn look(&mut self, stay: &Switching) {
        if self.heard.elapsed() > SILENCE {
            self.found.trouble.push(format!("the guest hangs: no line for {} s", SILENCE.as_secs()));
        }
        let since = stay.watch.switching.load(Ordering::Relaxed);
        let took = stay.time.now().saturating_sub(Duration::from_micros(since));
        if since > 0 && took > STUCK {
            self.found.trouble.push(format!("a switch has not returned after {} s", STUCK.as_secs()));
            // Logs what every task of this machine waits for.
            let _ =
                fs::write("/proc/sysrq-trigger", "w").and_then(|()| fs::write("/proc/sysrq-trigger", "l"));
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// Adds up KVM's figures, which begin at 0 in each VM.
    fn count_switches(&mut self) -> Result<()> {
        let Ok(Some(vm)) = switch::paging_files(&bifold_host::Host::live(), self.guest.pid()) else {
            return Ok(());
        };
        for (name, value) in vm.stats()?.known() {
            let all = self.found.paging_stats.entry(name.into()).or_default();
            *all = match name {
                "refused" | "rolled_back" => *all + value,
                n if n.starts_with("switches_") => *all + value,
                n if n.ends_with("_worst") => value.max(*all),
                _ => value,
            };
        }
        Ok(())
    }

    fn join(&mut self, switcher: Option<JoinHandle<Result<()>>>) {
        match switcher.map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => {}
            Some(Ok(Err(e))) => self.found.trouble.push(format!("{e:#}")),
            Some(Err(_)) => self.found.trouble.push("the switching thread panicked".into()),
        }
    }

    /// Tells the load to check all its memory once more and to end.
    fn end(&mut self, switcher: Option<JoinHandle<Result<()>>>) -> Result<()> {
        self.join(switcher);
        let begun = Instant::now();
        self.guest.tell(b'e').context("telling the load to end")?;
        while !self.found.ended && begun.elapsed() < END {
            match self.guest.next_line(Duration::from_secs(1)) {
                Ok(Some(line)) => self.line(&line),
                Ok(None) => {}
                Err(e) => {
                    self.found.trouble.push(format!("{e:#}"));
                    break;
                }
            }
        }
        if !self.found.ended && self.found.trouble.is_empty() {
            self.found.trouble.push(format!("the load did not end within {} s", END.as_secs()));
        }
        Ok(())
    }
}
