// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies side by side over programs: what each costs, against the two modes that never
//! switch and against the oracle.
//!
//! Every policy is run from both starting modes, and what counts is the worse of the two, so
//! that no policy looks good because it was lucky at the start. A gap to the oracle is to the
//! oracle from the same start; a gap to the better static mode is to a VM that was started in
//! that mode and never switches.

use crate::driver::Scale;
use crate::estimate::Estimator;
use crate::oracle::oracle;
use crate::replay::{Run, Setup, replay};
use crate::{Mode, Named, Timeline, Track, Vm};
use bifold_mmu::PageSize;
use rayon::prelude::*;
use serde::Serialize;

/// Within this of the better static mode a policy does what DSP's authors claim for theirs.
pub const WITHIN_PERCENT: f64 = 1.0;

/// Which VM, and how policies see it.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// Which VM.
    pub vm: Vm,
    /// How policies' time is to the timelines'.
    pub scale: Scale,
    /// Where a policy that needs it learns of the other mode's cost: estimated, or known from
    /// the timeline if there is no estimator.
    pub estimator: Option<&'a Estimator>,
}

/// A timeline under a name for tables.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// The program, in a word.
    pub name: String,
    /// Its timeline.
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

/// Policies over programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluation {
    /// Size of the host's pages.
    pub host_page: PageSize,
    /// Had the host backed the memory before the run?
    pub long_lived: bool,
    /// Are nested tables kept in shadow mode?
    pub keep_nested: bool,
    /// Seconds of a policy per second of the timelines.
    pub time_scale: f64,
    /// What costs of switching are divided by.
    pub switch_scale: f64,
    /// Was the other mode's cost estimated (or known from the timeline)?
    pub estimated: bool,
    /// The policies, in the order given.
    pub policies: Vec<Summary>,
    /// The programs, in the order given.
    pub programs: Vec<Program>,
}

/// A policy over all programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Its name.
    pub policy: String,
    /// Seconds between its decisions.
    pub interval_s: f64,
    /// Did it have to be told the other mode's cost?
    pub needs_other: bool,
    /// Geometric mean of its cycles over the oracle's, less 1, in percent.
    pub oracle_gap_percent: f64,
    /// The most that it lost to the better static mode, in percent of that.
    pub worst_static_gap_percent: f64,
    /// The program on which it did.
    pub worst_program: String,
    /// Number of programs within [`WITHIN_PERCENT`] of the better static mode.
    pub within: usize,
    /// Mean share of intervals in shadow mode, 0 to 1.
    pub shadow_share: f64,
    /// Switches over all programs.
    pub switches: u64,
}

/// One program: its bounds, and every policy over it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// What ran, as captured.
    pub program: String,
    /// Name of the hardware profile.
    pub profile: String,
    /// Number of intervals.
    pub intervals: usize,
    /// Length of an interval, in seconds of the run.
    pub interval_s: f64,
    /// Length of the ideal run, in seconds.
    pub ideal_s: f64,
    /// Cycles of the ideal run.
    pub ideal_cycles: f64,
    /// Overheads of VMs that never switch: shadow, nested.
    pub static_percent: [f64; 2],
    /// The oracle, by starting mode: shadow, nested.
    pub oracle: [OracleFigures; 2],
    /// The policies, in the order of [`Evaluation::policies`].
    pub rows: Vec<Row>,
    /// Overheads per interval of the VMs that never switch, for charts.
    #[serde(skip)]
    pub curves: [Vec<f64>; 2],
}

/// What the oracle came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OracleFigures {
    /// All cycles.
    pub cycles: f64,
    /// Cycles beyond the guest's own work, in percent of it.
    pub overhead_percent: f64,
    /// Number of switches.
    pub switches: u64,
    /// Share of intervals in shadow mode, 0 to 1.
    pub shadow_share: f64,
    /// The mode of every interval.
    #[serde(skip)]
    pub modes: Vec<Mode>,
}

