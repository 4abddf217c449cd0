// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Estimates for a whole run from windows of it: the mean over windows and its confidence interval.
//!
//! One window is drawn at random within every period. This is stratified sampling with one unit per
//! stratum, and its variance has no unbiased estimator. The differences between neighbouring windows
//! give an estimate without the variance of slow program phases, which errs on the wide side
//! otherwise (Wolter, Introduction to Variance Estimation, 2nd ed. 2007, section 8.2, estimator v2).
//! SMARTS (Wunderlich et al., ISCA 2003) takes windows at fixed distances and the variance of a
//! simple random sample; for a program of two long phases that interval is far too wide.
//!
//! Where periods differ in length, window i stands for the share a(i) of the instructions that its period
//! has, and the mean is the sum of a(i) x(i). With d(i) = x(i+1) - x(i) and b(i) = a(i) a(i+1), the variance
//! of a window is s^2 = sum of b(i) d(i)^2 / (2 sum of b(i)), and that of the mean s^2 times the sum of
//! a(i)^2. Of n equal periods this is v2.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// The share of runs whose true value lies within the interval.
pub const CONFIDENCE: f64 = 0.95;

/// The mean of a value over windows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Mean {
    /// How many windows were measured.
    pub windows: u64,
    /// The mean. Unit: cycles per instruction.
    pub mean: f64,
    /// Standard deviation of the windows. Unit: cycles per instruction.
    pub sd: f64,
    /// Half the width of the mean's 95 % interval; null with fewer than 3 windows. Unit: cycles per
    /// instruction.
    pub half_width: Option<f64>,
}

impl Mean {
    /// Cycles per instruction over windows of (cycles, instructions, weight): all cycles over all
    /// instructions, each window as often as its weight says. A window's deviation counts by its length.
    pub fn per_instruction(windows: &[(u64, u64, u64)]) -> Mean {
        let sum =
            |f: fn(&(u64, u64, u64)) -> u64| windows.iter().map(|w| f(w) as f64 * w.2 as f64).sum::<f64>();
        let (cycles, instructions, weights) = (sum(|w| w.0), sum(|w| w.1), sum(|_| 1));
        if instructions == 0.0 {
            return Mean::of(&[]);
        }
        let (rate, length) = (cycles / instructions, instructions / weights);
        let value =
            |&(c, n, w): &(u64, u64, u64)| (rate + (c as f64 - rate * n as f64) / length, w as f64 / weights);
        Mean::of(&windows.iter().map(value).collect::<Vec<_>>())
    }

    /// The mean of these values, in the order of time, each with its weight. The weights sum to 1.
    pub fn of(values: &[(f64, f64)]) -> Mean {
        let mean = values.iter().map(|(x, a)| x * a).fold(0.0, |sum, x| sum + x);
        let pairs: Vec<f64> = values.windows(2).map(|w| w[0].1 * w[1].1).collect();
        let differences = values.windows(2).map(|w| (w[1].0 - w[0].0).powi(2));
        let squares: f64 = pairs.iter().zip(differences).map(|(b, d)| b * d).sum();
        let sd = if pairs.is_empty() { 0.0 } else { (squares / (2.0 * pairs.iter().sum::<f64>())).sqrt() };
        let of_mean: f64 = values.iter().map(|(_, a)| a * a).sum();
        let half_width = (values.len() >= 3).then(|| t_quantile(freedom(&pairs)) * sd * of_mean.sqrt());
        Mean { windows: values.len() as u64, mean, sd, half_width }
    }
}

/// Degrees of freedom of a variance from the differences of successive normal values, which have these
/// weights. The covariance of two neighbouring differences is minus the variance, so the estimator's relative
/// variance is (2 sum of b(i)^2 + sum of b(i) b(i+1)) / (sum of b(i))^2, and that of k degrees of freedom is
/// 2 / k. For n values of equal weight it is (3n - 4) / (n - 1)^2 (von Neumann et al., Ann. Math. Statist.
/// 12, 1941).
fn freedom(pairs: &[f64]) -> f64 {
    let sum: f64 = pairs.iter().sum();
    let own: f64 = pairs.iter().map(|b| b * b).sum();
    let neighbours: f64 = pairs.windows(2).map(|b| b[0] * b[1]).sum();
    2.0 * sum * sum / (2.0 * own + neighbours)
}

