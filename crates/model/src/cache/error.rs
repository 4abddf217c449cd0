// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The error of figures that come from a sample of lines and from a draw of the host's frames.
//!
//! Each stratum of lines is represented by some (`classes.rs`), and each simulated line has a draw of its own
//! of where the host's frames lie (`frames.rs`). So the spread of the lines' estimates within a stratum has
//! both errors, and the sum of k estimates has a standard error of sqrt(k) times their spread. Strata with
//! one line are put together, which errs on the wide side (Cochran, Sampling Techniques, 3rd ed., 5A.12). A
//! 95 % interval takes Student's t with the degrees of freedom that Satterthwaite's rule gives the sum (the
//! same, 5.4).
//!
//! Waits that a configuration shares with the ideal run hardly move the overhead. The overhead is a ratio of
//! two sums, so its error is that of the lines' residuals: a line's extra cycles less the overhead times the
//! line's ideal cycles (the same, 6.4 and 6.5).

use super::Caches;
use super::classes::{Classes, STRATA, stratum};
use crate::estimate::t_quantile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The error of a configuration's figures from the sample of lines and the draw of frames.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CacheError {
    /// Half the width of the 95 % interval around the configuration's cycles, from the sample of lines and
    /// the draw of host frames. Unit: cycles.
    pub half_width_cycles: f64,
    /// Half the width of the 95 % interval around the configuration's overhead. Unit: cycles beyond the ideal
    /// run's.
    #[serde(default)]
    pub half_width_extra_cycles: f64,
}

/// What the errors follow from. Those of several regions add up, because a line stands for the same others in
/// all of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Estimates {
    /// Of the ideal run, and of each configuration: by class, see
    /// [`Stalls::class_estimates`](super::Stalls::class_estimates).
    ideal: Vec<f64>,
    configs: Vec<Vec<f64>>,
    /// Of each configuration: see [`Stalls::mean_error`](super::Stalls::mean_error).
    means: Vec<f64>,
}

impl Estimates {
    /// Adds those of another region.
    pub fn add(&mut self, other: Estimates) {
        if self.configs.is_empty() {
            *self = other;
            return;
        }
        let sum = |all: &mut [f64], more: &[f64]| all.iter_mut().zip(more).for_each(|(a, b)| *a += b);
        sum(&mut self.ideal, &other.ideal);
        self.configs.iter_mut().zip(&other.configs).for_each(|(a, b)| sum(a, b));
        self.means.iter_mut().zip(&other.means).for_each(|(a, b)| *a = a.hypot(*b));
    }
}

impl Caches {
    /// What the errors of the counts since they were last set to 0 follow from.
    pub fn estimates(&self) -> Estimates {
        Estimates {
            ideal: self.ideal.stalls.class_estimates(),
            configs: self.configs.iter().map(|c| c.stalls.class_estimates()).collect(),
            means: self.configs.iter().map(|c| c.stalls.mean_error()).collect(),
        }
    }

    /// The error of configuration `config`, whose overhead is this share of the ideal run's cycles.
    pub fn error(&self, estimates: &Estimates, config: usize, overhead: f64) -> CacheError {
        let (all, ideal) = (&estimates.configs[config], &estimates.ideal);
        let residuals: Vec<f64> = all.iter().zip(ideal).map(|(a, i)| a - (1.0 + overhead) * i).collect();
        let means = NORMAL * estimates.means[config];
        let of = |estimates: &[f64]| half_width(&self.classes, estimates).hypot(means);
        CacheError { half_width_cycles: of(all), half_width_extra_cycles: of(&residuals) }
    }
}

/// Half the width of a 95 % interval in standard errors, for many observations.
const NORMAL: f64 = 1.96;

/// Half the width of the interval around the sum of these classes' estimates.
fn half_width(classes: &Classes, estimates: &[f64]) -> f64 {
    // Of each stratum: the classes' weights, and their estimates for one line.
    let mut strata = vec![Vec::new(); STRATA.len()];
    for (rank, (&line, &estimate)) in classes.lines.iter().zip(estimates).enumerate() {
        // Line 0 stands for itself; with the multiples of 8, it would have their spread.
        if line > 0 {
            let weight = classes.weight(rank) as f64;
            strata[stratum(line.into())].push((weight, estimate / weight));
        }
    }
    let (alone, mut strata): (Vec<_>, Vec<_>) = strata.into_iter().partition(|s| s.len() <= 1);
    strata.push(alone.concat());
    let (mut variance, mut squares) = (0.0, 0.0);
    for s in strata.iter().filter(|s| s.len() > 1) {
        let freedom = s.len() as f64 - 1.0;
        let mean = s.iter().map(|(_, v)| v).sum::<f64>() / s.len() as f64;
        let spread = s.iter().map(|(_, v)| (v - mean).powi(2)).sum::<f64>() / freedom;
        let of = s.iter().map(|(w, _)| w * w).sum::<f64>() * spread;
        variance += of;
        squares += of * of / freedom;
    }
    if variance == 0.0 { 0.0 } else { t_quantile(variance * variance / squares) * variance.sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::CacheMode;
    use crate::cache::classes::Classes;
    use rand::{Rng, SeedableRng};

    fn lines(mode: CacheMode) -> Classes {
        Classes::new(mode, &[], true)
    }

    #[test]
    fn equal_estimates_have_no_error() {
        let sampled = lines(CacheMode::Sampled);
        let of = |value: f64| (0..9).map(|rank| value * sampled.weight(rank) as f64).collect::<Vec<_>>();
        assert_eq!(half_width(&sampled, &of(7.0)), 0.0);
        // Line 0 alone differs.
        assert_eq!(half_width(&sampled, &[&[99.0], &of(7.0)[1..]].concat()), 0.0);
    }

    #[test]
    fn the_interval_has_the_true_sum_19_times_in_20() {
        let mut rng = rand_pcg::Pcg64::seed_from_u64(7);
        let classes = lines(CacheMode::Sampled);
        let mut within = 0;
        const ROUNDS: usize = 4000;
        for _ in 0..ROUNDS {
            // Lines of a stratum have a mean of its own, which four times an odd number and multiples of 8
            // share.
            let means = [5000.0, 1000.0, 1500.0, 3000.0, 3000.0];
            let draw = |rng: &mut rand_pcg::Pcg64, line: u8| {
                means[stratum(line.into())] + 100.0 * (0..4).map(|_| rng.random::<f64>() - 0.5).sum::<f64>()
            };
            let truth: f64 = (0..64).map(|line| means[stratum(line)]).sum();
            let zero = means[0];
            let of = |(rank, &line): (usize, &u8)| match line {
                0 => zero,
                _ => classes.weight(rank) as f64 * draw(&mut rng, line),
            };
            let sample: Vec<f64> = classes.lines.iter().enumerate().map(of).collect();
            within +=
                usize::from((sample.iter().sum::<f64>() - truth).abs() <= half_width(&classes, &sample));
        }
        let share = within as f64 / ROUNDS as f64;
        assert!((0.92..0.985).contains(&share), "{share}");
    }
}
