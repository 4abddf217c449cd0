// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Statistics over runs: mean and spread of a figure, the interval of the mean, the difference of two
//! means, and outliers.
//!
//! Intervals are Student's and Welch's at 95 % (B. L. Welch, "The generalization of 'Student's'
//! problem when several different population variances are involved", Biometrika 34, 1947). Outliers
//! are found by the median absolute deviation (F. R. Hampel, "The influence curve and its
//! role in robust estimation", JASA 69, 1974), because an outlier moves a mean and a standard
//! deviation, and hides behind them.

use schemars::JsonSchema;
use serde::Serialize;
use statrs::distribution::{ContinuousCDF as _, StudentsT};

/// A median absolute deviation times this estimates the standard deviation of normal values.
const MAD_TO_SD: f64 = 1.4826;
/// A run is an outlier beyond this many scaled median absolute deviations from the median. 3, which is common
/// for large samples, would name a run in a quarter of all sets of 5 runs whose values are normal; 5 names a
/// run in an eighth of all sets of 5 runs, and in a thirtieth of all sets of 10 runs.
const MOST_MADS: f64 = 5.0;
/// With fewer runs, the median absolute deviation of normal values is so uncertain that it would
/// often name one.
pub const FEWEST_FOR_OUTLIERS: usize = 5;
/// The rule for outliers, for people.
pub const OUTLIER_RULE: &str = "more than 5 scaled median absolute deviations (1.4826 MAD) from the median of 5 runs \
     or more";

/// Mean and spread of one figure over runs, in the figure's unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "spread")]
pub struct Spread {
    /// Number of runs.
    pub n: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation of a run (divisor n - 1); null for a single run.
    pub sd: Option<f64>,
    /// Half the width of the 95 % t interval of the mean; null for a single run.
    pub ci95: Option<f64>,
    /// Median.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    /// The spread of these values; none without a value.
    pub fn of(values: &[f64]) -> Option<Spread> {
        let (&first, n) = (values.first()?, values.len());
        // From the first value on: equal values have themselves as mean, to the last bit.
        let mean = first + values.iter().map(|v| v - first).sum::<f64>() / n as f64;
        let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        let sd = (n > 1).then(|| (squares / (n - 1) as f64).sqrt());
        Some(Spread {
            n,
            mean,
            sd,
            ci95: sd.map(|sd| t95((n - 1) as f64) * sd / (n as f64).sqrt()),
            median: median(values.to_vec()),
            min: values.iter().copied().fold(first, f64::min),
            max: values.iter().copied().fold(first, f64::max),
        })
    }

    /// Half the width of Welch's 95 % interval of the difference of two means; none unless both have
    /// a spread.
    pub fn welch(&self, other: &Spread) -> Option<f64> {
        let error = |s: &Spread| Some(s.sd?.powi(2) / s.n as f64);
        let (a, b) = (error(self)?, error(other)?);
        if a + b == 0.0 {
            return Some(0.0);
        }
        // Shares of the sum: squares of small variances could vanish.
        let (p, q) = (a / (a + b), b / (a + b));
        let freedom = 1.0 / (p * p / (self.n - 1) as f64 + q * q / (other.n - 1) as f64);
        Some(t95(freedom) * (a + b).sqrt())
    }
}

/// The 97.5 % quantile of Student's t: 95 % lie within it on both sides.
fn t95(freedom: f64) -> f64 {
    let t = StudentsT::new(0.0, 1.0, freedom).expect("degrees of freedom are positive");
    t.inverse_cdf(0.975)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n % 2 == 1 { values[n / 2] } else { values[n / 2 - 1] / 2.0 + values[n / 2] / 2.0 }
}

