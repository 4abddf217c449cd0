// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a plan: case after case, each with guests of its own.
//!
//! A case begins with KSM off and the case's settings. All guests start together, at time 0. Times in the
//! plan start when every workload is ready, because boot time varies. From then on the [`Tuner`] gets every
//! sample and starts and stops KSM. If a guest fails, the outcome notes it and the case continues. If the
//! user stops the run, the case ends, and the outcome has everything up to then. At the end of a case its
//! guests are ended (dropped, or killed with this process); then the KSM guard restores the settings.

mod mark;

use super::ExperimentError;
use super::guests::{Guest, Kind, fits};
use super::outcome::{CaseOutcome, Ending, Mark, Outcome, Sample};
use super::sample::{Sampler, Watched};
use super::spec::{Plan, PlannedCase, Rate, SMALLEST_MIB, Scale, Spec};
use super::tune::{Orders, Tuner};
use bifold_base::with_causes;
use bifold_guest::qemu::{self, Qemu};
use bifold_guest::vm::Initrd;
use bifold_host::Host;
use bifold_host::held::{Guardian, Places};
use bifold_host::ksm::{KsmGuard, Setting, Settings};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time limit until all workloads are ready. Emulated guests on a busy machine are slow.
const READY: Duration = Duration::from_secs(900);
/// Pause between two reads of the guests' lines.
const TICK: Duration = Duration::from_millis(50);

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
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice<'a> {
    /// A stage of the preparation.
    Stage(&'a str),
    /// A case begins: its index, and its name.
    Case(usize, &'a str),
    /// A sample was taken.
    Sample(&'a Sample),
    /// A note for the user.
    Note(&'a str),
}

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
    fits(&plan.guests, copies, available_mib(options.host)?, || largest_scale(&plan.spec, options.host))?;
    let qemu = qemu::find()?;
    // Before anything is fetched, because a run needs KSM and its lock.
    let guard =
        hold_ksm(options.host, options.places, options.guardian, &mut |text| tell(Notice::Note(text)))?;
    let kinds = Kind::find(&plan.spec, &mut |s| tell(Notice::Stage(s)))?;
    let mut outcome = Outcome {
        host_kernel: options.host.kernel_release(),
        qemu: qemu.version.clone(),
        found: guard.found().to_string(),
        cases: Vec::new(),
        planned: plan.cases.len(),
    };
    for (n, case) in plan.cases.iter().enumerate() {
        if options.stop.load(Ordering::Relaxed) {
            break;
        }
        tell(Notice::Case(n, &case.name));
        let mut runner = Runner::new(plan, case, options, &guard);
        let ending = match runner.go(&qemu, &kinds, tell) {
            Ok(ending) => ending,
            Err(e) => Ending::Failed(with_causes(&e)),
        };
        if let Ending::Failed(why) = &ending {
            tell(Notice::Note(&format!("{}: {why}", case.name)));
        }
        let over = ending != Ending::Whole;
        outcome.cases.push(runner.end(ending));
        if over {
            break;
        }
    }
    guard.restore()?;
    Ok(outcome)
}

/// The largest of the usual scales at which an experiment fits into the host's memory.
pub fn largest_scale(spec: &Spec, host: &Host) -> Option<String> {
    let room = available_mib(host).ok()?;
    largest_scale_in(spec, room).map(|s| s.to_string())
}

/// As [`largest_scale_in`], for this much memory in MiB.
pub fn largest_scale_in(spec: &Spec, room_mib: u64) -> Option<Scale> {
    [1, 2, 4, 8, 16, 32].into_iter().map(|parts| Rate { of: 1, parts }).find(|scale| {
        let plan = spec.plan(Path::new(""), *scale, &[]);
        plan.is_ok_and(|p| {
            p.guests.iter().all(|g| g.memory_mib >= SMALLEST_MIB)
                && fits(&p.guests, !p.potential.is_empty(), room_mib, || None).is_ok()
        })
    })
}

/// Holds KSM's settings, which are restored at the end. KSM does not run yet.
pub(crate) fn hold_ksm(
    host: &Host,
    places: &Places,
    guardian: &Guardian,
    note: &mut dyn FnMut(&str),
) -> Result<KsmGuard, ExperimentError> {
    let guard = KsmGuard::take(host, places, guardian, &Settings::of(&[(Setting::Run, 0)]))?;
    if let Some(pid) = guard.recovered() {
        note(&format!("process {pid} had left KSM's settings changed: they were restored first"));
    }
    Ok(guard)
}

/// Memory that is available on a host, MiB.
pub fn available_mib(host: &Host) -> Result<u64, ExperimentError> {
    Ok(host.memory()?.available.ok_or(ExperimentError::NoMemAvailable)? >> 20)
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
    /// The last orders to KSM.
    orders: Orders,
    begun: Instant,
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
            orders: Orders { run: false, pages_to_scan: None },
            begun: Instant::now(),
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

    fn now(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    fn note(&mut self, text: String, tell: &mut dyn FnMut(Notice)) {
        tell(Notice::Note(&text));
        self.notes.push(text);
    }

    fn go(
        &mut self,
        qemu: &Qemu,
        kinds: &[Kind],
        tell: &mut dyn FnMut(Notice),
    ) -> Result<Ending, ExperimentError> {
        let mut settings = self.settings();
        settings.put(Setting::Run, 0);
        self.guard.set(&settings)?;
        self.note_others(tell)?;
        let initrds = kinds.iter().zip(&self.case.workloads).map(|(kind, w)| kind.initrd(w));
        let initrds = initrds.collect::<Result<Vec<Initrd>, _>>()?;
        let sampler = Sampler::start(self.options.host, self.guard.ksm())?;
        let budget = self.plan.budget_mib << 20;
        let mut tuner = Tuner::new(self.case.start.clone(), budget);
        self.begun = Instant::now();
        self.start(qemu, kinds, &initrds)?;
        let mut marks = self.plan.potential.iter().copied().peekable();
        let mut next = Duration::ZERO;
        let mut ready = None;
        loop {
            self.poll(tell)?;
            let elapsed = self.begun.elapsed();
            let decided = |g: &Guest| g.outcome.ready_s.is_some() || g.outcome.failed.is_some() || !g.lives();
            if ready.is_none() && self.guests.iter().all(decided) {
                ready = Some(elapsed);
            }
            let since = ready.map(|r| elapsed - r);
            let over = since.is_some_and(|s| s >= self.plan.length);
            if ready.is_none() && elapsed > READY {
                let text = format!("not all workloads were ready after {} s", READY.as_secs());
                return Ok(Ending::Failed(text));
            }
            let stopped = self.options.stop.load(Ordering::Relaxed);
            if elapsed >= next || over || stopped {
                self.sample(&sampler, &mut tuner, tell)?;
                // Samples that a count has delayed are left out.
                while next <= elapsed {
                    next += self.plan.sample;
                }
            }
            if stopped {
                return Ok(Ending::Interrupted);
            }
            if !self.guests.iter().any(Guest::lives) {
                return Ok(Ending::Failed("no guest is left".into()));
            }
            if marks.peek().is_some_and(|at| since.is_some_and(|s| s >= *at)) {
                marks.next();
                self.mark(tell)?;
            }
            if over {
                return Ok(Ending::Whole);
            }
            std::thread::sleep(TICK);
        }
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

    /// Reads what all guests say.
    fn poll(&mut self, tell: &mut dyn FnMut(Notice)) -> Result<(), ExperimentError> {
        for n in 0..self.guests.len() {
            let now = self.now();
            if let Some(news) = self.guests[n].poll(now)? {
                self.note(news, tell);
            }
        }
        Ok(())
    }

    /// Says what other programs share.
    fn note_others(&mut self, tell: &mut dyn FnMut(Notice)) -> Result<(), ExperimentError> {
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

    /// Takes a sample and follows the tuner's orders.
    fn sample(
        &mut self,
        sampler: &Sampler,
        tuner: &mut Tuner,
        tell: &mut dyn FnMut(Notice),
    ) -> Result<(), ExperimentError> {
        let watched: Vec<Option<Watched>> = self.guests.iter().map(Guest::watched).collect();
        let sample = sampler.sample(self.now(), &watched, self.orders)?;
        let orders = tuner.look(sample.at_s, sample.unshared, sample.used);
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
