// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares policies over programs: with each other, with the modes that never switch, and with the
//! oracle.
//!
//! Every policy runs from every starting mode, and the worst run counts, so that luck at the start
//! helps no policy. The gap to the oracle compares with the oracle from the same start. The gap to the better
//! static mode compares with a VM that starts in that mode and never switches.

mod shares;

use crate::driver::Scale;
use crate::estimate::Estimator;
use crate::oracle::oracle;
use crate::replay::{Run, Setup, replay};
use crate::{Mode, Named, PerMode, Timeline, Track, VmKind};
use bifold_mmu::PageSize;
use bifold_model::VmState;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::Serialize;
pub use shares::Shares;

/// Gap to the better static mode within which a policy does what DSP's authors claim for DSP; percent.
pub const WITHIN_PERCENT: f64 = 1.0;

/// The kind of VM, and what policies see of it.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// The kind of VM.
    pub vm: VmKind,
    /// Scale between a policy's time and the timelines' time.
    pub scale: Scale,
    /// Estimates the other modes' costs for policies that need them; without an estimator, the timeline tells
    /// the costs.
    pub estimator: Option<&'a Estimator>,
}

/// A timeline under a name for tables.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// The program's name.
    pub name: String,
    /// The program's timeline.
    pub timeline: Timeline,
}

/// Why timelines cannot be evaluated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluateError {
    /// The VM's host pages were not captured.
    #[error("timeline {name} has no {} host pages: it was captured with {}", size(*wanted), sizes(there))]
    NoHostPage {
        /// The timeline's name.
        name: String,
        /// What was asked for.
        wanted: PageSize,
        /// What it has.
        there: Vec<PageSize>,
    },
    /// The timelines are of VMs in different states.
    #[error(
        "timeline {first} is of a VM in the state {}, and {other} of one in the state {}: give timelines of one state (`bifold compare \
         --vm STATE --timeline FILE` writes one)", was.name(), other_was.name()
    )]
    States {
        /// A timeline's name.
        first: String,
        /// The state of its VM.
        was: VmState,
        /// The other timeline's name.
        other: String,
        /// The state of the other's VM.
        other_was: VmState,
    },
}

/// The state of the VMs of all these timelines; the default without timelines.
///
/// # Errors
/// If two are of different states.
pub fn state<'a>(
    inputs: impl IntoIterator<Item = (&'a str, &'a Timeline)>,
) -> Result<VmState, EvaluateError> {
    let mut inputs = inputs.into_iter();
    let Some((first, timeline)) = inputs.next() else { return Ok(VmState::default()) };
    let was = timeline.about.vm;
    match inputs.find(|(_, t)| t.about.vm != was) {
        None => Ok(was),
        Some((other, t)) => Err(EvaluateError::States {
            first: first.into(),
            was,
            other: other.into(),
            other_was: t.about.vm,
        }),
    }
}

fn size(page: PageSize) -> &'static str {
    match page {
        PageSize::Size4K => "4 KB",
        PageSize::Size2M => "2 MB",
        PageSize::Size1G => "1 GB",
    }
}

fn sizes(pages: &[PageSize]) -> String {
    pages.iter().map(|p| size(*p)).collect::<Vec<_>>().join(" and ")
}

/// The results of policies over programs.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "evaluation")]
pub struct Evaluation {
    /// Size of the host's pages.
    pub host_page: PageSize,
    /// State of the VM at the start: what the host held of its memory.
    pub vm: VmState,
    /// Whether nested tables are kept in shadow mode.
    pub keep_nested: bool,
    /// Seconds of a policy per second of the run.
    pub time_scale: f64,
    /// What costs of switching are divided by.
    pub switch_scale: f64,
    /// Whether the other mode's cost was estimated; else the timeline had it.
    pub estimated: bool,
    /// Each policy over all programs.
    pub policies: Vec<Summary>,
    /// Each program with every policy.
    pub programs: Vec<Program>,
}

/// The results of one policy over all programs.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Summary {
    /// Its name.
    pub policy: String,
    /// Seconds between its decisions.
    pub interval_s: f64,
    /// Whether it reads the other mode's cost.
    pub needs_other: bool,
    /// Geometric mean of its cycles over the oracle's, less 1, in percent.
    pub oracle_gap_percent: f64,
    /// The largest loss to the better static mode, in percent of that mode's cycles.
    pub worst_static_gap_percent: f64,
    /// The program on which it lost most to the better static mode.
    pub worst_program: String,
    /// Programs within 1 % of the better static mode.
    pub within: usize,
    /// Mean shares of intervals in each mode.
    #[serde(flatten)]
    pub shares: Shares,
    /// Switches over all programs.
    pub switches: u64,
}

