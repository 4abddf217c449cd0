// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs an experiment: case after case, each with guests of its own.
//!
//! All guests of a case start together, and their loads begin when every one is ready. From then on samples
//! are taken, and the case's policy decides after each. At the end, orders give everything back, and then the
//! guests are ended. If a guest fails, the outcome notes it and the case continues. If the user stops the
//! run, the case ends, and the outcome has everything up to then.

use super::control::{Control, Place};
use super::guest::Guest;
use super::outcome::{CaseOutcome, GuestSample, Outcome, PagingCounts, Sample};
use super::paging::{self, Paging};
use super::spec::{CaseSpec, PlannedGuest, Spec};
use crate::experiment::run::{available_mib, hold_ksm};
use crate::experiment::sample::memory_of;
use crate::experiment::{Ending, ExperimentError};
use bifold_base::with_causes;
use bifold_guest::kernel::{self, Kernel};
use bifold_guest::qemu::{self, Qemu};
use bifold_host::Host;
use bifold_host::LiveGuest;
use bifold_host::held::{Guardian, Places};
use bifold_host::ksm::{KsmGuard, Setting, Settings};
use bifold_live::order::folder;
use bifold_reclaim::{GuestObservation, OnLine, PolicyName};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, scope, sleep};
use std::time::{Duration, Instant};

const FRAME: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Time limit until all loads are ready. Emulated guests on a busy machine are slow.
const READY: Duration = Duration::from_secs(900);
/// Pause between two reads of the guests' lines.
const TICK: Duration = Duration::from_millis(50);
/// Memory of an emulator besides the guest's.
const EMULATOR_MIB: u64 = 110;

/// What a run needs besides the experiment.
#[derive(Debug)]
pub struct RunOptions<'a> {
    /// The host.
    pub host: &'a Host,
    /// The guardian of orders about sizes.
    pub orders: &'a Guardian,
    /// Places of the lock and journal of KSM's settings, and their guardian.
    pub ksm: (&'a Places, &'a Guardian),
    /// Whether guests run under KVM, and not emulated.
    pub kvm: bool,
    /// Set this to end the run.
    pub stop: &'a AtomicBool,
}

