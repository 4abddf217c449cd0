// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One case: its guests, and their loads while they run.

use super::{Notice, RunOptions};
use crate::experiment::sample::memory_of;
use crate::experiment::{Ending, ExperimentError};
use crate::pressure::control::{Control, Place};
use crate::pressure::guest::Guest;
use crate::pressure::outcome::{CaseOutcome, GuestSample, PagingCounts, Sample};
use crate::pressure::paging::{self, Paging};
use crate::pressure::spec::{CaseSpec, PlannedGuest, Spec};
use bifold_guest::kernel::Kernel;
use bifold_guest::qemu::Qemu;
use bifold_host::LiveGuest;
use bifold_reclaim::{GuestObservation, OnLine, PolicyName};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread::{Scope, scope, sleep};
use std::time::{Duration, Instant};

const FRAME: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Time limit until all loads are ready. Emulated guests on a busy machine are slow.
const READY: Duration = Duration::from_secs(900);
/// Pause between two reads of the guests' lines.
const TICK: Duration = Duration::from_millis(50);

/// What a case runs on.
pub(super) struct Machine<'a> {
    pub(super) spec: &'a Spec,
    pub(super) case: &'a CaseSpec,
    pub(super) guests: &'a [PlannedGuest],
    pub(super) kernels: &'a [Kernel],
    pub(super) qemu: &'a Qemu,
    pub(super) journals: &'a Path,
}

impl Machine<'_> {
    /// Runs the case and fills its outcome.
    pub(super) fn run(
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