/// One policy over one program.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The policy.
    pub policy: String,
    /// The starting mode from which it did worse: what counts.
    pub worse_start: Mode,
    /// By starting mode: shadow, nested.
    pub runs: [Figures; 2],
}

impl Row {
    /// The run that counts.
    pub fn worse(&self) -> &Figures {
        &self.runs[self.worse_start as usize]
    }
}

/// One run of a policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// All cycles.
    pub cycles: f64,
    /// Cycles beyond the guest's own work, in percent of it.
    pub overhead_percent: f64,
    /// Cycles above the oracle's from the same start, in percent of those.
    pub oracle_gap_percent: f64,
    /// Cycles above the better static mode's, in percent of those; below 0 where switching paid.
    pub static_gap_percent: f64,
    /// Number of switches.
    pub switches: u64,
    /// Number of decisions.
    pub decisions: u64,
    /// Share of intervals in shadow mode, 0 to 1.
    pub shadow_share: f64,
    /// The mode of every interval.
    #[serde(skip)]
    pub modes: Vec<Mode>,
}

impl Figures {
    fn of(run: Run, oracle_cycles: f64, static_cycles: f64) -> Figures {
        Figures {
            cycles: run.cycles,
            overhead_percent: run.overhead_percent(),
            oracle_gap_percent: above(run.cycles, oracle_cycles),
            static_gap_percent: above(run.cycles, static_cycles),
            switches: run.switches,
            decisions: run.decisions,
            shadow_share: run.share(Mode::Shadow),
            modes: run.modes,
        }
    }
}

/// By how many percent `cycles` is above `than`; 0 where that is nothing.
fn above(cycles: f64, than: f64) -> f64 {
    if than > 0.0 { 100.0 * (cycles / than - 1.0) } else { 0.0 }
}

/// Runs every policy over every timeline, from both starting modes.
pub fn evaluate(
    inputs: &[Input],
    policies: &[Named],
    options: &Options,
) -> Result<Evaluation, EvaluateError> {
    let track = |input: &Input| {
        Track::new(&input.timeline, options.vm).ok_or_else(|| EvaluateError::NoHostPage {
            name: input.name.clone(),
            wanted: options.vm.host_page,
            there: input.timeline.pairs.iter().map(|p| p.host_page).collect(),
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
        long_lived: options.vm.long_lived,
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
    let statics = Mode::BOTH.map(|m| track.static_cycles(m));
    let better = statics[0].min(statics[1]);
    let oracles = Mode::BOTH.map(|start| {
        let o = oracle(track, start, options.scale.switch);
        let shadow = o.modes.iter().filter(|m| **m == Mode::Shadow).count();
        OracleFigures {
            cycles: o.cycles,
            overhead_percent: above(o.cycles, ideal),
            switches: o.switches,
            shadow_share: shadow as f64 / track.len().max(1) as f64,
            modes: o.modes,
        }
    });
    let row = |named: &Named| {
        let runs = Mode::BOTH.map(|start| {
            let setup = Setup { start, scale: options.scale, estimator: options.estimator };
            let run = replay(track, &named.spec, &setup, false);
            Figures::of(run, oracles[start as usize].cycles, better)
        });
        // Alike from both, the one that began in the dearer mode is named.
        let dearer = if statics[0] > statics[1] { Mode::Shadow } else { Mode::Nested };
        let gap = |m: Mode| runs[m as usize].oracle_gap_percent;
        let worse_start = if gap(dearer.other()) > gap(dearer) { dearer.other() } else { dearer };
        Row { policy: named.name.clone(), worse_start, runs }
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
        static_percent: statics.map(|cycles| above(cycles, ideal)),
        rows: policies.par_iter().map(row).collect(),
        oracle: oracles,
        curves: Mode::BOTH.map(curve),
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
        shadow_share: runs().map(|f| f.shadow_share).sum::<f64>() / n,
        switches: runs().map(|f| f.switches).sum(),
    }
}

#[cfg(test)]
#[path = "evaluate_tests.rs"]
mod tests;