/// Progress of a run.
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice<'a> {
    /// A stage of the preparation.
    Stage(&'a str),
    /// A case begins: its index among all that are planned, and its name.
    Case(usize, &'a str),
    /// A sample was taken.
    Sample(&'a Sample),
    /// A note for the user.
    Note(&'a str),
}

/// Runs an experiment.
///
/// # Errors
/// If nothing could be run: no emulator, no kernel, too little memory; with KSM, not root. A failure within a
/// case is in the case's ending.
pub fn run(
    spec: &Spec,
    options: &RunOptions,
    tell: &mut dyn FnMut(Notice),
) -> Result<Outcome, ExperimentError> {
    let guests = spec.plan();
    fits(spec, options.host)?;
    if options.kvm {
        usable_kvm()?;
    }
    if spec.cases.iter().any(|c| c.paging) {
        paging::usable(options.host, spec)?;
    }
    let qemu = qemu::find()?;
    // Before anything is fetched.
    let mut hold =
        || hold_ksm(options.host, options.ksm.0, options.ksm.1, &mut |text| tell(Notice::Note(text)));
    let guard = spec.cases.iter().any(|c| c.sharing).then(&mut hold).transpose()?;
    let journals = folder()?;
    let mut kernels = Vec::new();
    for kind in &spec.guests {
        kernels.push(kernel::for_guest(Some(&kind.kernel), &mut |s| tell(Notice::Stage(s)))?);
    }
    let repeated = spec.repetitions > 1;
    let mut outcome = Outcome {
        host_kernel: options.host.kernel_release(),
        qemu: qemu.version.clone(),
        kvm: options.kvm,
        cases: Vec::new(),
        planned: spec.cases.len() * spec.repetitions as usize,
    };
    let all = (1..=spec.repetitions).flat_map(|n| spec.cases.iter().map(move |case| (n, case)));
    for (n, (repetition, case)) in all.enumerate() {
        if options.stop.load(Ordering::Relaxed) {
            break;
        }
        let mut result = CaseOutcome {
            spec: case.clone(),
            repetition,
            repeated,
            guests: Vec::new(),
            samples: Vec::new(),
            ending: Ending::Whole,
            notes: Vec::new(),
        };
        tell(Notice::Case(n, &result.title()));
        let machine =
            Machine { spec, case, guests: &guests, kernels: &kernels, qemu: &qemu, journals: &journals };
        let set = |guard: &KsmGuard| guard.set(&Settings::of(&[(Setting::Run, u64::from(case.sharing))]));
        let ready = guard.as_ref().map_or(Ok(()), set).map_err(ExperimentError::from);
        match ready.and_then(|()| machine.run(options, &mut result, tell)) {
            Ok(ending) => result.ending = ending,
            Err(e) => result.ending = Ending::Failed(with_causes(&e)),
        }
        let over = result.ending != Ending::Whole;
        if let Ending::Failed(why) = &result.ending {
            tell(Notice::Note(&format!("{}: {why}", result.title())));
        }
        outcome.cases.push(result);
        if over {
            break;
        }
    }
    if let Some(Err(e)) = guard.map(KsmGuard::restore) {
        let e = ExperimentError::from(e);
        // The samples are shown all the same, and the run has failed.
        let Some(last) = outcome.cases.last_mut() else { return Err(e) };
        tell(Notice::Note(&with_causes(&e)));
        last.ending = Ending::Failed(with_causes(&e));
    }
    Ok(outcome)
}

/// Refuses KVM where it cannot be used.
fn usable_kvm() -> Result<(), ExperimentError> {
    let open = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    open.map(drop).map_err(|e| ExperimentError::Kvm { why: format!("/dev/kvm: {e}") })
}

/// Refuses guests that do not fit into the host's memory.
fn fits(spec: &Spec, host: &Host) -> Result<(), ExperimentError> {
    let guests = spec.guests.iter().map(|g| u64::from(g.count)).sum::<u64>();
    let most = spec.cases.iter().filter_map(|c| c.memory_mib).max().unwrap_or(0);
    let ram: u64 = spec.guests.iter().map(|g| u64::from(g.count) * g.memory_mib.max(most)).sum();
    let (needed_mib, available_mib) = (ram + guests * EMULATOR_MIB, available_mib(host)?);
    if needed_mib > available_mib {
        return Err(ExperimentError::TooLittle { guests: guests as usize, needed_mib, available_mib });
    }
    Ok(())
}

/// What a case runs on.
struct Machine<'a> {
    spec: &'a Spec,
    case: &'a CaseSpec,
    guests: &'a [PlannedGuest],
    kernels: &'a [Kernel],
    qemu: &'a Qemu,
    journals: &'a Path,
}

impl Machine<'_> {
    /// Runs the case and fills its outcome.
    fn run(
        &self,
        options: &RunOptions,
        result: &mut CaseOutcome,
        tell: &mut dyn FnMut(Notice),
    ) -> Result<Ending, ExperimentError> {
        // Disks and sockets; removed at the end, when the guests have ended.
        let folder = tempfile::Builder::new().prefix("bifold-").tempdir().map_err(ExperimentError::Folder)?;
        // Removed after the guests' end, as it is dropped after them.
        if self.case.paging {
            // Cases before have filled swap, and others may have.
            paging::usable(options.host, self.spec)?;
        }
        let paging = self.case.paging.then(|| Paging::make(options.host, self.guests.len())).transpose()?;
        let mut guests = Vec::new();
        for planned in self.guests {
            let own = folder.path().join(guests.len().to_string());
            std::fs::create_dir(&own).map_err(ExperimentError::Folder)?;
            let kind = (&self.spec.guests[planned.kind], planned);
            let group = paging.as_ref().map(|p| p.entry(guests.len())).transpose()?;
            let place = (options.kvm, group.as_ref().map(|g| g.as_fd()));
            let kernel = &self.kernels[planned.kind];
            guests.push(Guest::start(self.qemu, kernel, kind, self.case, &own, self.spec.disk_us, place)?);
        }
        let controls: Vec<Control> = guests.iter().map(|_| Control::default()).collect();
        let place = Place { host: options.host, folder: self.journals, guardian: options.orders };
        // The threads give everything back before the guests are ended.
        let ending = scope(|threads| {
            let mut run = Run {
                machine: self,
                options,
                place,
                guests: &mut guests,
                controls: &controls,
                paging: paging.as_ref(),
                paged: Vec::new(),
                result,
                begun: Instant::now(),
            };
            let _end = EndAll(&controls);
            run.go(threads, tell)
        });
        for (guest, control) in guests.iter_mut().zip(&controls) {
            guest.outcome.orders = control.orders();
            for note in control.new_notes() {
                tell(Notice::Note(&note));
                result.notes.push(note);
            }
        }
        result.guests = guests.into_iter().map(|g| g.outcome).collect();
        ending
    }
}

/// Ends all threads, also when the run panics.
struct EndAll<'a>(&'a [Control]);