/// Indices of the outliers among the values, each with its distance from the median in scaled median
/// absolute deviations: infinite where more than half of the values are equal.
pub(crate) fn outliers(values: &[f64]) -> Vec<(usize, f64)> {
    if values.len() < FEWEST_FOR_OUTLIERS {
        return Vec::new();
    }
    let centre = median(values.to_vec());
    let deviations: Vec<f64> = values.iter().map(|v| (v - centre).abs()).collect();
    let scaled_mad = MAD_TO_SD * median(deviations.clone());
    let distance = |d: f64| if d == 0.0 { 0.0 } else { d / scaled_mad };
    let far = |(i, d): (usize, &f64)| (distance(*d) > MOST_MADS).then(|| (i, distance(*d)));
    deviations.iter().enumerate().filter_map(far).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn close(a: f64, b: f64, to: f64) {
        assert!((a - b).abs() <= to, "{a} is not {b}");
    }

    /// Quantiles as tables print them (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2).
    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (freedom, t) in [(1.0, 12.706), (2.0, 4.303), (4.0, 2.776), (9.0, 2.262), (30.0, 2.042)] {
            close(t95(freedom), t, 0.0005);
        }
    }

    /// Student's own data on sleep: R's `t.test(extra ~ group, data = sleep)` gives the mean difference
    /// -1.58 and the 95 % interval from -3.3654832 to 0.2054832.
    #[test]
    fn welchs_interval_is_that_of_the_published_example() {
        let one = Spread::of(&[0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]).unwrap();
        let two = Spread::of(&[1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]).unwrap();
        close(one.mean - two.mean, -1.58, 1e-12);
        close(one.welch(&two).unwrap(), (0.2054832 + 3.3654832) / 2.0, 1e-6);
        close(one.median, 0.35, 1e-12);
    }

    #[test]
    fn one_run_has_no_spread_and_no_run_has_no_mean() {
        assert_eq!(Spread::of(&[]), None);
        let one = Spread::of(&[3.0]).unwrap();
        assert_eq!((one.mean, one.sd, one.ci95, one.median), (3.0, None, None, 3.0));
        assert_eq!(one.welch(&Spread::of(&[1.0, 2.0]).unwrap()), None);
    }

    #[test]
    fn a_run_far_from_all_others_stands_out_and_few_runs_name_none() {
        assert_eq!(outliers(&[1.0, 1.1, 0.9, 1.05, 5.0]).iter().map(|o| o.0).collect::<Vec<_>>(), [4]);
        assert_eq!(outliers(&[1.0, 1.1, 0.9, 1.05]), []);
        assert_eq!(outliers(&[1.0, 1.1, 0.9, 5.0]), []);
        // If most runs agree to the bit, a run that differs is beyond any number of deviations.
        assert_eq!(outliers(&[2.0, 2.0, 2.0, 2.0, 2.1]), [(4, f64::INFINITY)]);
        assert_eq!(outliers(&[2.0; 7]), []);
        // Deviations from the median 3: 2, 1, 0, 1, 97; their median is 1.
        let (i, far) = outliers(&[1.0, 2.0, 3.0, 4.0, 100.0])[0];
        assert_eq!(i, 4);
        close(far, 97.0 / 1.4826, 1e-9);
    }

    proptest! {
        #[test]
        fn spreads_are_as_the_definitions_say(values in prop::collection::vec(-1e6..1e6f64, 2..40)) {
            let s = Spread::of(&values).unwrap();
            let n = values.len() as f64;
            let mean = values.iter().sum::<f64>() / n;
            let sd = (values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1.0)).sqrt();
            close(s.mean, mean, 1e-6);
            close(s.sd.unwrap(), sd, 1e-6);
            prop_assert!(s.min <= s.median && s.median <= s.max);
            prop_assert_eq!(values.iter().filter(|v| **v < s.median).count() * 2 <= values.len(), true);
            prop_assert_eq!(values.iter().filter(|v| **v > s.median).count() * 2 <= values.len(), true);
            // At most half of the values can stand out: the others are within a deviation.
            prop_assert!(outliers(&values).len() * 2 <= values.len());
        }

        #[test]
        fn equal_values_have_no_spread(value in -1e9..1e9f64, n in 1usize..20) {
            let s = Spread::of(&vec![value; n]).unwrap();
            prop_assert_eq!((s.mean, s.min, s.max), (value, value, value));
            prop_assert_eq!(s.sd.unwrap_or(0.0), 0.0);
            prop_assert_eq!(s.welch(&s).unwrap_or(0.0), 0.0);
        }

        /// Both of equal size and spread: Welch's interval is Student's with twice the freedom.
        #[test]
        fn welch_and_student_agree_where_they_must(values in prop::collection::vec(-1e3..1e3f64, 2..20), by in -9.0..9.0f64) {
            let a = Spread::of(&values).unwrap();
            let b = Spread { mean: a.mean + by, ..a };
            let pooled = t95(2.0 * (a.n - 1) as f64) * a.sd.unwrap() * (2.0 / a.n as f64).sqrt();
            close(a.welch(&b).unwrap(), pooled, 1e-6);
            prop_assert_eq!(a.welch(&b), b.welch(&a));
        }
    }
}
