// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The error that sampling some classes of lines makes.
//!
//! The classes are a sample of the 63 beside line 0, without replacement. So the sum over all classes is
//! estimated with a standard error of sqrt(k (1 - k/63)) times the spread of the k classes' estimates
//! (Cochran, Sampling Techniques, 3rd ed., 2.6), and a 95 % interval takes Student's t for k - 1 degrees.

use super::Caches;
use crate::estimate::t_quantile;
use serde::{Deserialize, Serialize};

/// The error of a configuration's cycles from sampled caches.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CacheError {
    /// Half the width of the 95 % interval around the configuration's cycles, in cycles.
    pub half_width_cycles: f64,
}

impl Caches {
    /// The error of configuration `config`'s cycles; 0 where every line is simulated.
    pub fn error(&self, config: usize) -> CacheError {
        let m = &self.memory;
        let stalls = &self.configs[config].stalls;
        let classes = half_width(&stalls.class_estimates(m.data_overlap, m.walk_overlap));
        let means = NORMAL * stalls.mean_error();
        CacheError { half_width_cycles: classes.hypot(means) }
    }
}

/// Half the width of a 95 % interval in standard errors, for many observations.
const NORMAL: f64 = 1.96;
/// Classes that are sampled from.
const CLASSES: f64 = 63.0;

fn half_width(estimates: &[f64]) -> f64 {
    let k = estimates.len() as f64;
    if estimates.len() < 2 || k >= CLASSES {
        return 0.0;
    }
    let mean = estimates.iter().sum::<f64>() / k;
    let variance = estimates.iter().map(|e| (e - mean).powi(2)).sum::<f64>() / (k - 1.0);
    t_quantile(k - 1.0) * (k * (1.0 - k / CLASSES) * variance).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::seq::SliceRandom;
    use rand::{Rng, SeedableRng};

    #[test]
    fn all_classes_have_no_error_and_equal_ones_neither() {
        assert_eq!(half_width(&[7.0; 4]), 0.0);
        let all: Vec<f64> = (0..63).map(f64::from).collect();
        assert_eq!(half_width(&all), 0.0);
    }

    #[test]
    fn the_interval_has_the_true_sum_19_times_in_20() {
        let mut rng = rand_pcg::Pcg64::seed_from_u64(7);
        let mut within = 0;
        const ROUNDS: usize = 2000;
        for _ in 0..ROUNDS {
            let mut all: Vec<f64> = (0..63).map(|_| 1000.0 + 100.0 * rng.random::<f64>()).collect();
            let truth: f64 = all.iter().sum();
            all.shuffle(&mut rng);
            let sample: Vec<f64> = all[..7].iter().map(|c| c * 9.0).collect();
            let estimate: f64 = sample.iter().sum();
            within += usize::from((estimate - truth).abs() <= half_width(&sample));
        }
        assert!((0.93..0.97).contains(&(within as f64 / ROUNDS as f64)), "{within} of {ROUNDS}");
    }
}
