// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replays a policy, or a given sequence of modes, over a track.
//!
//! An interval costs as much as in the mode's static run, plus the entries that are cold since the last
//! switch. The cost of a switch belongs to the interval after it. Nothing else of the past matters; `bifold
//! compare --check` checks that against VMs that switch inside the model.

use crate::driver::{Decision, Driver, Interval, Scale, Source};
use crate::estimate::Estimator;
use crate::track::Track;
use crate::{Log, Mode, Other, PerMode, Spec};
use bifold_model::Sample;

/// How a replay runs.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    /// The mode at the start.
    pub start: Mode,
    /// Scale between a policy's time and the timeline's time.
    pub scale: Scale,
    /// Estimates the other modes' costs for policies that need them; without an estimator, the timeline tells
    /// the costs.
    pub estimator: Option<&'a Estimator>,
}

/// The result of a replay.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The mode of every interval.
    pub modes: Vec<Mode>,
    /// All cycles.
    pub cycles: f64,
    /// Cycles beyond the guest's own work.
    pub extra_cycles: f64,
    /// The part of the extra cycles that switches and the cold entries after switches cost.
    pub switch_cycles: f64,
    /// Number of switches.
    pub switches: u64,
    /// Number of decisions.
    pub decisions: u64,
    /// Interval and explanation of every decision, if explanations are on.
    pub explained: Vec<(usize, Decision)>,
}

impl Run {
    /// Cycles beyond the guest's own work, in percent of it.
    pub fn overhead_percent(&self) -> f64 {
        let ideal = self.cycles - self.extra_cycles;
        if ideal > 0.0 { 100.0 * self.extra_cycles / ideal } else { 0.0 }
    }
}

/// Rounds to a count. Values above an hour of cycles, which no switch of a real machine costs, are cut, so
/// that sums over many intervals of a made-up timeline do not overflow.
fn count(x: f64) -> u64 {
    const MOST: f64 = (1u64 << 44) as f64;
    x.round().min(MOST) as u64
}

/// A VM during a replay.
#[derive(Debug, Clone)]
struct Moving<'a> {
    track: &'a Track,
    switch_scale: f64,
    mode: Mode,
    /// The interval at which the mode was entered, if it was.
    entered: Option<usize>,
    /// The interval at which each mode was left last.
    left: PerMode<usize>,
    /// Shadow pages in use.
    shadow_pages: f64,
    /// Tables that the last switch dropped, if its cost is not yet paid.
    dropped: Option<f64>,
    run: Run,
}

impl<'a> Moving<'a> {
    fn new(track: &'a Track, start: Mode, switch_scale: f64) -> Self {
        Moving {
            track,
            switch_scale,
            mode: start,
            entered: None,
            left: PerMode::default(),
            shadow_pages: 0.0,
            dropped: None,
            run: Run {
                modes: Vec::with_capacity(track.len()),
                cycles: 0.0,
                extra_cycles: 0.0,
                switch_cycles: 0.0,
                switches: 0,
                decisions: 0,
                explained: Vec::new(),
            },
        }
    }

    /// Switches to `mode` before interval `j`.
    fn switch(&mut self, mode: Mode, j: usize) {
        self.dropped = Some(self.track.dropped(self.mode, self.shadow_pages));
        self.shadow_pages = 0.0;
        self.left.insert(self.mode, j);
        self.entered = Some(j);
        self.mode = mode;
        self.run.switches += 1;
    }

    /// The interval at which the mode was left last, or 0.
    fn left(&self, mode: Mode) -> usize {
        self.left.get(mode).copied().unwrap_or(0)
    }

    /// Runs interval `j`: its sample, and its cycles beyond the guest's own work.
    fn interval(&mut self, j: usize, sample: &mut Sample) -> f64 {
        let track = self.track;
        *sample = track.samples[self.mode][j];
        let mut cycles = 0.0;
        let mut tables = 0.0;
        if let Some(entered) = self.entered {
            let cold = track.cold(self.mode, j, entered, self.left(self.mode));
            tables = cold.tables;
            let exits = count(cold.exits / self.switch_scale);
            match self.mode {
                Mode::Shadow => sample.exits_hidden_fault += exits,
                _ => sample.exits_violation += exits,
            }
            sample.shadow_pages_made += count(cold.tables / self.switch_scale);
            cycles += cold.cycles;
        }
        if let Some(dropped) = self.dropped.take() {
            sample.mode_switches += 1;
            sample.shadow_pages_zapped += count(dropped / self.switch_scale);
            cycles += track.costs.switch as f64 + dropped * track.costs.zap_page as f64;
        }
        if self.mode != Mode::Nested {
            let stay = self.entered.map(|_| self.shadow_pages);
            self.shadow_pages = track.pages_after(self.mode, j, stay, tables);
        }
        let brought = cycles / self.switch_scale;
        sample.vmm_cycles += count(brought);
        let extra = track.extra(self.mode, j) + brought;
        self.run.modes.push(self.mode);
        self.run.switch_cycles += brought;
        self.run.extra_cycles += extra;
        self.run.cycles += track.ideal[j] + extra;
        extra
    }

