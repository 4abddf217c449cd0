// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The mean of several runs with its Student-t interval at 97 %, the level of the paper whose placements are
//! compared.

use std::fmt;

use statrs::distribution::{ContinuousCDF as _, StudentsT};

/// The level.
pub const LEVEL: f64 = 0.97;

/// A mean, and half of its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The arithmetic mean.
    pub mean: f64,
    /// Half of the interval; `None` for one value.
    pub half: Option<f64>,
}

impl Interval {
    /// The interval of the mean of these values; `None` without values.
    pub fn of(values: &[f64]) -> Option<Interval> {
        let n = values.len() as f64;
        if values.is_empty() {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        let t = StudentsT::new(0.0, 1.0, n - 1.0).ok().map(|t| t.inverse_cdf(0.5 + LEVEL / 2.0));
        Some(Interval { mean, half: t.map(|t| t * (squares / (n - 1.0) / n).sqrt()) })
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.half {
            Some(half) if half != 0.0 => write!(f, "{:.0} ± {half:.0}", self.mean),
            _ => write!(f, "{:.0}", self.mean),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The 98.5 % quantiles of t for 2 and 9 degrees of freedom are 5.643 and 2.574 (R:
    /// `qt(0.985, c(2, 9))`).
    #[test]
    fn the_interval_is_that_of_the_quantiles_of_t() {
        let three = Interval::of(&[1.0, 2.0, 3.0]).unwrap();
        assert!((three.mean - 2.0).abs() < 1e-12);
        assert!((three.half.unwrap() - 5.6428 / 3f64.sqrt()).abs() < 1e-3, "{three:?}");
        let ten: Vec<f64> = (0..10).map(f64::from).collect();
        let ten = Interval::of(&ten).unwrap();
        assert!((ten.half.unwrap() - 2.5738 * (82.5f64 / 9.0 / 10.0).sqrt()).abs() < 1e-3, "{ten:?}");
    }

    #[test]
    fn one_value_has_no_interval_and_none_no_mean() {
        assert_eq!(Interval::of(&[]), None);
        let one = Interval::of(&[7.0]).unwrap();
        assert_eq!((one.half, one.to_string()), (None, "7".into()));
        assert_eq!(Interval::of(&[7.0, 7.0]).unwrap().to_string(), "7");
        assert!(Interval::of(&[7.0, 9.0]).unwrap().to_string().starts_with("8 ± "));
    }
}
