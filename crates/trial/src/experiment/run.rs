// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a plan: case after case, each with guests of its own.
//!
//! A case begins with KSM off and the case's settings. All guests start together, at time 0. Times in the
//! plan start when every workload is ready. The [`Tuner`] gets every sample and starts and stops KSM. At the
//! end of a case its guests are ended (dropped, or killed with this process); then the KSM guard restores the
//! settings.

mod mark;

use super::guests::{Guest, Kind, fits};
use super::outcome::{CaseOutcome, Mark, Outcome, Sample};
use super::sample::{Sampler, Watched};
use super::spec::{Plan, PlannedCase, Spec};
use super::tune::{Orders, Tuner};
use crate::ExperimentError;
use crate::rate::{Rate, Scale};
use crate::run::{Case, Ending, Tell, available_mib, cases, hold_ksm, watch};
use crate::spec::SMALLEST_MIB;
use bifold_guest::qemu::{self, Qemu};
use bifold_guest::vm::Initrd;
use bifold_host::Host;
use bifold_host::held::{Guardian, Places};
use bifold_host::ksm::{KsmGuard, Setting, Settings};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// What a run needs besides the plan.
#[derive(Debug)]
pub struct RunOptions<'a> {
    /// The host.
    pub host: &'a Host,
    /// Places of the guard's lock and journal.
    pub places: &'a Places,
    /// The guardian, which restores KSM's settings if this process is killed.
    pub guardian: &'a Guardian,
    /// A directory for the guests' memory at the marked times, as raw files.
    pub dump: Option<&'a Path>,
    /// Set this to end the run.
    pub stop: &'a AtomicBool,
}

/// Progress of a run.
pub type Notice<'a> = crate::run::Notice<'a, Sample>;

/// Runs a plan.
///
/// # Errors
/// If nothing could be run: no KSM, not root, no emulator, no kernel, too little memory. A failure within a
/// case is in the case's ending.
pub fn run(
    plan: &Plan,
    options: &RunOptions,
    tell: &mut dyn FnMut(Notice),
) -> Result<Outcome, ExperimentError> {
    let copies = !plan.potential.is_empty();
    let room = available_mib(options.host)?;
    fits(&plan.guests, copies, room, || largest_scale_in(&plan.spec, room).map(|s| s.to_string()))?;
    let qemu = qemu::find()?;
    // Before anything is fetched, because a run needs KSM and its lock.
    let ksm = (options.places, options.guardian);
    let guard = hold_ksm(options.host, ksm, tell)?;
    let kinds = Kind::find(&plan.spec, &mut |s| tell(Notice::Stage(s)))?;
    let planned = plan.cases.iter().map(|case| (case.name.clone(), case));
    let run = |case, tell: Tell<Sample>| {
        let mut runner = Runner::new(plan, case, options, &guard);
        let ending = runner.go(&qemu, &kinds, tell).unwrap_or_else(Ending::from);
        (runner.end(ending.clone()), ending)
    };
    let outcome = Outcome {
        host_kernel: options.host.kernel_release(),
        qemu: qemu.version.clone(),
        found: guard.found().to_string(),
        cases: cases(planned, options.stop, tell, run),
        planned: plan.cases.len(),
    };
    guard.restore()?;
    Ok(outcome)
}

/// The largest of the usual scales at which an experiment fits into this much memory, in MiB.
pub fn largest_scale_in(spec: &Spec, room_mib: u64) -> Option<Scale> {
    [1, 2, 4, 8, 16, 32].into_iter().map(|parts| Rate { of: 1, parts }).find(|scale| {
        let plan = spec.plan(Path::new(""), *scale, &[]);
        plan.is_ok_and(|p| {
            p.guests.iter().all(|g| g.memory_mib >= SMALLEST_MIB)
                && fits(&p.guests, !p.potential.is_empty(), room_mib, || None).is_ok()
        })
    })
}

/// A case while it runs.
struct Runner<'a> {
    plan: &'a Plan,
    case: &'a PlannedCase,
    options: &'a RunOptions<'a>,
    guard: &'a KsmGuard,
    guests: Vec<Guest>,
    samples: Vec<Sample>,
    marks: Vec<Mark>,
    notes: Vec<String>,
    tuner: Tuner,
    /// The last orders to KSM.
    orders: Orders,
    /// From the start of the guests on.
    sampler: Option<Sampler<'a>>,
    /// Number of marked times that are over.
    marked: usize,
}