impl Drop for EndAll<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(Control::end);
    }
}

/// A case while it runs.
struct Run<'a> {
    machine: &'a Machine<'a>,
    options: &'a RunOptions<'a>,
    place: Place<'a>,
    guests: &'a mut [Guest],
    controls: &'a [Control],
    paging: Option<&'a Paging>,
    /// What the host had counted for each guest when the loads began.
    paged: Vec<PagingCounts>,
    result: &'a mut CaseOutcome,
    /// The begin of the loads; before, of the guests.
    begun: Instant,
}

impl<'a> Run<'a> {
    fn now(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    fn stopped(&self) -> bool {
        self.options.stop.load(Ordering::Relaxed)
    }

    fn note(&mut self, text: String, tell: &mut dyn FnMut(Notice)) {
        tell(Notice::Note(&text));
        self.result.notes.push(text);
    }

    /// Reads all guests' lines and all threads' notes.
    fn poll(&mut self, tell: &mut dyn FnMut(Notice)) -> Result<(), ExperimentError> {
        let now = self.now();
        for n in 0..self.guests.len() {
            if let Some(news) = self.guests[n].poll(now)? {
                self.note(news, tell);
            }
            for note in self.controls[n].new_notes() {
                self.note(format!("{now:.0} s: {note}"), tell);
            }
        }
        Ok(())
    }

    fn go<'t>(
        &mut self,
        threads: &'t Scope<'t, '_>,
        tell: &mut dyn FnMut(Notice),
    ) -> Result<Ending, ExperimentError>
    where
        'a: 't,
    {
        while !self.guests.iter().all(Guest::is_decided) {
            self.poll(tell)?;
            if self.stopped() {
                return Ok(Ending::Interrupted);
            }
            if self.begun.elapsed() > READY {
                return Ok(Ending::Failed(format!("not all loads were ready after {} s", READY.as_secs())));
            }
            sleep(TICK);
        }
        if let Some(paging) = self.paging {
            let text = self.limit(paging)?;
            self.note(text, tell);
        }
        let cpu: Vec<Duration> = self.guests.iter().map(|g| self.cpu(g).unwrap_or_default()).collect();
        self.begun = Instant::now();
        for n in 0..self.guests.len() {
            // A guest that has just ended is noted with the next poll.
            let _ = self.guests[n].go();
            let Some((pid, started)) =
                self.guests[n].pid.and_then(|pid| Some((pid, self.options.host.started(pid)?)))
            else {
                continue;
            };
            let name = self.guests[n].outcome.name.clone();
            let guest = LiveGuest { pid, name, started, vm: None, kvm: self.options.kvm, vcpus: Vec::new() };
            let (control, place) = (&self.controls[n], self.place);
            threads.spawn(move || control.follow(place, &guest));
        }
        let (spec, case) = (self.machine.spec, self.machine.case);
        let mut policy = case.policy.and_then(|name| name.on_line(self.guests.len()));
        let (length, interval) = (spec.time.length, spec.time.interval);
        let mut next = 0.0;
        loop {
            self.poll(tell)?;
            let now = self.now();
            let (over, stopped) = (now >= length, self.stopped());
            if now >= next || over || stopped {
                let sample = self.sample(now, &cpu);
                if let Some(killed) = self.follow(&sample)? {
                    return Ok(killed);
                }
                if let Some(policy) = &mut policy {
                    self.decide(policy, &sample);
                } else if let Some(mib) = case.size_mib {
                    self.controls.iter().for_each(|control| control.want(mib * MIB));
                }
                tell(Notice::Sample(&sample));
                self.result.samples.push(sample);
                while next <= now {
                    next += interval;
                }
            }
            if stopped {
                return Ok(Ending::Interrupted);
            }
            if self.guests.iter().all(|g| g.pid.is_none()) {
                return Ok(Ending::Failed("no guest is left".into()));
            }
            if over {
                return Ok(Ending::Whole);
            }
            sleep(TICK);
        }
    }