/// The value that a t distribution stays below, in absolute value, with [`CONFIDENCE`].
pub(crate) fn t_quantile(freedom: f64) -> f64 {
    let t = StudentsT::new(0.0, 1.0, freedom).expect("freedom is above 0 from 3 values on");
    t.inverse_cdf(0.5 + CONFIDENCE / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_mean_has_the_interval_that_a_table_of_t_gives() {
        // 4 degrees of freedom in a table: 2.776; 100: 1.984.
        assert!((t_quantile(4.0) - 2.776).abs() < 1e-3);
        assert!((t_quantile(100.0) - 1.984).abs() < 1e-3);
        let m = Mean::of(&equal(&[1.0, 3.0, 1.0, 3.0]));
        assert_eq!((m.windows, m.mean), (4, 2.0));
        assert!((m.sd - 2f64.sqrt()).abs() < 1e-12);
        assert!((m.half_width.unwrap() - t_quantile(18.0 / 8.0) * 2f64.sqrt() / 2.0).abs() < 1e-12);
    }

    /// These values with equal weights.
    fn equal(values: &[f64]) -> Vec<(f64, f64)> {
        values.iter().map(|v| (*v, 1.0 / values.len() as f64)).collect()
    }

    #[test]
    fn a_window_counts_as_its_period() {
        // The second counts three times.
        let m = Mean::per_instruction(&[(10, 100, 1), (50, 100, 3), (20, 100, 1)]);
        assert!((m.mean - 180.0 / 500.0).abs() < 1e-12);
        // By hand: b is 3/25 twice, d is 0.4 and -0.3, the sum of a^2 11/25, and k 8/5.
        let sd = (0.25f64 / 4.0).sqrt();
        assert!((m.sd - sd).abs() < 1e-12, "{}", m.sd);
        assert!((m.half_width.unwrap() - t_quantile(1.6) * sd * (11.0f64 / 25.0).sqrt()).abs() < 1e-9);
    }

    #[test]
    fn a_short_window_weighs_little() {
        let m = Mean::per_instruction(&[(500, 1000, 1), (500, 1000, 1), (9, 1, 1), (500, 1000, 1)]);
        assert!((m.mean - 1509.0 / 3001.0).abs() < 1e-12);
        assert!(m.sd < 0.5, "{}", m.sd);
        assert_eq!(Mean::per_instruction(&[(3, 0, 1)]).windows, 0);
        let long = Mean::per_instruction(&[(1, 10, 7), (3, 10, 7), (1, 10, 7), (3, 10, 7)]);
        assert!((long.sd - Mean::of(&equal(&[0.1, 0.3, 0.1, 0.3])).sd).abs() < 1e-12);
    }

    #[test]
    fn few_windows_have_no_interval() {
        assert_eq!(Mean::of(&[]).mean, 0.0);
        assert_eq!(Mean::of(&equal(&[4.0])).half_width, None);
        assert_eq!(Mean::of(&equal(&[4.0, 5.0])).half_width, None);
        assert_eq!(Mean::of(&equal(&[4.0; 3])).half_width, Some(0.0));
    }

    /// Numbers from 0 to 1 that any machine repeats.
    fn noise(seed: u64) -> impl FnMut() -> f64 {
        let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move || {
            x ^= x >> 12;
            x ^= x << 25;
            x ^= x >> 27;
            (x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    /// The share of 2000 runs with `n` windows whose interval contains the true mean.
    fn coverage(n: usize, value: impl Fn(f64, &mut dyn FnMut() -> f64) -> f64, truth: f64) -> f64 {
        coverage_of(&vec![1.0; n], value, truth)
    }

    /// The same with periods of these lengths.
    fn coverage_of(periods: &[f64], value: impl Fn(f64, &mut dyn FnMut() -> f64) -> f64, truth: f64) -> f64 {
        let all: f64 = periods.iter().sum();
        let within = (1..=2000u64).filter(|&seed| {
            let (mut random, mut begins) = (noise(seed), 0.0);
            let values: Vec<(f64, f64)> = periods
                .iter()
                .map(|period| {
                    // A place within the period.
                    let at = (begins + period * random()) / all;
                    begins += period;
                    (value(at, &mut random), period / all)
                })
                .collect();
            let m = Mean::of(&values);
            (m.mean - truth).abs() <= m.half_width.unwrap()
        });
        within.count() as f64 / 2000.0
    }

    #[test]
    fn the_true_mean_lies_within_the_interval_19_times_in_20() {
        // A steady program, whose windows differ at random.
        for n in [8, 20, 100] {
            let c = coverage(n, |_, r| r() + r() + r(), 1.5);
            assert!((0.935..=0.965).contains(&c), "{n}: {c}");
        }
        // One whose rate grows all the time, and one of two phases: at least as often.
        let c = coverage(20, |at, r| 10.0 * at + r(), 5.5);
        assert!(c >= 0.94, "{c}");
        let c = coverage(30, |at, r| if at < 0.37 { 9.0 + r() } else { r() }, 0.37 * 9.0 + 0.5);
        assert!(c >= 0.94, "{c}");
    }

    #[test]
    fn the_interval_is_as_good_where_periods_double() {
        for n in [8, 40, 80] {
            let periods: Vec<f64> = (0..n).map(|i| f64::from(1 << (i / 8))).collect();
            let c = coverage_of(&periods, |_, r| r() + r() + r(), 1.5);
            assert!((0.93..=0.965).contains(&c), "{n}: {c}");
            let c = coverage_of(&periods, |at, r| 10.0 * at + r(), 5.5);
            assert!(c >= 0.94, "{n}: {c}");
        }
    }

    #[test]
    fn a_long_phase_does_not_make_the_interval_wide() {
        let mut random = noise(7);
        let values: Vec<f64> = (0..100).map(|i| random() + if i < 50 { 10.0 } else { 0.0 }).collect();
        let m = Mean::of(&equal(&values));
        let plain = (values.iter().map(|v| (v - m.mean).powi(2)).sum::<f64>() / 99.0).sqrt();
        assert!(m.sd < plain / 4.0, "{} {plain}", m.sd);
    }

    proptest! {
        #[test]
        fn a_mean_follows_scale_and_shift(
            values in proptest::collection::vec(-1e6..1e6f64, 3..50), scale in 0.1..10.0f64, shift in -1e6..1e6f64
        ) {
            let moved: Vec<f64> = values.iter().map(|v| v * scale + shift).collect();
            let (a, b) = (Mean::of(&equal(&values)), Mean::of(&equal(&moved)));
            let near = |x: f64, y: f64| (x - y).abs() <= 1e-6 * (1.0 + x.abs() + y.abs());
            prop_assert!(near(a.mean * scale + shift, b.mean));
            prop_assert!((a.sd * scale - b.sd).abs() <= 1e-3 + 1e-6 * b.sd);
            prop_assert!(a.half_width.unwrap() >= 0.0);
        }
    }
}
