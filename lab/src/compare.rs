// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How near predictions are to counts.

/// What a prediction may be apart from a count.
#[derive(Debug, Clone, Copy)]
pub struct Tolerance {
    /// A share of the count.
    pub share: f64,
    /// Or this number, where both numbers are below the next one.
    pub counts: f64,
    /// The number below which a difference is judged by `counts`, too.
    pub below: f64,
}

/// Below this number of exits, the difference decides and not the ratio.
pub const FEW: f64 = 200.0;

/// Exits are close within 5 %, or within 10 where there are few.
pub const CLOSE: Tolerance = Tolerance { share: 0.05, counts: 10.0, below: FEW };

impl Tolerance {
    /// Whether the prediction is as near as that.
    pub fn holds(self, predicted: f64, counted: f64) -> bool {
        let apart = (predicted - counted).abs();
        apart <= self.share * counted || (apart <= self.counts && predicted.max(counted) < self.below)
    }
}

/// Mean of the runs; 0 without one.
pub fn mean(runs: &[f64]) -> f64 {
    runs.iter().sum::<f64>() / runs.len().max(1) as f64
}