    /// Limits what the guests have together to the host's size. Returns what else the group may have, as
    /// text.
    fn limit(&mut self, paging: &Paging) -> Result<String, ExperimentError> {
        let host = self.options.host;
        let memory = |g: &Guest| memory_of(host, g.pid?, g.outcome.memory_mib * MIB);
        // Merged pages count once in the group.
        let of_guests: u64 = self.guests.iter().filter_map(memory).map(|m| m.pss).sum();
        let others = paging.limit(self.machine.case.host_mib(self.machine.spec) * MIB, of_guests)?;
        self.paged = (0..self.guests.len()).map(|n| paging.counts(n)).collect();
        Ok(format!("the host may have {} MiB more, which are QEMU's own", others / MIB))
    }

    /// Lets the host's limit follow. A host that has killed a guest ends the case: the others have its
    /// memory.
    fn follow(&self, sample: &Sample) -> Result<Option<Ending>, ExperimentError> {
        let Some(paging) = self.paging else { return Ok(None) };
        let kills = paging.follow(self.machine.case.host_mib(self.machine.spec) * MIB, sample.used())?;
        let why = || "the host's kernel killed a guest for lack of memory: it found too little to page out";
        Ok((kills > 0).then(|| Ending::Failed(why().into())))
    }

    fn cpu(&self, guest: &Guest) -> Option<Duration> {
        self.options.host.cpu_time(guest.pid?)
    }

    fn sample(&self, at_s: f64, cpu: &[Duration]) -> Sample {
        let guest = |n: usize| {
            let guest = &self.guests[n];
            let memory = memory_of(self.options.host, guest.pid?, guest.outcome.memory_mib * MIB)?;
            let balloon = self.controls[n].balloon();
            let statistics = balloon.as_ref().map(|b| b.statistics).unwrap_or_default();
            Some(GuestSample {
                resident: memory.rss,
                used: memory.pss,
                touched: memory.touched,
                swapped: memory.swapped,
                paging: self.paging.map(|paging| paging.counts(n).since(&self.paged[n])),
                size: balloon.and_then(|b| b.actual),
                target: self.controls[n].wanted(),
                free: statistics.free,
                available: statistics.available,
                cpu_s: self.cpu(guest)?.saturating_sub(cpu[n]).as_secs_f64(),
                load: guest.counts,
            })
        };
        Sample { at_s, guests: (0..self.guests.len()).map(guest).collect() }
    }

    /// Lets the policy decide by this sample and the one before.
    fn decide(&self, policy: &mut OnLine, sample: &Sample) {
        let before = self.result.samples.last();
        let seconds = before.map_or(0.0, |b| sample.at_s - b.at_s);
        let learns_uses = self.machine.case.policy == Some(PolicyName::IdleTax);
        let seen: Vec<GuestObservation> = (0..self.guests.len())
            .map(|n| {
                // A guest that is gone has nothing.
                let Some(now) = sample.guests[n] else { return GuestObservation::default() };
                let then = before.and_then(|b| b.guests[n]).unwrap_or(now);
                let kind = &self.machine.spec.guests[self.machine.guests[n].kind];
                let most = self.guests[n].outcome.memory_mib * MIB / FRAME;
                let size = now.size.map_or(most, |b| b / FRAME);
                let waited = now.load.since(&then.load).waited_us as f64 / 1e6;
                GuestObservation {
                    least: (kind.least_mib * MIB / FRAME).min(most),
                    most,
                    size,
                    held: now.used as f64 / FRAME as f64,
                    in_use: size.saturating_sub(now.free.unwrap_or(0) / FRAME) as f64,
                    pressure: if seconds > 0.0 { (waited / seconds).min(1.0) } else { 0.0 },
                    touched: (learns_uses && before.is_some()).then_some((now.touched / FRAME) as f64),
                }
            })
            .collect();
        let sizes =
            policy.decide(self.machine.case.host_mib(self.machine.spec) * MIB / FRAME, seconds, &seen);
        for (n, size) in sizes.into_iter().enumerate() {
            self.controls[n].want(size * FRAME);
            if let Some(pid) = self.guests[n].pid.filter(|_| learns_uses) {
                // A guest that is just ending has no uses.
                let _ = self.options.host.forget_uses(pid);
            }
        }
    }
}