    /// The other modes' costs as known at the end of interval `j`, the last of `window`.
    fn known(&self, j: usize, window: usize, others: &mut Vec<Other>) {
        let track = self.track;
        let from = (j + 1).saturating_sub(window);
        // The cost to build tables is that of a switch at the window's beginning. The future is not used.
        let rebuild = |mode| -> f64 {
            let left = if mode == self.mode { self.entered.unwrap_or(0) } else { self.left(mode) };
            (from..=j).map(|t| track.cold(mode, t, from, left.min(from)).cycles).sum()
        };
        let way = |from: Mode, to: Mode| {
            let pages = if from == self.mode { self.shadow_pages } else { track.shadow_pages(from, j) };
            (track.switch_cycles(from, pages) + rebuild(to)) / self.switch_scale
        };
        others.clear();
        others.extend(track.modes().filter(|mode| *mode != self.mode).map(|mode| Other {
            mode,
            extra_cycles: track.extra(mode, j),
            there_cycles: way(self.mode, mode),
            back_cycles: way(mode, self.mode),
        }));
    }
}

/// Replays a policy; `explain` keeps its explanations.
pub fn replay(track: &Track, spec: &Spec, setup: &Setup, explain: bool) -> Run {
    let source = match track.waits {
        true => Source::simulated(track.interval_s),
        false => Source::without_waits(track.interval_s),
    };
    let mut driver = Driver::new(spec, setup.start, source, setup.scale, setup.estimator)
        .expect("a simulated source has every counter that a policy may need");
    if explain {
        driver.log = Log::on();
    }
    let mut vm = Moving::new(track, setup.start, setup.scale.switch);
    let (mut sample, mut others) = (Sample::default(), Vec::new());
    for j in 0..track.len() {
        let extra = vm.interval(j, &mut sample);
        if driver.wants_others() {
            vm.known(j, driver.every(), &mut others);
        }
        let now = Interval {
            mode: vm.mode,
            sample: &sample,
            cycles: track.ideal[j] + extra,
            load: 1.0,
            seconds: track.interval_s,
        };
        let Some(mode) = driver.interval(now, &others) else { continue };
        vm.run.decisions += 1;
        if explain {
            vm.run.explained.push((j, Decision { mode, why: driver.log.take() }));
        }
        // A VM cannot go to a mode without recorded costs.
        if mode != vm.mode && track.samples.get(mode).is_some() && j + 1 < track.len() {
            vm.switch(mode, j + 1);
        }
    }
    vm.run
}

/// The cost of a given sequence of modes for a VM that starts in mode `start`.
///
/// # Panics
/// If there are not as many modes as intervals, or if the timeline lacks one of the modes.
pub fn forced(track: &Track, modes: &[Mode], start: Mode, switch_scale: f64) -> Run {
    force(track, modes, start, switch_scale, |_| ())
}

/// The cycles beyond the guest's own work in every interval of a given sequence.
///
/// # Panics
/// As [`forced`].
pub fn forced_extra(track: &Track, modes: &[Mode], start: Mode, switch_scale: f64) -> Vec<f64> {
    let mut extra = Vec::with_capacity(track.len());
    force(track, modes, start, switch_scale, |cycles| extra.push(cycles));
    extra
}

fn force(track: &Track, modes: &[Mode], start: Mode, switch_scale: f64, mut each: impl FnMut(f64)) -> Run {
    assert_eq!(modes.len(), track.len());
    let mut vm = Moving::new(track, start, switch_scale);
    let mut sample = Sample::default();
    for (j, &mode) in modes.iter().enumerate() {
        if mode != vm.mode {
            vm.switch(mode, j);
        }
        each(vm.interval(j, &mut sample));
    }
    vm.run
}
