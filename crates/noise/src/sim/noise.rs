// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Noise of ranks: recorded, or generated.
//!
//! There are two kinds. Interruptions in time hit what a rank does then: recorded ones, periodic ones, and
//! random ones ([`Schedule`]). An extension by chance lengthens the computation of a step ([`Extension`]);
//! with a barrier that costs nothing, its effect has a closed form, which the tests use. Every rank has the
//! same noise at another time, unless the noise is co-scheduled; so does LogGOPSim (`Noise.hpp`).

use crate::file::Trace;
use rand::{Rng as _, RngCore as _, SeedableRng as _};
use rand_pcg::{Mcg128Xsl64, Pcg64};
use std::sync::Arc;

/// The noise of all ranks. Nanoseconds.
#[derive(Debug, Clone)]
pub enum Noise {
    /// None.
    Silent,
    /// Recorded. Rank `r` has recording `r` modulo their number, from a random moment on, over and over.
    /// Co-scheduled ranks all have the first recording.
    Recorded(Arc<Vec<Trace>>),
    /// An interruption of fixed length, at fixed intervals from start to start.
    Periodic {
        /// From start to start.
        period: f64,
        /// Of each interruption.
        length: f64,
    },
    /// An interruption of fixed length, after random intervals: exponential from the end of one to the start
    /// of the next.
    Poisson {
        /// Mean time from start to start.
        period: f64,
        /// Of each interruption.
        length: f64,
    },
    /// In each step, each rank computes longer with a probability.
    Bernoulli {
        /// The probability.
        chance: f64,
        /// By how much.
        length: f64,
    },
    /// In each step, each rank computes longer by an exponential time.
    Exponential {
        /// The mean.
        mean: f64,
    },
}

impl Noise {
    /// Share of the time that the noise takes from a rank that computes without end. Of noise by steps, the
    /// share depends on the grain.
    pub fn share(&self, grain: f64) -> f64 {
        match self {
            Noise::Silent => 0.0,
            Noise::Recorded(traces) => {
                traces.iter().map(Trace::share).sum::<f64>() / traces.len().max(1) as f64
            }
            Noise::Periodic { period, length } | Noise::Poisson { period, length } => length / period,
            Noise::Bernoulli { chance, length } => chance * length / (grain + chance * length),
            Noise::Exponential { mean } => mean / (grain + mean),
        }
    }
}

/// Shortest mean time between interruptions, from start to start. A shorter one would take the simulator's
/// time alone.
const SHORTEST_PERIOD: f64 = 1000.0;
/// Largest share of a rank's time that noise may take. With all of it, no work would ever end.
const LARGEST_SHARE: f64 = 0.95;

/// Why noise cannot be simulated. Times are in nanoseconds.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BadNoise {
    /// There are no traces to replay.
    #[error("no recording")]
    NoRecording,
    /// A time, with its name, is negative, too long or no number.
    #[error("{0} {1} is not from 0 to 1e12 ns")]
    Time(&'static str, f64),
    /// The chance of an interruption is no chance.
    #[error("the chance {0} is not from 0 to 1")]
    Chance(f64),
    /// The mean time between interruptions is below the least.
    #[error("an interruption every {0} ns on average: at least {SHORTEST_PERIOD} ns have to lie between two")]
    TooOften(f64),
    /// The share of time that is left for work is below the least.
    #[error(
        "interruptions take {:.0} % of the time: at most {:.0} % leave time for work",
        .0 * 100.0,
        LARGEST_SHARE * 100.0
    )]
    TooLong(f64),
}

impl Noise {
    /// Says why the noise cannot be simulated, if it cannot.
    ///
    /// # Errors
    /// If a time is no time, or the noise leaves too little for the work.
    pub fn check(&self) -> Result<(), BadNoise> {
        match self {
            Noise::Silent => Ok(()),
            Noise::Recorded(traces) if traces.is_empty() => Err(BadNoise::NoRecording),
            Noise::Recorded(traces) => traces.iter().try_for_each(|t| {
                let period = t.duration / t.interruptions.len().max(1) as f64;
                in_time(period, t.share())
            }),
            Noise::Periodic { period, length } | Noise::Poisson { period, length } => {
                time("the length", *length)?;
                time("the period", *period)?;
                in_time(*period, length / period)
            }
            Noise::Bernoulli { chance, .. } if !(0.0..=1.0).contains(chance) => {
                Err(BadNoise::Chance(*chance))
            }
            Noise::Bernoulli { length, .. } => time("the length", *length),
            Noise::Exponential { mean } => time("the mean", *mean),
        }
    }
}

