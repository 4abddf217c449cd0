// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Medians with intervals that assume no distribution, and rank correlation.

use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, DiscreteCDF};

/// A median and the interval that holds the true one with at least 95 % confidence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Median {
    /// The median.
    pub middle: f64,
    /// The interval; `None` for fewer than 6 values, which no such interval exists for.
    pub interval: Option<(f64, f64)>,
    /// Number of values.
    pub n: usize,
}

/// The median of `values` and its interval from order statistics: the k-th smallest and the k-th largest
/// value with the largest k for which fewer than k of n fair coins show heads with probability 2.5 % at most.
///
/// # Panics
/// If there are no values.
pub fn median(values: &[f64]) -> Median {
    assert!(!values.is_empty(), "a median needs values");
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    let n = v.len();
    let middle = if n % 2 == 1 { v[n / 2] } else { (v[n / 2 - 1] + v[n / 2]) / 2.0 };
    let coins = Binomial::new(0.5, n as u64).expect("0.5 is a probability");
    let k = (1..=n / 2).rev().find(|&k| coins.cdf(k as u64 - 1) <= 0.025);
    Median { middle, interval: k.map(|k| (v[k - 1], v[n - k])), n }
}

/// Ranks from 1 on; equal values share the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let less = |x: f64| values.iter().filter(|&&y| y < x).count() as f64;
    let equal = |x: f64| values.iter().filter(|&&y| y == x).count() as f64;
    values.iter().map(|&x| less(x) + (equal(x) + 1.0) / 2.0).collect()
}

/// Spearman's rank correlation; `None` if one side has fewer than two different values.
pub fn spearman(a: &[f64], b: &[f64]) -> Option<f64> {
    assert_eq!(a.len(), b.len(), "ranks are compared in pairs");
    let (a, b) = (ranks(a), ranks(b));
    let mean = (a.len() as f64 + 1.0) / 2.0;
    let sum = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| (x - mean) * (y - mean)).sum::<f64>();
    let scale = (sum(&a, &a) * sum(&b, &b)).sqrt();
    (scale > 0.0).then(|| sum(&a, &b) / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_the_ranks_of_the_published_tables() {
        // Conover, Practical Nonparametric Statistics: ranks of a 95 % interval for the median.
        for (n, low, high) in [(6, 1, 6), (7, 1, 7), (9, 2, 8), (11, 2, 10), (15, 4, 12), (20, 6, 15)] {
            let values: Vec<f64> = (1..=n).rev().map(f64::from).collect();
            assert_eq!(median(&values).interval, Some((f64::from(low), f64::from(high))), "{n}");
        }
    }

    #[test]
    fn few_values_have_a_median_and_no_interval() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Median { middle: 2.0, interval: None, n: 3 });
        assert_eq!(median(&[4.0, 1.0]).middle, 2.5);
    }

    #[test]
    fn rank_correlation_ignores_scale_and_shares_ties() {
        assert_eq!(spearman(&[1.0, 2.0, 3.0, 4.0], &[1.0, 10.0, 100.0, 1e6]), Some(1.0));
        assert_eq!(spearman(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), Some(-1.0));
        assert_eq!(spearman(&[1.0, 1.0], &[1.0, 2.0]), None);
        // 1 - 6 * sum(d^2) / (n (n^2 - 1)) with d = 1, 1, 0, 0, 0.
        assert!(
            (spearman(&[1.0, 2.0, 3.0, 4.0, 5.0], &[2.0, 1.0, 3.0, 4.0, 5.0]).unwrap() - 0.9).abs() < 1e-12
        );
        assert_eq!(ranks(&[5.0, 1.0, 5.0]), [2.5, 1.0, 2.5]);
    }
}
