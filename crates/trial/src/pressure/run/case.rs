// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One case: its guests, and their loads while they run.

use super::{Notice, RunOptions};
use crate::ExperimentError;
use crate::guest::memory_of;
use crate::paging::{self, Paging, PagingCounts};
use crate::pressure::control::{Control, Place};
use crate::pressure::guest::{Ground, Guest};
use crate::pressure::outcome::{CaseOutcome, GuestSample, Sample};
use crate::pressure::spec::{CaseSpec, PlannedGuest, Spec};
use crate::run::{Case, Ending, Tell, watch};
use bifold_guest::kernel::Kernel;
use bifold_guest::qemu::Qemu;
use bifold_host::LiveGuest;
use bifold_host::ksm::{KsmGuard, Setting, Settings};
use bifold_reclaim::{GuestObservation, OnLine, PolicyName};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::thread::{Scope, scope};
use std::time::{Duration, Instant};

const FRAME: u64 = 4096;
const MIB: u64 = 1 << 20;

/// What all cases run on.
pub(super) struct Machine<'a> {
    pub(super) spec: &'a Spec,
    pub(super) options: &'a RunOptions<'a>,
    pub(super) guests: &'a [PlannedGuest],
    pub(super) kernels: &'a [Kernel],
    pub(super) qemu: &'a Qemu,
    pub(super) journals: &'a Path,
    pub(super) guard: Option<&'a KsmGuard>,
}

