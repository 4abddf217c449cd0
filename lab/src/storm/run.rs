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
/// The load says something every second; a guest silent for so long hangs.
const SILENCE: Duration = Duration::from_secs(120);
/// A switch that takes so long does not come back.
const STUCK: Duration = Duration::from_secs(60);
/// For the load's last look at its memory.
const END: Duration = Duration::from_secs(360);
const HAND_OVER: Duration = Duration::from_secs(5);
const LINES: usize = 400;
/// Of KVM's last ones.
const EVENTS: usize = 4000;

/// Hands a word over, and bytes behind it.
pub type Say<'a> = dyn FnMut(&Word, &[u8]) -> Result<()> + 'a;

struct StormRun<'a> {
    job: &'a Storm,
    say: &'a mut Say<'a>,
    found: Found,
    kmsg: Kmsg,
    guest: Guest,
    /// When it last said something.
    heard: Instant,
    /// Files of switches handed over.
    files: usize,
    switches: usize,
    /// How long its vCPUs ran where it was before.
    ran: Duration,
}

/// A guest in the QEMU where it is, and the thread that switches it.
struct Switching {
    time: VcpuTime,
    /// What its vCPUs had run when the stay began.
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

/// Does it. What it found goes through `say`, whether good or bad; an error is one of the laboratory.
pub fn run<'a>(job: &'a Storm, say: &'a mut Say<'a>) -> Result<()> {
    // From warnings on, all goes to the console: it remains if this machine dies.
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

    /// A line of the load's.
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

    /// Has the guest switched, where it is now.
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
            // It must not wait until the vCPUs leave it a CPU.
            let _ = rustix::process::setpriority_process(None, -20);
            let time = VcpuTime::of(pid, vcpus, begun)?;
            switch::storm(&vm, &time, plan, &watch, &mut |s| drop(to.send(s)))
        })?);
        Ok(stay)
    }

    /// Begins the next migration when it is due, ends it when it may, and says when its guest has arrived.
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

    /// To nested paging, and no more switches here.
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

    /// Until all switches are made, the time is over or the guest cannot go on, as `trouble` says; or until
    /// it has moved.
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
                let rounds: f64 = work.rounds.values().sum();
                self.note(format!(
                    "{:.0} s: {} switches, {rounds} rounds of load, {wrong} of it wrong, {} lines of logs",
                    self.found.seconds,
                    self.switches,
                    self.found.host_log.len() + self.found.guest_log.len()
                ))?;
            }
            if end {
                self.found.complete = made || (over && stay.switcher.is_none());
                return Ok(None);
            }
        }
    }

    /// Whether guest and switch still answer.
    fn look(&mut self, stay: &Switching) {
        if self.heard.elapsed() > SILENCE {
            self.found.trouble.push(format!("the guest hangs: not a word for {} s", SILENCE.as_secs()));
        }
        let since = stay.watch.switching.load(Ordering::Relaxed);
        let took = stay.time.now().saturating_sub(Duration::from_micros(since));
        if since > 0 && took > STUCK {
            self.found.trouble.push(format!("a switch has not come back after {} s", STUCK.as_secs()));
            // What every task of this machine waits for goes to the log.
            let _ =
                fs::write("/proc/sysrq-trigger", "w").and_then(|()| fs::write("/proc/sysrq-trigger", "l"));
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// Adds up KVM's figures, which each VM has from 0.
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
            Some(Err(_)) => self.found.trouble.push("the thread that switches died".into()),
        }
    }

    /// Has the load look at all of its memory once more.
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