impl<'a> Runner<'a> {
    fn new(
        plan: &'a Plan,
        case: &'a PlannedCase,
        options: &'a RunOptions,
        guard: &'a KsmGuard,
    ) -> Runner<'a> {
        Runner {
            plan,
            case,
            options,
            guard,
            guests: Vec::new(),
            samples: Vec::new(),
            marks: Vec::new(),
            notes: Vec::new(),
            tuner: Tuner::new(case.start.clone(), plan.budget_mib << 20),
            orders: Orders { run: false, pages_to_scan: None },
            sampler: None,
            marked: 0,
        }
    }

    fn end(self, ending: Ending) -> CaseOutcome {
        let ksm = self.guard.ksm();
        let own: Vec<u32> = self.guests.iter().filter_map(Guest::watched).map(|w| w.pid).collect();
        // If a guest ends just now, the figure is lost; the case then counts as damaged.
        let merged = if own.is_empty() { None } else { ksm.merged(&own).ok() };
        let others = ksm.others(&self.own()).unwrap_or_default();
        CaseOutcome {
            name: self.case.name.clone(),
            ksm: self.case.ksm.to_string(),
            guests: self.guests.into_iter().map(|g| g.outcome).collect(),
            samples: self.samples,
            marks: self.marks,
            merged,
            others,
            ending,
            notes: self.notes,
        }
    }

    /// All settings of the case except `run`: the settings found, replaced by the case's own.
    fn settings(&self) -> Settings {
        let named = |s: &(Setting, u64)| s.0 != Setting::Run;
        let found: Vec<_> = self.guard.found().iter().filter(named).collect();
        let mut settings = Settings::of(&found);
        self.case.ksm.iter().filter(named).for_each(|(s, v)| settings.put(s, v));
        settings
    }

    /// This process and the guests' emulators.
    fn own(&self) -> Vec<u32> {
        let guests = self.guests.iter().filter_map(Guest::watched).map(|w| w.pid);
        std::iter::once(std::process::id()).chain(guests).collect()
    }

    fn note(&mut self, text: String, tell: Tell<Sample>) {
        tell(Notice::Note(&text));
        self.notes.push(text);
    }

    fn go(&mut self, qemu: &Qemu, kinds: &[Kind], tell: Tell<Sample>) -> Result<Ending, ExperimentError> {
        let mut settings = self.settings();
        settings.put(Setting::Run, 0);
        self.guard.set(&settings)?;
        self.note_others(tell)?;
        let initrds = kinds.iter().zip(&self.case.workloads).map(|(kind, w)| kind.initrd(w));
        let initrds = initrds.collect::<Result<Vec<Initrd>, _>>()?;
        self.sampler = Some(Sampler::start(self.options.host, self.guard.ksm())?);
        let started = Instant::now();
        self.start(qemu, kinds, &initrds)?;
        watch(self, started, [self.plan.length, self.plan.sample], self.options.stop, tell)
    }

    /// Starts all guests.
    fn start(&mut self, qemu: &Qemu, kinds: &[Kind], initrds: &[Initrd]) -> Result<(), ExperimentError> {
        for g in &self.plan.guests {
            let (kind, workload) = (&kinds[g.kind], &self.case.workloads[g.kind]);
            let huge = self.plan.spec.host_huge_pages;
            self.guests.push(Guest::start(qemu, g, kind, &initrds[g.kind], workload, huge)?);
        }
        Ok(())
    }

    /// Says what other programs share.
    fn note_others(&mut self, tell: Tell<Sample>) -> Result<(), ExperimentError> {
        let others = self.guard.ksm().others(&self.own())?;
        if others.pages() > 0 {
            let text = format!(
                "other programs share, too: {} mergeable pages, {} of them merged before ({others}); ksmd goes over \
                 them in every pass, and they are in the figures of the whole host",
                others.pages(),
                others.merged()
            );
            self.note(text, tell);
        }
        Ok(())
    }
}

impl Case for Runner<'_> {
    type Sample = Sample;
    const LOADS: &'static str = "workloads";
    const BOOT: bool = true;

    fn poll(&mut self, zero: Instant, tell: Tell<Sample>) -> Result<(), ExperimentError> {
        for n in 0..self.guests.len() {
            if let Some(news) = self.guests[n].poll(zero.elapsed().as_secs_f64())? {
                self.note(news, tell);
            }
        }
        Ok(())
    }

    fn is_ready(&self) -> bool {
        let decided = |g: &Guest| g.outcome.ready_s.is_some() || g.outcome.failed.is_some() || !g.lives();
        self.guests.iter().all(decided)
    }

    /// The workloads have begun on their own.
    fn begin(&mut self, _: Tell<Sample>) -> Result<Instant, ExperimentError> {
        Ok(Instant::now())
    }

    /// Takes a sample and follows the tuner's orders.
    fn sample(&mut self, zero: Instant, tell: Tell<Sample>) -> Result<Option<Ending>, ExperimentError> {
        let watched: Vec<Option<Watched>> = self.guests.iter().map(Guest::watched).collect();
        let sampler = self.sampler.as_ref().expect("it begins before the guests");
        let sample = sampler.sample(zero.elapsed().as_secs_f64(), &watched, self.orders)?;
        let orders = self.tuner.look(sample.at_s, sample.unshared, sample.used);
        if orders != self.orders {
            let mut wanted = Settings::of(&[(Setting::Run, u64::from(orders.run))]);
            if let Some(pages) = orders.pages_to_scan {
                wanted.put(Setting::PagesToScan, pages);
            }
            self.guard.set(&wanted)?;
            self.orders = orders;
        }
        tell(Notice::Sample(&sample));
        self.samples.push(sample);
        Ok(None)
    }

    fn lives(&self) -> bool {
        self.guests.iter().any(Guest::lives)
    }

    /// Counts the potential at a marked time.
    fn mark(&mut self, since: Duration, zero: Instant, tell: Tell<Sample>) -> Result<(), ExperimentError> {
        if self.plan.potential.get(self.marked).is_some_and(|at| since >= *at) {
            self.marked += 1;
            self.count(zero.elapsed().as_secs_f64(), tell)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_scale_that_fits_is_offered() {
        let text = "title = 'x'\n[time]\nlength = 10\nsample = 1\n[[guest]]\nname = 'a'\ncount = 2\n\
                    memory_mib = 1024\nworkload = { kind = 'idle' }\n";
        let spec = Spec::parse(Path::new("x"), text).unwrap();
        let parts = |room| largest_scale_in(&spec, room).map(|s| s.parts);
        assert_eq!([parts(3000), parts(2000), parts(800)], [Some(1), Some(2), Some(4)]);
        assert_eq!(parts(100), None);
    }
}