impl Machine<'_> {
    /// Runs a case and fills its outcome.
    pub(super) fn run(
        &self,
        result: &mut CaseOutcome,
        tell: Tell<Sample>,
    ) -> Result<Ending, ExperimentError> {
        let options = self.options;
        let case = &result.spec.clone();
        if let Some(guard) = self.guard {
            guard.set(&Settings::of(&[(Setting::Run, u64::from(case.sharing))]))?;
        }
        // Disks and sockets; removed at the end, when the guests have ended.
        let folder = tempfile::Builder::new().prefix("bifold-").tempdir().map_err(ExperimentError::Folder)?;
        // Removed after the guests' end, as it is dropped after them.
        if case.paging {
            // Cases before have filled swap, and others may have.
            paging::usable(options.host, self.spec.swap_mib())?;
        }
        let paging = case.paging.then(|| Paging::make(options.host, self.guests.len())).transpose()?;
        let mut guests = self.start(case, folder.path(), paging.as_ref())?;
        let controls: Vec<Control> = guests.iter().map(|_| Control::default()).collect();
        let place = Place { host: options.host, folder: self.journals, guardian: options.orders };
        // The threads give everything back before the guests are ended.
        let ending = scope(|threads| {
            let policy = case.policy.and_then(|name| name.on_line(self.guests.len()));
            let mut run = Run {
                machine: self,
                case,
                place,
                threads,
                guests: &mut guests,
                controls: &controls,
                paging: paging.as_ref(),
                paged: Vec::new(),
                cpu: Vec::new(),
                policy,
                result,
            };
            let _end = EndAll(&controls);
            let times = [self.spec.time.length, self.spec.time.interval].map(Duration::from_secs_f64);
            watch(&mut run, Instant::now(), times, options.stop, tell)
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

    /// Starts all guests, each with a folder of its own in `folder`.
    fn start(
        &self,
        case: &CaseSpec,
        folder: &Path,
        paging: Option<&Paging>,
    ) -> Result<Vec<Guest>, ExperimentError> {
        let mut guests = Vec::new();
        for planned in self.guests {
            let own = folder.join(guests.len().to_string());
            std::fs::create_dir(&own).map_err(ExperimentError::Folder)?;
            let group = paging.map(|p| p.entry(guests.len())).transpose()?;
            let ground = Ground {
                qemu: self.qemu,
                kernel: &self.kernels[planned.kind],
                kvm: self.options.kvm,
                folder: &own,
                group: group.as_ref().map(|g| g.as_fd()),
            };
            guests.push(Guest::start(&ground, self.spec, case, planned)?);
        }
        Ok(guests)
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
struct Run<'s, 'e, 'a> {
    machine: &'a Machine<'a>,
    case: &'a CaseSpec,
    place: Place<'a>,
    threads: &'s Scope<'s, 'e>,
    guests: &'a mut [Guest],
    controls: &'a [Control],
    paging: Option<&'a Paging>,
    /// What the host had counted for each guest when the loads began.
    paged: Vec<PagingCounts>,
    /// CPU time of each emulator when the loads began.
    cpu: Vec<Duration>,
    policy: Option<OnLine>,
    result: &'a mut CaseOutcome,
}

impl<'s, 'a: 's> Case for Run<'s, '_, 'a> {
    type Sample = Sample;
    const LOADS: &'static str = "loads";
    const BOOT: bool = false;

    /// Reads all guests' lines and all threads' notes.
    fn poll(&mut self, zero: Instant, tell: Tell<Sample>) -> Result<(), ExperimentError> {
        let now = zero.elapsed().as_secs_f64();
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

    fn is_ready(&self) -> bool {
        self.guests.iter().all(Guest::is_decided)
    }

    fn begin(&mut self, tell: Tell<Sample>) -> Result<Instant, ExperimentError> {
        if let Some(paging) = self.paging {
            let text = self.limit(paging)?;
            self.note(text, tell);
        }
        self.cpu = self.guests.iter().map(|g| self.cpu(g).unwrap_or_default()).collect();
        let begun = Instant::now();
        for n in 0..self.guests.len() {
            // A guest that has just ended is noted with the next poll.
            let _ = self.guests[n].go();
            let Some((pid, started)) =
                self.guests[n].pid.and_then(|pid| Some((pid, self.place.host.started(pid)?)))
            else {
                continue;
            };
            let name = self.guests[n].outcome.name.clone();
            let guest =
                LiveGuest { pid, name, started, vm: None, kvm: self.machine.options.kvm, vcpus: Vec::new() };
            let (control, place) = (&self.controls[n], self.place);
            self.threads.spawn(move || control.follow(place, &guest));
        }
        Ok(begun)
    }

    fn sample(&mut self, zero: Instant, tell: Tell<Sample>) -> Result<Option<Ending>, ExperimentError> {
        let sample = self.look(zero.elapsed().as_secs_f64());
        if let Some(killed) = self.follow(&sample)? {
            return Ok(Some(killed));
        }
        if let Some(mut policy) = self.policy.take() {
            self.decide(&mut policy, &sample);
            self.policy = Some(policy);
        } else if let Some(mib) = self.case.size_mib {
            self.controls.iter().for_each(|control| control.want(mib * MIB));
        }
        tell(Notice::Sample(&sample));
        self.result.samples.push(sample);
        Ok(None)
    }

    fn lives(&self) -> bool {
        self.guests.iter().any(|g| g.pid.is_some())
    }
}

impl Run<'_, '_, '_> {
    fn note(&mut self, text: String, tell: Tell<Sample>) {
        tell(Notice::Note(&text));
        self.result.notes.push(text);
    }

    /// Limits what the guests have together to the host's size. Returns what else the group may have, as
    /// text.
    fn limit(&mut self, paging: &Paging) -> Result<String, ExperimentError> {
        let host = self.place.host;
        let memory = |g: &Guest| memory_of(host, g.pid?, g.outcome.memory_mib * MIB);
        // Merged pages count once in the group.
        let of_guests: u64 = self.guests.iter().filter_map(memory).map(|m| m.pss).sum();
        let others = paging.limit(self.case.host_mib(self.machine.spec) * MIB, of_guests)?;
        self.paged = (0..self.guests.len()).map(|n| paging.counts(n)).collect();
        Ok(format!("the host may have {} MiB more, which are QEMU's own", others / MIB))
    }

    /// Lets the host's limit follow. A host that has killed a guest ends the case: the others have its
    /// memory.
    fn follow(&self, sample: &Sample) -> Result<Option<Ending>, ExperimentError> {
        let Some(paging) = self.paging else { return Ok(None) };
        let kills = paging.follow(self.case.host_mib(self.machine.spec) * MIB, sample.used())?;
        let why = || "the host's kernel killed a guest for lack of memory: it found too little to page out";
        Ok((kills > 0).then(|| Ending::Failed(why().into())))
    }

    fn cpu(&self, guest: &Guest) -> Option<Duration> {
        self.place.host.cpu_time(guest.pid?)
    }

    /// The figures of this moment.
    fn look(&self, at_s: f64) -> Sample {
        let guest = |n: usize| {
            let guest = &self.guests[n];
            let memory = memory_of(self.place.host, guest.pid?, guest.outcome.memory_mib * MIB)?;
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
                cpu_s: self.cpu(guest)?.saturating_sub(self.cpu[n]).as_secs_f64(),
                load: guest.counts,
            })
        };
        Sample { at_s, guests: (0..self.guests.len()).map(guest).collect() }
    }

    /// Lets the policy decide by this sample and the one before.
    fn decide(&self, policy: &mut OnLine, sample: &Sample) {
        let before = self.result.samples.last();
        let seconds = before.map_or(0.0, |b| sample.at_s - b.at_s);
        let learns_uses = self.case.policy == Some(PolicyName::IdleTax);
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
        let sizes = policy.decide(self.case.host_mib(self.machine.spec) * MIB / FRAME, seconds, &seen);
        for (n, size) in sizes.into_iter().enumerate() {
            self.controls[n].want(size * FRAME);
            if let Some(pid) = self.guests[n].pid.filter(|_| learns_uses) {
                // A guest that is just ending has no uses.
                let _ = self.place.host.forget_uses(pid);
            }
        }
    }
}