/// One program: its bounds, and the results of every policy.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// What ran, as captured.
    pub program: String,
    /// Name of the hardware profile.
    pub profile: String,
    /// Number of intervals.
    pub intervals: usize,
    /// Length of an interval. Unit: s of the run.
    pub interval_s: f64,
    /// Length of the ideal run. Unit: s.
    pub ideal_s: f64,
    /// Length of the ideal run. Unit: cycles.
    pub ideal_cycles: f64,
    /// The modes that were recorded, in the order of the figures by mode.
    pub modes: Vec<Mode>,
    /// Overheads of VMs that never switch, in the order of `modes`. Unit: % of the ideal run.
    pub static_percent: PerMode<f64>,
    /// The oracle by starting mode, in the order of `modes`.
    pub oracle: PerMode<OracleFigures>,
    /// Each policy over this program.
    pub rows: Vec<PolicyRuns>,
    /// Overheads per interval of the VMs that never switch, for charts.
    #[serde(skip)]
    pub curves: PerMode<Vec<f64>>,
}

/// The oracle's result.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct OracleFigures {
    /// All cycles. Unit: cycles.
    pub cycles: f64,
    /// Cycles beyond the ideal run's. Unit: % of the ideal run.
    pub overhead_percent: f64,
    /// Number of switches.
    pub switches: u64,
    /// Shares of intervals in each mode.
    #[serde(flatten)]
    pub shares: Shares,
    /// The mode of every interval.
    #[serde(skip)]
    pub modes: Vec<Mode>,
}

/// The results of one policy over one program.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PolicyRuns {
    /// Its name.
    pub policy: String,
    /// The starting mode from which the policy did worst, which counts.
    pub worse_start: Mode,
    /// The policy by starting mode, in the order of `modes`.
    pub runs: PerMode<Figures>,
}

impl PolicyRuns {
    /// The run that counts.
    pub fn worse(&self) -> &Figures {
        &self.runs[self.worse_start]
    }
}

/// One run of a policy.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Figures {
    /// All cycles. Unit: cycles.
    pub cycles: f64,
    /// Cycles beyond the ideal run's. Unit: % of the ideal run.
    pub overhead_percent: f64,
    /// Cycles above the oracle's from the same start, in percent of the oracle's.
    pub oracle_gap_percent: f64,
    /// Cycles above the better static mode's, in percent of that mode's; below 0 where switching paid.
    pub static_gap_percent: f64,
    /// Number of switches.
    pub switches: u64,
    /// Number of decisions.
    pub decisions: u64,
    /// Shares of intervals in each mode.
    #[serde(flatten)]
    pub shares: Shares,
    /// The mode of every interval.
    #[serde(skip)]
    pub modes: Vec<Mode>,
}

impl Figures {
    fn of(run: Run, track: &Track, oracle_cycles: f64, static_cycles: f64) -> Figures {
        Figures {
            cycles: run.cycles,
            overhead_percent: run.overhead_percent(),
            oracle_gap_percent: above(run.cycles, oracle_cycles),
            static_gap_percent: above(run.cycles, static_cycles),
            switches: run.switches,
            decisions: run.decisions,
            shares: Shares::of(track, &run.modes),
            modes: run.modes,
        }
    }
}

/// Cycles of the best mode that never switches.
pub(crate) fn better(statics: &PerMode<f64>) -> f64 {
    statics.values().copied().fold(f64::INFINITY, f64::min)
}

/// The starting mode with the largest gap. Among equal gaps, that of the mode which costs most if the VM
/// never switches; among equal costs, the last.
pub(crate) fn worst_start(statics: &PerMode<f64>, gap: impl Fn(Mode) -> f64) -> Option<Mode> {
    let costlier = |a: &Mode, b: &Mode| gap(*a).total_cmp(&gap(*b)).then(statics[*a].total_cmp(&statics[*b]));
    statics.modes().max_by(costlier)
}

