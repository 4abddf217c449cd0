// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks the replay against the model: compares a VM that really switches inside the model with the replay
//! of the same switches.

use crate::driver::{Driver, Interval, Scale, Source};
use crate::estimate::Estimator;
use crate::replay::{self, Setup};
use crate::timeline::{TIME_SCALE, Timeline};
use crate::track::{Track, VmKind};
use crate::{Mode, Named, SpecError};
use bifold_mmu::PageSize;
use bifold_model::{Model, Profile, SwitchedOutcome, Switching};

/// Largest error of a replay that passes, in percent of the run's cycles.
pub const TOLERANCE_PERCENT: f64 = 2.0;

/// A policy that switches a VM inside the model.
#[derive(Debug, Clone, PartialEq)]
pub struct OnLine {
    /// The policy.
    pub named: Named,
    /// The kind of VM.
    pub vm: VmKind,
    /// The mode at the start.
    pub start: Mode,
}

/// Why a text names no policy for a VM inside the model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnLineError {
    /// The policy cannot be used.
    #[error(transparent)]
    Policy(#[from] SpecError),
    /// A word after a `+` is unknown.
    #[error("`+{0}` is unknown: give +shadow, +dropped or +2m")]
    Word(String),
}

impl OnLine {
    /// Parses `POLICY[+shadow][+dropped][+2m]`. `+shadow` starts in shadow instead of nested mode, `+dropped`
    /// drops nested tables at a switch, and `+2m` takes 2 MB host pages instead of 4 KB.
    pub fn parse(text: &str) -> Result<OnLine, OnLineError> {
        let mut words = text.split('+');
        let named = Named::load(words.next().unwrap_or(""))?;
        let mut on_line = OnLine { named, vm: VmKind::default(), start: Mode::Nested };
        for word in words {
            match word {
                "shadow" => on_line.start = Mode::Shadow,
                "dropped" => on_line.vm.keep_nested = false,
                "2m" => on_line.vm.host_page = PageSize::Size2M,
                _ => return Err(OnLineError::Word(word.into())),
            }
        }
        Ok(on_line)
    }

    /// Adds the VM to a model before its first event.
    pub fn attach(&self, model: &mut Model, profile: &Profile, interval_s: f64, time_scale: f64) {
        let scale = Scale { time: time_scale, switch: 1.0 };
        let source = Source::simulated(interval_s);
        let mut driver = Driver::new(&self.named.spec, self.start, source, scale, Some(Estimator::fitted()))
            .expect("a simulated source has every counter");
        let cpi = profile.cpu.base_cpi;
        let switching = Switching {
            name: self.named.name.clone(),
            host_page: self.vm.host_page,
            start: self.start,
            keep_nested: self.vm.keep_nested,
        };
        let decide = move |_: usize, sample: &bifold_model::Sample, mode: Mode| {
            let cycles = sample.ideal_cycles(cpi) + sample.extra_cycles() as f64;
            let now = Interval { mode, sample, cycles, load: 1.0, seconds: interval_s };
            driver.interval(now, &[]).unwrap_or(mode)
        };
        model.add_switching(switching, Box::new(decide));
    }
}

/// The error of a replay, compared with the run that it replays.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayCheck {
    /// The policy.
    pub name: String,
    /// The VM.
    pub vm: VmKind,
    /// The mode at the start.
    pub start: Mode,
    /// All cycles of the run inside the model.
    pub cycles: f64,
    /// Number of switches of the run.
    pub switches: u64,
    /// Error of the replay with the run's modes in every interval, in percent of the run's cycles.
    pub same_modes_percent: f64,
    /// Error of the replay that decides for itself, and its number of switches; none if the policy is not
    /// built in.
    pub own_decisions: Option<(f64, u64)>,
}

impl ReplayCheck {
    /// Whether both errors are within [`TOLERANCE_PERCENT`].
    pub fn passed(&self) -> bool {
        let within = |percent: f64| percent.abs() <= TOLERANCE_PERCENT;
        within(self.same_modes_percent) && self.own_decisions.is_none_or(|(p, _)| within(p))
    }
}

/// Checks every VM that switched while the timeline was captured. Decisions depend on the time scale, so the
/// check uses the capture's.
pub fn checks(timeline: &Timeline) -> Vec<ReplayCheck> {
    timeline.switched.iter().filter_map(|s| check(timeline, s)).collect()
}

fn check(timeline: &Timeline, run: &SwitchedOutcome) -> Option<ReplayCheck> {
    let Switching { name, host_page, start, keep_nested } = run.switching.clone();
    let vm = VmKind { host_page, keep_nested };
    let track = Track::new(timeline, vm)?;
    let recorded = |mode: &Mode| track.samples.get(*mode).is_some();
    if !run.modes.iter().chain([&start]).all(recorded) {
        return None;
    }
    let cycles: f64 = run.intervals.iter().zip(&track.ideal).map(|(s, i)| i + s.extra_cycles() as f64).sum();
    let percent = |replayed: f64| if cycles > 0.0 { 100.0 * (replayed - cycles) / cycles } else { 0.0 };
    let scale = Scale { time: timeline.about.time_scale.unwrap_or(TIME_SCALE), switch: 1.0 };
    let setup = Setup { start, scale, estimator: Some(Estimator::fitted()) };
    let own = Named::load(&name).ok().map(|n| replay::replay(&track, &n.spec, &setup, false));
    Some(ReplayCheck {
        name,
        vm,
        start,
        cycles,
        switches: run.intervals.iter().map(|s| s.mode_switches).sum(),
        same_modes_percent: percent(replay::forced(&track, &run.modes, start, 1.0).cycles),
        own_decisions: own.map(|r| (percent(r.cycles), r.switches)),
    })
}
