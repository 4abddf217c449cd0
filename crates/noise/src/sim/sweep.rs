// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs of the simulator: one case, many cases, and a case without each source of noise in turn.

use super::collective::Collective;
use super::cost::LogGp;
use super::engine::Ranks;
use super::noise::{Extension, Noise};
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Most ranks of a case: 1,048,576.
pub const MOST_RANKS: usize = 1 << 20;

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Case {
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
}

/// A case's result.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cell {
    /// Mean time of a step without noise, nanoseconds.
    pub quiet_step_ns: f64,
    /// Mean time of a step, nanoseconds.
    pub step_ns: f64,
    /// `step_ns` divided by `quiet_step_ns`: infinite where a step takes time by its noise alone.
    pub slowdown: f64,
    /// The grain divided by `step_ns`: the share of the time in which ranks compute.
    pub efficiency: f64,
}

/// What a source of noise costs in a case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gain {
    /// The source.
    pub source: String,
    /// Share of the time that the source takes, 0 to 1.
    pub share: f64,
    /// Slowdown without the source.
    pub slowdown_without: f64,
    /// By what share the step gets shorter without the source.
    pub gain: f64,
}

/// Simulates a case: its time with noise and without.
pub fn simulate(case: &Case) -> Cell {
    let step = total(case) / f64::from(case.steps);
    let quiet = match case.noise {
        Noise::Silent => step,
        _ => total(&Case { noise: Noise::Silent, ..case.clone() }) / f64::from(case.steps),
    };
    Cell {
        quiet_step_ns: quiet,
        step_ns: step,
        slowdown: if step == quiet { 1.0 } else { step / quiet },
        efficiency: if step > 0.0 { case.grain / step } else { 1.0 },
    }
}

/// Simulates cases on all CPUs. The results are in the order of the cases.
pub fn sweep(cases: &[Case]) -> Vec<Cell> {
    cases.par_iter().map(simulate).collect()
}

/// Simulates a case without each of its sources: the source with the largest gain first. Noise that was not recorded
/// has one source, and removing it is no question.
pub fn gains(case: &Case) -> Vec<Gain> {
    let Noise::Recorded(traces) = &case.noise else { return Vec::new() };
    let with = simulate(case);
    let names: BTreeSet<&String> = traces.iter().flat_map(|t| &t.sources).collect();
    let time: f64 = traces.iter().map(|t| t.duration).sum();
    let mut gains: Vec<Gain> = names
        .into_par_iter()
        .map(|name| {
            let left: Vec<_> = traces.iter().map(|t| t.without(name)).collect();
            let taken: f64 =
                traces.iter().zip(&left).map(|(t, l)| (t.share() - l.share()) * t.duration).sum();
            let without = simulate(&Case { noise: Noise::Recorded(Arc::new(left)), ..case.clone() });
            Gain {
                source: name.clone(),
                share: taken / time,
                slowdown_without: without.slowdown,
                gain: 1.0 - without.step_ns / with.step_ns,
            }
        })
        .collect();
    gains.sort_by(|a, b| b.gain.total_cmp(&a.gain).then_with(|| a.source.cmp(&b.source)));
    gains
}

/// When the last rank has done all steps.
fn total(case: &Case) -> f64 {
    let mut ranks = Ranks::new(case.ranks, case.cost, &case.noise, case.coscheduled, case.seed);
    let mut extension = Extension::new(&case.noise, case.coscheduled, case.seed);
    for _ in 0..case.steps {
        ranks.compute(case.grain);
        extension.extend(&mut ranks.time);
        case.collective.run(&mut ranks);
    }
    ranks.last()
}
