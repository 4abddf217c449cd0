// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much of its noise a run sees, and how many steps see enough.
//!
//! A run that ends before a rare interruption came says nothing about that interruption. The measure of a run
//! is its rounds: how often its ranks together went through the recording, or through the mean time between
//! two generated interruptions. Ranks with noise of their own add up; co-scheduled ranks count as one, since
//! all see the same.
//!
//! Ranks begin at random moments of a recording, so one round misses a third of what the recording has once;
//! ten rounds miss 0.005 %. Co-scheduled ranks see everything in one round. The relative error of a rate, by
//! Poisson, is one through the root of the number of events: a tenth for a hundred.

use super::noise::Noise;
use super::sweep::{NoiseCase, run};

/// Rounds through a recording, of independent and of co-scheduled ranks.
const RECORDINGS: (f64, f64) = (10.0, 1.0);
/// Generated interruptions.
const EVENTS: f64 = 100.0;
/// Fewest steps.
const FEWEST_STEPS: u64 = 100;
/// Most steps of all ranks together, if the fewest are no more: seconds of a processor.
const MOST_RANK_STEPS: u64 = 1 << 26;

/// How many rounds are enough. 0 for a case without noise.
pub fn enough_rounds(case: &NoiseCase) -> f64 {
    match &case.noise {
        Noise::Recorded(traces) if traces.iter().any(|t| !t.interruptions.is_empty()) => {
            if case.coscheduled {
                RECORDINGS.1
            } else {
                RECORDINGS.0
            }
        }
        Noise::Silent | Noise::Recorded(_) => 0.0,
        Noise::Bernoulli { chance, .. } if *chance == 0.0 => 0.0,
        _ => EVENTS,
    }
}

/// How many rounds a case has in so many steps that take `time` together.
pub fn rounds(case: &NoiseCase, time: f64, steps: u32) -> f64 {
    let ranks = if case.coscheduled { 1 } else { case.ranks };
    let rounds_of_one = match &case.noise {
        Noise::Silent => 0.0,
        // Where there are fewer ranks than recordings, the others have no rank.
        Noise::Recorded(traces) => time / traces.iter().take(ranks).map(|t| t.duration).sum::<f64>(),
        Noise::Periodic { period, .. } | Noise::Poisson { period, .. } => time / period,
        Noise::Bernoulli { chance, .. } => chance * f64::from(steps),
        Noise::Exponential { .. } => f64::from(steps),
    };
    rounds_of_one * ranks as f64
}

/// The number of steps after which a case, whose own number does not count, has had enough rounds; fewer if
/// that were more than 2^26 steps of all ranks together, and always 100.
pub fn enough_steps(case: &NoiseCase) -> u32 {
    let wanted = enough_rounds(case);
    let most = FEWEST_STEPS.max(MOST_RANK_STEPS / case.ranks as u64);
    let steps = match wanted > 0.0 {
        true => {
            // Noise only makes a step longer.
            let quiet = run(&NoiseCase { noise: Noise::Silent, steps: 1, ..case.clone() }).ranks.last();
            (wanted / rounds(case, quiet, 1)).ceil() as u64
        }
        false => 0,
    };
    u32::try_from(steps.clamp(FEWEST_STEPS, most)).unwrap_or(u32::MAX)
}
