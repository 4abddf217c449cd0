// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the cases of an experiment, one after the other, each with guests of its own.
//!
//! All guests of a case start together. What the case measures begins when every load is ready, because boot
//! time varies. From then on, samples are taken, and the case follows them: it sets KSM, decides about sizes,
//! or limits the host's memory. If a guest fails, the outcome notes it and the case continues. If the user
//! stops the run, the case ends, and the outcome has everything up to then.

use crate::ExperimentError;
use bifold_base::with_causes;
use bifold_host::Host;
use bifold_host::held::{Guardian, Places};
use bifold_host::ksm::{KsmGuard, Setting, Settings};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Memory of an emulator besides the guest's.
pub(crate) const EMULATOR_MIB: u64 = 110;
/// Time limit until all loads are ready. Emulated guests on a busy machine are slow.
const READY: Duration = Duration::from_secs(900);
/// Pause between two reads of the guests' lines.
const TICK: Duration = Duration::from_millis(50);

/// Progress of a run with samples of a kind.
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice<'a, S> {
    /// A stage of the preparation.
    Stage(&'a str),
    /// A case begins: its index among all that are planned, and its name.
    Case(usize, &'a str),
    /// A sample was taken.
    Sample(&'a S),
    /// A note for the user.
    Note(&'a str),
}

/// Where notices go.
pub(crate) type Tell<'t, S> = &'t mut dyn FnMut(Notice<S>);

/// How a case ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The case ran for its full length.
    Whole,
    /// The user stopped the run.
    Interrupted,
    /// The case could not continue.
    Failed(String),
}

impl From<ExperimentError> for Ending {
    fn from(error: ExperimentError) -> Ending {
        Ending::Failed(with_causes(&error))
    }
}

/// Runs cases by their titles, until one does not end whole or the user stops the run.
pub(crate) fn cases<C, S, O>(
    cases: impl IntoIterator<Item = (String, C)>,
    stop: &AtomicBool,
    tell: Tell<S>,
    mut run: impl FnMut(C, Tell<S>) -> (O, Ending),
) -> Vec<O> {
    let mut outcomes = Vec::new();
    for (n, (title, case)) in cases.into_iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        tell(Notice::Case(n, &title));
        let (outcome, ending) = run(case, tell);
        outcomes.push(outcome);
        match ending {
            Ending::Whole => continue,
            Ending::Interrupted => {}
            Ending::Failed(why) => tell(Notice::Note(&format!("{title}: {why}"))),
        }
        break;
    }
    outcomes
}

/// A case whose guests have been started: what it holds, and what it samples. Times of its notes and samples
/// count from `zero`.
pub(crate) trait Case {
    /// The figures of one moment.
    type Sample;
    /// What its guests run.
    const LOADS: &'static str;
    /// Whether times count from the guests' start, and samples are taken from then on; else both begin with
    /// the loads.
    const BOOT: bool;

    /// Reads what all guests say.
    fn poll(&mut self, zero: Instant, tell: Tell<Self::Sample>) -> Result<(), ExperimentError>;

    /// Whether each guest's load is ready, or never will be.
    fn is_ready(&self) -> bool;

    /// Lets the loads begin, and returns when they did.
    fn begin(&mut self, tell: Tell<Self::Sample>) -> Result<Instant, ExperimentError>;

    /// Takes a sample and follows it. Returns how the case ends, if it cannot go on.
    fn sample(&mut self, zero: Instant, tell: Tell<Self::Sample>) -> Result<Option<Ending>, ExperimentError>;

    /// Whether a guest runs.
    fn lives(&self) -> bool;

    /// Does what is due besides samples, when the loads have run for so long.
    fn mark(&mut self, _: Duration, _: Instant, _: Tell<Self::Sample>) -> Result<(), ExperimentError> {
        Ok(())
    }
}

/// Runs a case whose guests began to start at `started` until its loads have run for `length`, with a sample
/// after each `interval`.
pub(crate) fn watch<C: Case>(
    case: &mut C,
    started: Instant,
    [length, interval]: [Duration; 2],
    stop: &AtomicBool,
    tell: Tell<C::Sample>,
) -> Result<Ending, ExperimentError> {
    let (mut zero, mut begun) = (started, None::<Instant>);
    let mut next = Duration::ZERO;
    loop {
        case.poll(zero, tell)?;
        let stopped = stop.load(Ordering::Relaxed);
        if begun.is_none() && !stopped && case.is_ready() {
            let now = case.begin(tell)?;
            begun = Some(now);
            zero = if C::BOOT { started } else { now };
            continue;
        }
        let since = begun.map(|b| b.elapsed());
        let over = since.is_some_and(|s| s >= length);
        if begun.is_none() && !stopped && started.elapsed() > READY {
            let text = format!("not all {} were ready after {} s", C::LOADS, READY.as_secs());
            return Ok(Ending::Failed(text));
        }
        let now = zero.elapsed();
        if (C::BOOT || begun.is_some()) && (now >= next || over || stopped) {
            if let Some(ending) = case.sample(zero, tell)? {
                return Ok(ending);
            }
            // Samples that a count has delayed are left out.
            while next <= now {
                next += interval;
            }
        }
        if stopped {
            return Ok(Ending::Interrupted);
        }
        if !case.lives() {
            return Ok(Ending::Failed("no guest is left".into()));
        }
        if let Some(since) = since {
            case.mark(since, zero, tell)?;
        }
        if over {
            return Ok(Ending::Whole);
        }
        std::thread::sleep(TICK);
    }
}

/// Holds KSM's settings, which are restored at the end. KSM does not run yet.
pub(crate) fn hold_ksm<S>(
    host: &Host,
    (places, guardian): (&Places, &Guardian),
    tell: Tell<S>,
) -> Result<KsmGuard, ExperimentError> {
    let guard = KsmGuard::take(host, places, guardian, &Settings::of(&[(Setting::Run, 0)]))?;
    if let Some(pid) = guard.recovered() {
        tell(Notice::Note(&format!(
            "process {pid} had left KSM's settings changed: they were restored first"
        )));
    }
    Ok(guard)
}

/// Memory that is available on a host, MiB.
///
/// # Errors
/// If the host does not tell.
pub fn available_mib(host: &Host) -> Result<u64, ExperimentError> {
    Ok(host.memory()?.available.ok_or(ExperimentError::NoMemAvailable)? >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A case whose load is ready at the second poll, and whose guest ends after some polls.
    struct Fake {
        polls: u32,
        most_polls: u32,
        samples: Vec<f64>,
    }

    impl Case for Fake {
        type Sample = f64;
        const LOADS: &'static str = "loads";
        const BOOT: bool = false;

        fn poll(&mut self, _: Instant, _: Tell<f64>) -> Result<(), ExperimentError> {
            self.polls += 1;
            Ok(())
        }

        fn is_ready(&self) -> bool {
            self.polls > 1
        }

        fn begin(&mut self, _: Tell<f64>) -> Result<Instant, ExperimentError> {
            Ok(Instant::now())
        }

        fn sample(&mut self, zero: Instant, _: Tell<f64>) -> Result<Option<Ending>, ExperimentError> {
            self.samples.push(zero.elapsed().as_secs_f64());
            Ok(None)
        }

        fn lives(&self) -> bool {
            self.polls < self.most_polls
        }
    }

    #[test]
    fn a_case_is_sampled_from_its_begin_to_its_length_unless_its_guests_or_the_user_end_it() {
        let end = |most_polls, stopped| {
            let mut fake = Fake { polls: 0, most_polls, samples: Vec::new() };
            let times = [120, 40].map(Duration::from_millis);
            let stop = AtomicBool::new(stopped);
            (watch(&mut fake, Instant::now(), times, &stop, &mut |_| {}).unwrap(), fake.samples)
        };
        let (ending, samples) = end(u32::MAX, false);
        assert_eq!(ending, Ending::Whole);
        assert!(samples.last().is_some_and(|at| *at >= 0.12), "{samples:?}");
        assert_eq!(end(3, false).0, Ending::Failed("no guest is left".into()));
        assert_eq!(end(u32::MAX, true), (Ending::Interrupted, Vec::new()), "before the loads are ready");
    }
}