fn time(what: &'static str, ns: f64) -> Result<(), BadNoise> {
    if (0.0..=1e12).contains(&ns) { Ok(()) } else { Err(BadNoise::Time(what, ns)) }
}

fn in_time(period: f64, share: f64) -> Result<(), BadNoise> {
    if period < SHORTEST_PERIOD {
        return Err(BadNoise::TooOften(period));
    }
    if share > LARGEST_SHARE {
        return Err(BadNoise::TooLong(share));
    }
    Ok(())
}

/// A random number above 0 and up to 1.
fn unit(random: u64) -> f64 {
    ((random >> 11) + 1) as f64 * (-53_f64).exp2()
}

/// The next interruption of each rank, or the current one.
#[derive(Debug, Default)]
pub struct Schedule {
    /// Its start. Empty for ranks without interruptions.
    pub starts: Vec<f64>,
    /// Its end.
    pub ends: Vec<f64>,
    kind: Kind,
}

/// How the interruption after that comes about.
#[derive(Debug, Default)]
enum Kind {
    #[default]
    None,
    Periodic {
        period: f64,
        length: f64,
    },
    Poisson {
        gap: f64,
        length: f64,
        rngs: Vec<Mcg128Xsl64>,
    },
    Recorded {
        traces: Arc<Vec<Trace>>,
        /// Place in the recording, and start of the current round through it, of each rank.
        places: Vec<(u32, f64)>,
        /// How many interruptions of each recording's sources are over.
        over: Vec<Vec<u64>>,
    },
}

impl Schedule {
    /// The interruptions of `ranks` ranks from time 0 on.
    pub fn new(noise: &Noise, ranks: usize, coscheduled: bool, seed: u64) -> Schedule {
        let mut schedule = Schedule::default();
        let mut rng = Pcg64::seed_from_u64(seed);
        let common: f64 = rng.random();
        let mut phase = |_| if coscheduled { common } else { rng.random() };
        match noise {
            Noise::Silent | Noise::Bernoulli { .. } | Noise::Exponential { .. } => {}
            &Noise::Periodic { period, length } => {
                schedule.starts = (0..ranks).map(|r| -(phase(r) * period).floor()).collect();
                schedule.ends = schedule.starts.iter().map(|s| s + length).collect();
                schedule.kind = Kind::Periodic { period, length };
            }
            &Noise::Poisson { period, length } => {
                let stream = |r: usize| if coscheduled { 0 } else { r as u64 };
                let rngs = (0..ranks).map(|r| Mcg128Xsl64::seed_from_u64(mixed(seed, stream(r)))).collect();
                schedule.starts = vec![f64::NEG_INFINITY; ranks];
                // Within an interruption at time 0, with its share as the probability, or after one.
                schedule.ends = (0..ranks).map(|r| (length - phase(r) * period).max(0.0)).collect();
                schedule.kind = Kind::Poisson { gap: period - length, length, rngs };
            }
            Noise::Recorded(traces) if traces.iter().all(|t| t.interruptions.is_empty()) => {}
            Noise::Recorded(traces) => {
                let traces = match coscheduled && traces.len() > 1 {
                    true => Arc::new(vec![traces[0].clone()]),
                    false => Arc::clone(traces),
                };
                let mut places = Vec::with_capacity(ranks);
                for r in 0..ranks {
                    let (trace, at) = (&traces[r % traces.len()], phase(r));
                    let at = (at * trace.duration).floor();
                    let next = trace.interruptions.partition_point(|i| i.end() <= at);
                    places.push((next as u32, -at));
                }
                schedule.starts = vec![0.0; ranks];
                schedule.ends = vec![0.0; ranks];
                let over = traces.iter().map(|t| vec![0; t.sources.len()]).collect();
                schedule.kind = Kind::Recorded { traces, places, over };
                (0..ranks).for_each(|r| schedule.load(r));
            }
        }
        schedule
    }