/// Percent by which `cycles` is above `than`; 0 if `than` is 0.
fn above(cycles: f64, than: f64) -> f64 {
    if than > 0.0 { 100.0 * (cycles / than - 1.0) } else { 0.0 }
}

/// Runs every policy over every timeline, from both starting modes.
pub fn evaluate(
    inputs: &[Input],
    policies: &[Named],
    options: &Options,
) -> Result<Evaluation, EvaluateError> {
    let vm = state(inputs.iter().map(|i| (i.name.as_str(), &i.timeline)))?;
    let track = |input: &Input| {
        Track::new(&input.timeline, options.vm).ok_or_else(|| EvaluateError::NoHostPage {
            name: input.name.clone(),
            wanted: options.vm.host_page,
            there: input.timeline.pages.iter().map(|p| p.host_page).collect(),
        })
    };
    let tracks: Vec<Track> = inputs.iter().map(track).collect::<Result<_, _>>()?;
    let programs: Vec<Program> = inputs
        .par_iter()
        .zip(&tracks)
        .map(|(input, track)| program(input, track, policies, options))
        .collect();
    Ok(Evaluation {
        host_page: options.vm.host_page,
        vm,
        keep_nested: options.vm.keep_nested,
        time_scale: options.scale.time,
        switch_scale: options.scale.switch,
        estimated: options.estimator.is_some(),
        policies: policies.iter().enumerate().map(|(i, named)| summary(named, i, &programs)).collect(),
        programs,
    })
}

fn program(input: &Input, track: &Track, policies: &[Named], options: &Options) -> Program {
    let ideal: f64 = track.ideal.iter().sum();
    let statics = track.samples.map(|mode, _| track.static_cycles(mode));
    let better = better(&statics);
    let oracles = statics.map(|start, _| {
        let o = oracle(track, start, options.scale.switch);
        OracleFigures {
            cycles: o.cycles,
            overhead_percent: above(o.cycles, ideal),
            switches: o.switches,
            shares: Shares::of(track, &o.modes),
            modes: o.modes,
        }
    });
    let row = |named: &Named| {
        let runs = oracles.map(|start, oracle| {
            let setup = Setup { start, scale: options.scale, estimator: options.estimator };
            let run = replay(track, &named.spec, &setup, false);
            Figures::of(run, track, oracle.cycles, better)
        });
        let worse_start = worst_start(&statics, |m| runs[m].oracle_gap_percent).expect("a track has modes");
        PolicyRuns { policy: named.name.clone(), worse_start, runs }
    };
    let curve = |m: Mode| {
        let percent = |j| above(track.ideal[j] + track.extra(m, j), track.ideal[j]);
        (0..track.len()).map(percent).collect()
    };
    Program {
        name: input.name.clone(),
        program: input.timeline.about.program.clone(),
        profile: input.timeline.about.profile.clone(),
        intervals: track.len(),
        interval_s: track.interval_s,
        ideal_s: ideal / input.timeline.about.frequency_hz as f64,
        ideal_cycles: ideal,
        modes: track.modes().collect(),
        static_percent: statics.map(|_, cycles| above(*cycles, ideal)),
        rows: policies.par_iter().map(row).collect(),
        oracle: oracles,
        curves: statics.map(|mode, _| curve(mode)),
    }
}

fn summary(named: &Named, i: usize, programs: &[Program]) -> Summary {
    let runs = || programs.iter().map(|p| p.rows[i].worse());
    let n = programs.len().max(1) as f64;
    let logs: f64 = runs().map(|f| (f.oracle_gap_percent / 100.0).ln_1p()).sum();
    let worst = programs
        .iter()
        .map(|p| (p.rows[i].worse().static_gap_percent, &p.name))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    Summary {
        policy: named.name.clone(),
        interval_s: named.spec.interval_s(),
        needs_other: named.spec.needs_other(),
        oracle_gap_percent: 100.0 * (logs / n).exp_m1(),
        worst_static_gap_percent: worst.map_or(0.0, |w| w.0),
        worst_program: worst.map_or_else(String::new, |w| w.1.clone()),
        within: runs().filter(|f| f.static_gap_percent <= WITHIN_PERCENT).count(),
        shares: Shares::mean(runs().map(|f| &f.shares), n),
        switches: runs().map(|f| f.switches).sum(),
    }
}

#[cfg(test)]
mod tests;
