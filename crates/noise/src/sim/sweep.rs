// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs of the simulator: one case, many cases, and a case without each source of noise in turn.

use super::collective::Collective;
use super::cost::LogGp;
use super::cover::{enough_rounds, rounds};
use super::engine::Ranks;
use super::noise::{Extension, Noise};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Most ranks of a case: 1,048,576.
pub const MOST_RANKS: usize = 1 << 20;

/// What is simulated.
#[derive(Debug, Clone)]
pub struct NoiseCase {
    /// Number of ranks.
    pub ranks: usize,
    /// What each rank computes in a step, nanoseconds.
    pub grain: f64,
    /// The operation at the end of each step.
    pub collective: Collective,
    /// What messages cost.
    pub cost: LogGp,
    /// What interrupts the ranks.
    pub noise: Noise,
    /// Whether all ranks are interrupted at the same time.
    pub coscheduled: bool,
    /// Number of steps.
    pub steps: u32,
    /// Start of the random numbers.
    pub seed: u64,
    /// When the simulation ends after the step that it is in, whatever steps are left; none without a limit.
    pub until: Option<Instant>,
}

/// A case's result.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cell {
    /// Steps that were simulated: those of the case, or fewer if its limit came before.
    pub steps: u32,
    /// Mean time of a step without noise, nanoseconds.
    pub quiet_step_ns: f64,
    /// Mean time of a step, nanoseconds.
    pub step_ns: f64,
    /// `step_ns` divided by `quiet_step_ns`: infinite where a step takes time by its noise alone.
    pub slowdown: f64,
    /// The grain divided by `step_ns`: the share of the time in which ranks compute.
    pub efficiency: f64,
    /// How often the ranks together went through the recording, or through the mean time between two
    /// generated interruptions; co-scheduled ranks count as one.
    pub rounds: f64,
    /// How many rounds would be enough.
    pub enough_rounds: f64,
}

impl Cell {
    /// Whether too little of the noise was simulated.
    pub fn is_short(&self) -> bool {
        self.rounds < self.enough_rounds
    }
}

/// What a source of noise costs in a case.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Gain {
    /// The source.
    pub source: String,
    /// Share of the time that the source takes, 0 to 1.
    pub share: f64,
    /// How many of the source's interruptions were simulated, of all ranks together.
    pub simulated: u64,
    /// What the source's removal does; none if too few of the source's interruptions were simulated.
    #[serde(flatten)]
    pub removed: Option<Removed>,
}

/// What the removal of a source does.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Removed {
    /// Slowdown without the source; absent if too few of the source's interruptions were simulated, null
    /// where infinite.
    #[schemars(with = "Option<f64>")]
    pub slowdown_without: f64,
    /// Share by which a step gets shorter without the source; absent where `slowdown_without` is.
    pub gain: f64,
}

/// Fewer simulated interruptions of a source say nothing, unless the recordings have no more.
const FEW: u64 = 5;

/// Simulates a case: its time with noise and without.
pub fn simulate(case: &NoiseCase) -> Cell {
    let ran = run(case);
    let step = ran.step();
    let quiet = match case.noise {
        Noise::Silent => step,
        _ => quiet(case),
    };
    cell(case, &ran, quiet)
}

/// Mean time of a step without noise.
fn quiet(case: &NoiseCase) -> f64 {
    run(&NoiseCase { noise: Noise::Silent, ..case.clone() }).step()
}

/// The result of a case that ran, whose steps take `quiet` without noise.
fn cell(case: &NoiseCase, ran: &Ran, quiet: f64) -> Cell {
    let step = ran.step();
    Cell {
        steps: ran.steps,
        quiet_step_ns: quiet,
        step_ns: step,
        slowdown: if step == quiet { 1.0 } else { step / quiet },
        efficiency: if step > 0.0 { case.grain / step } else { 1.0 },
        rounds: rounds(case, ran.ranks.last(), ran.steps),
        enough_rounds: enough_rounds(case),
    }
}

/// Simulates cases on all CPUs. The results are in the order of the cases. Calls `done` after each case.
pub fn sweep(cases: &[NoiseCase], done: impl Fn() + Sync) -> Vec<Cell> {
    let of = |case| {
        let cell = simulate(case);
        done();
        cell
    };
    cases.par_iter().map(of).collect()
}

/// Simulates a case without each of its sources: the source with the largest gain first, and those of which
/// too few interruptions were simulated last. Noise that was not recorded has one source, and removing it is
/// no question.
pub fn gains(case: &NoiseCase) -> Vec<Gain> {
    let Noise::Recorded(traces) = &case.noise else { return Vec::new() };
    let ran = run(case);
    let (with, quiet) = (ran.step(), quiet(case));
    let names: BTreeSet<&String> = traces.iter().flat_map(|t| &t.sources).collect();
    let time: f64 = traces.iter().map(|t| t.duration).sum();
    let of_source = |name: &String| {
        let left: Vec<_> = traces.iter().map(|t| t.without(name)).collect();
        let taken: f64 = traces.iter().zip(&left).map(|(t, l)| (t.share() - l.share()) * t.duration).sum();
        let recorded: usize =
            traces.iter().zip(&left).map(|(t, l)| t.interruptions.len() - l.interruptions.len()).sum();
        let simulated = ran.ranks.simulated(name);
        let removed = (simulated >= FEW.min(recorded as u64)).then(|| {
            let case = NoiseCase { noise: Noise::Recorded(Arc::new(left)), ..case.clone() };
            let without = run(&case);
            Removed {
                slowdown_without: cell(&case, &without, quiet).slowdown,
                gain: 1.0 - without.step() / with,
            }
        });
        Gain { source: name.clone(), share: taken / time, simulated, removed }
    };
    let mut gains: Vec<Gain> = names.into_par_iter().map(of_source).collect();
    let gain = |g: &Gain| g.removed.map_or(f64::NEG_INFINITY, |r| r.gain);
    gains.sort_by(|a, b| gain(b).total_cmp(&gain(a)).then_with(|| a.source.cmp(&b.source)));
    gains
}

/// A case that ran.
pub struct Ran {
    /// The ranks after the last step.
    pub ranks: Ranks,
    /// Number of steps.
    pub steps: u32,
}

impl Ran {
    /// Mean time of a step, nanoseconds.
    pub fn step(&self) -> f64 {
        self.ranks.last() / f64::from(self.steps)
    }
}

/// Runs all steps of a case, or one and more until its limit.
pub fn run(case: &NoiseCase) -> Ran {
    let mut ranks = Ranks::new(case.ranks, case.cost, &case.noise, case.coscheduled, case.seed);
    let mut extension = Extension::new(&case.noise, case.coscheduled, case.seed);
    for step in 1..=case.steps {
        ranks.compute(case.grain);
        extension.extend(&mut ranks.time);
        case.collective.run(&mut ranks);
        if case.until.is_some_and(|until| Instant::now() >= until) {
            return Ran { ranks, steps: step };
        }
    }
    Ran { ranks, steps: case.steps }
}