    /// When rank `r` is done with work of length `work` that begins at `start`. No work is done at once, also
    /// in an interruption.
    pub fn finish(&mut self, r: usize, start: f64, work: f64) -> f64 {
        if work == 0.0 {
            return start;
        }
        let (mut now, mut left) = (start, work);
        loop {
            if self.ends[r] <= now {
                self.next(r);
            } else if self.starts[r] <= now {
                now = self.ends[r];
            } else if now + left <= self.starts[r] {
                return now + left;
            } else {
                left -= self.starts[r] - now;
                now = self.ends[r];
            }
        }
    }

    /// How many recorded interruptions of a source were simulated on all ranks together.
    pub fn simulated(&self, source: &str) -> u64 {
        let Kind::Recorded { traces, over, .. } = &self.kind else { return 0 };
        let of_trace = |(trace, over): (&Trace, &Vec<u64>)| {
            trace.sources.iter().position(|s| s == source).map_or(0, |at| over[at])
        };
        traces.iter().zip(over).map(of_trace).sum()
    }

    /// When the current round through its recording began, of each rank with a recording.
    #[cfg(test)]
    pub fn places(&self) -> Vec<f64> {
        let Kind::Recorded { places, .. } = &self.kind else { return Vec::new() };
        places.iter().map(|(_, round)| *round).collect()
    }

    /// Goes on to the next interruption.
    fn next(&mut self, r: usize) {
        match &mut self.kind {
            Kind::None => unreachable!("ranks without interruptions have no starts"),
            Kind::Periodic { period, length } => {
                self.starts[r] += *period;
                self.ends[r] = self.starts[r] + *length;
            }
            Kind::Poisson { gap, length, rngs } => {
                self.starts[r] = self.ends[r] - unit(rngs[r].next_u64()).ln() * *gap;
                self.ends[r] = self.starts[r] + *length;
            }
            Kind::Recorded { traces, places, over } => {
                let of = r % traces.len();
                if let Some(one) = traces[of].interruptions.get(places[r].0 as usize) {
                    over[of][one.source as usize] += 1;
                }
                places[r].0 += 1;
                self.load(r);
            }
        }
    }

    /// Takes the interruption at a rank's place in its recording.
    fn load(&mut self, r: usize) {
        let Kind::Recorded { traces, places, .. } = &mut self.kind else { return };
        let trace = &traces[r % traces.len()];
        let (place, round) = &mut places[r];
        if *place as usize >= trace.interruptions.len() {
            (*place, *round) = (0, *round + trace.duration);
        }
        let next = trace.interruptions.get(*place as usize);
        self.starts[r] = next.map_or(f64::INFINITY, |i| *round + i.start);
        self.ends[r] = next.map_or(f64::INFINITY, |i| *round + i.end());
    }
}

/// A seed for a rank.
fn mixed(seed: u64, rank: u64) -> u64 {
    seed ^ (rank + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Extensions of a step's computation.
#[derive(Debug)]
pub struct Extension {
    noise: Noise,
    coscheduled: bool,
    rng: Pcg64,
}

impl Extension {
    /// The extensions of all steps.
    pub fn new(noise: &Noise, coscheduled: bool, seed: u64) -> Extension {
        Extension { noise: noise.clone(), coscheduled, rng: Pcg64::seed_from_u64(mixed(seed, u64::MAX - 1)) }
    }

    /// Extends the times of a step.
    pub fn extend(&mut self, times: &mut [f64]) {
        match self.noise {
            Noise::Bernoulli { chance, length } => self.by_chance(times, chance, length),
            Noise::Exponential { mean } if self.coscheduled => {
                let length = -unit(self.rng.next_u64()).ln() * mean;
                times.iter_mut().for_each(|t| *t += length);
            }
            Noise::Exponential { mean } => {
                for time in times {
                    *time -= unit(self.rng.next_u64()).ln() * mean;
                }
            }
            _ => {}
        }
    }

    /// Draws how many ranks are spared before the next that is hit: a geometric number.
    fn by_chance(&mut self, times: &mut [f64], chance: f64, length: f64) {
        if self.coscheduled || chance >= 1.0 {
            if unit(self.rng.next_u64()) <= chance {
                times.iter_mut().for_each(|t| *t += length);
            }
            return;
        }
        if chance <= 0.0 {
            return;
        }
        let of_one = (-chance).ln_1p();
        let mut at = 0.0;
        loop {
            at += (unit(self.rng.next_u64()).ln() / of_one).floor();
            if at >= times.len() as f64 {
                return;
            }
            times[at as usize] += length;
            at += 1.0;
        }
    }
}
